"""Pooling: windows are reduced over axes of their own; what lies outside of the tensor is masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from lampwork.graph.shapes_nn import each
from lampwork.graph.symbols import same_size, surely_at_most
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
        wanted = {x.rank - rank + n: size for n, size in enumerate(out.shape[-rank:])}
        load, sizes = _adaptive_windows(x, wanted, lowest(x.dtype))
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
        return _averages(ctx, x, inputs, outputs)

    return rule


def _averages(ctx: Context, x: Array, inputs: Sequence[int], outputs: Sequence[int]) -> Array:
    """Rows that lie side by side are added first, whole, of which the windows then add a few places."""
    lead, dtype = x.rank - len(inputs), sum_dtype(x.dtype)
    divisor: Expr = e.const(1, "i64")
    for n, (size, out) in enumerate(zip(inputs, outputs, strict=True)):
        divisor = e.mul(divisor, e.index_value(_adaptive_length(AXES[lead + n], size, out)))
    dims = range(lead, x.rank)
    in_rows = x.strides is not None and same_size(x.strides[-1], 1)
    for some in (dims[:-1], dims[-1:]) if in_rows else (dims,):
        wanted = {dim: outputs[dim - lead] for dim in some}
        if all(x.shape[dim] == out for dim, out in wanted.items()):
            continue
        load, sizes = _adaptive_windows(x, wanted, 0)
        shape = tuple(wanted.get(dim, size) for dim, size in enumerate(x.shape))
        strides = ctx.spec.strides if some[-1] == dims[-1] else None
        inner = range(x.rank, x.rank + len(sizes))
        value = e.cast(load, dtype)
        x = reduce_value(ctx, "sum", (*shape, *sizes), inner, value, hint="sum", strides=strides)
    return ctx.result(e.div(value_of(x, dtype), e.cast(divisor, dtype)))


def _adaptive_length(axis: Index, size: int, out: int) -> Index:
    """The places in window `axis` of `out` over a dimension of `size`."""
    return ((axis + 1) * size + out - 1) // out - (axis * size) // out


def _adaptive_windows(
    x: Array, outputs: Mapping[int, int], other: float | int | bool
) -> tuple[Load, list[int]]:
    """(the load, the sizes of the largest window): the windows over some dimensions have axes of their own, which come
    after the result's, and past the end of a smaller window the load is `other`. outputs: windows, by dimension."""
    point: list[Index] = list(AXES[: x.rank])
    mask: Expr | None = None
    sizes: list[int] = []
    for n, (dim, out) in enumerate(outputs.items()):
        size, axis, inner = x.shape[dim], AXES[dim], AXES[x.rank + n]
        if type(size) is int and type(out) is int:
            lengths = {-(-(o + 1) * size // out) - o * size // out for o in range(out)}
            sizes.append(max(lengths))
            uneven = len(lengths) > 1
        else:
            sizes.append((size + out - 1) // out + 1)  # the masked places past the end of a window are few
            uneven = True
        if uneven:
            length = _adaptive_length(axis, size, out)
            mask = e.both(mask, e.test("lt", e.index_value(inner), e.index_value(length)))
        point[dim] = (axis * size) // out + inner
    return at(x, point, mask, other), sizes


for _rank in (1, 2, 3):
    rules.add(f"adaptive_avg_pool{_rank}d", _adaptive_avg_pool(_rank))
    if _rank > 1:
        rules.add(f"_adaptive_avg_pool{_rank}d", _adaptive_avg_pool(_rank))
