"""Which convolutions are computed by minimal filtering (loops/ir/winograd.py), and how many outputs at a time."""

from __future__ import annotations

from collections.abc import Mapping

from lampwork.codegen.llvm.templates.choose import choose_conv_tile, max_rows
from lampwork.codegen.llvm.templates.epilogue import flattened
from lampwork.codegen.target import Target
from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.index import ONE, ZERO, Index
from lampwork.loops.ir.nodes import Axis, Buffer, Gemm
from lampwork.loops.ir.symbols import likely
from lampwork.loops.ir.windows import Place, windows
from lampwork.loops.ir.winograd import TAPS
from lampwork.records import record

_TRANSFORM = 2
"""What transforming costs, in multiplications, for each point and channel."""

_WORTH = 0.7
"""The part of the direct convolution's time that it must stay below."""


@record
class Line:
    """One dimension: `outputs` places; at output y, tap d reads x[y + d - padding], or 0 where that is not in 0...last.
    `stride`: elements from one input to the next."""

    outputs: Index
    padding: int
    last: Index
    stride: Index

    def tiles(self, outputs: int) -> Index:
        """How many tiles of `outputs` places cover it."""
        return _tiles(self.outputs, outputs)


@record
class WinogradPlan:
    """A convolution of filters of 3 x 3 taps, one step apart. The gemm is `flattened`.

    images: how many; image: elements from one to the next. lines: rows and columns. start: the offset of the input of
    output (0, 0) at tap (0, 0), which may lie before the buffer.
    """

    gemm: Gemm
    images: Index
    image: Index
    lines: tuple[Line, Line]
    start: Index
    channels: int
    params: tuple[Buffer, ...]

    @property
    def indices(self) -> list[Index]:
        """All that is not known before a call, where sizes are open."""
        lines = (each for line in self.lines for each in (line.outputs, line.last, line.stride))
        return [self.images, self.image, self.start, *lines]

    def tiles(self, outputs: int) -> Index:
        """How many tiles of outputs x outputs cover the images."""
        rows, columns = self.lines
        return self.images * rows.tiles(outputs) * columns.tiles(outputs)


@record
class WinogradConfig:
    """tiles: of a work item, a multiple of `rows`, the rows of the micro-kernel. splits: the parts of the panels of
    output channels, each of which is an item too."""

    tiles: int
    rows: int
    vectors: int
    splits: int


def plan_winograd(gemm: Gemm, target: Target) -> WinogradPlan | None:
    """The plan of a convolution; None if it is none of 3 x 3 taps one step apart, in float32, of known channels."""
    if gemm.batch or gemm.is_depthwise or gemm.a.buffer.dtype != "f32":
        return None
    if len(gemm.rows) != 3 or len(gemm.depth) != 3:
        return None
    sizes = [axis.extent.as_int() for axis in (*gemm.rows, *gemm.depth, gemm.n)]
    channels = sizes[5]
    if sizes[3:5] != [TAPS, TAPS] or "f32" not in target.products or 0 in sizes or sizes[6] is None:
        return None
    if channels is None or channels % target.lanes("f32"):
        return None
    found = windows(gemm.a, (), gemm.rows, gemm.depth)
    if found is None:
        return None
    offset, places = found
    factors = [offset.coefficient(axis.name) or ZERO for axis in gemm.rows]
    steps = [offset.coefficient(axis.name) for axis in gemm.depth]
    start = offset.substitute({axis.name: ZERO for axis in (*gemm.rows, *gemm.depth)})
    if factors[1:] != steps[:2]:
        return None
    rest, lines = list(places), list[Line]()
    for row, tap, stride in zip(gemm.rows[1:], gemm.depth, factors[1:], strict=False):
        line = _line(row, tap, stride, rest)
        if line is None:
            return None
        lines.append(line)
    if rest:
        return None
    seen: dict[str, Buffer] = {gemm.a.buffer.name: gemm.a.buffer, gemm.b.buffer.name: gemm.b.buffer}
    for load in loads(gemm.value):
        seen.setdefault(load.buffer.name, load.buffer)
    seen.setdefault(gemm.out.name, gemm.out)
    return WinogradPlan(
        flattened(gemm),
        gemm.rows[0].extent,
        factors[0],
        (lines[0], lines[1]),
        start,
        channels,
        tuple(seen.values()),
    )


def _tiles(places: Index, outputs: int) -> Index:
    return (places + (outputs - 1)) // outputs


def _line(row: Axis, tap: Axis, stride: Index, places: list[Place]) -> Line | None:
    """The dimension of a digit of m and one of k; its condition is taken out of `places`. None: it steps otherwise."""
    for place in places:
        if place.index.coefficient(row.name) != ONE:
            continue
        padding = (Index.var(row.name) + Index.var(tap.name) - place.index).as_int()
        if padding is None:
            return None
        places.remove(place)
        return Line(row.extent, padding, place.last, stride)
    return Line(row.extent, 0, row.extent + (TAPS - 2), stride)


def choose_outputs(gemm: Gemm, target: Target, hints: Mapping[str, int]) -> int:
    """How many outputs at a time, in each dimension; 0: not by minimal filtering. By counting multiplications and the
    reading of weights, of which a large tile has more. `hints`: likely values of symbols."""
    plan = plan_winograd(gemm, target) if target.winograd else None
    columns = gemm.n.extent.as_int()
    pixels = likely(gemm.m.extent, hints)
    if plan is None or pixels is None or columns is None or columns < target.lanes("f32"):
        return 0

    def multiplied(rows: int, taps: int) -> int:
        return taps * plan.channels * columns * (rows + target.weight_cost)

    def cost(outputs: int) -> float:
        points, tiles = (outputs + TAPS - 1) ** 2, likely(plan.tiles(outputs), hints) or pixels
        transformed = points * tiles * (plan.channels + columns) * _TRANSFORM
        return multiplied(tiles, points) + transformed

    best = min(target.winograd, key=cost)
    return best if cost(best) < _WORTH * multiplied(pixels, TAPS**2) else 0


def winograd_config(plan: WinogradPlan, target: Target, hints: Mapping[str, int]) -> WinogradConfig:
    """The tiles of a work item, of as equal a size as can be. `hints`: likely values of symbols."""
    gemm, outputs = plan.gemm, plan.gemm.outputs
    points, total = (outputs + TAPS - 1) ** 2, likely(plan.tiles(outputs), hints) or target.winograd_tiles
    vectors = gemm.packed // target.lanes("f32")
    most = max_rows(vectors, target)
    fits = target.winograd_bytes // (4 * points * (plan.channels + gemm.packed))
    fits = max(min(fits, target.winograd_tiles), 1)
    items = -(-total // fits)
    share = -(-total // items)
    groups = -(-share // most)
    rows = -(-share // groups)
    panels = -(-(gemm.n.extent.as_int() or 1) // gemm.packed)
    return WinogradConfig(rows * groups, rows, vectors, min(2, panels) if items == 1 else 1)


def winograd_columns(gemm: Gemm, target: Target) -> int:
    """The width of its panels."""
    return choose_conv_tile(None, gemm.n.extent.as_int(), target).vectors * target.lanes("f32")
