"""Which convolutions are computed by minimal filtering (loops/ir/winograd.py), and how many outputs at a time."""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.codegen.llvm.templates.choose import choose_conv_tile, max_rows
from lampwork.codegen.llvm.templates.epilogue import flattened
from lampwork.codegen.target import Target
from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.index import ONE, Index
from lampwork.loops.ir.nodes import Axis, Buffer, Gemm
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

    outputs: int
    padding: int
    last: int
    stride: int


@record
class WinogradPlan:
    """A convolution of filters of 3 x 3 taps, one step apart. The gemm is `flattened`.

    images: how many; image: elements from one to the next. lines: rows and columns. start: the offset of the input of
    output (0, 0) at tap (0, 0), which may lie before the buffer.
    """

    gemm: Gemm
    images: int
    image: int
    lines: tuple[Line, Line]
    start: int
    channels: int
    params: tuple[Buffer, ...]

    def tiles(self, outputs: int) -> tuple[int, int]:
        """How many tiles of outputs x outputs cover the rows and the columns."""
        down, across = (-(-line.outputs // outputs) for line in self.lines)
        return down, across


@record
class WinogradConfig:
    """tiles: of a work item, a multiple of `rows`, the rows of the micro-kernel. splits: the parts of the panels of
    output channels, each of which is an item too."""

    tiles: int
    rows: int
    vectors: int
    splits: int


def plan_winograd(gemm: Gemm, target: Target) -> WinogradPlan | None:
    """The plan of a convolution; None if it is none of 3 x 3 taps one step apart, in float32, of known sizes."""
    if gemm.batch or gemm.is_depthwise or gemm.a.buffer.dtype != "f32":
        return None
    if len(gemm.rows) != 3 or len(gemm.depth) != 3:
        return None
    sizes = _numbers([axis.extent for axis in (*gemm.rows, *gemm.depth, gemm.n)])
    if sizes is None or list(sizes[3:5]) != [TAPS, TAPS] or "f32" not in target.products or 0 in sizes:
        return None
    if sizes[5] % target.lanes("f32"):
        return None
    found = windows(gemm.a, (), gemm.rows, gemm.depth)
    if found is None:
        return None
    offset, places = found
    factors = _numbers([offset.coefficient(axis.name) for axis in gemm.rows])
    steps = _numbers([offset.coefficient(axis.name) for axis in gemm.depth])
    start = _numbers([offset.substitute({axis.name: Index.const(0) for axis in (*gemm.rows, *gemm.depth)})])
    if factors is None or steps is None or start is None or list(factors[1:]) != list(steps[:2]):
        return None
    rest, lines = list(places), list[Line]()
    for row, tap, size, stride in zip(gemm.rows[1:], gemm.depth, sizes[1:], factors[1:], strict=False):
        line = _line(row, tap, size, stride, rest)
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
        sizes[0],
        factors[0],
        (lines[0], lines[1]),
        start[0],
        sizes[5],
        tuple(seen.values()),
    )


def _numbers(indices: Sequence[Index | None]) -> list[int] | None:
    """The indices as numbers; None if one of them is none."""
    found = [None if index is None else index.as_int() for index in indices]
    return None if None in found else [number for number in found if number is not None]


def _line(row: Axis, tap: Axis, outputs: int, stride: int, places: list[Place]) -> Line | None:
    """The dimension of a digit of m and one of k; its condition is taken out of `places`. None: it steps otherwise."""
    for place in places:
        if place.index.coefficient(row.name) != ONE:
            continue
        padding, last = (
            (Index.var(row.name) + Index.var(tap.name) - place.index).as_int(),
            place.last.as_int(),
        )
        if padding is None or last is None:
            return None
        places.remove(place)
        return Line(outputs, padding, last, stride)
    return Line(outputs, 0, outputs + TAPS - 2, stride)


def choose_outputs(gemm: Gemm, target: Target) -> int:
    """How many outputs at a time, in each dimension; 0: not by minimal filtering. By counting multiplications and the
    reading of weights, of which a large tile has more."""
    plan = plan_winograd(gemm, target) if target.winograd else None
    columns = gemm.n.extent.as_int()
    if plan is None or columns is None or columns < target.lanes("f32"):
        return 0

    def multiplied(rows: int, taps: int) -> int:
        return taps * plan.channels * columns * (rows + target.weight_cost)

    def cost(outputs: int) -> float:
        points, (down, across) = (outputs + TAPS - 1) ** 2, plan.tiles(outputs)
        tiles = plan.images * down * across
        transformed = points * tiles * (plan.channels + columns) * _TRANSFORM
        return multiplied(tiles, points) + transformed

    pixels = plan.images * plan.lines[0].outputs * plan.lines[1].outputs
    best = min(target.winograd, key=cost)
    return best if cost(best) < _WORTH * multiplied(pixels, TAPS**2) else 0


def winograd_config(plan: WinogradPlan, target: Target) -> WinogradConfig:
    """The tiles of a work item, of as equal a size as can be."""
    gemm, outputs = plan.gemm, plan.gemm.outputs
    points, (down, across) = (outputs + TAPS - 1) ** 2, plan.tiles(outputs)
    total = plan.images * down * across
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
