"""Built-in functions and native methods that end in special methods of the items they are given.

Native code would run those methods for real, unseen: so where an item's class is Python, its comparisons, truth, sums
and texts are taken one by one in the interpreter.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from lampwork.capture.model.values import PLAIN
from lampwork.capture.semantics.iteration import Walked, iterate, native_iterable, native_view
from lampwork.capture.semantics.keys import check_key, is_same
from lampwork.capture.semantics.protocols import (
    binary,
    compare,
    contains,
    equal,
    find,
    get_item,
    set_item,
    truth,
)
from lampwork.capture.semantics.repr_proxy import repr_proxy
from lampwork.graph.tracetensor import TraceTensor

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

Args = list[Any]
Kwargs = dict[str, Any]

_ADD = 0


class Ordered:
    """A value as native sorting sees it: `<` comes back into the interpreter."""

    __slots__ = ("interpreter", "less", "value")

    def __init__(self, interpreter: Interpreter, value: Any, less: Callable[[Any, Any], bool]) -> None:
        self.interpreter = interpreter
        self.value = value
        self.less = less

    def __lt__(self, other: Ordered) -> bool:
        return self.less(self.value, other.value)


class ComparisonKey:
    """What functools.cmp_to_key gives."""

    __slots__ = ("function", "interpreter")

    def __init__(self, interpreter: Interpreter, function: Any) -> None:
        self.interpreter = interpreter
        self.function = function

    def less(self, left: Any, right: Any) -> bool:
        order = self.interpreter.call(self.function, [left, right], {})
        return truth(self.interpreter, compare(self.interpreter, "<", order, 0))

    def __call__(self, value: Any) -> Ordered:
        return Ordered(self.interpreter, value, self.less)


def call_cmp_to_key(interp: Interpreter, args: Args, kwargs: Kwargs) -> ComparisonKey:
    return ComparisonKey(interp, interp.force(args[0] if args else kwargs["mycmp"]))


def call_any(interp: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    return any(truth(interp, item) for item in iterate(interp, interp.force(args[0])))


def call_all(interp: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    return all(truth(interp, item) for item in iterate(interp, interp.force(args[0])))


def call_sum(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    values = [interp.force(a) for a in args]
    total = interp.force(kwargs["start"]) if "start" in kwargs else values[1] if len(values) > 1 else 0
    items = list(iterate(interp, values[0]))
    if isinstance(total, str) or all(type(item) in (int, float, complex, bool) for item in (*items, total)):
        return sum(items, total)
    for item in items:
        total = binary(interp, _ADD, total, item)
    return total


def call_extreme(symbol: str, native: Callable[..., Any]) -> Callable[[Any, Args, Kwargs], Any]:
    """max (`>`) and min (`<`)."""

    def extreme(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        values = [interp.force(a) for a in args]
        if not values:
            return native()
        key = interp.force(kwargs.get("key"))
        items = list(iterate(interp, values[0])) if len(values) == 1 else values
        if not items or (len(values) > 1 and "default" in kwargs) or kwargs.keys() - {"key", "default"}:
            return native(
                *(values if len(values) > 1 else [items]), **{k: interp.force(v) for k, v in kwargs.items()}
            )
        best, best_key = items[0], _key_of(interp, key, items[0])
        for item in items[1:]:
            item_key = _key_of(interp, key, item)
            if truth(interp, compare(interp, symbol, item_key, best_key)):
                best, best_key = item, item_key
        return best

    return extreme


def _key_of(interp: Interpreter, key: Any, item: Any) -> Any:
    return item if key is None else interp.call(key, [item], {})


def call_sorted(interp: Interpreter, args: Args, kwargs: Kwargs) -> list[Any]:
    if len(args) != 1 or kwargs.keys() - {"key", "reverse"}:
        return sorted(*args, **kwargs)
    items = list(native_iterable(interp, interp.force(args[0])))
    sort(interp, items, kwargs)
    return items


def sort(interp: Interpreter, items: list[Any], kwargs: Kwargs) -> None:
    """items.sort(**kwargs). Meanwhile the list is empty, as Python has it.

    Raises:
        ValueError: a key or a comparison wrote to the list.
    """
    key = interp.force(kwargs.get("key"))
    reverse = truth(interp, interp.force(kwargs.get("reverse", False)))

    def less(left: Any, right: Any) -> bool:
        return truth(interp, compare(interp, "<", left, right))

    def ordered(item: Any) -> Any:
        made = _key_of(interp, key, item)
        return made if type(made) in (int, float, str, bool, Ordered) else Ordered(interp, made, less)

    taken = list(items)
    order = list(range(len(taken)))
    items.clear()
    try:
        keys = [ordered(item) for item in taken]
        if any(type(k) is Ordered for k in keys):
            keys = [k if type(k) is Ordered else Ordered(interp, k, less) for k in keys]
        # In place: where a comparison raises, what was sorted by then stays so.
        order.sort(key=keys.__getitem__, reverse=reverse)
    finally:
        written = bool(items)
        items[:] = [taken[i] for i in order]
    if written:
        raise ValueError("list modified during sort")


def call_set(kind: type) -> Callable[[Any, Args, Kwargs], Any]:
    """set() and frozenset()."""

    def make(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        values = [interp.force(a) for a in args]
        if len(values) != 1 or kwargs:
            return kind(*values, **kwargs)
        return kind(set_operand(interp, values[0]))

    return make


def set_operand(interp: Interpreter, value: Any) -> Any:
    """What sets take items from. They read other sets and dicts as they lie, whatever a subclass of set makes of
    `__iter__`."""
    found: list[Any] = []

    def check(item: Any) -> None:
        check_key(interp, item, found)
        found.append(item)

    base = next((base for base in (set, frozenset) if isinstance(value, base)), None)
    if base is None and type(value) is not dict:
        return Walked(interp, value, check)
    held: Any = value if type(value) in PLAIN else native_view(interp, value)
    for item in (base or dict).__iter__(held):
        check(item)
    return held


# --- methods of containers --------------------------------------------------------------------------------------------


def call_index(interp: Interpreter, owner: Any, values: Args) -> int:
    """owner.index(value, start, stop) of a list, tuple or deque."""
    start, stop, _ = slice(*(values[1:3] if len(values) > 2 else [*values[1:], None])).indices(len(owner))
    found = find(interp, list(owner)[start:stop], values[0])
    return start + found if found >= 0 else _empty(owner).index(repr_proxy(interp, values[0]))


def call_count(interp: Interpreter, owner: Any, values: Args) -> int:
    return sum(is_same(interp, item, values[0]) or equal(interp, item, values[0]) for item in owner)


def call_remove(interp: Interpreter, owner: Any, values: Args) -> None:
    found = find(interp, owner, values[0])
    if found < 0:
        _empty(owner).remove(None)
    del owner[found]


def _empty(owner: Any) -> Any:
    """A container in which nothing is found: it raises in the words of its type, and compares no items."""
    return next(
        kind for kind in (list, tuple, collections.deque, set, frozenset) if isinstance(owner, kind)
    )()


def call_count_elements(interp: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """What collections.Counter counts with."""
    table, items = (interp.force(a) for a in args)
    for item in iterate(interp, items):
        count = get_item(interp, table, item) if contains(interp, item, table) else 0
        set_item(interp, table, item, binary(interp, _ADD, count, 1))


_SEARCHES: dict[str, Callable[[Any, Any, Args], Any]] = {
    "index": call_index,
    "count": call_count,
    "remove": call_remove,
}
_KEYED = frozenset({"get", "pop", "setdefault", "__getitem__", "__setitem__", "__delitem__", "__contains__"})
_SET_OPERATIONS = frozenset(
    {
        "update", "union", "intersection", "difference", "symmetric_difference", "intersection_update",
        "difference_update", "symmetric_difference_update", "issubset", "issuperset", "isdisjoint", "__init__",
    }
)  # fmt: skip
_MEMBERS = frozenset({"add", "discard", "remove", "__contains__"})


def container_method(interp: Interpreter, owner: Any, name: str, values: Args, kwargs: Kwargs) -> Any:
    """A method of a container that compares its items, if native code could not do it unseen; else NotImplemented."""
    if isinstance(owner, dict):
        if name in _KEYED and values:
            check_key(interp, values[0], cast("dict[Any, Any]", owner))
        return NotImplemented
    if isinstance(owner, (set, frozenset)):
        if name in _MEMBERS and values:
            check_key(interp, values[0], cast("set[Any]", owner))
        elif name in _SET_OPERATIONS:
            operands = [set_operand(interp, v) for v in values]
            return getattr(type(_empty(owner)), name)(owner, *operands, **kwargs)
        return NotImplemented
    if name == "sort" and not values and kwargs.keys() <= {"key", "reverse"}:
        sort(interp, owner, kwargs)
        return None
    search = _SEARCHES.get(name)
    if search is None or not values:
        return NotImplemented
    if all(type(item) in PLAIN and type(item) is not TraceTensor for item in (*owner, values[0])):
        return NotImplemented
    return search(interp, native_view(interp, owner) if name != "remove" else owner, values)
