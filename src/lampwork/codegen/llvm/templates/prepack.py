"""Rearranging constant B operands into panels, once.

    before:  out = x @ w                       with w constant: a parameter, or computed from parameters
    after:   constant:  w.packed = PackB(w)    (once, and again when w changes)
             main:      out = x @ w.packed

A weight that several Gemms use in the same panels is packed once. Where it is as fast to read w as it lies, the rows of
x are packed instead, at each call (turned.py), and there is no copy of w:

    after:   main:      x.rows = PackB(x); out = x.rows @ w

and so there is none where w lies in rows that the product can fetch ahead (`streams_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lampwork.codegen.llvm.templates.choose import choose_conv_tile, choose_panel
from lampwork.codegen.llvm.templates.plan import streams_rows, supports
from lampwork.codegen.llvm.templates.tiles_plan import tile_columns
from lampwork.codegen.llvm.templates.turned_plan import choose_turned
from lampwork.codegen.llvm.templates.winograd_pack import transformed_weights
from lampwork.codegen.llvm.templates.winograd_plan import choose_outputs, winograd_columns
from lampwork.codegen.llvm.types import itemsize
from lampwork.codegen.target import Target
from lampwork.codegen.variants import varied
from lampwork.loops.ir.addresses import dense_strides
from lampwork.loops.ir.bounds import offset_in
from lampwork.loops.ir.definitions import mutated_by, overwritten_by
from lampwork.loops.ir.index import ONE, Index
from lampwork.loops.ir.nodes import Axis, Definition, Gemm, Load, PackB, Panels
from lampwork.loops.ir.symbols import NO_HINTS


def prepack(
    main: Sequence[Definition],
    constant: Sequence[Definition],
    constant_names: frozenset[str],
    target: Target,
    hints: Mapping[str, int] = NO_HINTS,
) -> tuple[list[Definition], list[Definition]]:
    """`main` with every Gemm whose B is constant reading a packed B, and `constant` with the packings added.

    constant_names: the buffers that hold the same data on every call. hints: likely values of symbols, to choose by.
    """
    packings, rows = _Packings(), _Rows(main, constant_names)
    changed: list[Definition] = []
    for definition in main:
        rows.forget(definition)
        if not isinstance(definition, Gemm):
            changed.append(definition)
        elif definition.b.buffer.name not in constant_names:
            now = _Packings(len(changed))
            packed = _packed(definition, now, target) if definition.rows else definition
            changed += [*now.definitions, packed]
        elif outputs := choose_outputs(definition, target, hints):
            changed.append(_transformed(definition, outputs, packings, target))
        elif tile := choose_turned(definition, varied(target, definition.variant), rows.columns(definition)):
            changed += rows.turned(definition, tile.vectors, target)
        else:
            changed.append(_packed(definition, packings, target))
    return changed, [*constant, *packings.definitions]


Packing = Callable[[int], tuple[Sequence[Definition], Panels]]
"""What makes the panels of a matrix, given a number for their names."""


class _Packings:
    """The panels of constant matrices. Those that several Gemms read alike are made once."""

    def __init__(self, first: int = 0) -> None:
        """`first`: the number of the first ones, for their names."""
        self._first = first
        self.definitions: list[Definition] = []
        self._known: dict[tuple[object, ...], Panels] = {}

    def read(self, gemm: Gemm, batch: tuple[Axis, ...], layout: tuple[int, ...], make: Packing) -> Gemm:
        """The Gemm over the panels that `make` makes. `layout`: all that decides what they hold, beside B."""
        # Equal for two Gemms that read one B alike, whatever the names of their axes.
        axes = (*batch, gemm.k, gemm.n)
        renamed = {axis.name: Index.var(f"${position}") for position, axis in enumerate(axes)}
        index = tuple(position.substitute(renamed) for position in gemm.b.index)
        key = (gemm.b.buffer, index, tuple(axis.extent for axis in axes), layout)
        if key not in self._known:
            made, self._known[key] = make(self._first + len(self._known))
            self.definitions += made
        return replace(gemm, b=Load(self._known[key], gemm.b.index))


class _Rows:
    """The panels of rows of A that turned products read. Those that several read alike are made once."""

    def __init__(self, main: Sequence[Definition], constant_names: frozenset[str]) -> None:
        self._known: dict[tuple[object, ...], Panels] = {}
        self._count = 0
        self._columns: dict[tuple[object, ...], int] = {}
        for gemm in main:
            if isinstance(gemm, Gemm) and gemm.b.buffer.name in constant_names:
                key = _rows_key(gemm)
                self._columns[key] = self._columns.get(key, 0) + (gemm.n.extent.as_int() or 0)

    def columns(self, gemm: Gemm) -> int:
        """Of all products with constant matrices that read the same rows."""
        return self._columns[_rows_key(gemm)]

    def turned(self, gemm: Gemm, vectors: int, target: Target) -> list[Definition]:
        """The Gemm over panels of its rows, after what makes them, if they are not there yet."""
        source = gemm.a.buffer
        columns, steps = vectors * target.sum_lanes(source.dtype), target.steps(source.dtype)
        key = (_rows_key(gemm), columns, steps)
        made: list[Definition] = []
        if key not in self._known:
            panels = (gemm.m.extent + (columns - 1)) // columns
            words = (gemm.k.extent + (steps - 1)) // steps
            shape = (panels, words, Index.const(columns * steps))
            name = f"{source.name}.rows{self._count}"
            out = Panels(name, source.dtype, shape, dense_strides(shape), columns, steps)
            made.append(PackB(out, (), gemm.m, gemm.k, gemm.a))
            self._known[key] = out
            self._count += 1
        return [*made, replace(gemm, a=Load(self._known[key], gemm.a.index))]

    def forget(self, definition: Definition) -> None:
        """After a definition that writes to memory in place, the panels may hold what was there before."""
        if mutated_by(definition) or overwritten_by(definition):
            self._known.clear()


def _rows_key(gemm: Gemm) -> tuple[object, ...]:
    """Equal for Gemms that read equal rows of one A, whatever the names of their axes."""
    names = {gemm.m.name: Index.var("$m"), gemm.k.name: Index.var("$k")}
    index = tuple(position.substitute(names) for position in gemm.a.index)
    return (gemm.a.buffer, index, gemm.m.extent, gemm.k.extent)


def _transformed(gemm: Gemm, outputs: int, packings: _Packings, target: Target) -> Gemm:
    """A convolution by minimal filtering."""
    columns = winograd_columns(gemm, target)

    def make(number: int) -> tuple[Sequence[Definition], Panels]:
        return transformed_weights(gemm, outputs, columns, f"{gemm.b.buffer.name}.transformed{number}")

    return packings.read(gemm, (), (columns, 1, 0, outputs), make)


def _packed(gemm: Gemm, packings: _Packings, target: Target) -> Gemm:
    """The Gemm over a packed B, or as it is where packing is of no use, or would depend on sizes."""
    if gemm.packed or gemm.group or gemm.is_depthwise or gemm.is_weight_gradient:
        return gemm
    target = varied(target, gemm.variant)
    if gemm.rows:
        # A convolution's template reads panels only.
        m, n, dtype = gemm.m.extent.as_int(), gemm.n.extent.as_int(), gemm.b.buffer.dtype
        panel = tile_columns(gemm, target)
        panel = panel or choose_conv_tile(m, n, target, dtype).vectors * target.sum_lanes(dtype)
        dot = target.dot(dtype)
        offset = 0 if dot is None else dot.offset
        return _in_panels(gemm, gemm.batch, panel, target.steps(dtype), packings, offset)
    if not supports(gemm, target):
        return gemm
    used: frozenset[str] = frozenset[str]().union(*(index.variables() for index in gemm.b.index))
    batch = tuple(axis for axis in gemm.batch if axis.name in used)
    if batch and len(batch) < len(gemm.batch):
        return gemm
    runs_along_k = offset_in(gemm.b.buffer, gemm.b.index).coefficient(gemm.k.name) == ONE
    axes = (*batch, gemm.n, gemm.k)
    needed = (*(axis.extent for axis in axes), *gemm.b.index, *gemm.b.buffer.shape, *gemm.b.buffer.strides)
    if any(index.symbols() for index in needed):
        return gemm
    m, n, k = gemm.m.extent.as_int(), gemm.n.extent.as_int(), gemm.k.extent.as_int()
    if n is not None and k is not None and n * k * itemsize(gemm.b.buffer.dtype) > target.packed_bytes:
        return gemm
    panel = tile_columns(gemm, target)
    if not panel and not gemm.batch and not runs_along_k and streams_rows(gemm, target):
        return gemm
    dtype = gemm.a.buffer.dtype
    panel = panel or choose_panel(m, n, target, dtype, runs_along_k=runs_along_k)
    dot = target.dot(dtype)
    steps, offset = (1, 0) if dot is None else (dot.steps, dot.offset)
    return gemm if panel == 0 else _in_panels(gemm, batch, panel, steps, packings, offset)


def _in_panels(
    gemm: Gemm, batch: tuple[Axis, ...], panel: int, steps: int, packings: _Packings, offset: int = 0
) -> Gemm:
    def make(number: int) -> tuple[Sequence[Definition], Panels]:
        source = gemm.b.buffer
        panels = (gemm.n.extent + (panel - 1)) // panel
        groups = (gemm.k.extent + (steps - 1)) // steps
        rows = groups + 1 if offset else groups
        shape = (*(axis.extent for axis in batch), panels, rows, Index.const(panel * steps))
        name = f"{source.name}.packed{number}"
        out = Panels(name, source.dtype, shape, dense_strides(shape), panel, steps, offset)
        return [PackB(out, batch, gemm.n, gemm.k, gemm.b)], out

    return packings.read(gemm, batch, (panel, steps, offset, 0), make)
