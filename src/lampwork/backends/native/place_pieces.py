"""Concatenations without a copy: what makes a piece writes it where it lies in the whole.

    before: p = conv ...; q = conv ...; w = where(c < 16, p[c], q[c - 16])            three kernels, w a copy
    after:  p, q = conv ... with the strides of w, in the memory of w; w = assemble(p, q), which no code is needed for

A piece keeps its name and its shape, so fusion sees a buffer like any other; only its strides and its place in memory
are those of a slice of the whole. What is a piece already, is made by a call of ATen or leaves the program is copied to
its slice, as before. A concatenation of a concatenation is one whole, and one whose pieces are neighbours in another
whole is a slice of that: the growing concatenations of a dense block (DenseNet) are one buffer, in which each layer
writes its own channels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from lampwork.loops.ir.definitions import (
    extents_of,
    mutated_by,
    name_of,
    outs_of,
    overwritten_by,
    reads_of,
    views_in,
)
from lampwork.loops.ir.index import ONE, ZERO, Index, simplify
from lampwork.loops.ir.nodes import (
    Axis,
    Buffer,
    Const,
    Definition,
    Expr,
    Extern,
    Gemm,
    IndexValue,
    Load,
    Map,
    Op,
    Opaque,
    Panels,
    Reduce,
    Scan,
    View,
)
from lampwork.loops.ir.traverse import rewrite
from lampwork.lower.exprs import inside
from lampwork.records import record

ASSEMBLE = "lampwork::assemble"
"""The target of an Extern that stands for "these pieces, which lie in its result already": nothing is called."""


@record
class Place:
    """Where a piece lies: from element `offset` of the buffer `whole` on."""

    whole: Buffer
    offset: Index


@record
class Placement:
    """Definitions in which pieces have the strides of their wholes, and where those are."""

    definitions: list[Definition]
    places: dict[str, Place]


@record
class _Piece:
    """Elements `start` to `start + size` of a concatenation are those of `load`, over the axes of the whole."""

    start: int
    size: int
    load: Load


@record
class _Concatenation:
    """out[index(axes)], put together along `axis`, which is dimension `dim` of `out`."""

    out: Buffer
    axes: tuple[Axis, ...]
    index: tuple[Index, ...]
    axis: Axis
    dim: int
    pieces: tuple[_Piece, ...]

    def slice(self, piece: _Piece) -> tuple[tuple[Index, ...], tuple[Index, ...]]:
        """(shape, index over the axes of the whole) of a piece as a part of the whole."""
        shape = tuple(
            Index.const(piece.size) if dim == self.dim else size for dim, size in enumerate(self.out.shape)
        )
        moved = {self.axis.name: Index.var(self.axis.name) - piece.start}
        return shape, tuple(each.substitute(moved) for each in self.index)


def place_pieces(
    definitions: Sequence[Definition],
    leaving: frozenset[str],
    elsewhere: Collection[str] = frozenset(),
) -> Placement:
    """Give the pieces of concatenations their place in the whole, where that saves a copy.

    Args:
        leaving: the buffers that are to be as the graph lays them out: outputs, and what undoing writes needs.
        elsewhere: those on other devices, which keep to calls of ATen.
    """
    if not any(_may_concatenate(definition) for definition in definitions):
        return Placement(list(definitions), {})
    return _Placing(definitions, leaving, elsewhere).run()


def _may_concatenate(definition: Definition) -> bool:
    if isinstance(definition, Extern):
        return definition.target == "aten::cat.default"
    return (
        isinstance(definition, Map) and isinstance(definition.value, Op) and definition.value.name == "where"
    )


# --- what is a concatenation -----------------------------------------------------------------------------------------


def concatenation(definition: Definition) -> _Concatenation | None:
    """A definition as a concatenation, if it is one: as `lower/cat.py` writes it, or a call of ATen."""
    if isinstance(definition, Map):
        return _of_map(definition)
    return _of_call(definition) if isinstance(definition, Extern) else None


def _of_map(definition: Map) -> _Concatenation | None:
    value: Expr = definition.value
    if definition.onto is not None or not (isinstance(value, Op) and value.name == "where"):
        return None
    parts: list[tuple[int, Expr]] = []
    name = ""
    while isinstance(value, Op) and value.name == "where":
        condition, load, value = value.args
        end = _end(condition)
        if end is None or (name and end[0] != name):
            return None
        name = end[0]
        parts.append((end[1], load))
    axis = next((each for each in definition.axes if each.name == name), None)
    total = None if axis is None else axis.extent.as_int()
    dims = [dim for dim, each in enumerate(definition.index) if each.as_var() == name]
    if axis is None or total is None or len(dims) != 1:
        return None
    if sum(name in each.variables() for each in definition.index) != 1:
        return None
    start, pieces = 0, list[_Piece]()
    for end, load in (*parts, (total, value)):
        high = None if end == total else end
        mask = inside(Index.var(name), start or None, high)
        if not isinstance(load, Load) or end <= start or load.mask != mask:
            return None
        pieces.append(_Piece(start, end - start, replace(load, mask=None)))
        start = end
    if definition.out.shape[dims[0]] != axis.extent:
        return None
    return _Concatenation(definition.out, definition.axes, definition.index, axis, dims[0], tuple(pieces))


def _end(condition: Expr) -> tuple[str, int] | None:
    """(axis, end) of `axis < end`."""
    if not isinstance(condition, Op) or condition.name != "lt":
        return None
    place, end = condition.args
    if not isinstance(place, IndexValue) or not isinstance(end, Const):
        return None
    name = place.index.as_var()
    return None if name is None else (name, int(end.value))


def _of_call(extern: Extern) -> _Concatenation | None:
    if extern.target != "aten::cat.default" or len(extern.outs) != 1 or isinstance(extern.outs[0], Opaque):
        return None
    views, dim = extern.args[0], extern.args[1] if len(extern.args) > 1 else 0
    if extern.kwargs or not isinstance(dim, int) or not isinstance(views, list | tuple):
        return None
    out = extern.outs[0]
    rank = len(out.shape)
    dim %= max(rank, 1)
    axes = tuple(Axis(f"i{each}", size) for each, size in enumerate(out.shape))
    start, pieces = 0, list[_Piece]()
    for view in views_in(list(views)):
        buffer = view.buffer
        size = view.shape[dim].as_int() if len(view.shape) == rank else None
        if size is None or size == 0 or not _is_whole(view) or isinstance(buffer, Opaque):
            return None
        point = [Index.var(axis.name) for axis in axes]
        point[dim] = point[dim] - start
        pieces.append(_Piece(start, size, Load(buffer, tuple(point))))
        start += size
    if (
        len(pieces) != len(views)
        or out.shape[dim].as_int() != start
        or any(piece.load.dtype != out.dtype for piece in pieces)
    ):
        return None
    index = tuple(Index.var(axis.name) for axis in axes)
    return _Concatenation(out, axes, index, axes[dim], dim, tuple(pieces))


def _is_whole(view: View) -> bool:
    buffer = view.buffer
    return (view.shape, view.strides, view.offset) == (buffer.shape, buffer.strides, ZERO)


# --- where the pieces go ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Copy:
    """A piece that is copied to its slice, before definition `at`."""

    at: int
    definition: Map


@dataclass(slots=True)
class _Placing:
    definitions: Sequence[Definition]
    leaving: frozenset[str]
    elsewhere: Collection[str]
    maker: dict[str, int] = field(default_factory=dict[str, int])
    readers: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    fixed: set[str] = field(default_factory=set[str])
    """Buffers that keep their memory: calls of ATen look at it, or something is written onto it."""
    concatenations: dict[int, _Concatenation] = field(default_factory=dict[int, _Concatenation])
    buffers: dict[str, Buffer] = field(default_factory=dict[str, Buffer])
    """Of pieces: with the strides of their wholes."""
    places: dict[str, Place] = field(default_factory=dict[str, Place])
    copies: dict[tuple[str, Index, Load], _Copy] = field(default_factory=dict[tuple[str, Index, Load], _Copy])
    assembled: dict[int, tuple[Buffer, tuple[Buffer, ...]]] = field(
        default_factory=dict[int, tuple[Buffer, tuple[Buffer, ...]]]
    )

    def run(self) -> Placement:
        self._look()
        # The last first: what a concatenation is a piece of is known before its own pieces get a place.
        for number in sorted(self.concatenations, reverse=True):
            self._place(number, self.concatenations[number])
        if not self.assembled:
            return Placement(list(self.definitions), {})
        before: dict[int, list[Definition]] = {}
        for copy in self.copies.values():
            before.setdefault(copy.at, []).append(copy.definition)
        found: list[Definition] = []
        for number, definition in enumerate(self.definitions):
            found += before.get(number, ())
            if number in self.assembled:
                whole, pieces = self.assembled[number]
                views = [View(each, each.shape, each.strides, ZERO) for each in pieces]
                definition = Extern((whole,), ASSEMBLE, (views,), origin=whole.name, raises=False)
            found.append(definition)
        return Placement([_with_buffers(each, self.buffers) for each in found], self.places)

    def _look(self) -> None:
        for number, definition in enumerate(self.definitions):
            for out in outs_of(definition):
                if out.name in self.maker or isinstance(out, Panels | Opaque):
                    self.fixed.add(out.name)
                self.maker[out.name] = number
            for name in reads_of(definition):
                self.readers.setdefault(name, []).append(number)
            self.fixed |= mutated_by(definition) | overwritten_by(definition)
            if overwritten_by(definition):
                self.fixed.add(name_of(definition))
            found = concatenation(definition) if _may_concatenate(definition) else None
            if found is not None and found.out.name not in self.elsewhere:
                self.concatenations[number] = found
            elif isinstance(definition, Extern):
                self.fixed |= reads_of(definition)
                self.fixed |= {out.name for out in definition.outs}

    def _place(self, number: int, whole: _Concatenation) -> None:
        name = whole.out.name
        if any(name in overwritten_by(self.definitions[each]) for each in self.readers.get(name, ())):
            return
        out = self.buffers.get(name, whole.out)
        at = self.places.get(name, Place(whole.out, ZERO))
        if name not in self.places and (found := self._inside_another(whole)) is not None:
            out, at = found
        direct = [self._fits(whole, piece, out, at) for piece in whole.pieces]
        seen: set[str] = set()
        for position, piece in enumerate(whole.pieces):
            direct[position] = direct[position] and piece.load.buffer.name not in seen
            seen.add(piece.load.buffer.name)
        if isinstance(self.definitions[number], Map) and not self._saves(whole, direct):
            return
        if at.whole.name != name:
            self.buffers[name], self.places[name] = out, at
        pieces: list[Buffer] = []
        for position, piece in enumerate(whole.pieces):
            shape, _ = whole.slice(piece)
            place = Place(at.whole, at.offset + out.strides[whole.dim] * piece.start)
            source = piece.load.buffer
            if direct[position]:
                made = replace(source, shape=shape, strides=out.strides)
                self.buffers[source.name], self.places[source.name] = made, place
                pieces.append(made)
            else:
                pieces.append(self._copied(number, whole, position, out, place))
        self.assembled[number] = (out, tuple(pieces))

    def _copied(self, number: int, whole: _Concatenation, position: int, out: Buffer, place: Place) -> Buffer:
        piece = whole.pieces[position]
        axis = whole.axis
        own = {axis.name: Index.var(axis.name) + piece.start}
        axes = tuple(
            Axis(each.name, Index.const(piece.size)) if each == axis else each for each in whole.axes
        )
        extents = extents_of(axes)
        index = tuple(simplify(each.substitute(own), extents) for each in piece.load.index)
        load = replace(piece.load, index=index)
        key = (place.whole.name, place.offset, load)
        if key in self.copies:
            # A slice of the whole needs it earlier.
            self.copies[key].at = number
            return self.copies[key].definition.out
        shape, _ = whole.slice(piece)
        made = Buffer(f"{whole.out.name}_piece{position}", out.dtype, shape, out.strides)
        self.places[made.name] = place
        self.copies[key] = _Copy(number, Map(made, axes, whole.index, load))
        return made

    def _inside_another(self, whole: _Concatenation) -> tuple[Buffer, Place] | None:
        """The slice of another whole that is this one, if all pieces are neighbours there."""
        name = whole.out.name
        first = self.places.get(whole.pieces[0].load.buffer.name)
        if first is None or name in self.leaving or name in self.fixed:
            return None
        strides = self.buffers[whole.pieces[0].load.buffer.name].strides
        for piece in whole.pieces:
            place = self.places.get(piece.load.buffer.name)
            if (
                place is None
                or place.whole != first.whole
                or place.offset != first.offset + strides[whole.dim] * piece.start
                or self.buffers[piece.load.buffer.name].strides != strides
                or not _is_slice(whole, piece)
            ):
                return None
        if not _same_order(whole.out.shape, whole.out.strides, strides):
            return None
        return replace(whole.out, strides=strides), first

    def _fits(self, whole: _Concatenation, piece: _Piece, out: Buffer, at: Place) -> bool:
        """Whether what makes a piece can write it to its slice of `out`."""
        source = piece.load.buffer
        name = source.name
        if name in self.places:
            place = Place(at.whole, at.offset + out.strides[whole.dim] * piece.start)
            return self.places[name] == place and self.buffers[name].strides == out.strides
        if name in self.leaving or name in self.fixed or name not in self.maker:
            return False
        made = self.definitions[self.maker[name]]
        if isinstance(made, Extern):
            if self.maker[name] not in self.concatenations:
                return False
        elif not isinstance(made, Map | Gemm | Reduce | Scan):
            return False
        return (
            source.dtype == out.dtype
            and _is_slice(whole, piece)
            and _same_order(source.shape, source.strides, out.strides)
        )

    def _saves(self, whole: _Concatenation, direct: Sequence[bool]) -> bool:
        """Whether a concatenation that could be computed where it is read is better off in memory."""
        stands = [
            fits and self._stands(piece.load.buffer.name)
            for fits, piece in zip(direct, whole.pieces, strict=True)
        ]
        if not any(stands):
            return False
        name = whole.out.name
        readers = [self.definitions[each] for each in self.readers.get(name, ())]
        in_memory = name in self.leaving or any(not isinstance(each, Map | Reduce) for each in readers)
        return in_memory or all(direct)

    def _stands(self, name: str) -> bool:
        """Whether a buffer will be in memory whoever reads it: a template's result, or what becomes its epilogue."""
        if name in self.places:
            return True
        made = self.definitions[self.maker[name]]
        if not isinstance(made, Map):
            return True
        readers = [self.definitions[each] for each in self.readers.get(name, ())]
        if len(readers) > 1 and any(not isinstance(each, Map) for each in readers):
            return True
        return any(
            read in self.maker
            and isinstance(self.definitions[self.maker[read]], Gemm)
            and len(self.readers[read]) == 1
            for read in reads_of(made)
        )


def _is_slice(whole: _Concatenation, piece: _Piece) -> bool:
    """Whether a piece is all of its buffer, dimension by dimension as in the whole."""
    shape, index = whole.slice(piece)
    if piece.load.buffer.shape != shape:
        return False
    extents = extents_of(whole.axes)
    return all(
        size == ONE or simplify(read, extents) == simplify(expected, extents)
        for size, read, expected in zip(shape, piece.load.index, index, strict=True)
    )


def _same_order(shape: Sequence[Index], strides: Sequence[Index], other: Sequence[Index]) -> bool:
    """Whether memory in these two strides runs through the dimensions in one order, neighbours side by side."""
    ordered: list[tuple[int, int, int]] = []
    for size, one, two in zip(shape, strides, other, strict=True):
        if size == ONE:
            continue
        if not (one.is_const and two.is_const):
            return strides == other
        ordered.append((one.constant, two.constant, len(ordered)))
    first = sorted(ordered, key=lambda each: (each[0], each[2]))
    second = sorted(ordered, key=lambda each: (each[1], each[2]))
    return first == second and (not first or (first[0][0] == 1) == (first[0][1] == 1))


# --- other buffers in definitions -------------------------------------------------------------------------------------


def _with_buffers(definition: Definition, buffers: Mapping[str, Buffer]) -> Definition:
    names = {*reads_of(definition), *(out.name for out in outs_of(definition))}
    if names.isdisjoint(buffers):
        return definition

    def now(buffer: Buffer) -> Buffer:
        return buffers.get(buffer.name, buffer)

    if isinstance(definition, Extern):
        args = tuple(_argument(each, buffers) for each in definition.args)
        return replace(definition, outs=tuple(map(now, definition.outs)), args=args)
    moved = rewrite(definition, {Load: lambda load: replace(load, buffer=now(load.buffer))})
    return replace(moved, out=now(moved.out))


def _argument(argument: object, buffers: Mapping[str, Buffer]) -> object:
    if isinstance(argument, View):
        buffer = buffers.get(argument.buffer.name, argument.buffer)
        return argument if buffer is argument.buffer else View(buffer, buffer.shape, buffer.strides, ZERO)
    if isinstance(argument, list | tuple):
        items = [_argument(each, buffers) for each in cast("Sequence[object]", argument)]
        return items if isinstance(argument, list) else tuple(items)
    return argument
