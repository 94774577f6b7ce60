"""Which sizes, ints and tensors of a function's calls are left open.

The first version of a function is for the sizes and ints of its first call. Where a later call brings another number
at the same source, that number becomes a symbol in the next version. 0 and 1 stay numbers (they broadcast, or make
things empty), so a version for them is one of its own. `mark_dynamic` leaves a size open from the first call on.

A tensor that known objects hold (a parameter, an attribute, a global) is bound: it is the same object on every call.
Where a later call finds another tensor at its source (hidden states, caches, masks that the user sets), it is *state*,
which the next version reads anew on each call, as it reads its arguments; so is a tuple or list of tensors (the state
of an LSTM, a cache of keys and values). Python functions likewise: where another one comes, the next version goes by
its code.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from lampwork.capture.model.region import Arg, Known, Kwarg, Source
from lampwork.errors import OptionError
from lampwork.frames import Unwatched
from lampwork.graph.symbols import Scope, SymbolicInt

MARKS = "_lampwork_dynamic"
"""The attribute of a tensor that holds its marks: {dim: (lowest, highest)}, with None where there is no bound."""

STATIC = "_dynamo_static_indices"
"""The attribute of a tensor that holds the dimensions that stay numbers: torch's own, so that it holds for both."""

# torch, which makes tensors of lists of symbolic ints, cuts those off to 32 bits.
_LARGEST = 2**31
_MOST_SOURCES = 10_000
_DEEPEST = 4  # of tuples and lists in one another that are looked into for tensors

Place = tuple[Any, ...]
"""A source by value, without holding the known object that it starts at."""


@dataclass(slots=True)
class _Slot:
    """What a source held last, and how many times that was another tensor, tuple, list or function than before."""

    number: int
    memory: StorageWeakRef | None  # weak references to the tensor itself would forbid `swap_tensors`
    changes: int = 0

    @staticmethod
    def of(value: Any, changes: int = 0) -> _Slot:
        return _Slot(id(value), _memory(value), changes)

    def holds(self, value: Any) -> bool:
        if self.number != id(value):
            return False
        memory = _memory(value)
        if self.memory is None or memory is None:
            return self.memory is memory
        return self.memory.cdata == memory.cdata and not self.memory.expired()


@dataclass(slots=True)
class Dynamic:
    """What a function has seen at its sources. `mode`: True leaves every size and int of the arguments open from the
    first call on, False none, None those that differ between calls."""

    mode: bool | None = None
    _sizes: dict[Place, tuple[int, ...]] = field(default_factory=dict[Place, tuple[int, ...]])
    _open: dict[Place, set[int]] = field(default_factory=dict[Place, set[int]])
    _numbers: dict[Place, int | float] = field(default_factory=dict[Place, int | float])
    _open_numbers: set[Place] = field(default_factory=set[Place])
    _slots: dict[Place, _Slot] = field(default_factory=dict[Place, _Slot])

    def open_dims(self, source: Source, tensor: torch.Tensor) -> set[int]:
        """The dimensions of a tensor whose sizes are symbols in the version being captured."""
        with Unwatched():  # places are compared, by the keys of dicts in them
            sizes, place = tuple(tensor.shape), place_of(source)
            seen = self._sizes.get(place)
            if seen is None or len(seen) != len(sizes):
                self._open[place] = set()
            else:
                self._open[place] |= {
                    dim for dim, (a, b) in enumerate(zip(seen, sizes, strict=True)) if a != b
                }
            self._sizes[place] = sizes
            _bound(self._sizes, self._open)
            marked = marks(tensor)
            if self.mode is None or (self.mode and is_known(source)):
                wanted = self._open[place] | marked.keys()
            else:
                wanted = set(range(len(sizes))) if self.mode else set[int]()
            # As in torch, a mark that leaves a size open is the stronger one.
            fixed = cast("set[int]", getattr(tensor, STATIC, set[int]())) - marked.keys()
            return {dim for dim in wanted - fixed if sizes[dim] >= 2}

    def is_open(self, source: Source, value: int | float) -> bool:
        """Whether a Python int or float is a symbol in the version being captured."""
        with Unwatched():
            place = place_of(source)
            seen = self._numbers.setdefault(place, value)
            if type(seen) is not type(value):
                self._open_numbers.discard(place)
            elif seen != value:
                self._open_numbers.add(place)
            self._numbers[place] = value
            _bound(self._numbers)
            if value in (0, 1, -1) or not abs(value) < _LARGEST or self.mode is False:
                return False
            return place in self._open_numbers or (self.mode is True and not is_known(source))

    def is_state(
        self, source: Source, value: torch.Tensor | tuple[Any, ...] | list[Any] | types.FunctionType
    ) -> bool:
        """Whether what was found at a known source is read anew on each call in the version being captured. A parameter
        that was replaced once stays bound: weights are loaded and pruned so."""
        place = place_of(source)
        slot = self._slots.get(place)
        if slot is None:
            slot = self._slots[place] = _Slot.of(value)
            _bound(self._slots)
        elif not slot.holds(value):
            slot = self._slots[place] = _Slot.of(value, slot.changes + 1)
        return slot.changes > holds_tensors(value, torch.nn.Parameter)


def holds_tensors(value: Any, kind: type[torch.Tensor] = torch.Tensor, depth: int = _DEEPEST) -> bool:
    """Whether a value is a tensor of a kind, or a tuple or list with such tensors in it."""
    items = _items(value)
    if items is None:
        return isinstance(value, kind)
    return depth > 0 and any(holds_tensors(item, kind, depth - 1) for item in items)


def _items(value: Any) -> Iterator[Any] | None:
    if isinstance(value, tuple):
        return tuple.__iter__(cast("tuple[Any, ...]", value))
    return iter(cast("list[Any]", value)) if type(value) is list else None


def _memory(value: Any, depth: int = _DEEPEST) -> StorageWeakRef | None:
    items = _items(value)
    if items is not None:  # whose address another may have when it is gone
        found = (_memory(item, depth - 1) for item in items) if depth > 0 else iter(())
        return next((memory for memory in found if memory is not None), None)
    plain = (
        type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and value.layout is torch.strided
    )
    return StorageWeakRef(value.untyped_storage()) if plain else None


def place_of(source: Source) -> Place:
    """The place that a source names."""
    path: list[Any] = []
    while not isinstance(source, (Arg, Kwarg, Known)):
        path.append((type(source), getattr(source, "name", None), getattr(source, "key", None)))
        source = source.base
    path.append(id(source.value) if isinstance(source, Known) else source)
    return tuple(path)


def _bound(*tables: dict[Place, Any]) -> None:
    """Forget what was seen longest ago, beyond a number of sources that no program has."""
    for table in tables:
        while len(table) > _MOST_SOURCES:
            del table[next(iter(table))]


def is_known(source: Source) -> bool:
    """Whether a source starts at an object that is the same on every call, rather than at an argument."""
    while not isinstance(source, (Arg, Kwarg, Known)):
        source = source.base
    return isinstance(source, Known)


def marks(tensor: torch.Tensor) -> dict[int, tuple[int | None, int | None]]:
    """The dimensions that `lampwork.mark_dynamic` or torch's own marks leave open, with their bounds."""
    found: dict[int, tuple[int | None, int | None]] = {}
    for name in ("_dynamo_weak_dynamic_indices", "_dynamo_dynamic_indices"):
        for dim in cast("set[int]", getattr(tensor, name, set[int]())):
            found[dim] = (None, None)
    for entry in cast("set[Any]", getattr(tensor, "_dynamo_dynamic_range", set[Any]())):
        found[entry.dim] = (entry.min, entry.max)
    found.update(getattr(tensor, MARKS, {}))
    return found


def mark_dynamic(
    tensor: torch.Tensor, dim: int | tuple[int, ...], *, min: int | None = None, max: int | None = None
) -> None:
    """Declare that a size of `tensor` differs from call to call, so that the first version already fits other sizes.

    Args:
        dim: the dimension, or several; negative ones count from the end.
        min, max: the smallest and largest size to expect; calls with other sizes get a version of their own.

    If the program nevertheless needs one fixed size (a loop over it, a product with a fixed matrix), it is compiled for
    that size, and a record names the line that needs it.

    Raises:
        IndexError: the tensor has no such dimension.
        ValueError: the current size is outside of the bounds.
        OptionError: `tensor` is no tensor, `dim` no int or tuple of ints, a bound no int.
    """
    dims = _dimensions("mark_dynamic", tensor, dim)
    for name, bound in (("min", min), ("max", max)):
        if bound is not None and type(cast(object, bound)) is not int:
            raise OptionError(f"mark_dynamic() takes an int for {name}, got {bound!r}", fix="give a size")
    known = dict(getattr(tensor, MARKS, {}))
    for each in dims:
        at = _dimension(tensor, each)
        size = tensor.shape[at]
        if (min is not None and size < min) or (max is not None and size > max):
            raise ValueError(f"dimension {each} has size {size}, outside of [{min}, {max}]")
        known[at] = (min, max)
    setattr(tensor, MARKS, known)


def mark_static(tensor: torch.Tensor, dim: int | tuple[int, ...] | None = None) -> None:
    """Declare that a size of `tensor` stays a number in what is compiled, even with `dynamic=True` or where it differs
    from call to call: each size gets a version of its own. A size that `mark_dynamic` names is left open nevertheless.

    Args:
        dim: the dimension, or several; negative ones count from the end. None: all of them.

    Raises:
        IndexError: the tensor has no such dimension.
        OptionError: `tensor` is no tensor, `dim` no int or tuple of ints.
    """
    dims = _dimensions("mark_static", tensor, () if dim is None else dim)
    dims = range(tensor.dim()) if dim is None else dims
    known = cast("set[int]", getattr(tensor, STATIC, set[int]()))
    setattr(tensor, STATIC, known | {_dimension(tensor, each) for each in dims})


def _dimensions(who: str, tensor: Any, dim: Any) -> tuple[int, ...]:
    if not isinstance(tensor, torch.Tensor):
        raise OptionError(f"{who}() takes a tensor, got {tensor!r}", fix=f"write {who}(tensor, dim)")
    dims: tuple[Any, ...] = tuple(cast("Iterable[Any]", dim)) if isinstance(dim, Iterable) else (dim,)
    if any(type(each) is not int for each in dims):
        raise OptionError(
            f"{who}() takes a dimension or several, got {dim!r}", fix="give an int or a tuple of ints"
        )
    return dims


def _dimension(tensor: torch.Tensor, dim: int) -> int:
    if not -tensor.dim() <= dim < tensor.dim():
        raise IndexError(f"dimension {dim} of a tensor with {tensor.dim()} dimensions")
    return dim % tensor.dim()


def strides_of(tensor: torch.Tensor, shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """The strides of a tensor whose sizes are `shape`, some of them symbols: a stride that is the product of sizes
    now (of all dimensions that lie denser) is taken to be so on every call; any other is a number."""
    strides: list[Any] = list(tensor.stride())
    # Equal strides occur with sizes of 1 only; the one further left lies outside.
    order = sorted(range(len(strides)), key=lambda dim: (strides[dim], -dim))
    step: Any = 1
    for dim in order:
        hint = step.hint if isinstance(step, SymbolicInt) else step
        if strides[dim] == hint:
            strides[dim] = step
        if tensor.shape[dim] != 1:
            step = strides[dim] * shape[dim]
    return tuple(strides)


def bounded_symbol(scope: Scope, size: int, bounds: tuple[int | None, int | None]) -> SymbolicInt:
    """A symbol for a size of at least 2, with the bounds of its mark, as conditions."""
    low, high = bounds
    lowest = 2 if low is None else max(low, 2)
    symbol = scope.symbol(size, lowest)
    scope.require(">=", symbol.index - lowest)
    if high is not None:
        scope.decide(">=", -symbol.index + high)
    return symbol
