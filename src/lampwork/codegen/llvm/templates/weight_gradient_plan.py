"""What is known about the gradient of a convolution's weight before a line of its code is emitted."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from lampwork.codegen.llvm.templates.choose import choose_conv_tile
from lampwork.codegen.llvm.templates.epilogue import flattened
from lampwork.codegen.llvm.types import itemsize
from lampwork.codegen.target import Target
from lampwork.errors import CodegenError
from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.index import ONE, ZERO, Index, simplify
from lampwork.loops.ir.nodes import Axis, Buffer, Expr, Gemm, Load, Local
from lampwork.loops.ir.traverse import rewrite
from lampwork.loops.ir.weight_gradient import WeightGradient, weight_gradient
from lampwork.records import record

_MOST_TAPS = 64
"""Whose transposition is written out."""


@record
class GradientConfig:
    """The tile: `rows` columns of g by `vectors` of channels. lines, columns: of a block of pixels, whose positions
    wait in scratch. outputs: columns of g of a work item, whole tiles."""

    rows: int
    vectors: int
    lines: int
    columns: int
    outputs: int


@record
class GradientPlan:
    """found: how x and g are read. stored: the gemm as its epilogue is emitted: m is the columns of g, n the channels,
    the digits of the taps are a part of the batch; of a depthwise convolution it is as it is."""

    gemm: Gemm
    found: WeightGradient
    stored: Gemm
    params: tuple[Buffer, ...]

    @property
    def taps_run(self) -> bool:
        """Whether the taps of a channel lie side by side in the result, which is nothing but the sums."""
        if self.stored.value != Local("acc", self.gemm.a.dtype):
            return False
        index, step = self.stored.index[0], 1
        for axis in (self.found.columns.tap, self.found.lines.tap):
            size = axis.extent.as_int() or 1
            if size > 1 and index.coefficient(axis.name) != Index.const(step):
                return False
            step *= size
        return 1 < step <= _MOST_TAPS and index.coefficient(self.channels.name) == Index.const(step)

    @property
    def taps(self) -> tuple[Axis, ...]:
        return self.gemm.rows if self.gemm.is_depthwise else self.gemm.rows[:-1]

    @property
    def channels(self) -> Axis:
        return self.gemm.n if self.gemm.is_depthwise else self.gemm.rows[-1]


def plan_weight_gradient(gemm: Gemm, target: Target) -> GradientPlan:
    """Raises CodegenError for what is not supported."""
    dtype = gemm.a.buffer.dtype
    fits = dtype in ("f32", "f64") and dtype in target.products and gemm.b.buffer.dtype == dtype
    found = weight_gradient(gemm) if fits else None
    if found is None:
        raise CodegenError(f"no template for the gradient {gemm.out.name!r} of a weight of {dtype}")
    seen: dict[str, Buffer] = {gemm.a.buffer.name: gemm.a.buffer, gemm.b.buffer.name: gemm.b.buffer}
    for load in loads(gemm.value):
        seen.setdefault(load.buffer.name, load.buffer)
    seen.setdefault(gemm.out.name, gemm.out)
    stored = flattened(gemm) if gemm.is_depthwise else _stored(gemm)
    return GradientPlan(gemm, found, stored, tuple(seen.values()))


def _stored(gemm: Gemm) -> Gemm:
    """The gemm turned: rows of g's columns, whose elements are neighbouring channels.

    before:  out[m // 64 % 3, ...], m < 576        after:  out[r1, ...], r1 < 3
    """
    m = ZERO
    for axis in gemm.rows:
        m = m * axis.extent + Index.var(axis.name)
    axes = (*gemm.batch, *gemm.rows, gemm.n)
    extents = {axis.name: axis.extent for axis in axes}

    def on_index(index: Index) -> Index:
        return simplify(index.substitute({gemm.m.name: m}), extents)

    index = tuple(on_index(position) for position in gemm.index)
    value: Expr = rewrite(gemm.value, {Index: on_index})
    turned = replace(
        gemm,
        batch=(*gemm.batch, *gemm.rows[:-1]),
        m=gemm.n,
        n=gemm.rows[-1],
        k=Axis(gemm.k.name, ONE),
        a=Load(gemm.a.buffer, (ZERO,)),
        b=Load(gemm.b.buffer, (ZERO,)),
        index=index,
        value=value,
        rows=(),
        depth=(),
    )
    return flattened(turned)


def choose_gradient(plan: GradientPlan, target: Target) -> GradientConfig:
    """The tile, and blocks that fit the caches. Of a depthwise convolution a tile is all taps of some channels."""
    gemm, found = plan.gemm, plan.found
    dtype = gemm.a.buffer.dtype
    size = itemsize(dtype)
    outputs, channels = gemm.n.extent.as_int() or 1, plan.channels.extent.as_int() or 1
    taps = prod(axis.extent.as_int() or 1 for axis in (found.lines.tap, found.columns.tap))
    if gemm.is_depthwise:
        # Neighbouring channels fill cache lines.
        lanes = target.sum_lanes(dtype)
        rows, vectors = taps, -(-min(channels, max(target.depthwise_columns, lanes)) // lanes)
    else:
        tile = choose_conv_tile(outputs, channels, target, dtype)
        rows, vectors = min(tile.rows, outputs), tile.vectors
    width = vectors * target.sum_lanes(dtype)
    lines, columns = (steps.pixel.extent.as_int() or 1 for steps in (found.lines, found.columns))
    chain, held = target.sum_block, target.private_bytes
    if gemm.is_depthwise:
        # What is copied is multiplied a few times only: less of it should be copied for two blocks.
        chain, held = 4 * chain, target.gradient_bytes
    columns = min(columns, _balanced(columns, target.sum_block))
    block = 1
    while (
        block < lines
        and (block + 1) * columns <= chain
        and found.lines.positions(block + 1) * found.columns.positions(columns) * width * size <= held
    ):
        block += 1
    block = _balanced(lines, block)
    if gemm.is_depthwise:
        return GradientConfig(rows, vectors, block, columns, outputs)
    most = max(1, target.gradient_bytes // (taps * width * size * rows))
    tiles = -(-outputs // rows)
    return GradientConfig(rows, vectors, block, columns, _balanced(tiles, most) * rows)


def _balanced(count: int, most: int) -> int:
    """Parts of at most `most` that differ little."""
    return -(-count // -(-count // most))
