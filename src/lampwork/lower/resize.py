"""Linear and cubic interpolation between the elements of one to three dimensions, of tensors whose rows lie side by
side.

Where the last dimension grows by 2, 4 or 8, all dimensions but it are interpolated first, into rows with one more
element at either end. Along the last a vector of results is then made of few neighbours, which one load and a shuffle
bring. For everything else one dimension is interpolated after the other, by tables of places and weights: only along
the last one are the neighbours gathered an element at a time, and for fewer rows than the result has, if it has more
than the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from lampwork.graph.symbols import hint_of, same_size
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import DType, Expr
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, at
from lampwork.lower.context import Context, dense_strides
from lampwork.lower.dtypes import FLOATS, compute_dtype
from lampwork.lower.registry import NotExpressible, Registry, Rule
from lampwork.records import record

rules = Registry()

_FACTORS = (1, 2, 4, 8)

_MOST_SHRUNK = 8
"""Beyond so many elements of a row a result, whole rows are interpolated first of which too few elements are wanted:
ATen, which takes all neighbours of a result at once, is as fast."""

_CHANNELS = 16
"""Channels that lie side by side from which their vectors pay."""
_MANY = 32
"""Up to which they pay where a result has two neighbours in a dimension."""

_CUBIC = -0.75
"""The slope a of the kernel at distance 1."""


@record
class _Resized:
    """One dimension: from `size` elements to `wanted`. `scale`: the size of a step, in elements; `corners`: the first
    and last elements are those of the input."""

    size: int
    wanted: int
    scale: float
    corners: bool

    @property
    def factor(self) -> int | None:
        """The whole number by which the dimension grows; None if there is none."""
        whole = self.size * round(1 / self.scale) == self.wanted if self.scale else False
        exact = not self.corners and whole and self.scale * (self.wanted // self.size) == 1
        return self.wanted // self.size if exact or self.size == self.wanted else None


def _resized(size: int, wanted: int, corners: bool, factor: float | None) -> _Resized:
    if type(size) is not int or type(wanted) is not int:
        raise NotExpressible("sizes that are open")
    if corners:
        scale = (size - 1) / (wanted - 1) if wanted > 1 else 0.0
    else:
        scale = 1.0 / factor if factor is not None and factor > 0 else size / wanted
    return _Resized(size, wanted, scale, corners)


@record
class _Taps:
    """What the results along one dimension are made of: `places[n][o]` is where the n-th neighbour of result o lies,
    `weights[n][o]` its share. Made once, since for each result it would be computed again for all others in the same
    row or column."""

    size: int
    places: tuple[Array, ...]
    weights: tuple[Array, ...]

    @staticmethod
    def linear(ctx: Context, dim: _Resized, dtype: DType) -> _Taps:
        place = _place(dim, dtype)
        if not dim.corners:
            place = e.op("maximum", place, e.const(0, dtype))
        first, share = _divided(dim, place)
        second = e.op("minimum", e.add(first, e.const(1, "i64")), e.const(dim.size - 1, "i64"))
        return _Taps.made(ctx, dim, (first, second), (e.sub(e.const(1, dtype), share), share))

    @staticmethod
    def cubic(ctx: Context, dim: _Resized, dtype: DType) -> _Taps:
        """Keys' cubic convolution with a = -0.75, as in ATen: of four neighbours, those outside are the nearest
        inside."""
        one, last = e.const(1, dtype), e.const(dim.size - 1, "i64")
        first, share = _divided(dim, _place(dim, dtype))
        rest = e.sub(one, share)
        places: list[Expr] = []
        for step in (-1, 0, 1, 2):
            moved = e.add(first, e.const(step, "i64"))
            places.append(e.op("minimum", e.op("maximum", moved, e.const(0, "i64")), last))
        weights = (_far(e.add(share, one)), _near(share), _near(rest), _far(e.add(rest, one)))
        return _Taps.made(ctx, dim, places, weights)

    @staticmethod
    def made(ctx: Context, dim: _Resized, places: Sequence[Expr], weights: Sequence[Expr]) -> _Taps:
        shape = (dim.wanted,)
        return _Taps(
            dim.size,
            tuple(ctx.map(shape, place, hint="place") for place in places),
            tuple(ctx.map(shape, weight, hint="weight") for weight in weights),
        )

    def at(self, out: Index) -> list[tuple[Index, Expr]]:
        """(place, weight) of the elements that a result is made of."""
        return [
            (Index.indirect(at(place, [out]), self.size), at(weight, [out]))
            for place, weight in zip(self.places, self.weights, strict=True)
        ]


def _place(dim: _Resized, dtype: DType) -> Expr:
    """Where a result lies between the elements of the input. One rounding after the product, as in ATen's loops."""
    place, scale, half = e.cast(e.index_value(AXES[0]), dtype), e.const(dim.scale, dtype), e.const(0.5, dtype)
    if dim.corners:
        return e.mul(scale, place)
    return e.fma(scale, e.add(place, half), e.const(-0.5, dtype))


def _divided(dim: _Resized, place: Expr) -> tuple[Expr, Expr]:
    """The element before a place, and how far behind it the place is. As in ATen, also a place of f64 is rounded to f32
    first: what lies just before an element is on it, and the elements beside it have weight 0."""
    before = e.cast(e.op("floor", e.cast(place, "f32")), "i64")
    before = e.op("minimum", before, e.const(dim.size - 1, "i64"))
    past = e.op("maximum", e.sub(place, e.cast(before, place.dtype)), e.like(0, place))
    return before, e.op("minimum", past, e.like(1, place))


def _near(distance: Expr) -> Expr:
    """The weight of a neighbour less than 1 away: ((a + 2) d - (a + 3)) d d + 1."""
    slope = e.sub(e.mul(e.like(_CUBIC + 2, distance), distance), e.like(_CUBIC + 3, distance))
    return e.add(e.mul(e.mul(slope, distance), distance), e.like(1, distance))


def _far(distance: Expr) -> Expr:
    """The weight of a neighbour from 1 to 2 away: ((a d - 5 a) d + 8 a) d - 4 a."""
    slope = e.sub(e.mul(e.like(_CUBIC, distance), distance), e.like(5 * _CUBIC, distance))
    slope = e.add(e.mul(slope, distance), e.like(8 * _CUBIC, distance))
    return e.sub(e.mul(slope, distance), e.like(4 * _CUBIC, distance))


def _linear(rank: int) -> Rule:
    def rule(
        ctx: Context, x: Array, output_size: Sequence[int], align_corners: bool, *factors: float | None
    ) -> Array:
        if x.dtype not in FLOATS or x.strides is None or 0 in ctx.spec.shape:
            raise NotExpressible("integers, or elements that lie anywhere")
        given = [*factors, *([None] * rank)]
        dims = [
            _resized(size, wanted, align_corners, factor)
            for size, wanted, factor in zip(x.shape[2:], output_size, given, strict=False)
        ]
        if same_size(x.strides[-1], 1):
            if dims[-1].factor in _FACTORS:
                return _by_rows(ctx, x, dims)
            if rank > 1:
                value = _by_taps(ctx, x, dims, _linear_taps(ctx, dims, compute_dtype(x.dtype)))
                return ctx.result(_with_unmoved(dims, value))
            raise NotExpressible(
                "rows alone that grow by another factor than 2, 4 or 8: ATen gathers as fast"
            )
        if _has_channels_last(x) and hint_of(x.shape[1]) <= _MANY:
            return _by_pixels(ctx, x, dims)
        raise NotExpressible(
            "many channels side by side, where ATen's loop is the faster one, or elements apart"
        )

    return rule


@rules.lowers("upsample_bicubic2d")
def bicubic(
    ctx: Context, x: Array, output_size: Sequence[int], align_corners: bool, *factors: float | None
) -> Array:
    if x.dtype not in FLOATS or x.strides is None or 0 in ctx.spec.shape:
        raise NotExpressible("integers, or elements that lie anywhere")
    if not same_size(x.strides[-1], 1) and not _has_channels_last(x):
        raise NotExpressible("neither rows nor channels that lie side by side")
    dims = [
        _resized(size, wanted, align_corners, factor)
        for size, wanted, factor in zip(x.shape[2:], output_size, factors or (None, None), strict=True)
    ]
    dtype = compute_dtype(x.dtype)
    return ctx.result(_by_taps(ctx, x, dims, [_Taps.cubic(ctx, each, dtype) for each in dims]))


for _rank, _name in ((1, "linear1d"), (2, "bilinear2d"), (3, "trilinear3d")):
    rules.add(f"upsample_{_name}", _linear(_rank))


def _has_channels_last(x: Array) -> bool:
    assert x.strides is not None, "who asks has looked"
    return hint_of(x.shape[1]) >= _CHANNELS and same_size(x.strides[1], 1)


def _by_pixels(ctx: Context, x: Array, dims: Sequence[_Resized]) -> Array:
    """All neighbours of a pixel at once: vectors of channels that weights are shared by."""
    dtype = compute_dtype(x.dtype)
    value = _weighted(x, _linear_taps(ctx, dims, dtype), dtype, list(AXES[: x.rank]))
    return ctx.result(_with_unmoved(dims, value))


def _weighted(
    x: Array, dims: Sequence[_Taps | None], dtype: DType, point: list[Index], mask: Expr | None = None
) -> Expr:
    """The sum over the neighbours in the dimensions from the third on; the others, and those after `dims`, are at
    `point`. Where `mask` is false nothing is read."""
    total: Expr | None = None
    choices = [[(AXES[2 + n], None)] if each is None else each.at(AXES[2 + n]) for n, each in enumerate(dims)]
    for chosen in product(*choices):
        weight: Expr | None = None
        for n, (place, share) in enumerate(chosen):
            point[2 + n] = place
            if share is not None:
                weight = share if weight is None else e.mul(weight, share)
        term = e.cast(at(x, point, mask), dtype)
        if weight is None:
            total = term if total is None else e.add(total, term)
        else:
            total = e.mul(weight, term) if total is None else e.fma(weight, term, total)
    assert total is not None, "a product of no choices is one choice of nothing"
    return total


def _linear_taps(ctx: Context, dims: Sequence[_Resized], dtype: DType) -> list[_Taps | None]:
    """None for a dimension that keeps its size."""
    return [None if each.size == each.wanted else _Taps.linear(ctx, each, dtype) for each in dims]


def _with_unmoved(dims: Sequence[_Resized], value: Expr) -> Expr:
    """`value`, where a dimension that keeps its size makes nan of infinity: in it each element is its own neighbour, of
    weight 0."""
    same = any(each.size == each.wanted for each in dims)
    return e.fma(e.like(0, value), value, value) if same else value


def _by_rows(ctx: Context, x: Array, dims: Sequence[_Resized]) -> Array:
    """
    before: y[o], from x[i] by a factor f
    after:  y[o] = mix(r[p], r[p + 1]) at p = (o + f - f // 2) // f, where r[i + 1] = x[i] and the ends are repeated

    The first results have x[1] as a neighbour, too, of weight 0, which makes nan of infinity: r[0] = x[0] + 0 x[1].
    """
    *outer, last = dims
    factor, column = last.factor, AXES[x.rank - 1]
    assert factor in _FACTORS, "the shuffles are made for these"
    dtype = compute_dtype(x.dtype)
    point, known = list(AXES[: x.rank]), _linear_taps(ctx, outer, dtype)
    if factor == 1:
        return ctx.result(_with_unmoved(dims, _weighted(x, known, dtype, point)))
    before = e.test("lt", e.index_value(column), e.const(1, "i64"))
    inside = e.inside(column, 1, last.size + 1)
    after = e.test("gt", e.index_value(column), e.const(last.size, "i64"))
    assert inside is not None, "both bounds are tested"

    def row_at(place: Index, mask: Expr) -> Expr:
        return _weighted(x, known, dtype, [*point[:-1], place], mask)

    middle = row_at(column - 1, inside)
    second = row_at(Index.const(min(1, last.size - 1)), before)
    start = e.fma(e.const(0, dtype), second, row_at(Index.const(0), before))
    ends = e.where(before, start, row_at(Index.const(last.size - 1), after))
    shape = (*ctx.spec.shape[:-1], last.size + 2)
    rows = ctx.map(shape, e.where(inside, middle, ends), hint="rows")
    shifted = column + (factor - factor // 2)
    left = at(rows, [*point[:-1], shifted // factor])
    right = at(rows, [*point[:-1], shifted // factor + 1])
    phase = e.cast(e.index_value(shifted % factor), dtype)
    if factor % 2 == 0:
        phase = e.add(phase, e.const(0.5, dtype))
    share = e.mul(phase, e.const(1 / factor, dtype))
    value = e.fma(share, right, e.mul(e.sub(e.const(1, dtype), share), left))
    return ctx.result(_with_unmoved(outer, value))


def _by_taps(ctx: Context, x: Array, dims: Sequence[_Resized], taps: Sequence[_Taps | None]) -> Expr:
    """
    before: y[i, j] = sum over n, m of v[i, n] w[j, m] x[p[i, n], q[j, m]]
    after:  r[i, j] = sum over m of w[j, m] x[i, q[j, m]]; y[i, j] = sum over n of v[i, n] r[p[i, n], j]

    The other way round where the result has fewer rows than the input.
    """
    if dims[-1].size > _MOST_SHRUNK * dims[-1].wanted:
        raise NotExpressible("rows that shrink more than eightfold")
    dtype, shape = compute_dtype(x.dtype), list(x.shape)
    order = [n for n, each in enumerate(taps) if each is not None]
    if prod(each.wanted for each in dims[:-1]) >= prod(each.size for each in dims[:-1]):
        order.reverse()
    for n in order[:-1]:
        shape[2 + n] = dims[n].wanted
        one = [each if n == m else None for m, each in enumerate(taps)]
        value, strides = (
            _weighted(x, one, dtype, list(AXES[: x.rank])),
            dense_strides(tuple(shape), x.strides),
        )
        x = ctx.map(tuple(shape), value, strides, hint="along")
    one = [each if m in order[-1:] else None for m, each in enumerate(taps)]
    return _weighted(x, one, dtype, list(AXES[: x.rank]))
