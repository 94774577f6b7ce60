"""What is known about a depthwise convolution before a line of it is emitted; and the same without its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lampwork.codegen.llvm.templates.epilogue import flattened, needs_checks
from lampwork.codegen.llvm.templates.generalize import Numbers, generalized_value, line_of
from lampwork.codegen.target import Target
from lampwork.errors import CodegenError
from lampwork.loops.ir.bounds import offset_in
from lampwork.loops.ir.depthwise import depthwise
from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.index import Index, simplify
from lampwork.loops.ir.nodes import Axis, Buffer, Gemm, Load
from lampwork.loops.ir.symbols import likely
from lampwork.loops.ir.windows import Place
from lampwork.records import record


@record
class DepthwiseConfig:
    """pixels: of a tile, neighbours in a line. lines, columns: of a work item; columns are whole vectors.
    whole_tiles, whole_vectors: whether the ends of lines and of the columns are those of tiles and vectors."""

    pixels: int
    lines: int
    columns: int
    whole_tiles: bool
    whole_vectors: bool


@record
class DepthwisePlan:
    """The parts of `Depthwise` (loops/ir/depthwise.py), with what may be symbols as indices. The gemm is `flattened`.

    b: B's flat offset, over k and n. start: A's flat offset in a line, over the last digit of m. step: elements between
    positions. proven: all accesses of the epilogue stay in their buffers, whatever the symbols are.
    """

    gemm: Gemm
    line: Index
    start: Index
    step: Index
    b: Index
    lines: tuple[Place, ...]
    across: Place | None
    apart: int
    stride: int
    dilation: int
    taps: int
    inputs: int
    outputs: int
    params: tuple[Buffer, ...]
    proven: bool

    @property
    def indices(self) -> list[Index]:
        """All but those of the gemm."""
        places = self.lines if self.across is None else (*self.lines, self.across)
        return [
            *(self.line, self.start, self.step, self.b),
            *(index for place in places for index in (place.index, place.last)),
        ]

    @property
    def numbers(self) -> tuple[int, ...]:
        """What code depends on besides."""
        kinds = (len(self.lines), self.apart, self.stride, self.dilation)
        return (*kinds, self.taps, self.inputs, self.outputs)

    @property
    def pixel(self) -> Axis:
        return self.gemm.rows[-1]

    @property
    def outer_taps(self) -> tuple[Axis, ...]:
        return self.gemm.depth[:-2]


def plan_depthwise(gemm: Gemm, target: Target) -> DepthwisePlan:
    """Raises CodegenError for what is not supported."""
    found = depthwise(gemm) if _fits(gemm, target) else None
    taps = gemm.depth[-2].extent.as_int() if found is not None else None
    extents = {axis.name: axis.extent for axis in (gemm.k, gemm.n)}
    b = simplify(offset_in(gemm.b.buffer, gemm.b.index), extents)
    if found is None or taps is None or b.coefficient(gemm.n.name) != Index.const(1) or b.indirects():
        raise CodegenError(f"no template for the convolution {gemm.out.name!r} of {gemm.a.buffer.dtype}")
    seen: dict[str, Buffer] = {gemm.a.buffer.name: gemm.a.buffer, gemm.b.buffer.name: gemm.b.buffer}
    for load in loads(gemm.value):
        seen.setdefault(load.buffer.name, load.buffer)
    seen.setdefault(gemm.out.name, gemm.out)
    flat, pixels = flattened(gemm), found.pixels
    return DepthwisePlan(
        flat,
        found.line,
        Index.var(gemm.rows[-1].name) * (pixels.stride * pixels.step),
        Index.const(pixels.step),
        b,
        found.lines,
        found.across,
        found.apart,
        pixels.stride,
        pixels.dilation,
        taps,
        found.inputs,
        found.outputs,
        tuple(seen.values()),
        not needs_checks(flat),
    )


def _fits(gemm: Gemm, target: Target) -> bool:
    dtype = gemm.a.buffer.dtype
    if dtype not in target.products or gemm.b.buffer.dtype != dtype or gemm.packed or gemm.b.mask is not None:
        return False
    return all(axis.extent.as_int() != 0 for axis in (*gemm.rows, *gemm.depth, gemm.n))


def choose_depthwise(plan: DepthwisePlan, target: Target, hints: Mapping[str, int]) -> DepthwiseConfig:
    """The tile, of few shapes, so that layers share their function."""
    dtype = plan.gemm.a.buffer.dtype
    lanes, size, columns = target.lanes(dtype), plan.pixel.extent, plan.gemm.n.extent.as_int()
    length = likely(size, hints) if size.as_int() is None else size.as_int()
    pixels = _pixels(length)
    whole = size.as_int() is not None and (size % pixels).as_int() == 0
    block = max(1, target.depthwise_columns // lanes) * lanes
    return DepthwiseConfig(
        pixels, target.depthwise_lines, block, whole, columns is not None and columns % lanes == 0
    )


_MOST_PIXELS = 7


def _pixels(length: int | None) -> int:
    """Pixels of a tile: 7 divides the lines of most networks; else what computes the fewest past the end."""
    if length is None or length >= 8 * _MOST_PIXELS:
        return _MOST_PIXELS
    return min(range(1, _MOST_PIXELS + 1), key=lambda count: -(-length // count) * (count + 1))


def generalized_depthwise(plan: DepthwisePlan) -> tuple[DepthwisePlan, dict[str, Index]]:
    """The plan with symbols for its numbers, and their values."""
    numbers, gemm = Numbers(), plan.gemm
    outer = (gemm.m.name, gemm.n.name)
    digits = [axis.name for axis in (*gemm.rows, *gemm.depth)]

    def place(of: Place) -> Place:
        return Place(numbers.affine(of.index, digits), numbers.symbol(of.last))

    general = replace(
        gemm,
        out=line_of(gemm.out),
        m=numbers.axis(gemm.m),
        n=numbers.axis(gemm.n),
        k=numbers.axis(gemm.k),
        a=Load(line_of(gemm.a.buffer), (Index.var(gemm.n.name),)),
        b=Load(line_of(gemm.b.buffer), (Index.var(gemm.n.name),)),
        index=tuple(numbers.affine(each, outer, gemm.n.name) for each in gemm.index),
        value=generalized_value(numbers, gemm, outer),
        rows=tuple(map(numbers.axis, gemm.rows)),
    )
    return replace(
        plan,
        gemm=general,
        line=numbers.affine(plan.line, digits),
        start=numbers.affine(plan.start, digits),
        step=numbers.symbol(plan.step),
        b=numbers.affine(plan.b, (gemm.k.name, gemm.n.name), gemm.n.name),
        lines=tuple(map(place, plan.lines)),
        across=None if plan.across is None else place(plan.across),
        params=tuple(map(line_of, plan.params)),
    ), numbers.values
