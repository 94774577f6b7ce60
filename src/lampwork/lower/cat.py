"""Tensors put together, padded, repeated and rearranged: fresh memory whose elements come from computed places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lampwork.graph.dims import slice_bounds
from lampwork.graph.shapes_common import wrap_dim
from lampwork.graph.symbols import same_size, surely_at_most
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Expr, Map
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, at, axes_of, read
from lampwork.lower.context import Context
from lampwork.lower.registry import NotExpressible, Registry
from lampwork.lower.views import expand_to, permute, reshape, unsqueeze_dim

rules = Registry()

_MOST_PIECES = 8
"""Beyond this many pieces a chain of choices costs more than copying each piece, as ATen does."""


def concatenate(ctx: Context, pieces: Sequence[Array], dim: int) -> Array:
    """The pieces one after another along `dim`; each is read only where it counts.

    before: cat(a[2, n], b[3, n])        after: where(i0 < 2, a[i0, i1], b[i0 - 2, i1])
    """
    if len(pieces) > _MOST_PIECES and not ctx.standalone:
        raise NotExpressible(f"{len(pieces)} pieces")
    axis = AXES[dim]
    value: Expr | None = None
    end = sum(piece.shape[dim] for piece in pieces)
    for piece in reversed(pieces):
        start = end - piece.shape[dim]
        point = [*AXES[:dim], axis - start, *AXES[dim + 1 : piece.rank]]
        mask = e.inside(axis, start if start else None, None if value is None else end)
        load = e.cast(at(piece, point, mask), ctx.dtype)
        if value is None:
            value = load
        else:
            value = e.where(e.test("lt", e.index_value(axis), e.const(end, "i64")), load, value)
        end = start
    if value is None:
        raise NotExpressible("a concatenation of nothing")
    return ctx.result(value)


@rules.lowers("cat", "concat", "concatenate")
def cat(ctx: Context, tensors: Sequence[Array], dim: int = 0) -> Array:
    # Tensors of shape (0,) are skipped whatever the others' rank, as a courtesy of torch's to old code.
    pieces = [piece for piece in tensors if piece.shape != (0,)]
    dim = wrap_dim(dim, len(ctx.spec.shape))
    pieces = [piece for piece in pieces if piece.shape[dim]]
    if not pieces:
        return ctx.result(e.const(0, ctx.dtype))
    return concatenate(ctx, pieces, dim)


@rules.lowers("stack")
def stack(ctx: Context, tensors: Sequence[Array], dim: int = 0) -> Array:
    dim = wrap_dim(dim, len(ctx.spec.shape))
    return concatenate(ctx, [unsqueeze_dim(piece, dim) for piece in tensors], dim)


@rules.lowers("constant_pad_nd", "pad")
def constant_pad(
    ctx: Context, x: Array, pad: Sequence[int], *options: Any, value: float | int | bool | None = None
) -> Array:
    """`pad`: (before, after) of the last dimension, then of the one before it, …; negative numbers cut."""
    if options and options[0] != "constant":
        if len(options) == 1 and not isinstance(options[0], str):
            value = options[0]
        else:
            raise NotExpressible(f"{options[0]} padding")
    if len(options) == 2:
        value = options[1]
    mask: Expr | None = None
    point: list[Index] = list(AXES[: x.rank])
    for n in range(len(pad) // 2):
        dim = x.rank - 1 - n
        before, after = pad[2 * n], pad[2 * n + 1]
        place = AXES[dim] - before
        point[dim] = place
        mask = e.both(mask, e.inside(place, 0 if before > 0 else None, x.shape[dim] if after > 0 else None))
    other = e.literal(0 if value is None else value, x.dtype).value
    return ctx.result(at(x, point, mask, other))


# --- parts written into a whole ---------------------------------------------------------------------------------------


@rules.lowers("slice_scatter")
def slice_scatter(
    ctx: Context,
    x: Array,
    src: Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Array:
    dim = wrap_dim(dim, x.rank)
    first, last = slice_bounds(x.shape[dim], start, end)
    axis = AXES[dim]
    length = (last - first + step - 1) // step
    shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    source = expand_to(src, shape)
    if length == 0:
        return ctx.result(read(x, x.shape))
    if length == x.shape[dim] and step == 1:
        return ctx.result(e.cast(read(source, x.shape), ctx.dtype))
    mask = e.inside(axis, first if first else None, last if last < x.shape[dim] else None)
    if step > 1:
        # Before `first` the remainder of a negative number is taken, which the mask leaves out.
        on_step = e.test("eq", e.index_value((axis - first) % step), e.const(0, "i64"))
        mask = e.both(mask, on_step)
    if mask is None:
        raise NotExpressible("slice_scatter over a whole dimension")
    load = at(source, [*AXES[:dim], (axis - first) // step, *AXES[dim + 1 : x.rank]], mask)
    return ctx.result(e.where(mask, e.cast(load, ctx.dtype), e.cast(read(x, x.shape), ctx.dtype)))


@rules.lowers("select_scatter")
def select_scatter(ctx: Context, x: Array, src: Array, dim: int, index: int) -> Array:
    dim = wrap_dim(dim, x.rank)
    place = index + x.shape[dim] if index < 0 else index
    chosen = e.test("eq", e.index_value(AXES[dim]), e.const(place, "i64"))
    source = expand_to(src, (*x.shape[:dim], *x.shape[dim + 1 :]))
    load = at(source, [*AXES[:dim], *AXES[dim + 1 : x.rank]], chosen)
    return ctx.result(e.where(chosen, e.cast(load, ctx.dtype), e.cast(read(x, x.shape), ctx.dtype)))


@rules.lowers("diagonal_scatter")
def diagonal_scatter(
    ctx: Context, x: Array, src: Array, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Array:
    dim1, dim2 = wrap_dim(dim1, x.rank), wrap_dim(dim2, x.rank)
    rest = [AXES[dim] for dim in range(x.rank) if dim not in (dim1, dim2)]
    on_diagonal = e.test("eq", e.index_value(AXES[dim2] - AXES[dim1]), e.const(offset, "i64"))
    load = at(src, [*rest, AXES[dim1] - max(-offset, 0)], on_diagonal)
    return ctx.result(e.where(on_diagonal, e.cast(load, ctx.dtype), e.cast(read(x, x.shape), ctx.dtype)))


# --- other orders -----------------------------------------------------------------------------------------------------


@rules.lowers("flip")
def flip(ctx: Context, x: Array, dims: Sequence[int]) -> Array:
    point = list(AXES[: x.rank])
    for dim in dims:
        dim = wrap_dim(dim, x.rank)
        if x.rank:
            point[dim] = -AXES[dim] + (x.shape[dim] - 1)
    return ctx.result(at(x, point))


@rules.lowers("roll")
def roll(ctx: Context, x: Array, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Array:
    steps = [shifts] if isinstance(shifts, int) else list(shifts)
    places = [dims] if isinstance(dims, int) else list(dims)
    if x.numel == 0:
        return ctx.result(read(x, x.shape))
    if not places:
        flat = reshape(x, (x.numel,))
        rolled = at(flat, [(AXES[0] - steps[0]) % x.numel])
        return reshape(ctx.map(flat.shape, rolled), x.shape)
    point = list(AXES[: x.rank])
    split: tuple[int, int] | None = None
    for step, place in zip(steps, places, strict=True):
        dim = wrap_dim(place, x.rank)
        size = x.shape[dim]
        if same_size(step % size, 0):
            continue
        if (
            split is None
            and x.strides is not None
            and same_size(x.strides[dim], 1)
            and point[dim] is AXES[dim]
        ):
            split = dim, step % size
            continue
        # A remainder of what is not negative, which index expressions assume.
        point[dim] = (point[dim] + (-step) % size) % size
    if split is None:
        return ctx.result(at(x, point))
    # Where elements lie side by side, two loads do without a remainder in each lane.
    dim, step = split
    moved = point[dim]
    wraps = e.test("lt", e.index_value(moved), e.const(step, "i64"))
    end, start = list(point), list(point)
    end[dim], start[dim] = moved + (x.shape[dim] - step), moved - step
    stays = e.test("ge", e.index_value(moved), e.const(step, "i64"))
    return ctx.result(e.where(wraps, at(x, end, wraps), at(x, start, stays)))


@rules.lowers("repeat")
def repeat(ctx: Context, x: Array, repeats: Sequence[int]) -> Array:
    lead = len(repeats) - x.rank
    if x.numel == 0:
        return ctx.result(e.const(0, ctx.dtype))
    point = [
        AXES[lead + dim] if repeats[lead + dim] == 1 else AXES[lead + dim] % size
        for dim, size in enumerate(x.shape)
    ]
    return ctx.result(at(x, point))


@rules.lowers("repeat_interleave.self_int")
def repeat_interleave(
    ctx: Context, x: Array, repeats: int, dim: int | None = None, *, output_size: int | None = None
) -> Array:
    source = reshape(x, (x.numel,)) if dim is None else x
    place = wrap_dim(dim or 0, source.rank)
    if x.numel == 0 or repeats == 0:
        return ctx.result(e.const(0, ctx.dtype))
    point = list(AXES[: source.rank])
    point[place] = point[place] // repeats
    return ctx.result(at(source, point))


@rules.lowers("pixel_shuffle")
def pixel_shuffle(ctx: Context, x: Array, upscale_factor: int) -> Array:
    r = upscale_factor
    *lead, channels, height, width = x.shape
    n = len(lead)
    split = reshape(x, (*lead, channels // (r * r), r, r, height, width))
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    return ctx.result(read(reshape(permute(split, order), ctx.spec.shape), ctx.spec.shape))


@rules.lowers("pixel_unshuffle")
def pixel_unshuffle(ctx: Context, x: Array, downscale_factor: int) -> Array:
    r = downscale_factor
    *lead, channels, height, width = x.shape
    n = len(lead)
    split = reshape(x, (*lead, channels, height // r, r, width // r, r))
    order = [*range(n), n, n + 2, n + 4, n + 1, n + 3]
    return ctx.result(read(reshape(permute(split, order), ctx.spec.shape), ctx.spec.shape))


@rules.lowers("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(ctx: Context, x: Array, groups: int) -> Array:
    batch, channels, *rest = x.shape
    split = reshape(x, (batch, groups, channels // groups, *rest))
    order = [0, 2, 1, *range(3, split.rank)]
    return ctx.result(read(reshape(permute(split, order), x.shape), x.shape))


@rules.lowers("im2col")
def im2col(
    ctx: Context,
    x: Array,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Array:
    """The loops run over (batch, channel, places in the window, windows); the result has the middle three in one
    dimension, and the last two in another."""
    if x.rank != 4:
        raise NotExpressible("windows of a tensor without a batch")
    batch, channels, *sizes = x.shape
    counts = [
        (size + 2 * pad - gap * (kernel - 1) - 1) // step + 1
        for size, kernel, gap, pad, step in zip(sizes, kernel_size, dilation, padding, stride, strict=True)
    ]
    shape = (batch, channels, *kernel_size, *counts)
    point: list[Index] = [AXES[0], AXES[1]]
    mask: Expr | None = None
    for n in range(2):
        place = AXES[4 + n] * stride[n] + AXES[2 + n] * dilation[n] - padding[n]
        last = (counts[n] - 1) * stride[n] + (kernel_size[n] - 1) * dilation[n] - padding[n]
        high = None if surely_at_most(last, sizes[n] - 1) else sizes[n]
        mask = e.both(mask, e.inside(place, 0 if padding[n] > 0 else None, high))
        point.append(place)
    out = ctx.buffer(ctx.spec.shape, ctx.dtype, ctx.spec.strides)
    row = (AXES[1] * kernel_size[0] + AXES[2]) * kernel_size[1] + AXES[3]
    value = at(x, point, mask) if 0 not in shape else e.const(0, ctx.dtype)
    ctx.emit(Map(out.buffer, axes_of(shape), (AXES[0], row, AXES[4] * counts[1] + AXES[5]), value))
    return out


def _nearest(rank: int):
    def rule(ctx: Context, x: Array, output_size: Sequence[int], *scales: float | None) -> Array:
        """Whole scale factors only: element o is element o // factor."""
        point = list(AXES[: x.rank])
        for n, size in enumerate(output_size):
            dim = x.rank - rank + n
            if x.shape[dim] == 0 or size % x.shape[dim]:
                raise NotExpressible("upsampling by a fraction")
            factor = size // x.shape[dim]
            scale = scales[n] if n < len(scales) else None
            if scale is not None and scale != factor:
                raise NotExpressible("upsampling by a fraction")
            point[dim] = point[dim] // factor
        return ctx.result(at(x, point))

    return rule


for _rank in (1, 2, 3):
    rules.lowers(f"upsample_nearest{_rank}d", f"_upsample_nearest_exact{_rank}d")(_nearest(_rank))


# --- triangles --------------------------------------------------------------------------------------------------------


def _triangle(ctx: Context, x: Array, test: str, diagonal: int) -> Array:
    row, column = AXES[x.rank - 2], AXES[x.rank - 1]
    kept = e.test(test, e.index_value(column - row), e.const(diagonal, "i64"))
    return ctx.result(e.where(kept, read(x, x.shape), e.const(0, x.dtype)))


@rules.lowers("tril")
def tril(ctx: Context, x: Array, diagonal: int = 0) -> Array:
    return _triangle(ctx, x, "le", diagonal)


@rules.lowers("triu")
def triu(ctx: Context, x: Array, diagonal: int = 0) -> Array:
    return _triangle(ctx, x, "ge", diagonal)
