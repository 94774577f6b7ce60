"""Outside containers: copies that the region reads and writes in their place."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch

from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import Attr, DictItem, Item, Source
from lampwork.capture.model.values import CONSTANTS, is_constant
from lampwork.capture.state.classes import MISSING, is_immutable
from lampwork.capture.state.entries import Entry
from lampwork.capture.state.stand_ins import adder, allocate, container_base, holds_keys, native_keys
from lampwork.capture.state.unseen import may_repeat_hash
from lampwork.records import record

if TYPE_CHECKING:
    from lampwork.capture.state.environment import Environment

_DICTS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
COPIED = frozenset({list, tuple, set, frozenset, collections.deque, *_DICTS})


@record(eq=False)
class Shadow:
    """`copy` stands for the outside container `original`; `before` is what it held when it was first read."""

    original: Any
    copy: Any
    before: Any


class Shadows:
    """What stands for each outside container: a shadow, or for one of a subclass a stand-in of the same class."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._guards = environment.guards
        self.of_copy: dict[int, Shadow] = {}  # by id of the copy
        self.of_original: dict[int, Shadow] = {}  # by id of the original
        self._behind: dict[int, Any] = {}  # the originals, by id of the copy or stand-in
        self._stand_ins: dict[int, Any] = {}  # by id of the original
        # Ids of namespaces of objects with attributes whose writes are held back.
        self.pending: set[int] = set()
        # A list that is only going to be appended to, which stays unread; and what was appended, by id of the list.
        self.unread: Any = MISSING
        self.appended: dict[int, tuple[list[Any], list[Any]]] = {}

    def close(self) -> None:
        """Let go of what was read."""
        for table in (self.of_copy, self.of_original, self._behind, self._stand_ins, self.appended):
            table.clear()

    def original(self, value: Any) -> Any:
        """The outside container that a shadow or stand-in is of, else the value itself."""
        return self._behind.get(id(value), value)

    def stands_in(self, value: Any) -> bool:
        """Whether a value is a shadow or a stand-in."""
        return id(value) in self._behind

    def _add(self, original: Any, copy: Any) -> Any:
        if id(original) in self.pending:
            raise Break("LW111", "a namespace is read after a name in it was written")
        before = cast(Any, copy).copy() if isinstance(copy, (list, dict, set, collections.deque)) else copy
        shadow = Shadow(original, copy, before)
        self.of_copy[id(copy)] = shadow
        self.of_original[id(original)] = shadow
        self._behind[id(copy)] = original
        return copy

    def of_unknown(self, value: Any, source: Source, name: str) -> Any:
        """A container that came as (part of) an argument: its length or keys and all items are guarded."""
        kind = type(value)
        if kind in (set, frozenset):
            return self._of_set(value, source, name, slow=False)
        if isinstance(value, dict):
            self._keys(cast("dict[Any, Any]", value), source, name)
            copy: Any = kind()
            if kind is collections.defaultdict:
                factory = cast(Any, value).default_factory
                copy.default_factory = self._environment.read(
                    factory, Attr(source, "default_factory"), f"{name}.default_factory"
                )
            self._add(value, copy)
            for key, item in cast(dict[Any, Any], value).items():
                copy[key] = self._environment.read(item, DictItem(source, key), f"{name}[{_text(key)}]")
            return self._restate(copy)
        self._guards.add(source, "len", len(value))
        items = [
            self._environment.read(item, Item(source, i), f"{name}[{i}]") for i, item in enumerate(value)
        ]
        if kind is list:
            return self._with_appended(self._add(value, items), value)
        if kind is collections.deque:
            self._guards.add(Attr(source, "maxlen"), "equals", value.maxlen)
            return self._add(value, collections.deque(items, value.maxlen))
        return self._add(value, _tuple_like(kind, value, items))

    def _keys(self, table: dict[Any, Any], source: Source, name: str, *, slow: bool = False) -> None:
        """Guard the keys of an outside dict by equality and class: those that are equal to themselves only are the same
        on every call.

        Raises:
            Break: LW111: an object among the keys has another hash than when it was put in.
        """
        base: Any = container_base(type(table)) or type(table)
        keys = native_keys(base, table)
        if type(table).__iter__ is base.__iter__:
            self._guards.add(source, "keys", keys, slow=slow)
        else:
            self._guards.add(source, "predicate", holds_keys(base, keys))
        kinds = tuple(map(type, keys))
        if not all(map(is_immutable, kinds)):
            self._guards.add(
                source, "predicate", lambda now: tuple(map(type, native_keys(base, now))) == kinds
            )
        for key in keys:
            if type(key) in CONSTANTS:
                continue
            may_repeat_hash(key)  # of what is a key already
            if not dict.__contains__(table, key):
                raise Break("LW111", f"{name} has a {type(key).__name__} as key, whose hash has changed")
            if type(key).__eq__ is object.__eq__ and not isinstance(key, torch.Tensor):
                self._environment.register(key, f"a key of {name}")

    def of_known(self, value: Any, entry: Entry) -> Any:
        """A container that is the same object on every call. A tuple cannot change, a dict has a version tag; a list
        has neither, so its items are guarded on each call."""
        kind, name = type(value), entry.name
        if kind in (set, frozenset):
            return self._of_set(value, entry.source, name, slow=kind is frozenset)
        if isinstance(value, dict):
            table = cast(dict[Any, Any], value)
            self._guards.version(table, name)
            # OrderedDict.move_to_end() does not touch the table that the version is of.
            ordered = isinstance(value, collections.OrderedDict) and len(table) > 1
            self._keys(table, entry.source, name, slow=not ordered)
            copy: Any = kind()
            if kind is collections.defaultdict:
                factory = copy.default_factory = cast(Any, value).default_factory
                self._guards.add(Attr(entry.source, "default_factory"), "is", factory)
            self._add(value, copy)
            owner = name.removesuffix("._modules")
            for key, item in cast(dict[Any, Any], value).items():
                label = f"{name}[{_text(key)}]" if owner == name else f"{owner}.{key}"
                copy[key] = self._environment.read(item, DictItem(entry.source, key), label, slow=True)
            return self._restate(copy)
        if kind in (list, collections.deque):
            self._guards.add(entry.source, "len", len(value))
            copy: Any = [] if kind is list else collections.deque(maxlen=value.maxlen)
            self._add(value, copy)
            for i, item in enumerate(value):
                copy.append(self._item(item, i, entry))
            return self._with_appended(self._restate(copy), value)
        items = [self._environment.known(item, f"{name}[{i}]") for i, item in enumerate(value)]
        return self._add(value, _tuple_like(kind, value, items))

    def stand_in(self, value: Any, base: Any) -> Any:
        """What stands for an outside container of a subclass of `base`, all of which is guarded."""
        found = self._stand_ins.get(id(value))
        if found is not None:
            return found
        entry = self._environment.entries[id(value)]
        copy = allocate(value, base, entry.name)
        self._stand_ins[id(value)], self._behind[id(copy)] = copy, value
        if issubclass(base, (set, frozenset)):
            members = native_keys(base, value)
            if base is set:
                base.__init__(copy, members)
            if not all(is_constant(item) for item in members) or native_keys(base, copy) != members:
                raise Break("LW111", f"{entry.name} is a set of objects that have no order or value to guard")
            self._guards.add(entry.source, "predicate", holds_keys(base, members))
            return copy
        add = adder(base, copy)
        if not issubclass(base, dict):
            self._guard_length(value, entry.source)
            for i, item in enumerate(base.__iter__(value)):
                add(self._item(item, i, entry))
            return copy
        if entry.known:
            self._guards.version(value, entry.name)
        # OrderedDict.move_to_end() does not touch the table that the version is of.
        ordered = base is collections.OrderedDict and base.__len__(value) > 1
        self._keys(value, entry.source, entry.name, slow=entry.known and not ordered)
        if base is collections.defaultdict:
            source, label = Attr(entry.source, "default_factory"), f"{entry.name}.default_factory"
            copy.default_factory = self._environment.read(value.default_factory, source, label)
        for key, item in base.items(value):
            label = f"{entry.name}[{_text(key)}]"
            add(key, self._environment.read(item, DictItem(entry.source, key), label, slow=entry.known))
        return copy

    def _guard_length(self, value: Any, source: Source) -> None:
        self._guards.add(source, "len", list.__len__(value) if isinstance(value, list) else len(value))
        if isinstance(value, collections.deque):
            self._guards.add(Attr(source, "maxlen"), "equals", value.maxlen)

    def _item(self, item: Any, i: int, entry: Entry) -> Any:
        """An item of an outside list or deque."""
        source, name = Item(entry.source, i), f"{entry.name}[{i}]"
        if not entry.known or self._environment.is_state(item, source):
            return self._environment.read(item, source, name)
        if is_constant(item):
            self._guards.add(source, "equals", item)
            return item
        self._guards.add(source, "is", item)
        return self._environment.known(item, name)

    def _restate(self, copy: Any) -> Any:
        """Note what a shadow that was filled step by step (it may contain itself) held at first."""
        old = self.of_copy[id(copy)]
        shadow = Shadow(old.original, copy, copy.copy())
        self.of_copy[id(copy)] = shadow
        self.of_original[id(old.original)] = shadow
        return copy

    def keep_unread(self, items: list[Any], read: Callable[[], Any]) -> Any:
        """read(), with `Appended` for a list of which the region wants its `append`, unless it was read before."""
        self.unread = items
        try:
            return read()
        finally:
            self.unread = MISSING

    def append(self, original: list[Any], item: Any) -> None:
        """original.append(item) in the region: to the list's shadow, if it was read, else to what it will get,
        which needs no look into the item."""
        shadow = self.of_original.get(id(original))
        if shadow is not None:
            shadow.copy.append(self._environment.force(item))
        else:
            self.appended.setdefault(id(original), (original, []))[1].append(item)

    def _with_appended(self, copy: list[Any], original: list[Any]) -> list[Any]:
        """A shadow with what the region appended before it read the list."""
        _, items = self.appended.pop(id(original), (original, []))
        copy.extend(map(self._environment.force, items))
        return copy

    def _of_set(self, value: Any, source: Source, name: str, *, slow: bool) -> Any:
        if slow and type(value) is frozenset and all(type(item) is type for item in value):
            self._guards.add(source, "is", value, slow=True)
            return value
        if not all(is_constant(item) for item in value):
            raise Break("LW111", f"{name} is a set of objects that have no order or value to guard")
        if type(value) is frozenset:
            self._guards.add(source, "equals", value, slow=slow)
            return value
        # The guard looks at the order, too.
        copy, expected = (_copied_in_order(cast("set[Any]", value)) for _ in range(2))
        if copy is None:
            raise Break("LW111", f"{name} is a set whose copy has another order")
        self._guards.add(source, "equals", expected, slow=slow)
        return self._add(value, copy)


def _copied_in_order(value: set[Any]) -> set[Any] | None:
    """A copy that gives its items in the same order; None where that fails.

    The order is that of a table whose size depends on how the set came to be. A set takes room for a whole dict before
    it takes the items, one after another: items that are in the dict for room alone are taken out again.
    """
    if tuple(copy := set(value)) == tuple(value):
        return copy
    for growth in (0, 1, 3):
        room = [("room", n) for n in range(growth * len(value))]
        copy = set[Any]()
        copy.update(dict.fromkeys((*value, *room)))
        for spare in room:
            copy.discard(spare)
        if len(copy) == len(value) and tuple(copy) == tuple(value):
            return copy
    return None


def _tuple_like(kind: type, value: Any, items: list[Any]) -> Any:
    """A tuple or named tuple of `items`; `value` itself where nothing had to be replaced."""
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    if hasattr(kind, "n_fields"):
        return cast(Any, kind)(items)  # torch.return_types and their like
    make = cast(Callable[..., Any], tuple.__new__)
    return make(kind, items)


def _text(key: Any) -> str:
    """A key of a dict in the name of its item; the text of an object would be the program's to make."""
    return repr(key) if is_constant(key) else f"a {type(key).__name__}"
