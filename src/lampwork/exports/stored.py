"""What a model stores in Python objects, and goes by in its next call: an artifact has no such objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from torch import nn

from lampwork.capture.model.evaluate import find
from lampwork.capture.model.region import Attr, DictItem, Guard, Known, Region, Slot, Source, root_of
from lampwork.errors import ExportError
from lampwork.records import record

_LOOKED_FOR = ("missing_key", "missing_attr")


@record(eq=False)
class _Store:
    """`value` under `name` in `target`; `is_plain`: the value is the same in all calls."""

    target: Any
    name: str
    value: Any
    is_plain: bool

    @property
    def tables(self) -> frozenset[int]:
        """The ids of what may be asked for the name."""
        found = [self.target]
        if hasattr(self.target, "__dict__"):
            found.append(self.target.__dict__)
        if isinstance(self.target, nn.Module):
            found += [self.target._buffers, self.target._parameters, self.target._modules]
        return frozenset(map(id, found))


def check_stores(name: str, region: Region) -> tuple[str, ...]:
    """Notes of what is made anew in each call, as it was in the one that was captured.

    Raises:
        ExportError: what a call stores is what the next one goes by.
    """
    notes: list[str] = []
    for store in _stores(region):
        guards = [guard for guard in _guards(region) if _is_of(guard, store)]
        for guard in guards:
            if guard.kind in _LOOKED_FOR or (guard.kind in ("is", "equals") and guard.expected is None):
                notes.append(f"{store.name} is made in every call, as if there was none yet")
            elif not (store.is_plain and _is_same(guard, store.value)):
                raise ExportError(
                    f"{name} goes by {store.name!r} of a {type(store.target).__name__} and stores another one there, "
                    "which its next call would go by; a file has no objects that change",
                    fix="register it as a buffer, and write to that in place: self.count.add_(1)",
                )
    return tuple(dict.fromkeys(notes))


def _stores(region: Region) -> Iterator[_Store]:
    steps = region.recipe.steps
    for step in steps:
        if step.kind != "call" or len(step.args) != 4:
            continue
        function, target, name, value = (steps[number] for number in step.args)
        if getattr(function.payload, "__name__", "") not in ("__setattr__", "__setitem__", "setattr"):
            continue
        if name.kind != "const" or not isinstance(name.payload, str):
            continue
        if target.kind == "const":
            found = target.payload
        elif target.kind == "source" and isinstance(root_of(target.payload), Known):
            found = find(target.payload, (), {})
        else:
            continue
        yield _Store(found, name.payload, value.payload, value.kind == "const")


def _guards(region: Region) -> Sequence[Guard]:
    return [
        guard
        for guard in (*region.guards, *region.slow_guards)
        if isinstance(cast(object, guard.source), Source) and isinstance(root_of(guard.source), Known)
    ]


def _is_of(guard: Guard, store: _Store) -> bool:
    """Whether a guard asks for what is under the name before it is stored."""
    source = guard.source
    if guard.kind in _LOOKED_FOR:
        # A module is asked for what it has in its own dict before its tables, where it is then.
        held = guard.expected == store.name and not any(
            store.name in table for table in _tables_of(store.target)
        )
        return held and id(find(source, (), {})) in store.tables
    match source:
        case Attr(base, name) | DictItem(base, name):
            pass
        case Slot(base, descriptor):
            name = descriptor.__name__
        case _:
            return False
    return name == store.name and id(find(base, (), {})) in store.tables


def _tables_of(target: Any) -> Iterator[Any]:
    if isinstance(target, nn.Module):
        yield from (target._buffers, target._parameters, target._modules)


def _is_same(guard: Guard, value: Any) -> bool:
    if guard.kind == "type":
        return type(value) is guard.expected
    if guard.kind == "is":
        return value is guard.expected
    return guard.kind == "equals" and type(value) is type(guard.expected) and value == guard.expected
