"""Depthwise convolutions, and those in groups of few channels, of channels-last data.

    out[n, y, x, o] = bias[o] + sum over ky, kx, c of
        x[n, y*sy + ky*dy - py, x*sx + kx*dx - px, o // M * G + c] * w[ky, kx, c, o]

for groups of G channels that give M each: a product with digits whose A depends on its column o
(loops/ir/depthwise.py). The weight is copied, once, so that neighbouring columns of a tap lie side by side. x is copied
only where M is no power of two, because each vector of columns would split such groups at other places: in the copy
each group is there as often as M's odd factor says, which makes M a power of two, and the copy as large as G results.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lampwork.graph.shapes_common import channels_last_strides
from lampwork.loops.ir.depthwise import depthwise
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import Axis, Expr, Gemm
from lampwork.lower.arrays import AXES, Array, as_view, at
from lampwork.lower.context import Context
from lampwork.lower.matmul import row_digits
from lampwork.lower.registry import NotExpressible
from lampwork.lower.views import permute, reshape
from lampwork.lower.windows import Dim, axis, inside
from lampwork.verdict import No, Verdict, Yes

MOST_TAPS = 64
"""Of a line, times the channels of a group: their code is written out."""

_M, _N, _K = Index.var("m"), Index.var("n"), Index.var("k")


def fits_lanes(weight: Sequence[int], groups: int) -> Verdict:
    """Whether columns of these groups can lie in the lanes of a vector. `weight`: its shape, (out, G, taps...).

    The groups of a vector must be whole, or the vector lie within one; its channels are one load and G shuffles of it.
    """
    inputs, outputs = weight[1], weight[0] // groups
    outputs //= _copies(outputs)
    if inputs > 4 * outputs:
        return No(f"groups of {inputs} channels that give {outputs} do not fit vectors")
    if weight[-1] * inputs > MOST_TAPS:
        return No(f"a line of {weight[-1]} taps of {inputs} channels is too much code")
    return Yes()


def _copies(outputs: int) -> int:
    """The odd factor of a number of outputs: a vector's groups are whole where there are as many copies of each."""
    return outputs // (outputs & -outputs)


def depthwise_product(
    ctx: Context, x: Array, weight: Array, value: Expr, dims: Sequence[Dim], groups: int
) -> Array:
    """The node's result, `value` being what to store of Local("acc"), over m and n."""
    copies = _copies(weight.shape[0] // groups)
    if copies > 1:
        x, groups = _repeated(ctx, x, weight.shape[1], copies), groups * copies
    shape = ctx.spec.shape
    out = ctx.buffer(shape, ctx.dtype, channels_last_strides(shape))
    image, *places = row_digits(_M, (shape[0], *shape[2:]))
    right = at(_by_taps(ctx, weight), [_K, _N])

    def product(x: Array) -> Gemm:
        last = permute(x, (0, *range(2, x.rank), 1))
        rows = tuple(axis(f"r{n}", size) for n, size in enumerate((shape[0], *shape[2:])))
        taps = tuple(axis(f"d{n}", dim.taps) for n, dim in enumerate(dims))
        channel = axis(f"d{len(dims)}", weight.shape[1])
        point = [dim.place(Index.var(f"r{n + 1}"), Index.var(f"d{n}")) for n, dim in enumerate(dims)]
        first = _N // (weight.shape[0] // groups) * weight.shape[1]
        return Gemm(
            out.buffer,
            (),
            Axis("m", as_index(shape[0] * prod(shape[2:]))),
            axis("n", weight.shape[0]),
            axis("k", prod(weight.shape[1:])),
            at(last, [Index.var("r0"), *point, first + Index.var(channel.name)], inside(dims, point)),
            right,
            (image, _N, *places),
            value,
            rows,
            (*taps, channel),
        )

    x = ctx.strided(x)
    gemm = product(x) if x.strides is not None and x.strides[1] == 1 else None
    if gemm is None or depthwise(gemm) is None:
        gemm = product(ctx.materialise(x, "channels_last", channels_last_strides(x.shape)))
    if depthwise(gemm) is None:
        raise NotExpressible("a convolution that is not proven to read inside of its input")
    ctx.emit(gemm)
    return out


def _repeated(ctx: Context, x: Array, inputs: int, copies: int) -> Array:
    """x in channels-last order, with each group of `inputs` channels as often as `copies` says."""
    shape = (x.shape[0], x.shape[1] * copies, *x.shape[2:])
    group, channel = AXES[1] // (inputs * copies), AXES[1] % inputs
    point = [AXES[0], group * inputs + channel, *AXES[2 : x.rank]]
    return ctx.map(shape, at(x, point), channels_last_strides(shape), "repeated", reads=[x])


def _by_taps(ctx: Context, weight: Array) -> Array:
    """The weight as (k, out channels), once."""
    moved = permute(ctx.strided(weight), (*range(2, weight.rank), 1, 0))
    shape = (prod(weight.shape[1:]), weight.shape[0])
    if ctx.standalone or weight.buffer.name not in ctx.fixed:
        return ctx.materialise(reshape(moved, shape), "taps")
    return ctx.call_once(
        "aten::_reshape_copy.default", (as_view(moved), list(shape)), shape, weight.dtype, "taps"
    )
