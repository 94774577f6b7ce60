"""Pooling: windows are reduced over axes of their own; what lies outside of the tensor is masked."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lampwork.graph.shapes_nn import each
from lampwork.graph.symbols import surely_at_most
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Expr, Load
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, at, read
from lampwork.lower.context import Context
from lampwork.lower.dtypes import FLOATS, LOOP_DTYPES, lowest, sum_dtype
from lampwork.lower.reduce import divided, reduce_value, result_of, value_of
from lampwork.lower.registry import NotExpressible, Registry, Rule
from lampwork.records import record

rules = Registry()


@record
class Window:
    """The window along one dimension: it starts at out*stride - padding and has `size` places `dilation` apart."""

    input: int
    output: int
    size: int
    stride: int
    padding: int
    dilation: int

    def place(self, out: Index, inner: Index) -> Index:
        return out * self.stride + inner * self.dilation - self.padding

    @property
    def starts_before(self) -> bool:
        return self.padding > 0

    @property
    def ends_after(self) -> bool:
        return not surely_at_most(self._last, self.input - 1)

    @property
    def ends_after_padding(self) -> bool:
        """As a window of `ceil_mode` may."""
        return not surely_at_most(self._last, self.input - 1 + self.padding)

    @property
    def _last(self) -> int:
        return (self.output - 1) * self.stride + (self.size - 1) * self.dilation - self.padding


def windows(
    x: Array,
    out: tuple[int, ...],
    rank: int,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
) -> list[Window]:
    sizes = each(kernel_size, rank)
    steps = each(stride, rank) if isinstance(stride, int) or len(stride) else sizes
    inputs, outputs = x.shape[-rank:], out[-rank:]
    pads, gaps = each(padding, rank), each(dilation, rank)
    return [Window(*parts) for parts in zip(inputs, outputs, sizes, steps, pads, gaps, strict=True)]


def place_in(
    x: Array, out: tuple[int, ...], found: Sequence[Window], other: float | int | bool
) -> tuple[tuple[int, ...], list[int], Load]:
    """(shape of the loops, the reduced dimensions, the load): the windows' own axes come after the result's."""
    rank = len(found)
    lead = x.rank - rank
    shape = (*out, *(window.size for window in found))
    point: list[Index] = list(AXES[:lead])
    mask: Expr | None = None
    for n, window in enumerate(found):
        place = window.place(AXES[lead + n], AXES[x.rank + n])
        low = 0 if window.starts_before else None
        high = window.input if window.ends_after else None
        mask = e.both(mask, e.inside(place, low, high))
        point.append(place)
    return shape, list(range(x.rank, x.rank + rank)), at(x, point, mask, other)


def _max_pool(rank: int) -> Rule:
    def rule(
        ctx: Context,
        x: Array,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = (),
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        ceil_mode: bool = False,
    ) -> Array:
        if x.dtype not in FLOATS:
            raise NotExpressible("max_pool of integers")
        found = windows(x, ctx.spec.shape, rank, kernel_size, stride, padding, dilation)
        shape, dims, load = place_in(x, ctx.spec.shape, found, lowest(x.dtype))
        value = e.cast(load, sum_dtype(x.dtype))
        return reduce_value(ctx, "max", shape, dims, value, dtype=ctx.dtype, strides=ctx.spec.strides)

    return rule


for _rank in (1, 2, 3):
    rules.add(f"max_pool{_rank}d", _max_pool(_rank))


def _adaptive_max_pool(rank: int) -> Rule:
    def rule(ctx: Context, x: Array, output_size: int | Sequence[int]) -> tuple[Array, Array]:
        """The values only: positions are ATen's."""
        if x.dtype not in FLOATS or 1 in ctx.wanted:
            raise NotExpressible("adaptive_max_pool of integers, or its positions")
        out = ctx.first
        if 0 in out.shape or 0 in x.shape:
            raise NotExpressible("adaptive_max_pool without results")
        inputs, outputs = x.shape[-rank:], out.shape[-rank:]
        load, sizes, _ = _adaptive_windows(x, inputs, outputs, lowest(x.dtype))
        shape = (*out.shape, *sizes)
        value = e.cast(load, sum_dtype(x.dtype))
        dims = range(x.rank, len(shape))
        dtype = LOOP_DTYPES[out.dtype]
        return reduce_value(ctx, "max", shape, dims, value, dtype=dtype, strides=out.strides), ctx.nothing()

    return rule


for _rank in (1, 2, 3):
    rules.add(f"adaptive_max_pool{_rank}d", _adaptive_max_pool(_rank))


def extent(window: Window, out: Index, *, include_pad: bool) -> Expr | None:
    """How many places of the window count; None if all of them, everywhere."""
    if include_pad and not window.ends_after_padding:
        return None
    if not window.ends_after and not window.starts_before:
        return None
    begin = e.index_value(out * window.stride - window.padding)
    end = e.op(
        "minimum",
        e.index_value(out * window.stride - window.padding + window.size),
        e.const(window.input + window.padding, "i64"),
    )
    if not include_pad:
        begin = e.op("maximum", begin, e.const(0, "i64"))
        end = e.op("minimum", end, e.const(window.input, "i64"))
    return e.sub(end, begin)


def _avg_pool(rank: int) -> Rule:
    def rule(
        ctx: Context,
        x: Array,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = (),
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Array:
        if x.dtype not in FLOATS:
            raise NotExpressible("avg_pool of integers")
        found = windows(x, ctx.spec.shape, rank, kernel_size, stride, padding, 1)
        shape, dims, load = place_in(x, ctx.spec.shape, found, 0)
        value = e.cast(load, sum_dtype(x.dtype))
        lead = x.rank - rank
        extents = [
            extent(window, AXES[lead + n], include_pad=count_include_pad) for n, window in enumerate(found)
        ]
        if divisor_override is not None or all(reach is None for reach in extents):
            number = divisor_override or prod(window.size for window in found)
            return reduce_value(
                ctx,
                "sum",
                shape,
                dims,
                value,
                finish=lambda acc: divided(acc, number),
                dtype=ctx.dtype,
                strides=ctx.spec.strides,
            )
        total = reduce_value(ctx, "sum", shape, dims, value, hint="sum", strides=ctx.spec.strides)
        divisor: Expr = e.const(1, "i64")
        for window, reach in zip(found, extents, strict=True):
            divisor = e.mul(divisor, e.const(window.size, "i64") if reach is None else reach)
        return ctx.result(e.div(read(total, ctx.spec.shape), e.cast(divisor, value.dtype)))

    return rule


for _rank in (1, 2, 3):
    rules.add(f"avg_pool{_rank}d", _avg_pool(_rank))


def _adaptive_avg_pool(rank: int) -> Rule:
    """Window `o` of `n` over a dimension of size `s` is [o*s // n, ceil((o+1)*s / n))."""

    def rule(ctx: Context, x: Array, output_size: int | Sequence[int]) -> Array:
        if x.dtype not in FLOATS:
            raise NotExpressible("adaptive_avg_pool of integers")
        if 0 in ctx.spec.shape:
            raise NotExpressible("adaptive_avg_pool without results")
        inputs, outputs = x.shape[-rank:], ctx.spec.shape[-rank:]
        lead = x.rank - rank
        if all(size == 1 for size in outputs):
            dims = list(range(lead, x.rank))
            value = value_of(x, sum_dtype(x.dtype))
            return result_of(ctx, "sum", x, dims, value, True, lambda acc: divided(acc, prod(inputs)))
        if all(size % out == 0 for size, out in zip(inputs, outputs, strict=True)):
            found = [
                Window(size, out, size // out, size // out, 0, 1)
                for size, out in zip(inputs, outputs, strict=True)
            ]
            shape, dims, load = place_in(x, ctx.spec.shape, found, 0)
            number = prod(window.size for window in found)
            return reduce_value(
                ctx,
                "sum",
                shape,
                dims,
                e.cast(load, sum_dtype(x.dtype)),
                finish=lambda acc: divided(acc, number),
                dtype=ctx.dtype,
                strides=ctx.spec.strides,
            )
        return _uneven(ctx, x, inputs, outputs)

    return rule


def _uneven(ctx: Context, x: Array, inputs: Sequence[int], outputs: Sequence[int]) -> Array:
    load, sizes, divisor = _adaptive_windows(x, inputs, outputs, 0)
    shape = (*ctx.spec.shape, *sizes)
    value = e.cast(load, sum_dtype(x.dtype))
    dims = list(range(x.rank, len(shape)))
    total = reduce_value(ctx, "sum", shape, dims, value, hint="sum", strides=ctx.spec.strides)
    return ctx.result(e.div(read(total, ctx.spec.shape), e.cast(divisor, value.dtype)))


def _adaptive_windows(
    x: Array, inputs: Sequence[int], outputs: Sequence[int], other: float | int | bool
) -> tuple[Load, list[int], Expr]:
    """(the load, the sizes of the largest window, how many elements the window has): the windows' own axes come after
    the result's, and past the end of a smaller window the load is `other`."""
    lead = x.rank - len(inputs)
    point: list[Index] = list(AXES[:lead])
    mask: Expr | None = None
    elements: Expr = e.const(1, "i64")
    sizes: list[int] = []
    for n, (size, out) in enumerate(zip(inputs, outputs, strict=True)):
        axis, inner = AXES[lead + n], AXES[x.rank + n]
        start = (axis * size) // out
        length = ((axis + 1) * size + out - 1) // out - start
        if type(size) is int and type(out) is int:
            lengths = {-(-(o + 1) * size // out) - o * size // out for o in range(out)}
            sizes.append(max(lengths))
            uneven = len(lengths) > 1
        else:
            sizes.append((size + out - 1) // out + 1)  # the masked places past the end of a window are few
            uneven = True
        if uneven:
            mask = e.both(mask, e.test("lt", e.index_value(inner), e.index_value(length)))
        point.append(start + inner)
        elements = e.mul(elements, e.index_value(length))
    return at(x, point, mask, other), sizes, elements


for _rank in (1, 2, 3):
    rules.add(f"adaptive_avg_pool{_rank}d", _adaptive_avg_pool(_rank))
    if _rank > 1:
        rules.add(f"_adaptive_avg_pool{_rank}d", _adaptive_avg_pool(_rank))
