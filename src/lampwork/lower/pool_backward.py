"""Maxima of pools with their places, and gradients of pools.

Each element of the input adds up what it gets from the few windows that it lies in, so no two write to one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from lampwork.graph.symbols import same_size, surely_at_most
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import DType, Expr
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, at, read
from lampwork.lower.context import Context
from lampwork.lower.dtypes import FLOATS, LOOP_DTYPES, lowest, sum_dtype
from lampwork.lower.pool import Window, extent, windows
from lampwork.lower.reduce import divided, reduce_value
from lampwork.lower.registry import NotExpressible, Registry

rules = Registry()

_MOST_TAPS = 27
_MOST_WINDOWS = 16
"""More windows than this that an element lies in are a scatter's work, which is ATen's."""


@rules.lowers("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool_with_indices(
    ctx: Context,
    x: Array,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> tuple[Array, ...]:
    """(the maxima, where they lie in a plane of the input)."""
    out = ctx.first
    rank = 3 if ctx.name.startswith("max_pool3d") else 2
    if x.dtype not in FLOATS or 0 in out.shape or 0 in x.shape:
        raise NotExpressible("max_pool of integers, or of nothing")
    found = windows(x, out.shape, rank, kernel_size, stride, padding, dilation)
    plane, taps = prod(window.input for window in found), prod(window.size for window in found)
    if any(window.dilation > 1 and window.padding > 0 for window in found):
        raise NotExpressible("places in windows that step over the padding")
    if type(plane) is not int or plane >= 1 << 31 or taps > _MOST_TAPS:
        raise NotExpressible("a large plane, or a large window")
    best, place = _first_of_largest(x, found)
    values = ctx.map(out.shape, e.cast(best, LOOP_DTYPES[out.dtype]), out.strides, "values")
    if 1 not in ctx.wanted:
        return values, ctx.nothing()
    return values, ctx.map(out.shape, e.cast(place, "i64"), out.strides, "indices")


def _first_of_largest(x: Array, found: Sequence[Window]) -> tuple[Expr, Expr]:
    """(the maximum of a window, its place in the plane): of equals the first, of NaNs the last, and of nothing but -inf
    the first in the plane."""
    lead, low = x.rank - len(found), e.const(float("-inf"), sum_dtype(x.dtype))
    best: Expr = low
    place: Expr = e.const(0, "i32")
    starts = [window.place(AXES[lead + n], Index.const(0)) for n, window in enumerate(found)]
    for start, window in zip(starts, found, strict=True):
        first: Expr = e.index_value(start, "i32")
        first = e.op("maximum", first, e.const(0, "i32")) if window.starts_before else first
        place = e.add(e.mul(place, e.const(window.input, "i32")), first)
    for taps in product(*(range(window.size) for window in found)):
        point, here, mask = list(AXES[:lead]), Index.const(0), None
        for start, window, tap in zip(starts, found, taps, strict=True):
            step = tap * window.dilation
            last = (window.output - 1) * window.stride + step - window.padding
            at_tap, before = start + step, step < window.padding
            after = not surely_at_most(last, window.input - 1)
            mask = e.both(mask, e.inside(at_tap, 0 if before else None, window.input if after else None))
            point.append(at_tap)
            here = here * window.input + at_tap
        value = e.cast(at(x, point, mask, lowest(x.dtype)), low.dtype)
        better = e.test("or", e.test("gt", value, best), e.test("isnan", value))
        # A choice by `better` would double the expression with each tap.
        best, place = e.op("maximum", best, value), e.where(better, e.index_value(here, "i32"), place)
    return best, place


def _covering(window: Window, axis: Index) -> list[tuple[Index, Expr | None]]:
    """(window, whether it is one) of those in which a place of the input may lie, the last one first."""
    reach = (window.size - 1) * window.dilation + 1
    last = (axis + window.padding) // window.stride
    found: list[tuple[Index, Expr | None]] = []
    for n in range(-(-reach // window.stride)):
        place = last - n
        condition = e.inside(place, 0 if n else None, window.output)
        if n and (n + 1) * window.stride > reach:
            # The oldest of them ends before the last places of a step.
            before = e.index_value(axis + window.padding - place * window.stride)
            condition = e.both(condition, e.test("lt", before, e.const(reach, "i64")))
        elif window.stride > reach:
            within = e.index_value((axis + window.padding) % window.stride)
            condition = e.both(condition, e.test("lt", within, e.const(reach, "i64")))
        found.append((place, condition))
    return found


def _has_channels_last(ctx: Context) -> bool:
    return same_size(ctx.spec.strides[1], 1)


def _choices(found: Sequence[list[tuple[Index, Expr | None]]]) -> list[tuple[list[Index], Expr | None]]:
    if prod(len(each) for each in found) > _MOST_WINDOWS:
        raise NotExpressible("elements that lie in many windows")
    made: list[tuple[list[Index], Expr | None]] = []
    for chosen in product(*found):
        condition: Expr | None = None
        for _, each in chosen:
            condition = e.both(condition, each)
        made.append(([place for place, _ in chosen], condition))
    return made


def _total(terms: Sequence[Expr]) -> Expr:
    total = terms[0]
    for term in terms[1:]:
        total = e.add(total, term)
    return total


def _checked(ctx: Context, grad: Array, x: Array) -> tuple[int, DType]:
    """(the dimensions before those of the plane, the dtype of sums)."""
    rank = 3 if "3d" in ctx.name else 2
    if x.dtype not in FLOATS or 0 in x.shape or 0 in grad.shape:
        raise NotExpressible("the gradient of integers, or of nothing")
    if not all(type(size) is int for size in (*x.shape[-rank:], *grad.shape[-rank:])):
        raise NotExpressible("planes of open sizes")
    return x.rank - rank, sum_dtype(x.dtype)


@rules.lowers("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def max_pool(
    ctx: Context,
    grad: Array,
    x: Array,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    ceil_mode: bool,
    indices: Array,
) -> Array:
    lead, dtype = _checked(ctx, grad, x)
    found = windows(x, grad.shape, x.rank - lead, kernel_size, stride, padding, dilation)
    overlap = any((window.size - 1) * window.dilation >= window.stride for window in found)
    if overlap or (found[-1].stride > 1 and not _has_channels_last(ctx)):
        raise NotExpressible("windows that overlap, or rows: ATen writes the few elements that are maxima")
    here = Index.const(0)
    for n, window in enumerate(found):
        here = here * window.input + AXES[lead + n]
    planes = [_covering(window, AXES[lead + n]) for n, window in enumerate(found)]
    terms: list[Expr] = []
    for places, mask in _choices(planes):
        point = [*AXES[:lead], *places]
        chosen = e.test("eq", at(indices, point, mask, -1), e.index_value(here))
        given = e.cast(at(grad, point, mask), dtype)
        terms.append(e.where(chosen, given, e.const(0, dtype)))
    return ctx.result(_total(terms))


@rules.lowers("avg_pool2d_backward", "avg_pool3d_backward")
def avg_pool(
    ctx: Context,
    grad: Array,
    x: Array,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Array:
    lead, dtype = _checked(ctx, grad, x)
    found = windows(x, grad.shape, x.rank - lead, kernel_size, stride, padding, 1)
    extents = [extent(each, AXES[lead + n], include_pad=count_include_pad) for n, each in enumerate(found)]
    number = divisor_override or prod(window.size for window in found)
    if divisor_override is None and any(each is not None for each in extents):
        divisor: Expr = e.const(1, "i64")
        for window, each in zip(found, extents, strict=True):
            divisor = e.mul(divisor, e.const(window.size, "i64") if each is None else each)
        value = e.div(e.cast(read(grad, grad.shape), dtype), e.cast(divisor, dtype))
        grad, number = ctx.map(grad.shape, value, grad.strides, "share"), 1
    planes = [_covering(window, AXES[lead + n]) for n, window in enumerate(found)]
    terms = [e.cast(at(grad, [*AXES[:lead], *places], mask), dtype) for places, mask in _choices(planes)]
    return ctx.result(divided(_total(terms), number))


def _adaptive(size: int, wanted: int, axis: Index) -> list[tuple[Index, Expr | None]]:
    """The windows of an adaptive pool, [o*size // wanted, ceil((o+1)*size / wanted)), that a place lies in."""
    first = (axis * wanted) // size
    counts = {-(-(h + 1) * wanted // size) - h * wanted // size for h in range(size)}
    found: list[tuple[Index, Expr | None]] = []
    for n in range(max(counts)):
        place = first + n
        inside = None
        if n >= min(counts):
            starts = e.test("lt", e.index_value(place * size), e.index_value((axis + 1) * wanted))
            inside = e.both(e.inside(place, None, wanted), starts)
        found.append((place, inside))
    return found


@rules.lowers("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def adaptive_avg_pool(ctx: Context, grad: Array, x: Array) -> Array:
    lead, dtype = _checked(ctx, grad, x)
    inputs, outputs = x.shape[lead:], grad.shape[lead:]
    planes = [
        _adaptive(size, wanted, AXES[lead + n])
        for n, (size, wanted) in enumerate(zip(inputs, outputs, strict=True))
    ]
    number = 1
    if all(size % wanted == 0 for size, wanted in zip(inputs, outputs, strict=True)):
        number = prod(inputs) // prod(outputs)
    elif _has_channels_last(ctx):
        raise NotExpressible("windows of uneven sizes, whose channels ATen adds as they lie")
    else:
        elements: Expr = e.const(1, "i64")
        for n, (size, wanted) in enumerate(zip(inputs, outputs, strict=True)):
            axis = AXES[lead + n]
            length = ((axis + 1) * size + wanted - 1) // wanted - (axis * size) // wanted
            elements = e.mul(elements, e.index_value(length))
        value = e.div(e.cast(read(grad, grad.shape), dtype), e.cast(elements, dtype))
        grad = _along_rows(ctx, ctx.map(grad.shape, value, grad.strides, "share"), planes[-1], inputs[-1])
        planes[-1] = [(AXES[x.rank - 1], None)]
    terms = [e.cast(at(grad, [*AXES[:lead], *places], mask), dtype) for places, mask in _choices(planes)]
    return ctx.result(divided(_total(terms), number))


def _along_rows(ctx: Context, share: Array, found: Sequence[tuple[Index, Expr | None]], size: int) -> Array:
    """What the windows of an adaptive pool give to the `size` columns of each row of theirs, of which the input has
    more: there it is read side by side."""
    wanted, rank = share.shape[-1], share.rank
    shape = (*share.shape[:-1], size)
    if wanted > _MOST_WINDOWS:
        terms = [at(share, [*AXES[: rank - 1], place], mask) for place, mask in found]
        return ctx.map(shape, _total(terms), hint="rows")
    # Vectors of columns compare their places with the ends of each window, and take nothing from many places.
    column, window = AXES[rank - 1], AXES[rank]
    start, end = (window * size) // wanted, ((window + 1) * size + wanted - 1) // wanted
    covers = e.test(
        "and",
        e.test("ge", e.index_value(column, "i32"), e.index_value(start, "i32")),
        e.test("lt", e.index_value(column, "i32"), e.index_value(end, "i32")),
    )
    given = at(share, [*AXES[: rank - 1], window])
    value = e.where(covers, given, e.const(0, share.dtype))
    return reduce_value(ctx, "sum", (*shape, wanted), [rank], value, hint="rows")


@rules.lowers("upsample_nearest1d_backward", "upsample_nearest2d_backward")
def upsample_nearest(
    ctx: Context,
    grad: Array,
    output_size: Sequence[int],
    input_size: Sequence[int],
    *scales: float | None,
) -> Array:
    """Each element of the input adds up its block of the result, where the result is a whole number of times as
    large."""
    sizes, wanted = tuple(input_size[2:]), tuple(output_size)
    given = zip(sizes, wanted, (*scales, *[None] * len(sizes)), strict=False)
    for size, out, scale in given:
        if type(size) is not int or type(out) is not int or not size or out % size:
            raise NotExpressible("sizes that are open, or no multiples")
        factor = out // size
        if factor & (factor - 1) or scale not in (None, factor):
            raise NotExpressible("a factor whose reciprocal is rounded")
    if grad.dtype not in FLOATS or 0 in grad.shape:
        raise NotExpressible("the gradient of integers, or of nothing")
    if not _has_channels_last(ctx):
        raise NotExpressible("blocks of rows, whose elements lie apart in each")
    factors = [out // size for size, out in zip(sizes, wanted, strict=True)]
    shape = (*input_size, *factors)
    rank = len(input_size)
    point = [
        *AXES[:2],
        *(AXES[2 + n] * factor + AXES[rank + n] for n, factor in enumerate(factors)),
    ]
    value = e.cast(at(grad, point), sum_dtype(grad.dtype))
    dims = range(rank, len(shape))
    return reduce_value(ctx, "sum", shape, dims, value, dtype=ctx.dtype, strides=ctx.spec.strides)
