"""Gradients of convolutions.

    dx[n, y, x, c] = sum over taps, o of g[the pixels that read it at the tap, o] * w[o, tap, c]
    dw[o, tap, c]  = sum over n, y, x of x[the pixel's place at the tap, c] * g[n, y, x, o]
    db[o]          = sum over n, y, x of g[n, y, x, o]

dx is the transposed convolution of g by w (transposed.py), and of a transposed convolution the plain one; dw is a
product whose depth are the pixels (loops/ir/weight_gradient.py), with x and g in each other's place if the convolution
is transposed. All of them read and make channels-last data. What none of this expresses is a call of ATen for just
that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import cast

from lampwork.graph.layouts import same_strides
from lampwork.graph.shapes_common import channels_last_strides
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import hint_of
from lampwork.loops.ir.index import Index, as_index, simplify
from lampwork.loops.ir.nodes import Axis, Gemm, Load, Local
from lampwork.loops.ir.weight_gradient import weight_gradient
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, at, whole
from lampwork.lower.context import Context
from lampwork.lower.depthwise import depthwise_product
from lampwork.lower.extern import call
from lampwork.lower.matmul import gemm, merges, row_digits
from lampwork.lower.reduce import reduce_value, value_of
from lampwork.lower.registry import NotExpressible, Registry
from lampwork.lower.transposed import PhaseDim, fits_phases, transposed_product
from lampwork.lower.views import permute, reshape, unsqueeze_dim
from lampwork.lower.windows import Dim, axis, inside
from lampwork.records import record
from lampwork.verdict import No

rules = Registry()

_M, _N, _K = Index.var("m"), Index.var("n"), Index.var("k")

LEAST_CHANNELS = 8
"""Of a group: fewer leave most of a vector idle."""

LEAST_PIXELS = 512
"""Of the result of a convolution with a stride whose input gradient is generated: for fewer, it takes longer to sort
the weight by phases than to multiply by it (0.6 to 1.0 for 512 x 512 x 3 x 3 and 196 pixels)."""

DEPTHWISE_CHANNELS = 64
"""Of a depthwise convolution whose input gradient is generated: of fewer, in larger images, oneDNN's is faster (2 times
for 16 channels of 112 x 112 pixels)."""


@record
class _Convolution:
    """What is differentiated; `x`, `weight` and `g`, the gradient of the result, are those of planes or volumes."""

    g: Array
    x: Array
    weight: Array
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


Part = Callable[[Context, _Convolution], Array]


@rules.lowers("convolution_backward")
def convolution_backward(
    ctx: Context,
    grad_output: Array,
    x: Array,
    weight: Array,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> list[Array]:
    specs = cast("tuple[TensorSpec | None, ...]", ctx.val)
    wanted = [number in ctx.wanted and spec is not None for number, spec in enumerate(specs)]
    if (
        x.dtype not in ctx.products & {"f32", "f64"}
        or transposed
        or len({each.dtype for each in (grad_output, x, weight)}) > 1
    ):
        raise NotExpressible("gradients of a transposed convolution")
    if any(each.numel == 0 for each in (grad_output, x, weight)):
        raise NotExpressible("gradients of a convolution of no elements")
    conv = _Convolution(grad_output, x, weight, tuple(stride), tuple(padding), tuple(dilation), groups)
    if x.rank == 3:
        conv = _as_planes(conv)
    parts: tuple[Part, ...] = (_of_input, _of_weight, _of_bias)
    found: list[Array | None] = [None, None, None]
    refused: list[str] = []
    for number, part in enumerate(parts):
        if wanted[number]:
            found[number] = _try(ctx, part, conv, cast(TensorSpec, specs[number]), refused)
    left = [want and array is None for want, array in zip(wanted, found, strict=True)]
    given = _in_the_order_of(ctx, x, grad_output) if any(left) else grad_output
    if left == wanted and given is grad_output:
        raise NotExpressible("; ".join(refused))
    if any(left):
        ctx.val = tuple(spec if here else None for spec, here in zip(specs, left, strict=True))
        args = (
            given,
            x,
            weight,
            bias_sizes,
            stride,
            padding,
            dilation,
            transposed,
            output_padding,
            groups,
            left,
        )
        called = cast("tuple[Array, ...]", call(ctx, "aten::convolution_backward.default", args))
        ctx.val = specs
        found = [theirs if here else ours for ours, theirs, here in zip(found, called, left, strict=True)]
    return [ctx.nothing() if array is None else array for array in found]


def _in_the_order_of(ctx: Context, x: Array, g: Array) -> Array:
    """A channels-last gradient of the result, row-major if the input is: ATen would copy it element by element, in five
    times the time."""
    if x.rank != 4 or x.strides is None or x.strides[1] == 1 or x.shape[1] == 1:
        return g
    return ctx.materialise(g, "rows") if g.strides is not None and g.strides[1] == 1 else g


def _as_planes(conv: _Convolution) -> _Convolution:
    """A convolution of lines as one of planes of a single line."""
    g, x, weight = (unsqueeze_dim(each, 2) for each in (conv.g, conv.x, conv.weight))
    return _Convolution(g, x, weight, (1, *conv.stride), (0, *conv.padding), (1, *conv.dilation), conv.groups)


def _try(ctx: Context, part: Part, conv: _Convolution, spec: TensorSpec, refused: list[str]) -> Array | None:
    """One gradient in the order that eager has for it; None where it is not expressed."""
    before, made, fixed = ctx.val, len(ctx.main), len(ctx.constant)
    rank = len(spec.shape)
    lifted = spec
    if rank == 3:
        (outer, channel, length), size = spec.strides, spec.shape[2]
        lifted = TensorSpec(
            (*spec.shape[:2], 1, size), (outer, channel, length * size, length), spec.dtype, spec.device
        )
    ctx.val = lifted
    try:
        found = part(ctx, conv)
    except NotExpressible as reason:
        del ctx.main[made:], ctx.constant[fixed:]
        refused.append(str(reason))
        return None
    finally:
        ctx.val = before
    return reshape(found, spec.shape)


# --- the input --------------------------------------------------------------------------------------------------------


def _of_input(ctx: Context, conv: _Convolution) -> Array:
    spec = ctx.spec
    out = _input_products(ctx, conv)
    if same_strides(spec, TensorSpec(spec.shape, channels_last_strides(spec.shape), spec.dtype, spec.device)):
        return out
    return ctx.materialise(out, "rows", spec.strides)


def _input_products(ctx: Context, conv: _Convolution) -> Array:
    g, weight, shape = conv.g, conv.weight, ctx.spec.shape
    if all(size == 1 for size in weight.shape[2:]) and not any(conv.padding) and conv.groups == 1:
        return _of_single_taps(ctx, conv)
    if weight.shape[1] == 1 and weight.shape[0] == conv.groups >= DEPTHWISE_CHANNELS:
        return _of_depthwise(ctx, conv)
    if min(weight.shape[0] // conv.groups, weight.shape[1]) < LEAST_CHANNELS:
        raise NotExpressible(f"an input gradient in groups of {weight.shape[1]} channels")
    pixels, phases = hint_of(prod((g.shape[0], *g.shape[2:]))), prod(conv.stride)
    if phases > 1 and pixels < LEAST_PIXELS and weight.numel > LEAST_PIXELS * pixels:
        raise NotExpressible(f"an input gradient in {phases} phases of few pixels")
    dims = [
        PhaseDim(*parts)
        for parts in zip(
            g.shape[2:], shape[2:], weight.shape[2:], conv.stride, conv.padding, conv.dilation, strict=True
        )
    ]
    fits = fits_phases(dims)
    if isinstance(fits, No):
        raise NotExpressible(fits.reason)
    return transposed_product(ctx, g, weight, Local("acc", g.dtype), dims, conv.groups)


def _of_depthwise(ctx: Context, conv: _Convolution) -> Array:
    """Each channel of g convolved by the taps of its own from the last one to the first."""
    g, weight, shape = conv.g, conv.weight, ctx.spec.shape
    padding = [
        gap * (taps - 1) - pad
        for gap, taps, pad in zip(conv.dilation, weight.shape[2:], conv.padding, strict=True)
    ]
    if any(step != 1 for step in conv.stride) or min(padding) < 0:
        raise NotExpressible("an input gradient of a depthwise convolution with a stride")
    last = {f"i{n}": size - 1 - AXES[n] for n, size in enumerate(weight.shape) if n >= 2}
    index = tuple(position.substitute(last) for position in weight.index)
    flipped = Array(weight.buffer, weight.shape, index, None)
    sizes = zip(g.shape[2:], shape[2:], weight.shape[2:], conv.stride, padding, conv.dilation, strict=True)
    return depthwise_product(
        ctx, g, flipped, Local("acc", g.dtype), [Dim(*each) for each in sizes], conv.groups
    )


def _of_single_taps(ctx: Context, conv: _Convolution) -> Array:
    """Each pixel of g times the weight; the pixels of x between those that were read get zeros."""
    shape, rank = ctx.spec.shape, len(conv.stride)
    g = permute(_channels_last(ctx, conv.g), (0, *range(2, rank + 2), 1))
    matrix = reshape(conv.weight, conv.weight.shape[:2])
    sizes = g.shape[:-1]
    pixels = gemm(ctx, g, ctx.strided(matrix), (*sizes, shape[1]), rows=sizes, hint="pixels")
    if all(step == 1 for step in conv.stride):
        return permute(pixels, (0, rank + 1, *range(1, rank + 1)))
    mask = None
    point = [AXES[0]]
    for place, step, size in zip(AXES[2 : rank + 2], conv.stride, sizes[1:], strict=True):
        point.append(place // step)
        if step > 1:
            mask = e.both(mask, e.test("eq", e.index_value(place % step), e.const(0, "i64")))
        mask = e.both(mask, e.inside(place // step, None, as_index(size)))
    return ctx.map(shape, at(pixels, [*point, AXES[1]], mask), channels_last_strides(shape), "spread")


# --- the weight -------------------------------------------------------------------------------------------------------


def _of_weight(ctx: Context, conv: _Convolution) -> Array:
    spec, rank, groups = ctx.spec, len(conv.stride), conv.groups
    outputs, inputs = spec.shape[0] // groups, spec.shape[1]
    depthwise = outputs == inputs == 1 and groups >= LEAST_CHANNELS
    if not depthwise and min(outputs, inputs) < LEAST_CHANNELS:
        raise NotExpressible(f"a weight gradient in groups of {inputs} channels")
    last = (0, *range(2, rank + 2), 1)
    x, g = (permute(_channels_last(ctx, each), last) for each in (conv.x, conv.g))
    sizes = zip(
        x.shape[1:-1], g.shape[1:-1], spec.shape[2:], conv.stride, conv.padding, conv.dilation, strict=True
    )
    dims = [Dim(*parts) for parts in sizes]
    is_plain = all(dim.taps == dim.stride == 1 and not dim.is_padded for dim in dims)
    if is_plain and not depthwise and all(type(size) is int for size in x.shape):
        count = prod(x.shape[:-1])
        x, g = (reshape(each, (*(1,) * rank, count, each.shape[-1])) for each in (x, g))
        dims = [*(Dim(1, 1, 1, 1, 0, 1) for _ in dims[1:]), Dim(count, count, 1, 1, 0, 1)]
    product = _depthwise_product(ctx, x, g, dims) if depthwise else _product(ctx, x, g, dims, groups)
    if weight_gradient(product) is None:
        raise NotExpressible("a weight gradient that is not proven to read inside of its operands")
    ctx.emit(product)
    return whole(product.out, spec.shape, spec.strides)


def _product(ctx: Context, x: Array, g: Array, dims: Sequence[Dim], groups: int) -> Gemm:
    """The gradient of a weight, as the node's result, of channels-last x and g."""
    spec = ctx.spec
    outputs, inputs = spec.shape[0] // groups, spec.shape[1]
    group = Index.var("b0") if groups > 1 else as_index(0)
    taps, rows, depth, point = _digits(dims, g)
    rows = (*rows, axis(f"r{len(dims)}", inputs))
    channel = group * inputs + Index.var(rows[-1].name)
    *places, place = row_digits(_M, (*taps, inputs))
    k = as_index(prod(g.shape[:-1]))
    return Gemm(
        ctx.buffer(spec.shape, x.dtype, spec.strides).buffer,
        (axis("b0", groups),) if groups > 1 else (),
        axis("m", prod(taps) * inputs),
        axis("n", outputs),
        Axis("k", k),
        at(x, [Index.var("d0"), *point, channel], inside(dims, point)),
        _pixels(g, group * outputs + _N, {"b0": as_index(groups), "n": as_index(outputs), "k": k}),
        (group * outputs + _N, place, *places),
        Local("acc", x.dtype),
        rows,
        depth,
    )


def _depthwise_product(ctx: Context, x: Array, g: Array, dims: Sequence[Dim]) -> Gemm:
    """`_product` of a weight of one tap matrix for each channel."""
    spec = ctx.spec
    taps, rows, depth, point = _digits(dims, g)
    n, k = as_index(spec.shape[0]), as_index(prod(g.shape[:-1]))
    return Gemm(
        ctx.buffer(spec.shape, x.dtype, spec.strides).buffer,
        (),
        axis("m", prod(taps)),
        Axis("n", n),
        Axis("k", k),
        at(x, [Index.var("d0"), *point, _N], inside(dims, point)),
        _pixels(g, _N, {"n": n, "k": k}),
        (_N, as_index(0), *row_digits(_M, taps)),
        Local("acc", x.dtype),
        rows,
        depth,
    )


def _digits(
    dims: Sequence[Dim], g: Array
) -> tuple[list[int], tuple[Axis, ...], tuple[Axis, ...], list[Index]]:
    """How many taps there are, the digits of m that they are, those of k, and where a tap of a pixel lies."""
    taps = [dim.taps for dim in dims]
    rows = tuple(axis(f"r{n}", size) for n, size in enumerate(taps))
    depth = tuple(axis(f"d{n}", size) for n, size in enumerate(g.shape[:-1]))
    return (
        taps,
        rows,
        depth,
        [dim.place(Index.var(f"d{n + 1}"), Index.var(f"r{n}")) for n, dim in enumerate(dims)],
    )


def _pixels(g: Array, column: Index, extents: dict[str, Index]) -> Load:
    """Pixel k of g."""
    found = at(g, [*row_digits(_K, g.shape[:-1]), column])
    return Load(found.buffer, tuple(simplify(position, extents) for position in found.index))


def _channels_last(ctx: Context, array: Array) -> Array:
    """The array with channels that run along memory and pixels that lie as one."""
    array = ctx.strided(array)
    last = permute(array, (0, *range(2, array.rank), 1))
    if array.strides is not None and array.strides[1] == 1 and merges(last, last.rank - 1):
        return array
    return ctx.materialise(array, "channels_last", channels_last_strides(array.shape))


# --- the bias ---------------------------------------------------------------------------------------------------------


def _of_bias(ctx: Context, conv: _Convolution) -> Array:
    shape = conv.g.shape
    return reduce_value(ctx, "sum", shape, (0, *range(2, len(shape))), value_of(conv.g, conv.g.dtype))
