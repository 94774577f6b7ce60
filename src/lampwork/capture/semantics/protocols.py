"""The operators of Python on the values of a region: natively on native types, else by dunder methods."""

from __future__ import annotations

import collections
import enum
import operator
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import DictItem, Known
from lampwork.capture.model.values import CONSTANTS, PLAIN, Generator, Lazy, is_constant
from lampwork.capture.semantics.attributes import MISSING, load_attr, read_state
from lampwork.capture.semantics.keys import check_key, guard_distinct, is_same
from lampwork.capture.semantics.repr_proxy import shown
from lampwork.capture.semantics.symbolic import operate
from lampwork.capture.state.enumerations import guard_enumeration
from lampwork.capture.state.guards import mapping_behind
from lampwork.graph.tracetensor import TraceTensor

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

Binary = Callable[[Any, Any], Any]

_NESTED = (list, tuple, dict)
_HASHED = (dict, set, frozenset, type({}.keys()))

BINARY: tuple[tuple[str, Binary], ...] = (
    ("add", operator.add),
    ("and", operator.and_),
    ("floordiv", operator.floordiv),
    ("lshift", operator.lshift),
    ("matmul", operator.matmul),
    ("mul", operator.mul),
    ("mod", operator.mod),
    ("or", operator.or_),
    ("pow", operator.pow),
    ("rshift", operator.rshift),
    ("sub", operator.sub),
    ("truediv", operator.truediv),
    ("xor", operator.xor),
    ("iadd", operator.iadd),
    ("iand", operator.iand),
    ("ifloordiv", operator.ifloordiv),
    ("ilshift", operator.ilshift),
    ("imatmul", operator.imatmul),
    ("imul", operator.imul),
    ("imod", operator.imod),
    ("ior", operator.ior),
    ("ipow", operator.ipow),
    ("irshift", operator.irshift),
    ("isub", operator.isub),
    ("itruediv", operator.itruediv),
    ("ixor", operator.ixor),
)
# Of the first 13 operators, as error messages name them; the others are their in-place forms.
SYMBOLS = ("+", "&", "//", "<<", "@", "*", "%", "|", "** or pow()", ">>", "-", "/", "^")
COMPARE: dict[str, tuple[str, str, Binary]] = {
    "<": ("__lt__", "__gt__", operator.lt),
    "<=": ("__le__", "__ge__", operator.le),
    "==": ("__eq__", "__eq__", operator.eq),
    "!=": ("__ne__", "__ne__", operator.ne),
    ">": ("__gt__", "__lt__", operator.gt),
    ">=": ("__ge__", "__le__", operator.ge),
}


def binary(interp: Interpreter, number: int, left: Any, right: Any) -> Any:
    """The binary operator `number` of BINARY_OP."""
    name, function = BINARY[number]
    symbol = SYMBOLS[number % 13] + ("=" if number >= 13 else "")
    if type(left) is str and symbol in ("%", "%="):
        return left % shown(interp, right)
    if type(left) in PLAIN and type(right) in PLAIN:
        interp.recorder.location = interp.user_location()
        return operate(function, left, right)
    if number >= 13:
        in_place, _ = interp.lookup(type(left), f"__{name}__")
        if isinstance(in_place, types.FunctionType):
            result = interp.call(in_place, [left, right], {})
            if result is not NotImplemented:
                return result
        elif in_place is not MISSING:
            _may_write(interp, left)
            return function(left, native_iterable(interp, right))
        name, function = BINARY[number - 13]
    return two_sided(interp, f"__{name}__", f"__r{name}__", function, left, right, symbol)


def compare(interp: Interpreter, symbol: str, left: Any, right: Any) -> Any:
    """`left symbol right`."""
    name, reflected, function = COMPARE[symbol]
    if type(left) in PLAIN and type(right) in PLAIN:
        if (
            type(left) is type(right)
            and type(left) in _NESTED
            and not (_inert(interp, left) and _inert(interp, right))
        ):
            return _compare_items(interp, symbol, left, right)
        interp.recorder.location = interp.user_location()
        return operate(function, left, right)
    return two_sided(interp, name, reflected, function, left, right, symbol)


def equal(interp: Interpreter, left: Any, right: Any) -> bool:
    """bool(left == right)."""
    return truth(interp, compare(interp, "==", left, right))


def _inert(interp: Interpreter, value: Any) -> bool:
    """Whether native code may compare a value: there are no Python methods in it."""
    if type(value) is dict:
        return all(_inert(interp, item) for item in cast("dict[Any, Any]", value).values())
    if type(value) in (list, tuple):
        return all(_inert(interp, item) for item in value)
    # What is equal only to itself must be told from the others on later calls, too.
    return type(value) in PLAIN or is_constant(value)


def _compare_items(interp: Interpreter, symbol: str, left: Any, right: Any) -> Any:
    """`left symbol right` of two lists, two tuples or two dicts."""
    if symbol in ("==", "!="):
        return _same_items(interp, left, right) == (symbol == "==")
    if type(left) is dict:
        return COMPARE[symbol][2](left, right)  # raises
    for a, b in zip(left, right, strict=False):
        if not is_same(interp, a, b) and not equal(interp, a, b):
            return compare(interp, symbol, a, b)
    return COMPARE[symbol][2](len(left), len(right))


def _same_items(interp: Interpreter, left: Any, right: Any) -> bool:
    if len(left) != len(right):
        return False
    if type(left) is not dict:
        return all(is_same(interp, a, b) or equal(interp, a, b) for a, b in zip(left, right, strict=True))
    return all(
        contains(interp, key, right) and (is_same(interp, a, right[key]) or equal(interp, a, right[key]))
        for key, a in left.items()
    )


def find(interp: Interpreter, items: Iterable[Any], value: Any) -> int:
    """The position of the first item that is `value` or equal to it; -1 if there is none."""
    for i, item in enumerate(items):
        if is_same(interp, item, value) or equal(interp, item, value):
            return i
    return -1


def two_sided(
    interp: Interpreter, name: str, reflected: str, function: Binary, left: Any, right: Any, symbol: str
) -> Any:
    """left.name(right), else right.reflected(left), the reflected one first if right's class is a subclass that
    overrides it, and not at all for two of one class unless they are compared; natively if neither is Python."""
    mine = interp.python_method(type(left), name)
    theirs = interp.python_method(type(right), reflected)
    if mine is None and theirs is None:
        for value in (left, right):
            if type(value) is types.SimpleNamespace:
                read_state(interp, value)  # native code compares all of it
        if symbol in ("==", "!="):
            guard_distinct(interp, left, right)
        interp.recorder.location = interp.user_location()
        return function(left, right)
    attempts = [(mine, left, right), (theirs, right, left)]
    compared = symbol in COMPARE
    if type(right) is type(left):
        attempts = attempts if compared else attempts[:1]
    elif issubclass(type(right), type(left)) and theirs is not None:
        overridden = interp.lookup(type(left), reflected)[0] is not interp.lookup(type(right), reflected)[0]
        if compared or overridden:
            attempts.reverse()
    for method, receiver, other in attempts:
        if method is not None:
            result = interp.call(method, [receiver, other], {})
            if result is not NotImplemented:
                return result
        else:
            native, _ = interp.lookup(type(receiver), name if receiver is left else reflected)
            if native is not MISSING:
                result = native(receiver, other)
                if result is not NotImplemented:
                    return result
    if function in (operator.eq, operator.ne):
        guard_distinct(interp, left, right)
        return (left is right) == (function is operator.eq)
    names = f"{type(left).__name__!r} and {type(right).__name__!r}"
    if compared:
        raise TypeError(f"{symbol!r} not supported between instances of {names}")
    raise TypeError(f"unsupported operand type(s) for {symbol}: {names}")


def truth(interp: Interpreter, value: Any) -> bool:
    """bool(value).

    Raises:
        Break: LW101 for a tensor that depends on more than literals.
    """
    kind = type(value)
    if kind is TraceTensor:
        if value.known is None:
            raise Break("LW101")
        return bool(value)
    if kind in PLAIN:
        return bool(value)
    method = interp.python_method(kind, "__bool__")
    if method is not None:
        result = interp.call(method, [value], {})
        if not isinstance(result, bool):
            raise TypeError(f"__bool__ should return bool, returned {type(result).__name__}")
        return result
    if interp.lookup(kind, "__bool__")[0] is MISSING and interp.python_method(kind, "__len__") is not None:
        return bool(length(interp, value))
    return bool(value)


def length(interp: Interpreter, value: Any) -> int:
    """len(value)."""
    method = interp.python_method(type(value), "__len__")
    if method is not None and type(value) is not TraceTensor:
        return cast(int, interp.call(method, [value], {}))
    return len(native_view(interp, value))


def get_iter(interp: Interpreter, value: Any) -> Iterator[Any]:
    """iter(value)."""
    kind = type(value)
    if kind in PLAIN or kind is Generator:
        interp.recorder.location = interp.user_location()
        return iter(value)
    if isinstance(value, (enum.EnumType, enum.Flag)):
        guard_enumeration(interp.environment, value)
        return iter(list(cast("Iterable[Any]", value)))
    method = interp.python_method(kind, "__iter__")
    if method is not None:
        return cast("Iterator[Any]", interp.call(method, [value], {}))
    if is_foreign_iterator(interp, value):
        return value
    if kind in (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType):
        raise Break("LW108", "the iterable")
    if (
        interp.python_method(kind, "__getitem__") is not None
        and interp.lookup(kind, "__iter__")[0] is MISSING
    ):
        return cast("Iterator[Any]", interp.call_python(items_by_index, [value], {}))
    return iter(native_view(interp, value))


def is_foreign_iterator(interp: Interpreter, value: Any) -> bool:
    """Whether this is an iterator made outside of the region whose items native code gives: looking at them would use
    them up, so they are taken in plain Python."""
    real: Any = value.value if type(value) is Lazy else value
    kind = type(real)
    if kind in PLAIN or not hasattr(kind, "__next__") or interp.python_method(kind, "__next__") is not None:
        return False
    return type(value) is Lazy or interp.environment.entry(value) is not None


def items_by_index(items: Any) -> Iterator[Any]:
    """What iterating an object gives that has `__getitem__` only. Interpreted, never run as it stands."""
    i = 0
    while True:
        try:
            item = items[i]
        except (IndexError, StopIteration):
            return
        yield item
        i += 1


def next_item(interp: Interpreter, iterator: Any) -> Any:
    """next(iterator).

    Raises:
        StopIteration: it is exhausted.
    """
    kind = type(iterator)
    if kind is not Generator:
        method = interp.python_method(kind, "__next__")
        if method is not None:
            return interp.call(method, [iterator], {})
        if kind is types.GeneratorType or interp.environment.entry(iterator) is not None:
            raise Break("LW108", "the iterator")
    return next(iterator)


def iterate(interp: Interpreter, value: Any) -> Iterator[Any]:
    """The items of any iterable of the region."""
    yield from _walk(interp, get_iter(interp, value))


def _walk(interp: Interpreter, iterator: Any) -> Iterator[Any]:
    while True:
        try:
            item = next_item(interp, iterator)
        except StopIteration:
            return
        yield item


def native_iterable(interp: Interpreter, value: Any) -> Any:
    """An iterable that native code may walk: iterators of Python classes come back into the interpreter."""
    kind = type(value)
    if kind in PLAIN or kind is Generator:
        return value
    if (
        interp.python_method(kind, "__iter__") is not None
        or interp.python_method(kind, "__next__") is not None
    ):
        iterator = get_iter(interp, value)
        if interp.python_method(type(iterator), "__next__") is not None or is_foreign_iterator(
            interp, iterator
        ):
            return _walk(interp, iterator)
        return iterator
    return native_view(interp, value)


def native_view(interp: Interpreter, value: Any) -> Any:
    """What native code that only reads may have in place of an outside container of a subclass of dict, list, ..."""
    if type(value) is types.MappingProxyType:
        return interp.environment.behind(value)
    entry = interp.environment.owner(value)
    if entry is None or id(value) in interp.environment.shadows:
        return value
    if hasattr(type(value), "__next__"):
        raise Break("LW111", f"{entry.name} is an iterator made outside of the region")
    return interp.environment.content(value)


def get_item(interp: Interpreter, container: Any, key: Any) -> Any:
    """container[key]."""
    kind = type(container)
    if kind in PLAIN:
        if kind is TraceTensor:
            interp.recorder.location = interp.user_location()
        return container[_native_key(interp, container, key)]
    if isinstance(container, type):
        return _class_item(interp, cast(Any, container), key)
    method, _ = interp.lookup(kind, "__getitem__")
    if isinstance(method, types.FunctionType):
        return interp.call(method, [container, key], {})
    if isinstance(container, dict):
        missing = interp.python_method(kind, "__missing__")
        view = native_view(interp, container)
        check_key(interp, key, view)
        if missing is not None and key not in view:
            return interp.call(missing, [container, key], {})
        if missing is None and isinstance(container, collections.defaultdict) and key not in view:
            return _make_default(interp, cast(Any, container), key)
        return dict.__getitem__(view, key) if missing is not None or view is not container else container[key]
    if kind is types.MappingProxyType:
        return _proxied_item(interp, container, key)
    return native_view(interp, container)[_native_key(interp, container, key)]


def _class_item(interp: Interpreter, cls: Any, key: Any) -> Any:
    """cls[key]: what the metaclass makes of it, else `__class_getitem__`, interpreted unless they are Python's own."""
    method, owner = interp.lookup(type(cls), "__getitem__")
    if owner is enum.EnumType:
        guard_enumeration(interp.environment, cls)
        return cls[key]
    if isinstance(method, types.FunctionType):
        return interp.call(method, [cls, key], {})
    maker, owner = interp.lookup(cls, "__class_getitem__")
    if isinstance(maker, classmethod) and owner is not typing.Generic:
        return interp.call(load_attr(interp, cls, "__class_getitem__"), [key], {})
    return interp.environment.known(cls[key], f"{cls.__name__}[...]")


def _proxied_item(interp: Interpreter, proxy: Any, key: Any) -> Any:
    """proxy[key] of a view of an outside dict, or of a class's namespace: one item, guarded alone."""
    table = mapping_behind(proxy)
    if id(table) in interp.environment.shadow_of or type(table) is not dict or type(key) not in CONSTANTS:
        return get_item(interp, interp.environment.behind(proxy), key)
    source = Known(table, "mapping proxy")
    interp.guards.version(table, source.name)
    if key not in table:
        interp.guards.add(source, "missing_key", key, slow=True)
        raise KeyError(key)
    return interp.environment.read(table[key], DictItem(source, key), f"item {key!r}", slow=True)


def _make_default(interp: Interpreter, table: collections.defaultdict[Any, Any], key: Any) -> Any:
    """What collections.defaultdict puts in where a key is missing."""
    factory = load_attr(interp, table, "default_factory")
    if factory is None:
        raise KeyError(key)
    value = interp.call(factory, [], {})
    set_item(interp, table, key, value)
    return value


def _native_key(interp: Interpreter, container: Any, key: Any) -> Any:
    """A key or index as native code may have it."""
    if isinstance(container, dict):
        check_key(interp, key, cast("dict[Any, Any]", container))
        return key
    return _native_index(interp, key)


def _native_index(interp: Interpreter, key: Any) -> Any:
    """An index, slice or tuple of them, with what `__index__` of Python classes gives in their place."""
    kind = type(key)
    if kind is slice:
        parts = (key.start, key.stop, key.step)
        if all(type(part) in PLAIN for part in parts):
            return key
        return slice(*(_native_index(interp, part) for part in parts))
    if kind is tuple:
        items = [_native_index(interp, item) for item in key]
        return key if all(new is old for new, old in zip(items, key, strict=True)) else tuple(items)
    if kind not in PLAIN and (method := interp.python_method(kind, "__index__")) is not None:
        return interp.call(method, [key], {})
    return key


def set_item(interp: Interpreter, container: Any, key: Any, value: Any) -> None:
    """container[key] = value."""
    kind = type(container)
    if kind is TraceTensor:
        interp.recorder.location = interp.user_location()
        container[key] = value
        return
    method = interp.python_method(kind, "__setitem__")
    if method is not None:
        interp.call(method, [container, key, value], {})
        return
    _may_write(interp, container)
    container[_native_key(interp, container, key)] = value


def delete_item(interp: Interpreter, container: Any, key: Any) -> None:
    """del container[key]."""
    method = interp.python_method(type(container), "__delitem__")
    if method is not None:
        interp.call(method, [container, key], {})
        return
    _may_write(interp, container)
    del container[_native_key(interp, container, key)]


def contains(interp: Interpreter, item: Any, container: Any) -> bool:
    """item in container."""
    kind = type(container)
    if kind not in PLAIN:
        method = interp.python_method(kind, "__contains__")
        if method is not None:
            return truth(interp, interp.call(method, [container, item], {}))
        if (
            interp.python_method(kind, "__iter__") is not None
            and interp.lookup(kind, "__contains__")[0] is MISSING
        ):
            return find(interp, iterate(interp, container), item) >= 0
        container = native_view(interp, container)
    if isinstance(container, _HASHED):
        check_key(interp, item, container)
    elif type(container) in (list, tuple, collections.deque) and not (
        _inert(interp, list(container)) and _inert(interp, item)
    ):
        return find(interp, container, item) >= 0
    return item in container


def _may_write(interp: Interpreter, container: Any) -> None:
    if interp.environment.entry(container) is not None and id(container) not in interp.environment.shadows:
        raise Break("LW111", f"an outside {type(container).__name__} is written to")
