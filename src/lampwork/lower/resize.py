"""Linear interpolation between the elements of one to three dimensions, of tensors whose rows lie side by side.

All dimensions but the last are interpolated first, into rows with one more element at either end. Along the last a
vector of results is made of few neighbours, which one load and a shuffle bring, if the factor is 2, 4 or 8. Other
factors would take an element at a time there, as ATen does.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from lampwork.graph.symbols import same_size
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import DType, Expr
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, at
from lampwork.lower.context import Context
from lampwork.lower.dtypes import FLOATS, compute_dtype
from lampwork.lower.registry import NotExpressible, Registry, Rule
from lampwork.records import record

rules = Registry()

_FACTORS = (1, 2, 4, 8)


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


@record
class _Neighbours:
    """What the results along one dimension are made of: the elements at `first` and at `second`, in the shares
    1 - `share` and `share`. Each has one number for a result. Made once, since for each result it would be computed
    again for all others in the same row or column."""

    size: int
    first: Array
    second: Array
    share: Array

    @staticmethod
    def of(ctx: Context, dim: _Resized, dtype: DType) -> _Neighbours:
        place = e.cast(e.index_value(AXES[0]), dtype)
        scale, half, zero, one = (e.const(number, dtype) for number in (dim.scale, 0.5, 0, 1))
        if dim.corners:
            place = e.mul(scale, place)
        else:
            place = e.op("maximum", e.sub(e.mul(scale, e.add(place, half)), half), zero)
        last = e.const(dim.size - 1, "i64")
        first = e.op("minimum", e.cast(e.op("floor", place), "i64"), last)
        second = e.op("minimum", e.add(first, e.const(1, "i64")), last)
        share = e.op("minimum", e.sub(place, e.cast(first, dtype)), one)
        shape = (dim.wanted,)
        return _Neighbours(
            dim.size,
            ctx.map(shape, first, hint="first"),
            ctx.map(shape, second, hint="second"),
            ctx.map(shape, share, hint="share"),
        )

    def at(self, out: Index) -> list[tuple[Index, Expr]]:
        """(place, weight) of the elements that a result is made of."""
        share = at(self.share, [out])
        return [
            (Index.indirect(at(self.first, [out]), self.size), e.sub(e.like(1, share), share)),
            (Index.indirect(at(self.second, [out]), self.size), share),
        ]


def _resized(size: int, wanted: int, corners: bool, factor: float | None) -> _Resized:
    if type(size) is not int or type(wanted) is not int:
        raise NotExpressible("sizes that are open")
    if corners:
        scale = (size - 1) / (wanted - 1) if wanted > 1 else 0.0
    else:
        scale = 1.0 / factor if factor is not None and factor > 0 else size / wanted
    return _Resized(size, wanted, scale, corners)


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
            return _by_rows(ctx, x, dims)
        raise NotExpressible("rows that do not lie side by side: ATen's loop over channels is the faster one")

    return rule


for _rank, _name in ((1, "linear1d"), (2, "bilinear2d"), (3, "trilinear3d")):
    rules.add(f"upsample_{_name}", _linear(_rank))


def _weighted(
    x: Array, dims: Sequence[_Neighbours | None], dtype: DType, point: list[Index], mask: Expr | None = None
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


def _neighbours(ctx: Context, dims: Sequence[_Resized], dtype: DType) -> list[_Neighbours | None]:
    """None for a dimension that keeps its size."""
    return [None if each.size == each.wanted else _Neighbours.of(ctx, each, dtype) for each in dims]


def _by_rows(ctx: Context, x: Array, dims: Sequence[_Resized]) -> Array:
    """
    before: y[o], from x[i] by a factor f
    after:  y[o] = mix(r[p], r[p + 1]) at p = (o + f - f // 2) // f, where r[i + 1] = x[i] and the ends are repeated
    """
    *outer, last = dims
    factor, column = last.factor, AXES[x.rank - 1]
    if factor not in _FACTORS:
        raise NotExpressible("a last dimension that grows by another factor than 2, 4 or 8")
    dtype = compute_dtype(x.dtype)
    point, known = list(AXES[: x.rank]), _neighbours(ctx, outer, dtype)
    if factor == 1:
        return ctx.result(_weighted(x, known, dtype, point))
    before = e.test("lt", e.index_value(column), e.const(1, "i64"))
    inside = e.inside(column, 1, last.size + 1)
    after = e.test("gt", e.index_value(column), e.const(last.size, "i64"))
    assert inside is not None, "both bounds are tested"

    def row_at(place: Index, mask: Expr) -> Expr:
        return _weighted(x, known, dtype, [*point[:-1], place], mask)

    middle = row_at(column - 1, inside)
    ends = e.where(before, row_at(Index.const(0), before), row_at(Index.const(last.size - 1), after))
    shape = (*ctx.spec.shape[:-1], last.size + 2)
    rows = ctx.map(shape, e.where(inside, middle, ends), hint="rows")
    shifted = column + (factor - factor // 2)
    left = at(rows, [*point[:-1], shifted // factor])
    right = at(rows, [*point[:-1], shifted // factor + 1])
    phase = e.cast(e.index_value(shifted % factor), dtype)
    if factor % 2 == 0:
        phase = e.add(phase, e.const(0.5, dtype))
    share = e.mul(phase, e.const(1 / factor, dtype))
    return ctx.result(e.fma(share, right, e.mul(e.sub(e.const(1, dtype), share), left)))
