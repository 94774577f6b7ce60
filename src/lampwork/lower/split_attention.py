"""Attention of few queries to many keys, in pieces: ranges of keys side by side, so that threads share one head.

    parts[s, m]   softmax over the keys of piece s of the scores, times values; L[s, m] = log(sum of exp(score))
    out[m]        sum over s of w[s] * parts[s, m] / sum over s of w[s], w[s] = exp(L[s, m] - max over s of L[s, m])

Pieces have one length; what does not fit in them is one more, shorter one.
"""

from __future__ import annotations

from math import prod

from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import DType, Expr
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, at, read
from lampwork.lower.context import Context, keep
from lampwork.lower.reduce import reduce_value
from lampwork.records import record
from lampwork.standard import math

FEW = 8
"""Queries up to which attention is the reading of keys and values."""

_ITEMS = 8
"""Work items that are enough for the threads."""

_SHORTEST = 1024
"""Keys of a piece at least: a block of the template's."""


@record
class Span:
    """`pieces` ranges of `length` keys each, side by side from `start` on."""

    start: int
    pieces: int
    length: int


def spans_of(batch: tuple[int, ...], rows: int, columns: int) -> tuple[Span, ...]:
    """What the keys are cut into; nothing where threads have enough to do, or a size is open."""
    if any(type(size) is not int for size in (*batch, rows, columns)) or rows > FEW:
        return ()
    most = min(_ITEMS // prod(batch), columns // _SHORTEST)
    if most < 2:
        return ()
    # As many pieces as there may be, or some fewer if those are of one length.
    even = [pieces for pieces in range(most, most // 2, -1) if pieces > 1 and columns % pieces == 0]
    pieces = even[0] if even else most
    length = columns // pieces
    rest = columns - pieces * length
    whole = Span(0, pieces, length)
    return (whole, Span(pieces * length, 1, rest)) if rest else (whole,)


def merged(ctx: Context, parts: list[Array], dtype: DType, strides: tuple[int, ...] | None) -> Array:
    """The result of (batch…, rows, columns), in `strides`, of `parts`: (batch…, pieces, rows, columns + 1), whose last
    column are logarithms."""
    *batch, _, rows, columns = parts[0].shape
    dim, shape = len(batch), (*batch, sum(part.shape[-3] for part in parts), rows)
    log = _entry(parts, dim, as_index(columns - 1))
    top = keep(reduce_value(ctx, "max", shape, [dim], log, hint="max"), shape, [dim])
    highest = read(top, shape)
    # As in the template: 0 stands in for a maximum of -inf, where all powers are 0, and so is the result.
    base = e.where(e.test("eq", highest, e.like(-math.inf, highest)), e.like(0, highest), highest)
    weight = ctx.map(shape, e.op("exp", e.sub(log, base)), hint="weights")

    def inverse(total: Expr) -> Expr:
        nothing = e.test("eq", total, e.like(0, total))
        return e.div(e.like(1, total), e.where(nothing, e.like(1, total), total))

    total = reduce_value(ctx, "sum", shape, [dim], read(weight, shape), finish=inverse, hint="sum")
    share = ctx.map(shape, e.mul(read(weight, shape), read(keep(total, shape, [dim]), shape)), hint="shares")
    wide = (*shape, columns - 1)
    value = e.product(at(share, AXES[: dim + 2]), _entry(parts, dim, AXES[dim + 2]))
    return reduce_value(ctx, "sum", wide, [dim], value, dtype=dtype, strides=strides)


def _entry(parts: list[Array], dim: int, column: Index) -> Expr:
    """A column of all parts at (batch…, piece, row), their pieces counted on."""
    if len(parts) == 1:
        return at(parts[0], [*AXES[: dim + 2], column])
    first, second = parts
    piece, known = AXES[dim], first.shape[dim]
    inside = e.test("lt", e.index_value(piece), e.index_value(known))
    past = e.test("le", e.index_value(known), e.index_value(piece))
    row = AXES[dim + 1]
    return e.where(
        inside,
        at(first, [*AXES[:dim], piece, row, column], inside),
        at(second, [*AXES[:dim], piece - known, row, column], past),
    )
