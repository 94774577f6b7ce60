"""What is known about a convolution before a line of it is emitted."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from lampwork.codegen.llvm.templates.choose import GemmConfig
from lampwork.codegen.llvm.templates.epilogue import flattened
from lampwork.codegen.target import Target
from lampwork.errors import CodegenError
from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.index import ONE, ZERO, Index, as_index
from lampwork.loops.ir.nodes import Axis, Buffer, Gemm
from lampwork.loops.ir.traverse import rewrite
from lampwork.loops.ir.windows import Place, windows
from lampwork.records import record

LEAST_PADDING = 0.04
"""The part of the taps of all rows that lie in the padding from which they are worth a different order of the rows, in
which a core reads more of the input between two uses of an element (56 x 56 pixels lose 1 to 8 %, 28 x 28 win 0 to 3,
14 x 14 3 to 6, 7 x 7 8 to 15)."""


@record
class ConvPlan:
    """What is known about a convolution: `a`, the flat offset of A over batch and digits, and what its mask asks. The
    gemm is `flattened`. blocks: of rows, which with a panel each are work items; set by `in_blocks`."""

    gemm: Gemm
    a: Index
    places: tuple[Place, ...]
    params: tuple[Buffer, ...]
    blocks: Index = ONE

    def of_depth(self, index: Index) -> Index:
        """The part of an index that depends on digits of k."""
        return _part(index, self.gemm.depth)

    def of_rows(self, index: Index) -> Index:
        """The rest of it."""
        return index - _part(index, self.gemm.depth)


def by_pixels(plan: ConvPlan) -> ConvPlan:
    """The plan with a pixel of all images side by side in m, so that tiles lie in the padding as a whole.

    before:  m is (image, y, x)        out[256*m + n]
    after:   m is (y, x, image)        out[256*(169*(m % 32) + m // 32) + n]
    """
    gemm = plan.gemm
    images, *pixels = gemm.rows
    m = Index.var(gemm.m.name)
    count = prod((axis.extent for axis in pixels), start=ONE)
    moved = {gemm.m.name: m % images.extent * count + m // images.extent}

    def move(index: Index) -> Index:
        return index.substitute(moved)

    index, value = tuple(map(move, gemm.index)), rewrite(gemm.value, {Index: move})
    return replace(plan, gemm=replace(gemm, rows=(*pixels, images), index=index, value=value))


def gathers_pixels(plan: ConvPlan) -> bool:
    """Whether `by_pixels` is faster: there are images to gather, and enough taps to leave out. Sizes are numbers."""
    gemm = plan.gemm
    images = gemm.rows[0].extent.as_int()
    if images is None or images == 1 or gemm.offset:
        return False
    inside = prod(_share_inside(place, gemm) for place in plan.places)
    return 1 - inside >= LEAST_PADDING


def _share_inside(place: Place, gemm: Gemm) -> float:
    """The part of the taps and rows that meets a condition; 1 where it is not over one digit of each."""
    rows = [axis for axis in gemm.rows if axis.name in place.index.variables()]
    taps = [axis for axis in gemm.depth if axis.name in place.index.variables()]
    if len(rows) != 1 or len(taps) > 1:
        return 1
    row, tap = rows[0], taps[0] if taps else Axis("", ONE)
    zeros = {row.name: ZERO, tap.name: ZERO}
    numbers = (
        place.index.substitute(zeros),
        place.index.coefficient(row.name),
        place.index.coefficient(tap.name),
    )
    start, stride, dilation = (0 if number is None else number.as_int() for number in numbers)
    size, count, last = row.extent.as_int(), tap.extent.as_int(), place.last.as_int()
    if start is None or not stride or dilation is None or size is None or count is None or last is None:
        return 1
    found = 0
    for at in range(start, start + count * dilation, dilation or 1):
        first_row, end = max(0, -(at // stride)), min(size, (last - at) // stride + 1)
        found += max(0, end - first_row)
    return found / (size * count)


def _part(index: Index, axes: tuple[Axis, ...]) -> Index:
    names = {axis.name for axis in axes}
    terms = tuple(
        (monomial, coefficient)
        for monomial, coefficient in index.terms
        if Index(((monomial, 1),)).variables() & names
    )
    return Index(terms)


def _fits(gemm: Gemm, target: Target) -> bool:
    """Whether it has digits, a packed B, a dtype of the templates, taps of whole words, and elements."""
    dtype = gemm.a.buffer.dtype
    if (
        dtype not in target.products
        or gemm.b.buffer.dtype != dtype
        or not (gemm.packed and gemm.depth and gemm.rows)
    ):
        return False
    dot = target.dot(dtype)
    if gemm.steps != target.steps(dtype) or gemm.offset != (0 if dot is None else dot.offset):
        return False
    if (gemm.depth[-1].extent % gemm.steps).as_int() != 0:
        return False
    return all(axis.extent.as_int() != 0 for axis in (*gemm.batch, gemm.m, gemm.n, gemm.k))


def plan_conv(gemm: Gemm, target: Target) -> ConvPlan:
    """The plan of a convolution that is supported and whose B is packed.

    Raises CodegenError for others.
    """
    found = windows(gemm.a, gemm.batch, gemm.rows, gemm.depth) if _fits(gemm, target) else None
    if found is None:
        raise CodegenError(f"no template for the convolution {gemm.out.name!r} of {gemm.a.buffer.dtype}")
    seen: dict[str, Buffer] = {gemm.a.buffer.name: gemm.a.buffer, gemm.b.buffer.name: gemm.b.buffer}
    for load in loads(gemm.value):
        seen.setdefault(load.buffer.name, load.buffer)
    seen.setdefault(gemm.out.name, gemm.out)
    return ConvPlan(flattened(gemm), *found, tuple(seen.values()))


_LEAST_TILES = 4
"""Of rows in a block: each reads a panel of weights again."""


def in_blocks(plan: ConvPlan, config: GemmConfig) -> ConvPlan:
    """The plan with its rows in blocks of `config.m_block`, or in smaller ones where two threads would have less equal
    amounts of work."""
    gemm = plan.gemm
    fewest = (gemm.m.extent + (config.m_block - 1)) // config.m_block
    m, least = gemm.m.extent.as_int(), fewest.as_int()
    panels = ((gemm.n.extent + (gemm.packed - 1)) // gemm.packed).as_int()
    for axis in gemm.batch:
        size = axis.extent.as_int()
        panels = None if panels is None or size is None else panels * size
    if m is None or least is None or panels is None:
        return replace(plan, blocks=fewest)
    tiles, items = -(-m // config.rows), panels

    def busier(blocks: int) -> int:
        """Tiles of the thread that has more of them."""
        return -(-items * blocks // 2) * -(-tiles // blocks)

    enough = max(least, min(2 * least + 1, tiles // _LEAST_TILES))
    # Blocks are of one size, and none is empty.
    counts = [each for each in range(least, enough + 1) if -(-tiles // each) * (each - 1) < tiles]
    return replace(plan, blocks=as_index(min(counts, key=busier)))
