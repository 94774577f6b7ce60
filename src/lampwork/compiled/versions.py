"""The compiled versions of a function, and who keeps them alive.

A version holds what its guards look at: modules, their tables, weights. One that serves a module that came as an
argument (`c(lambda m, x: m(x))`, a decorated `forward`), or a module that was replaced since, would keep that alive for
as long as the function. So such a version belongs to its *owner*, the module: the function refers to it weakly, the
owner strongly, and the garbage collector takes both once nobody else holds the owner.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, overload

import torch
from torch import nn

from lampwork.capture.model.region import Arg, Guard, Kwarg, Region
from lampwork.compiled.entries import Entries, Entry
from lampwork.runtime import Compiled
from lampwork.standard import itertools

_HELD = "_lampwork_held"
_numbers = itertools.count()


class _Held(dict[int, tuple[Compiled, list[Entry]]]):
    """The versions of one owner, by number of `Versions`. Copies of the owner, and pickles of it, have none."""

    def __deepcopy__(self, memo: Any) -> dict[int, Any]:
        return {}

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, ()


def owner_of(region: Region, root: Any) -> nn.Module | None:
    """The module among the arguments of a call that a version is made for."""
    for guard in region.guards:
        if guard.kind != "is" or not isinstance(guard.source, (Arg, Kwarg)) or guard.expected is root:
            continue
        if isinstance(guard.expected, nn.Module) and _place(guard.expected) is not None:
            return guard.expected
    return None


def replaced(guard: Any) -> Any:
    """The module or tensor that a guard looks for and no longer finds where known objects held it; else None."""
    if not isinstance(guard, Guard) or guard.kind != "is" or isinstance(guard.source, (Arg, Kwarg)):
        return None
    return guard.expected if isinstance(guard.expected, (nn.Module, torch.Tensor)) else None


def _place(owner: nn.Module) -> Any:
    """What an owner's versions are attached to: nothing that a look at the owner's own attributes shows."""
    hooks = owner.__dict__.get("_forward_pre_hooks")
    return hooks if type(hooks) is collections.OrderedDict else None


@dataclass(slots=True)
class _Item:
    """`entry` is None for a version that its owner holds."""

    found: weakref.ref[Entry]
    entry: Entry | None
    owner: int = 0  # id of the module that came as an argument


@dataclass(slots=True)
class Versions:
    """The versions of a function that are alive, oldest first.

    `owned`: by id of the owner, what serves the versions that it holds. `owners`: how many modules have held some.
    `made`, `retired`: how many there ever were, and how many of them tensors made obsolete that were replaced.
    """

    items: list[_Item] = field(default_factory=list[_Item])
    owned: dict[int, weakref.ref[Compiled]] = field(default_factory=dict[int, "weakref.ref[Compiled]"])
    owners: int = 0
    made: int = 0
    retired: int = 0
    _holders: list[weakref.ref[_Held]] = field(default_factory=list["weakref.ref[_Held]"])
    _number: int = field(default_factory=_numbers.__next__)

    def __iter__(self) -> Iterator[Entry]:
        for item in list(self.items):
            entry = item.found()
            if entry is not None:
                yield entry

    def __len__(self) -> int:
        self._prune()
        return len(self.items)

    def add(self, entry: Entry, owner: nn.Module | None) -> None:
        """Add a version; it belongs to `owner`, if there is one."""
        self.made += 1
        item = _Item(weakref.ref(entry), entry, 0 if owner is None else id(owner))
        self.items.append(item)
        if owner is not None:
            self._give(item, entry, owner)

    def retire(self, entry: Entry, gone: nn.Module | torch.Tensor) -> None:
        """A module or tensor of a version was replaced. A module may come back, if it lives on: then it keeps the
        version. Of a tensor the next version reads what is there (`Dynamic.is_state`)."""
        for item in list(self.items):
            if item.entry is not entry:
                continue
            if isinstance(gone, torch.Tensor):
                self.items.remove(item)
                self.retired += 1
            elif _place(gone) is not None:
                self._give(item, entry, gone)

    def match(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The version among those with owners that serves a call."""
        first = [self.owned.get(id(value)) for value in (*args, *kwargs.values())]
        for found in (*first, *self.owned.values()):
            served = None if found is None else found()
            entry = None if served is None else served.match(args, kwargs)
            if entry is not None:
                return entry
        return None

    def count_for(self, args: Sequence[Any]) -> int:
        """How many versions were made for a call and others like it: all but those for other modules."""
        ids = {0, *map(id, args)}
        self._prune()
        return self.retired + sum(item.owner in ids for item in self.items)

    def cut(self, count: int) -> None:
        """Drop all versions but the first `count`."""
        for item in self.items[count:]:
            entry = item.found()
            for found in self.owned.values():
                served = found()
                if served is not None and entry is not None and entry.served in served.raw_entries:
                    served.remove_entry(entry.served)
        self.made -= len(self.items) - count
        del self.items[count:]

    def drop(self) -> None:
        """Drop all versions, those too that their owners hold."""
        for found in self._holders:
            held = found()
            if held is not None:
                held.pop(self._number, None)
        self._holders.clear()
        self.owned = {}
        self.items.clear()

    def serve(self, compiled: Compiled) -> None:
        """Make the runtime serve the versions without owners, and no others."""
        compiled.clear()
        for item in self.items:
            if item.entry is not None:
                compiled.add_entry(item.entry.served)

    def snapshot(self) -> Sequence[Entry]:
        """What `compiled.entries` shows: a tuple, or where owners hold some, what looks like one."""
        self._prune()
        if all(item.entry is not None for item in self.items):
            return Entries(self)
        return Snapshot([item.entry or item.found for item in self.items])

    def _give(self, item: _Item, entry: Entry, owner: nn.Module) -> None:
        place = _place(owner)
        held = place.__dict__.get(_HELD)
        if type(held) is not _Held:
            held = _Held()
            place.__dict__[_HELD] = held
        if self._number not in held:
            self.owners += 1
            self._holders.append(weakref.ref(held))
        served, entries = held.setdefault(self._number, (Compiled(_no_entry), []))
        served.add_entry(entry.served)
        entries.append(entry)
        self.owned[id(owner)] = weakref.ref(served)
        item.entry = None

    def _prune(self) -> None:
        alive = [item for item in self.items if item.found() is not None]
        if len(alive) != len(self.items):
            self.items[:] = alive
            self.owned = {key: found for key, found in self.owned.items() if found() is not None}
            self._holders = [found for found in self._holders if found() is not None]


def _no_entry(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise AssertionError("versions of an owner are found by `match`, never called")


class Snapshot(Sequence[Entry]):
    """Versions of which some belong to modules that may go."""

    def __init__(self, items: list[Entry | weakref.ref[Entry]]) -> None:
        self._items = items

    def _alive(self) -> list[Entry]:
        found = [item() if isinstance(item, weakref.ref) else item for item in self._items]
        return [entry for entry in found if entry is not None]

    def __len__(self) -> int:
        return len(self._alive())

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        return cast(Any, self._alive()[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._alive() == list(cast("Sequence[Any]", other))

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return repr(Entries(self._alive()))

    def _repr_html_(self) -> str:
        return Entries(self._alive())._repr_html_()
