"""Convolutions of channels-last data, as matrix products whose rows and depth have digits.

    out[n, y, x, o] = bias[o] + sum over ky, kx, c of x[n, y*sy + ky*dy - py, x*sx + kx*dx - px, c] * w[o, ky, kx, c]

m is (n, y, x), k is (ky, kx, c), the groups are a batch. Nothing is copied: the template finds each row of A where it
lies, and reads zeros where a tap lies in the padding. Two things are copied all the same: the weight, once, so that k
runs along its memory (one that is computed in the graph is packed in each call, as it lies); and an input of few
channels, with its padding, so that (kx, c) is one run of k.

What this declines is a call of ATen: results in row-major order (eager's, where the input is not channels-last).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from lampwork.graph.layouts import same_strides
from lampwork.graph.shapes_common import channels_last_strides
from lampwork.graph.shapes_nn import each
from lampwork.loops.ir.bounds import offset_in
from lampwork.loops.ir.index import ZERO, Index, as_index, simplify
from lampwork.loops.ir.nodes import Axis, DType, Expr, Gemm, Load, Local
from lampwork.loops.ir.windows import LONGEST_RUN, windows
from lampwork.lower import convolution_loops as loops
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, as_view, at
from lampwork.lower.context import Context
from lampwork.lower.convolution_loops import or_loops
from lampwork.lower.depthwise import depthwise_product, fits_lanes
from lampwork.lower.dtypes import HALVES, compute_dtype
from lampwork.lower.matmul import gemm, merges, row_digits
from lampwork.lower.narrow import bytes_of
from lampwork.lower.registry import NotExpressible, Registry
from lampwork.lower.transposed import PhaseDim, fits_phases, transposed_product
from lampwork.lower.views import expand_to, permute, reshape, swap
from lampwork.lower.windows import Dim, axis
from lampwork.verdict import No, Verdict, Yes

rules = Registry()

CONVOLVED: frozenset[DType] = frozenset(("f32", "f64", "bf16", "f16"))
"""The dtypes that the template of convolutions multiplies, of those that a target has products of."""

PACKED_NOW: frozenset[DType] = frozenset(("f32", "f64"))
"""Those whose weights are packed in each call where they are computed in the graph; the others take too long."""

FEW_CHANNELS = 16
"""An input of fewer channels is copied with its padding: a run of k as short as that does not pay for its address."""

WORD = 4
"""Numbers of int8 that are multiplied at once, at most."""

LEAST_GROUP = 8
"""Groups of fewer channels leave most of a vector idle: several of them share it (depthwise.py)."""

LEAST_DEPTH = 128
"""Of a transposed convolution of volumes: shorter sums take less time than finding where the elements lie, and ATen's
are faster (0.5 to 1.0 for 2 x 2 x 2 filters with stride 2 of 32 and 64 channels)."""

_M, _N = Index.var("m"), Index.var("n")


def has_few_channels(weight: Sequence[int], groups: int) -> bool:
    """Whether the channels of a group fill too little of a vector. `weight`: its shape."""
    return groups > 1 and min(weight[0] // groups, weight[1]) < LEAST_GROUP


def fits_template(dtype: DType, weight: Sequence[int], groups: int) -> Verdict:
    """Whether a weight of this shape has a template."""
    if has_few_channels(weight, groups):
        if dtype == "i8":
            return No("int8 is not multiplied in groups of few channels")
        return fits_lanes(weight, groups)
    if dtype == "i8" and weight[1] % WORD:
        return No(f"{weight[1]} channels of int8 are no whole words")
    if groups > 1 and is_odd(dtype, weight[1]):
        return No(f"groups of {weight[1]} channels of {dtype} are no whole pairs")
    if weight[1] > LONGEST_RUN:
        return No(f"{weight[1]} channels are more than the template has zeros for")
    return Yes()


def fits_transposed(dtype: DType, weight: Sequence[int], dims: Sequence[PhaseDim], groups: int) -> Verdict:
    """Whether a transposed convolution by a weight of this shape has a template."""
    inputs = weight[0] // groups
    if is_odd(dtype, inputs):
        return No(f"a transposed convolution of {inputs} channels of {dtype}, which are no whole pairs")
    if min(inputs, weight[1]) < LEAST_GROUP:
        return No(f"a transposed convolution of {inputs} to {weight[1]} channels")
    if inputs > LONGEST_RUN:
        return No(f"{inputs} channels are more than the template has zeros for")
    depth = inputs * prod(dim.taps for dim in dims)
    if len(dims) == 3 and depth < LEAST_DEPTH:
        return No(f"a transposed convolution of volumes whose elements are sums of {depth}")
    return fits_phases(dims)


def _require(ctx: Context, x: Array, weight: Array, bias: Array | None, *, any_order: bool = False) -> None:
    """Raises NotExpressible for what no template convolves."""
    rank = weight.rank - 2
    shape = ctx.spec.shape
    if x.rank != rank + 2:
        raise NotExpressible("a convolution of an input without a batch dimension")
    if rank < 1 or prod(shape) == 0 or x.numel == 0:
        raise NotExpressible("a convolution of no elements")
    operands = [x, weight, *([bias] if bias is not None else [])]
    if {operand.dtype for operand in operands} != {ctx.dtype} or ctx.dtype not in ctx.products & CONVOLVED:
        raise NotExpressible(f"a convolution of {x.dtype}")
    if weight.buffer.name not in ctx.fixed and x.dtype not in PACKED_NOW:
        raise NotExpressible(f"a convolution by a weight of {x.dtype} that is computed in the graph")
    if any_order:
        return
    if rank == 3 and x.strides is not None and x.strides[1] == 1:
        return  # those that torch convolves by loops of its own, into row-major order: a copy is a small part of them
    # A line that has a template is a plane of one line here.
    if rank == 1 or not same_strides(ctx.spec, replace(ctx.spec, strides=channels_last_strides(shape))):
        raise NotExpressible("a convolution whose result is in row-major order")


def _in_order(ctx: Context, out: Array) -> Array:
    """The result in the order that it has in eager: itself, but for some volumes."""
    spec = ctx.spec
    if same_strides(spec, replace(spec, strides=channels_last_strides(spec.shape))):
        return out
    return ctx.materialise(out, "rows", spec.strides)


def _convolution(
    ctx: Context,
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    if any(number < 1 for number in (*stride, *dilation)) or any(number < 0 for number in padding):
        raise NotExpressible("a convolution that eager refuses")
    one_pixel = (
        prod(x.shape[2:]) == prod(ctx.spec.shape[2:]) == prod(weight.shape[2:]) == groups == 1
        and ctx.in_bf16.products == ctx.in_bf16.convolutions
    )
    _require(ctx, x, weight, bias, any_order=one_pixel)
    if one_pixel:
        return _of_one_pixel(ctx, x, weight, bias)
    shape = ctx.spec.shape
    dtype = ctx.dtype
    scale: Array | None = None
    left, right = bytes_of(ctx, x), bytes_of(ctx, weight)
    if (
        left is not None
        and left.scale is None
        and right is not None
        and isinstance(fits_template("i8", weight.shape, groups), Yes)
    ):
        x, weight, scale, dtype = left.source, right.source, right.scale, "i8"
    elif (
        ctx.in_bf16.convolutions
        and dtype == "f32"
        and weight.buffer.name in ctx.fixed
        and not has_few_channels(weight.shape, groups)  # which are multiplied in float32 all the same
        and isinstance(fits_template("bf16", weight.shape, groups), Yes)
    ):
        x, weight, dtype = ctx.narrowed(x), ctx.narrowed(weight), "bf16"
    fits = fits_template(dtype, weight.shape, groups)
    if isinstance(fits, No):
        raise NotExpressible(fits.reason)
    dims = [
        Dim(*parts)
        for parts in zip(x.shape[2:], shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    ]
    outputs = weight.shape[0] // groups
    if has_few_channels(weight.shape, groups):
        return _in_order(ctx, depthwise_product(ctx, x, weight, _result(ctx, bias, _N), dims, groups))
    if is_odd(dtype, weight.shape[1]):
        x, weight = (_with_zeros(ctx, array) for array in (x, weight))
    out = ctx.buffer(shape, ctx.dtype, channels_last_strides(shape))
    b_axes = (Axis("b0", as_index(groups)),) if groups > 1 else ()
    group = Index.var("b0") if groups > 1 else as_index(0)
    channel = group * outputs + _N
    value = _result(ctx, bias, channel, scale, "i32" if dtype == "i8" else None)
    count = shape[0] * prod(shape[2:])
    a, rows, depth = _left(ctx, x, dims, group, weight.shape[1], groups)
    if windows(a, b_axes, rows, depth) is None:
        x = ctx.materialise(x, "channels_last", channels_last_strides(x.shape))
        a, rows, depth = _left(ctx, x, dims, group, weight.shape[1], groups)
        if windows(a, b_axes, rows, depth) is None:
            raise NotExpressible("a convolution that is not proven to read inside of its input")
    k = prod(weight.shape[1:])
    image, *places = row_digits(_M, (shape[0], *shape[2:]))
    b = at(_flat_weight(ctx, weight), [channel, Index.var("k")])
    extents = {"b0": as_index(groups), "n": as_index(outputs), "k": as_index(k)}
    ctx.emit(
        Gemm(
            out.buffer,
            b_axes,
            Axis("m", as_index(count)),
            Axis("n", as_index(outputs)),
            Axis("k", as_index(k)),
            a,
            Load(b.buffer, tuple(simplify(position, extents) for position in b.index)),
            (image, channel, *places),
            value,
            rows,
            depth,
        )
    )
    return _in_order(ctx, out)


def _result(
    ctx: Context, bias: Array | None, channel: Index, scale: Array | None = None, sums: DType | None = None
) -> Expr:
    """The sum with its scale [channels, 1...] and its bias, rounded once. `sums`: its dtype, if not the usual one."""
    dtype = compute_dtype(ctx.dtype)
    value: Expr = e.cast(Local("acc", sums or dtype), dtype)
    if scale is not None:
        ones = (1,) * (scale.rank - 1)
        outputs = ctx.spec.shape[1]
        place = [channel, *(ZERO for _ in ones)]
        value = e.mul(value, at(expand_to(scale, (outputs, *ones)), place) if scale.rank else at(scale, []))
    if bias is not None:
        value = e.add(value, e.cast(at(bias, [channel]), value.dtype))
    return e.cast(value, ctx.dtype)


def _of_one_pixel(ctx: Context, x: Array, weight: Array, bias: Array | None) -> Array:
    """A convolution of one tap over images of one pixel (a squeeze-and-excite gate): a linear layer."""
    images, outputs = x.shape[0], weight.shape[0]
    pixels = reshape(x, x.shape[:2])
    matrix = swap(reshape(ctx.strided(weight), weight.shape[:2]), 0, 1)
    out = gemm(
        ctx, ctx.strided(pixels), matrix, (images, outputs), rows=(images,), epilogue=_result(ctx, bias, _N)
    )
    return reshape(out, ctx.spec.shape)


def is_odd(dtype: DType, channels: int) -> bool:
    """Whether channels lack one to be whole words of a dot product instruction."""
    return dtype in HALVES and channels % 2 == 1


def _with_zeros(ctx: Context, array: Array) -> Array:
    """A channels-last copy with one more channel, of zeros."""
    channels = array.shape[1]
    shape = (array.shape[0], channels + 1, *array.shape[2:])
    load = at(array, AXES[: array.rank], e.inside(AXES[1], None, as_index(channels)))
    return ctx.map(shape, load, channels_last_strides(shape), "pairs", reads=[array])


def _left(
    ctx: Context, x: Array, dims: Sequence[Dim], group: Index, channels: int, groups: int
) -> tuple[Load, tuple[Axis, ...], tuple[Axis, ...]]:
    """(A, the digits of m, the digits of k)."""
    rank = len(dims)
    x = ctx.strided(x)
    strides = x.strides
    if strides is None or strides[1] != 1:
        x = ctx.materialise(x, "channels_last", channels_last_strides(x.shape))
    last = permute(x, (0, *range(2, rank + 2), 1))
    outputs = [dim.output for dim in dims]
    if all(dim.taps == dim.stride == 1 and not dim.is_padded for dim in dims):
        pixels = _as_pixels(last, group * channels, channels, groups)
        if pixels is not None:
            return pixels
    rows = tuple(axis(f"r{n}", size) for n, size in enumerate((x.shape[0], *outputs)))
    if groups == 1 and channels < FEW_CHANNELS and dims[-1].taps > 1 and dims[-1].dilation == 1:
        return (*_few_channels(ctx, last, dims, rows),)
    taps = [axis(f"d{n}", dim.taps) for n, dim in enumerate(dims) if dim.taps > 1]
    depth = (*taps, axis(f"d{rank}", channels))
    point = [Index.var("r0")]
    mask: Expr | None = None
    for n, dim in enumerate(dims):
        place = dim.place(Index.var(f"r{n + 1}"), Index.var(f"d{n}") if dim.taps > 1 else ZERO)
        if dim.is_padded:
            mask = e.both(mask, e.inside(place, 0, as_index(dim.input)))
        point.append(place)
    return at(last, [*point, group * channels + Index.var(f"d{rank}")], mask), rows, depth


def _as_pixels(
    last: Array, first: Index, channels: int, groups: int
) -> tuple[Load, tuple[Axis, ...], tuple[Axis, ...]] | None:
    """`_left` of filters of one tap, where all pixels lie in one row: m is one digit."""
    if not merges(last, last.rank - 1):
        return None
    rows, depth = (axis("r0", prod(last.shape[:-1])),), (axis("d0", channels),)
    load = at(last, [*row_digits(Index.var("r0"), last.shape[:-1]), first + Index.var("d0")])
    extents = {axis.name: axis.extent for axis in (*rows, *depth)} | {"b0": as_index(groups)}
    index = tuple(simplify(position, extents) for position in load.index)
    if simplify(offset_in(load.buffer, index), extents).coefficient("r0") is None:
        return None  # sizes that stay open, whose products do not cancel
    return Load(load.buffer, index), rows, depth


def _few_channels(
    ctx: Context, last: Array, dims: Sequence[Dim], rows: tuple[Axis, ...]
) -> tuple[Load, tuple[Axis, ...], tuple[Axis, ...]]:
    """`_left` of a copy with its padding in it, in which the last taps and the channels are one digit."""
    rank, channels = len(dims), last.shape[-1]
    mask: Expr | None = None
    point: list[Index] = [AXES[0]]
    for n, dim in enumerate(dims):
        place = AXES[n + 1] - dim.padding
        if dim.is_padded:
            mask = e.both(mask, e.inside(place, 0, as_index(dim.input)))
        point.append(place)
    sizes = [dim.input + 2 * dim.padding for dim in dims]
    load = at(last, [*point, AXES[rank + 1]], mask)
    padded = ctx.map((last.shape[0], *sizes, channels), load, hint="padded")
    lines = reshape(padded, (last.shape[0], *sizes[:-1], sizes[-1] * channels))
    run = dims[-1].taps * channels
    depth = (*(axis(f"d{n}", dim.taps) for n, dim in enumerate(dims[:-1])), axis(f"d{rank - 1}", run))
    places = [
        Index.var(f"r{n + 1}") * dim.stride + Index.var(f"d{n}") * dim.dilation
        for n, dim in enumerate(dims[:-1])
    ]
    start = Index.var(f"r{rank}") * (dims[-1].stride * channels) + Index.var(f"d{rank - 1}")
    found = at(lines, [Index.var("r0"), *places, start])
    extents = {axis.name: axis.extent for axis in (*rows, *depth)}
    return Load(found.buffer, tuple(simplify(position, extents) for position in found.index)), rows, depth


def _flat_weight(ctx: Context, weight: Array) -> Array:
    """The weight as (out channels, k), with k running along memory; copied once if it does not as it lies."""
    weight = ctx.strided(weight)
    moved = permute(weight, (0, *range(2, weight.rank), 1))
    shape = (weight.shape[0], prod(weight.shape[1:]))
    if merges(moved, weight.rank) or merges(permute(moved, (*range(1, weight.rank), 0)), weight.rank - 1):
        flat = reshape(moved, shape)
        if flat.strides is not None and flat.strides[1] == 1:
            return flat
    if weight.buffer.name not in ctx.fixed:
        return reshape(moved, shape)
    if ctx.standalone:
        return ctx.materialise(reshape(moved, shape), "flat")
    return ctx.call_once(
        "aten::_reshape_copy.default", (as_view(moved), list(shape)), shape, weight.dtype, "flat"
    )


# --- the operators ----------------------------------------------------------------------------------------------------


@rules.lowers("conv1d", "conv2d", "conv3d")
def conv(
    ctx: Context,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Array:
    rank = weight.rank - 2
    steps, pads, gaps = (each(value, rank) for value in (stride, padding, dilation))
    given = (ctx, x, weight, bias, steps, pads, gaps, groups)
    return or_loops(ctx, lambda: _convolution(*given), lambda: loops.convolved(*given))


@rules.lowers("convolution")
def convolution(
    ctx: Context,
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Array:
    if transposed:
        return conv_transpose(ctx, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(ctx, x, weight, bias, stride, padding, dilation, groups)


@rules.lowers("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(
    ctx: Context,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Array:
    rank = weight.rank - 2
    steps, pads, gaps = (each(value, rank) for value in (stride, padding, dilation))
    given = (ctx, x, weight, bias, steps, pads, gaps, groups)
    return or_loops(ctx, lambda: _transposed(*given), lambda: loops.transposed(*given))


def _transposed(
    ctx: Context,
    x: Array,
    weight: Array,
    bias: Array | None,
    steps: Sequence[int],
    pads: Sequence[int],
    gaps: Sequence[int],
    groups: int,
) -> Array:
    _require(ctx, x, weight, bias)
    shape = ctx.spec.shape
    dims = [
        PhaseDim(*parts)
        for parts in zip(x.shape[2:], shape[2:], weight.shape[2:], steps, pads, gaps, strict=True)
    ]
    fits = fits_transposed(ctx.dtype, weight.shape, dims, groups)
    if isinstance(fits, No):
        raise NotExpressible(fits.reason)
    group = Index.var("b0") if groups > 1 else as_index(0)
    value = _result(ctx, bias, group * weight.shape[1] + _N)
    return _in_order(ctx, transposed_product(ctx, x, weight, value, dims, groups))


@rules.lowers("conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv_padding(
    ctx: Context,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: int | Sequence[int] = 1,
    padding: str = "valid",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Array:
    rank = weight.rank - 2
    gaps = each(dilation, rank)
    total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(gaps, weight.shape[2:], strict=True)]
    before = [t // 2 for t in total]
    if any(t % 2 for t in total):
        if ctx.standalone:
            return loops.convolved(ctx, x, weight, bias, each(stride, rank), before, gaps, groups)
        raise NotExpressible("a convolution that pads its two sides differently")
    return conv(ctx, x, weight, bias, stride, before, gaps, groups)
