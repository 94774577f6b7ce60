"""Outside Python functions, read slot by slot: code, defaults, closure."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, cast

from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import Attr, DictItem, FunctionState, InstanceDict, Item, Known, Source
from lampwork.capture.model.values import CONSTANTS
from lampwork.capture.state.entries import Entry

if TYPE_CHECKING:
    from lampwork.capture.state.environment import Environment


class Functions:
    """The outside functions that a region runs or looks at."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._guards = environment.guards
        self._entered: dict[int, types.FunctionType] = {}

    def close(self) -> None:
        """Let go of what was read."""
        self._entered.clear()

    def enter(self, function: types.FunctionType) -> None:
        """The region runs an outside Python function: its code, its defaults and what they hold are guarded."""
        self._check_defaults(function)
        if id(function) in self._entered:
            return
        self._entered[id(function)] = function
        entry = self.entry(function)
        self._closure(function, entry)
        if entry.known:
            self._slots(function)

    def _check_defaults(self, function: types.FunctionType) -> None:
        """
        Raises:
            Break: LW111: the region has written to the dict of the function's defaults, which a call goes by.
        """
        named = function.__kwdefaults__
        shadow = None if named is None else self._environment.shadows.of_original.get(id(named))
        if shadow is None:
            return
        now, before = (list(cast("dict[str, Any]", table).items()) for table in (shadow.copy, shadow.before))
        if len(now) != len(before) or any(
            key != other or value is not old for (key, value), (other, old) in zip(now, before, strict=True)
        ):
            raise Break("LW111", f"{function.__qualname__} is used after its __kwdefaults__ were written to")

    def looked_at(self, function: types.FunctionType) -> None:
        """Native code reads the slots of an outside function: it is this one on every call, and so are they."""
        self._environment.register(function)
        self.enter(function)
        if not self._environment.entries[id(function)].known:
            self._slots(function)

    def _slots(self, function: types.FunctionType) -> None:
        source = Known(function, function.__qualname__)
        self._guards.add(source, "function", FunctionState.of(function), slow=True)
        named = function.__kwdefaults__
        if named is not None:
            # The dict is changed in place too: what is missing from it is as much a part of a call as what is there.
            label = f"{function.__qualname__}.__kwdefaults__"
            self._guards.version(named, label)
            self._guards.add(Known(named, label), "keys", tuple(named), slow=True)
            for key, value in named.items():
                kind = "equals" if type(value) in CONSTANTS else "is"
                self._guards.add(DictItem(Known(named, label), key), kind, value, slow=True)

    def entry(self, function: types.FunctionType) -> Entry:
        """The entry of an outside function. One that comes without a source is the same on every call."""
        found = self._environment.entries.get(id(function))
        if found is None:
            name = function.__qualname__
            found = self._environment.entries[id(function)] = Entry(
                function, Known(function, name), True, name
            )
        return found

    def alike(self, function: types.FunctionType, source: Source) -> None:
        """Guard what all functions that one `def` or `lambda` makes have in common: a call of any of them runs the same
        code. Its closure and the values of its defaults are read through sources of their own."""
        self._guards.add(source, "type", types.FunctionType)
        for name in ("__code__", "__globals__", "__builtins__"):
            self._guards.add(Attr(source, name), "is", getattr(function, name))
        self._guards.add(Attr(source, "__module__"), "equals", function.__module__)
        for name, kind, measure in (("__defaults__", "len", len), ("__kwdefaults__", "keys", tuple)):
            place, value = Attr(source, name), getattr(function, name)
            if value is None:
                self._guards.add(place, "is", None)
            else:
                self._guards.add(place, "type", type(value))
                self._guards.add(place, cast(Any, kind), measure(value))
        self._guards.add(InstanceDict(source), "keys", tuple(function.__dict__))

    def _closure(self, function: types.FunctionType, entry: Entry) -> None:
        """Register the cells of a function's closure, which are the same on every call if the function is."""
        for i, (name, cell) in enumerate(
            zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        ):
            if entry.known:
                self._environment.register(cell, f"cell of {name}")
                continue
            source, found = (
                Item(Attr(entry.source, "__closure__"), i),
                self._environment.entries.get(id(cell)),
            )
            if found is None:
                self._environment.entries[id(cell)] = Entry(cell, source, False, f"{entry.name}.{name}")
            elif found.known:
                self._guards.add(source, "is", cell)
            elif found.source != source:
                self._guards.add(source, "same", found.source)

    def default(self, function: types.FunctionType, value: Any, place: int | str) -> Any:
        """The default of a parameter of an outside function, which `place` finds in `__defaults__` or
        `__kwdefaults__`."""
        entry = self._environment.entries[id(function)]
        if not entry.known:
            source = (
                Item(Attr(entry.source, "__defaults__"), place)
                if isinstance(place, int)
                else DictItem(Attr(entry.source, "__kwdefaults__"), place)
            )
            return self._environment.read(value, source, f"default of {entry.name}")
        return value if type(value) in CONSTANTS else self._environment.known(value, "default value")

    def guard_empty(self, cell: types.CellType) -> None:
        """An outside cell has no contents."""
        entry = self._environment.entries.get(id(cell))
        source = Known(cell, "cell") if entry is None else entry.source
        self._guards.add(source, "predicate", is_empty_cell)


def is_empty_cell(cell: types.CellType) -> bool:
    """Whether a cell has no contents."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False
