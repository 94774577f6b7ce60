"""Writes to the world outside: held back while the region is captured, seen by its later reads, replayed at its end."""

from __future__ import annotations

import collections
import contextlib
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch

from lampwork.capture.model.errors import Break
from lampwork.capture.state.environment import Environment
from lampwork.capture.state.shadows import Shadow
from lampwork.records import record


@record
class Written:
    """A held-back value; `deleted` for `del`, `anew` if there was one before: then it comes last among its like."""

    value: Any
    deleted: bool = False
    anew: bool = False


@record
class Effect:
    """function(*args) at the end of the region."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


def instance_dict(obj: Any) -> dict[str, Any] | None:
    """The instance attributes of an object; those of the calling thread for a threading.local."""
    try:
        if issubclass(type(obj), threading.local):
            return obj.__dict__
        return cast(dict[str, Any], object.__getattribute__(obj, "__dict__"))
    except AttributeError:
        return None


def set_cell(cell: types.CellType, value: Any) -> None:
    """Replays a write to a closure cell."""
    cell.cell_contents = value


def remove_attribute(target: Any, name: str) -> None:
    """Replays a `del` of an attribute, which may have come into being in the region only."""
    native = isinstance(type(target).__delattr__, types.WrapperDescriptorType)
    with contextlib.suppress(AttributeError):
        if native or isinstance(target, torch.nn.Module):
            delattr(target, name)
        else:
            object.__delattr__(target, name)


def _setter(target: Any) -> Callable[[Any, str, Any], None]:
    """What replays a write to an attribute. A `__setattr__` of the program was interpreted, down to the native one."""
    if isinstance(target, torch.nn.Module):
        return torch.nn.Module.__setattr__
    if isinstance(type(target).__setattr__, types.FunctionType) and not isinstance(target, type):
        return object.__setattr__
    return setattr


class Effects:
    """Final-state effects: per place, the last value written. Order among places cannot be observed from outside.

    `writes` counts the writes so far. `on_classes`: some of them were to attributes of classes. `registering`: the
    modules of which some belong into a table, by the ids of their tables.
    """

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.attributes: dict[int, tuple[Any, dict[str, Written]]] = {}
        self.globals: dict[tuple[int, str], tuple[dict[str, Any], Written]] = {}
        self.cells: dict[int, tuple[types.CellType, Written]] = {}
        self.calls: list[Effect] = []
        self.writes = 0
        self.on_classes = False
        self.registering: dict[int, Any] = {}

    def close(self) -> None:
        """Let go of what was written."""
        for table in (self.attributes, self.globals, self.cells, self.calls, self.registering):
            table.clear()

    # --- attributes -----------------------------------------------------------------------------------------------

    def write_attribute(self, target: Any, name: str, value: Any) -> None:
        target = self._noted(target)
        names = self.attributes.setdefault(id(target), (target, {}))[1]
        before = names.get(name)
        anew = before is not None and (before.deleted or before.anew)
        if before is not None and before.deleted:
            del names[name]
        names[name] = Written(value, anew=anew)

    def _noted(self, target: Any) -> Any:
        """The outside object behind `target`, whose attributes are not what they were from now on."""
        self.writes += 1
        original = self.environment.original(target)
        if isinstance(original, type):
            self.on_classes = True
            return original
        table = instance_dict(original)
        if table is not None:
            if id(table) in self.environment.shadows.pending and id(original) not in self.attributes:
                raise Break("LW111", f"a {type(original).__name__} has the __dict__ of another object")
            self.environment.shadows.pending.add(id(table))
        return original

    def delete_attribute(self, target: Any, name: str) -> None:
        target = self._noted(target)
        self.attributes.setdefault(id(target), (target, {}))[1][name] = Written(None, True)

    def attribute(self, target: Any, name: str) -> Written | None:
        return self.written_to(self.environment.original(target), name) if self.attributes else None

    def written_to(self, original: Any, name: str) -> Written | None:
        """As `attribute`, for an outside object, and for nothing that stands for one."""
        found = self.attributes.get(id(original))
        return None if found is None else found[1].get(name)

    # --- globals and cells ----------------------------------------------------------------------------------------

    def write_global(self, table: dict[str, Any], name: str, value: Any) -> None:
        self.writes += 1
        self.environment.shadows.pending.add(id(table))
        _, before = self.globals.get((id(table), name), (table, None))
        anew = before is not None and (before.deleted or before.anew)
        if before is not None and before.deleted:
            del self.globals[id(table), name]
        self.globals[id(table), name] = (table, Written(value, anew=anew))

    def delete_global(self, table: dict[str, Any], name: str) -> None:
        self.writes += 1
        self.environment.shadows.pending.add(id(table))
        self.globals[id(table), name] = (table, Written(None, True))

    def global_value(self, table: dict[str, Any], name: str) -> Written | None:
        found = self.globals.get((id(table), name))
        return found[1] if found is not None else None

    def take_globals(self, table: dict[str, Any]) -> list[tuple[str, Written]]:
        """The writes to a namespace, which are its shadow's from now on."""
        keys = [key for key in self.globals if key[0] == id(table)]
        return [(key[1], self.globals.pop(key)[1]) for key in keys]

    def write_cell(self, cell: types.CellType, value: Any) -> None:
        self.writes += 1
        self.cells[id(cell)] = (cell, Written(value))

    def cell_value(self, cell: types.CellType) -> Written | None:
        found = self.cells.get(id(cell))
        return found[1] if found is not None else None

    def append(self, target: list[Any], item: Any) -> None:
        """Hold back that an item is appended to an outside list."""
        self.writes += 1
        self.environment.shadows.append(target, item)

    def written(self) -> Iterator[Any]:
        """The outside objects whose attributes, items or contents the region writes."""
        for target, _ in self.attributes.values():
            yield target
        for cell, _ in self.cells.values():
            yield cell
        for target, _ in self.environment.shadows.appended.values():
            yield target
        for shadow in list(self.environment.shadows.of_copy.values()):
            if is_changed(shadow):
                yield shadow.original

    # --- replay ---------------------------------------------------------------------------------------------------

    def replay(self) -> Iterator[Effect]:
        """The effects, as calls whose arguments are values of the region."""
        for target, names in list(self.attributes.values()):
            for name, written in names.items():
                if written.deleted or written.anew:
                    yield Effect(remove_attribute, (target, name))
                if not written.deleted:
                    yield Effect(_setter(target), (target, name, written.value))
        for table, written in list(self.globals.values()):
            name = next(key[1] for key, held in self.globals.items() if held[1] is written)
            # Bound, since a dict among the arguments would be rebuilt on each call.
            if written.deleted or written.anew:
                yield Effect(table.pop, (name, None))
            if not written.deleted:
                yield Effect(table.__setitem__, (name, written.value))
        for cell, written in list(self.cells.values()):
            yield Effect(set_cell, (cell, written.value))
        yield from self.calls
        for target, items in list(self.environment.shadows.appended.values()):
            for item in items:
                yield Effect(list.append, (target, item))
        for shadow in list(self.environment.shadows.of_copy.values()):
            yield from _container_effects(shadow.original, shadow.copy, shadow.before)


def is_changed(shadow: Shadow) -> bool:
    """Whether the region writes to an outside container."""
    return next(_container_effects(shadow.original, shadow.copy, shadow.before), None) is not None


def _container_effects(original: Any, copy: Any, before: Any) -> Iterator[Effect]:
    """What turns `original`, which held `before`, into `copy`."""
    if copy is original or isinstance(copy, (tuple, frozenset)):
        return
    if isinstance(copy, list):
        if not _same_items(copy, before):
            yield Effect(list.__setitem__, (original, slice(None), list(copy)))
        return
    if isinstance(copy, collections.deque):
        items = cast("collections.deque[Any]", copy)
        if not _same_items(list(items), list(before)):
            yield Effect(collections.deque.clear, (original,))
            yield Effect(collections.deque.extend, (original, list(items)))
        return
    if isinstance(copy, set):
        if copy != before:
            yield Effect(type(original).clear, (original,))
            yield Effect(type(original).update, (original, list(copy)))
        return
    if _same_items(list(copy), list(before)) and _same_items(list(copy.values()), list(before.values())):
        return
    # A Counter's own update() adds.
    kind = collections.OrderedDict if isinstance(original, collections.OrderedDict) else dict
    kept = [key for key in before if key in copy]
    if list(copy)[: len(kept)] == kept:
        for key in before:
            if key not in copy:
                yield Effect(kind.__delitem__, (original, key))
        for key, value in copy.items():
            if key not in before or before[key] is not value:
                yield Effect(kind.__setitem__, (original, key, value))
        return
    yield Effect(kind.clear, (original,))
    yield Effect(kind.update, (original, dict(copy)))


def _same_items(new: list[Any], old: list[Any]) -> bool:
    return len(new) == len(old) and all(a is b for a, b in zip(new, old, strict=True))
