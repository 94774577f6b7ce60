"""`Array`: what a node of the graph has become. A buffer, and how the node's elements lie in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from types import MappingProxyType

from lampwork.graph.symbols import same_sizes
from lampwork.loops.ir.index import ZERO, Index, as_index, simplify
from lampwork.loops.ir.nodes import Axis, Buffer, DType, Expr, Load, Opaque, View
from lampwork.records import record

_MAX_RANK = 24
AXES: tuple[Index, ...] = tuple(Index.var(f"i{n}") for n in range(_MAX_RANK))
"""The loop variables of every definition: i0, i1, …, one a dimension."""

AXIS_NAMES: tuple[str, ...] = tuple(f"i{n}" for n in range(_MAX_RANK))


class NotExpressible(Exception):
    """Raised by a rule for arguments it does not cover; the node then becomes an Extern. `args[0]` is the reason."""


@record
class Array:
    """The elements of a node: element [i0, i1, …] is buffer[index], an expression over i0, i1, …

    `strides`, `offset` (elements of the buffer's memory) say the same for code that knows only strided tensors;
    `strides` is None where no strides can. An opaque array (`is_opaque`) is known to torch alone.
    """

    buffer: Buffer
    shape: tuple[int, ...]
    index: tuple[Index, ...]
    strides: tuple[int, ...] | None
    offset: int = 0

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def is_opaque(self) -> bool:
        return isinstance(self.buffer, Opaque)


def indices_of(numbers: tuple[int, ...]) -> tuple[Index, ...]:
    """Sizes or strides as index expressions."""
    for number in numbers:
        if type(number) is not int:
            # Symbols know their scope: a cache would keep it alive.
            return tuple(as_index(number) for number in numbers)
    return _constants(numbers)


@lru_cache(maxsize=4096)
def _constants(numbers: tuple[int, ...]) -> tuple[Index, ...]:
    """A network repeats few sizes many times."""
    return tuple(as_index(number) for number in numbers)


def axes_of(shape: tuple[int, ...]) -> tuple[Axis, ...]:
    """i0 < shape[0], i1 < shape[1], …"""
    return _axes(indices_of(shape))


@lru_cache(maxsize=4096)
def _axes(sizes: tuple[Index, ...]) -> tuple[Axis, ...]:
    return tuple(Axis(AXIS_NAMES[n], size) for n, size in enumerate(sizes))


def extents_of(shape: tuple[int, ...]) -> Mapping[str, Index]:
    return _extents(indices_of(shape))


@lru_cache(maxsize=4096)
def _extents(sizes: tuple[Index, ...]) -> Mapping[str, Index]:
    return MappingProxyType(dict(zip(AXIS_NAMES, sizes, strict=False)))


def whole(buffer: Buffer, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """All of a buffer, as it is."""
    return Array(buffer, shape, AXES[: len(shape)], strides)


def at(array: Array, point: Sequence[Index], mask: Expr | None = None, other: float | int | bool = 0) -> Load:
    """array[point]; where `mask` is false, `other` without reading.

    Raises:
        NotExpressible: an index from data in `point` makes no difference, as the array is expanded there: nothing would
            look at it.
    """
    if len(point) == len(array.shape) and all(p is axis for p, axis in zip(point, AXES, strict=False)):
        return Load(array.buffer, array.index, mask, other)
    mapping = dict(zip(AXIS_NAMES, point, strict=False))
    index = tuple(e.substitute(mapping) for e in array.index)
    if not all(position.is_flat for position in point):
        _check_looked_at(array.buffer, index, point)
    return Load(array.buffer, index, mask, other)


def _check_looked_at(buffer: Buffer, index: Sequence[Index], point: Sequence[Index]) -> None:
    moving = [place for place, stride in zip(index, buffer.strides, strict=True) if stride != ZERO]
    looked_at = {atom for place in moving for atom in place.indirects()}
    if any(atom not in looked_at for place in point for atom in place.indirects()):
        raise NotExpressible("indices of a dimension along which all elements are one, checked all the same")


def read(array: Array, shape: Sequence[int]) -> Load:
    """array broadcast to `shape`, at the point (i0, i1, …) of it."""
    if same_sizes(array.shape, shape):
        return Load(array.buffer, array.index)
    lead = len(shape) - len(array.shape)
    mapping: dict[str, Index] = {}
    for dim, size in enumerate(array.shape):
        if size == 1 and shape[dim + lead] != 1:
            mapping[AXIS_NAMES[dim]] = ZERO
        elif lead:
            mapping[AXIS_NAMES[dim]] = AXES[dim + lead]
    if not mapping:
        return Load(array.buffer, array.index)
    return Load(array.buffer, tuple(e.substitute(mapping) for e in array.index))


def reindex(
    array: Array,
    shape: tuple[int, ...],
    mapping: Mapping[str, Index],
    strides: tuple[int, ...] | None,
    offset: int,
    *,
    simplified: bool = False,
) -> Array:
    """A view: `mapping` gives the old axes as expressions over the new ones. `simplified`: use the ranges of the new
    axes, which // and % need."""
    index = tuple(e.substitute(mapping) for e in array.index) if mapping else array.index
    if simplified and not all(e.is_flat for e in index):
        extents = extents_of(shape)
        index = tuple(simplify(e, extents) for e in index)
    return Array(array.buffer, shape, index, strides, offset)


def as_view(array: Array) -> View:
    """The array as a strided tensor; only where `strides` is known."""
    if array.strides is None:
        raise ValueError(f"{array.buffer.name}: this view has no strides")
    return View(
        array.buffer,
        indices_of(array.shape),
        indices_of(array.strides),
        as_index(array.offset),
    )
