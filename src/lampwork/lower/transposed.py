"""Transposed convolutions of channels-last data, and gradients of the input of others, as convolutions of their phases.

    out[n, y, o] = bias[o] + sum over ky, c with y = iy*s + ky - p of x[n, iy, c] * w[c, o, ky]

What y = s*q + r reads depends on its phase r: the taps ky = (r + p) % s + s*j at x[q + (r + p)//s - j]. So each phase
is a convolution of stride 1 by its own taps, and the phases are the batch of one product: nothing is multiplied by the
zeros between the elements of x, and nothing is added up in memory. A batch needs shifts that are affine in its digits:

    p % s == 0        r is one digit, (r + p)//s = p//s
    p % s == s/2      r = s/2*h + l in two digits, (r + p)//s = p//s + h           (kernel 4, stride 2, padding 1)

A stride of 1 is one phase, of any dilation. Where a phase has a tap less than others (kernel 3, stride 2), A's mask
says so, and the template leaves the tap out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from lampwork.graph.shapes_common import channels_last_strides
from lampwork.graph.spec import contiguous_strides
from lampwork.graph.symbols import same_size
from lampwork.loops.ir.index import Index, as_index, simplify
from lampwork.loops.ir.nodes import Axis, Expr, Gemm
from lampwork.loops.ir.windows import windows
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, as_view, at, axes_of
from lampwork.lower.context import Context
from lampwork.lower.matmul import row_digits
from lampwork.lower.registry import NotExpressible
from lampwork.lower.views import permute, reshape
from lampwork.lower.windows import axis
from lampwork.records import record
from lampwork.verdict import No, Verdict, Yes

_M, _N, _K = Index.var("m"), Index.var("n"), Index.var("k")


@record
class PhaseDim:
    """One spatial dimension: input and output size, the kernel, and how it steps."""

    input: int
    output: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def taps(self) -> int:
        """The most taps of a phase."""
        return -(-self.kernel // self.stride)

    @property
    def digits(self) -> tuple[int, ...]:
        """The extents of the digits of the phase."""
        if self.stride == 1:
            return ()
        halves = 2 * (self.padding % self.stride) == self.stride
        return (2, self.stride // 2) if halves else (self.stride,)

    @property
    def is_plain(self) -> bool:
        """Whether each element of the input gives elements of its own."""
        return (
            self.kernel == self.stride
            and not self.padding
            and same_size(self.output, self.input * self.stride)
        )


def fits_phases(dims: Sequence[PhaseDim]) -> Verdict:
    """Whether the phases are a batch."""
    for dim in dims:
        if dim.stride == 1:
            continue
        if dim.dilation != 1 and dim.kernel != 1:
            return No("a transposed convolution with both a stride and a dilation")
        if dim.padding % dim.stride and 2 * (dim.padding % dim.stride) != dim.stride:
            return No("a transposed convolution whose phases start at different places")
        if not same_size(dim.output, dim.output // dim.stride * dim.stride):
            return No("a transposed convolution whose phases have different sizes")
        if dim.kernel < dim.stride:
            return No("a transposed convolution with phases of no tap")
    return Yes()


@record
class _Phase:
    """A phase along one dimension, over its digits: r, (r + p) // s and (r + p) % s."""

    number: Index
    shift: Index
    tap: Index
    digits: tuple[Axis, ...]


def _phase(dim: PhaseDim, name: str) -> _Phase:
    digits = tuple(axis(f"{name}{n}", size) for n, size in enumerate(dim.digits))
    first = as_index(dim.padding // dim.stride)
    if not digits:
        return _Phase(as_index(0), as_index(dim.padding), as_index(0), ())
    if len(digits) == 1:
        number = Index.var(digits[0].name)
        return _Phase(number, first, number, digits)
    half, (high, low) = dim.stride // 2, (Index.var(digit.name) for digit in digits)
    return _Phase(high * half + low, first + high, low + half - high * half, digits)


def transposed_product(
    ctx: Context, x: Array, weight: Array, value: Expr, dims: Sequence[PhaseDim], groups: int
) -> Array:
    """The node's result in channels-last order, `value` being what to store of Local("acc"), over the batch, m and n; a
    group is b0."""
    shape, rank = ctx.spec.shape, len(dims)
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    phases = [_phase(dim, f"p{n}_") for n, dim in enumerate(dims)]
    group = Index.var("b0") if groups > 1 else as_index(0)
    batch = ((axis("b0", groups),) if groups > 1 else ()) + tuple(d for phase in phases for d in phase.digits)
    sizes = [dim.output // dim.stride for dim in dims]
    rows = tuple(axis(f"r{n}", size) for n, size in enumerate((shape[0], *sizes)))
    taps = [axis(f"d{n}", dim.taps) for n, dim in enumerate(dims) if dim.taps > 1]
    depth = (*taps, axis(f"d{rank}", inputs))
    out = ctx.buffer(shape, ctx.dtype, channels_last_strides(shape))
    image, *places = row_digits(_M, (shape[0], *sizes))
    where = [
        place * dim.stride + phase.number for place, dim, phase in zip(places, dims, phases, strict=True)
    ]
    is_called = weight.buffer.name in ctx.fixed and not ctx.standalone
    by_phases = _by_phases if is_called else _by_phases_now
    right = at(
        by_phases(ctx, weight, dims, groups),
        [*(dim.stride - 1 - phase.tap for dim, phase in zip(dims, phases, strict=True)), group, _N, _K],
    )
    k = prod(dim.taps for dim in dims) * inputs

    def product(x: Array) -> Gemm:
        last = permute(x, (0, *range(2, x.rank), 1))
        mask: Expr | None = None
        point = [Index.var("r0")]
        for n, (dim, phase) in enumerate(zip(dims, phases, strict=True)):
            tap = Index.var(f"d{n}") if dim.taps > 1 else as_index(0)
            place = Index.var(f"r{n + 1}") + phase.shift - (dim.taps - 1 - tap) * dim.dilation
            point.append(place)
            if not dim.is_plain:
                mask = e.both(mask, e.inside(place, 0, as_index(dim.input)))
            if dim.kernel % dim.stride:
                mask = e.both(mask, e.inside(phase.tap + (dim.taps - 1 - tap) * dim.stride, 0, dim.kernel))
        return Gemm(
            out.buffer,
            batch,
            axis("m", shape[0] * prod(sizes)),
            axis("n", outputs),
            axis("k", k),
            at(last, [*point, group * inputs + Index.var(f"d{rank}")], mask),
            right,
            (image, group * outputs + _N, *where),
            value,
            rows,
            depth,
        )

    x = ctx.strided(x)
    gemm = product(x) if x.strides is not None and x.strides[1] == 1 else None
    if gemm is None or windows(gemm.a, batch, rows, depth) is None:
        gemm = product(ctx.materialise(x, "channels_last", channels_last_strides(x.shape)))
    if windows(gemm.a, batch, rows, depth) is None:
        raise NotExpressible("a transposed convolution that is not proven to read inside of its input")
    ctx.emit(gemm)
    return out


def _by_phases(ctx: Context, weight: Array, dims: Sequence[PhaseDim], groups: int) -> Array:
    """The weight as (phases..., groups, outputs, k), once: [s - 1 - t] are the taps t, s + t, 2*s + t, …, the last one
    first, with zeros in place of those past the kernel."""
    weight, rank = ctx.strided(weight), len(dims)
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    whole = [dim.taps * dim.stride for dim in dims]
    dtype = weight.dtype
    if any(size != dim.kernel for size, dim in zip(whole, dims, strict=True)):
        missing = [size - dim.kernel for size, dim in zip(whole, dims, strict=True)]
        ends = [each for size in reversed(missing) for each in (0, size)]
        shape = (*weight.shape[:2], *whole)
        weight = ctx.call_once(
            "aten::constant_pad_nd.default", (as_view(weight), ends, 0), shape, dtype, "whole"
        )
    spatial = list(range(2, rank + 2))
    flipped = ctx.call_once("aten::flip.default", (as_view(weight), spatial), weight.shape, dtype, "flipped")
    split = reshape(
        flipped, (groups, inputs, outputs, *(size for dim in dims for size in (dim.taps, dim.stride)))
    )
    places = range(3, 3 + 2 * rank)
    moved = permute(split, (*places[1::2], 0, 2, *places[::2], 1))
    shape = (*(dim.stride for dim in dims), groups, outputs, prod(dim.taps for dim in dims) * inputs)
    return ctx.call_once("aten::_reshape_copy.default", (as_view(moved), list(shape)), shape, dtype, "phases")


def _by_phases_now(ctx: Context, weight: Array, dims: Sequence[PhaseDim], groups: int) -> Array:
    """`_by_phases` as a loop, as for a weight that is computed in the graph: without a stride only another way to see
    it."""
    rank = len(dims)
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    phases, (group, column, depth) = AXES[:rank], AXES[rank : rank + 3]
    taps = row_digits(depth // inputs, [dim.taps for dim in dims])
    places = [
        dim.taps * dim.stride - 1 - tap * dim.stride - phase
        for dim, tap, phase in zip(dims, taps, phases, strict=True)
    ]
    mask: Expr | None = None
    for dim, position in zip(dims, places, strict=True):
        if dim.kernel % dim.stride:
            mask = e.both(mask, e.inside(position, None, as_index(dim.kernel)))
    found = at(weight, [group * inputs + depth % inputs, column, *places], mask)
    shape = (*(dim.stride for dim in dims), groups, outputs, prod(dim.taps for dim in dims) * inputs)
    extents = {axis.name: axis.extent for axis in axes_of(shape)}
    found = replace(found, index=tuple(simplify(index, extents) for index in found.index))
    if all(dim.stride == 1 for dim in dims):
        return Array(found.buffer, shape, found.index, None)
    *outer, n, k = shape
    strides = contiguous_strides((*outer, k, n))
    return ctx.map(shape, found, (*strides[:-2], 1, n), "phases", reads=[weight])
