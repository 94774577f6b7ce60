"""Convolutions as loops, for those that no template takes where the code has to stand alone.

before:  %c = conv2d(%x, %w, %b)                                       groups that fit no vectors, row-major results
after:   c[n, o, y, x] = b[o] + sum over (i, ky, kx) of x[n, i, y + ky, x + kx] * w[o, i, ky, kx]

An element is summed by itself: several times as slow as a template, and slower the more channels there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import Expr
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, at
from lampwork.lower.context import Context
from lampwork.lower.dtypes import sum_dtype
from lampwork.lower.reduce import reduce_value
from lampwork.lower.registry import NotExpressible


def or_loops(ctx: Context, template: Callable[[], Array], loops: Callable[[], Array]) -> Array:
    """What `template` gives; where it cannot, and the code has to stand alone, what `loops` gives."""
    main, constant = len(ctx.main), len(ctx.constant)
    try:
        return template()
    except NotExpressible:
        if not ctx.standalone:
            raise
        del ctx.main[main:], ctx.constant[constant:]
        return loops()


def convolved(
    ctx: Context,
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """The node's result; `weight` is (out, in / groups, taps...)."""
    rank = weight.rank - 2
    lead, channel, places, (row, *taps) = _axes(ctx, x, weight, rank)
    inputs, outputs = weight.shape[1], weight.shape[0] // groups
    mask: Expr | None = None
    point: list[Index] = []
    for n, (place, tap) in enumerate(zip(places, taps, strict=True)):
        at_input = place * stride[n] + tap * dilation[n] - padding[n]
        mask = e.both(mask, e.inside(at_input, 0, as_index(x.shape[x.rank - rank + n])))
        point.append(at_input)
    left = at(x, [*lead, channel // outputs * inputs + row, *point], mask)
    right = at(weight, [channel, row, *taps])
    return _summed(ctx, left, right, bias, channel, (inputs, *weight.shape[2:]))


def transposed(
    ctx: Context,
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """The node's result; `weight` is (in, out / groups, taps...). A tap counts where it meets an element of the
    input."""
    rank = weight.rank - 2
    lead, channel, places, (row, *taps) = _axes(ctx, x, weight, rank)
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    mask: Expr | None = None
    point: list[Index] = []
    for n, (place, tap) in enumerate(zip(places, taps, strict=True)):
        # Shifted, so that it is never negative.
        shift = -(-(weight.shape[2 + n] - 1) * dilation[n] // stride[n]) + 1
        along = place + padding[n] + shift * stride[n] - tap * dilation[n]
        meets = e.test("eq", e.index_value(along % stride[n]), e.const(0, "i64"))
        at_input = along // stride[n] - shift
        inside = e.inside(at_input, 0, as_index(x.shape[x.rank - rank + n]))
        mask = e.both(e.both(mask, meets), inside)
        point.append(at_input)
    source = channel // outputs * inputs + row
    left = at(x, [*lead, source, *point], mask)
    right = at(weight, [source, channel % outputs, *taps])
    return _summed(ctx, left, right, bias, channel, (inputs, *weight.shape[2:]))


def _axes(
    ctx: Context, x: Array, weight: Array, rank: int
) -> tuple[list[Index], Index, list[Index], list[Index]]:
    """The axes of the batch, if there is one, of the channel, of the places, and of what is summed."""
    if 0 in (*ctx.spec.shape, *x.shape, *weight.shape):
        raise NotExpressible("a convolution of no elements")
    before = x.rank - rank - 1
    own = before + 1 + rank
    return [*AXES[:before]], AXES[before], [*AXES[before + 1 : own]], [*AXES[own : own + 1 + rank]]


def _summed(
    ctx: Context, left: Expr, right: Expr, bias: Array | None, channel: Index, sizes: Sequence[int]
) -> Array:
    shape = (*ctx.spec.shape, *sizes)
    dtype = sum_dtype(ctx.dtype)
    value = e.mul(e.cast(left, dtype), e.cast(right, dtype))

    def finished(acc: Expr) -> Expr:
        return acc if bias is None else e.add(acc, e.cast(at(bias, [channel]), dtype))

    dims = range(len(ctx.spec.shape), len(shape))
    return reduce_value(
        ctx, "sum", shape, dims, value, finish=finished, dtype=ctx.dtype, strides=ctx.spec.strides
    )
