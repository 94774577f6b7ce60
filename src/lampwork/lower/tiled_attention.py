"""scaled_dot_product_attention as one `Attention`: scores exist a block at a time, so memory is linear in the lengths.

Operands are read in place through their strides, heads that several query heads share too; the mask becomes part of
the score.
"""

from __future__ import annotations

from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import Attention, Axis, DType, Expr, Local
from lampwork.lower import exprs as e
from lampwork.lower.arrays import Array, at
from lampwork.lower.context import Context
from lampwork.lower.split_attention import Span, merged, spans_of
from lampwork.lower.views import expand_to, reshape, swap, unsqueeze_dim
from lampwork.standard import math, operator

_M, _N, _D, _E = (Index.var(name) for name in "mnde")


def sums_dtype(dtype: DType) -> DType:
    """What the sums of an attention over `dtype` are made in."""
    return "f64" if dtype == "f64" else "f32"


def applies(ctx: Context, query: Array) -> bool:
    """Whether there is a template for this dtype."""
    return sums_dtype(query.dtype) in ctx.products


def grouped(array: Array, groups: int, heads: int) -> Array:
    """(batch, heads, …) as (batch, groups, heads of a group, …); a dimension of one head, or of groups, broadcasts."""
    if array.rank < 3:
        return array
    dim = array.rank - 3
    if array.shape[dim] != heads:
        return unsqueeze_dim(array, dim + 1)
    return reshape(array, (*array.shape[:dim], groups, heads // groups, *array.shape[dim + 1 :]))


def tiled(
    ctx: Context,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    is_causal: bool,
    scale: float | None,
    leaves_out: bool,
) -> Array:
    """The node's result. key and value have the query's heads, or a number that divides it.

    leaves_out: what a causal mask closes is not looked at; else -inf is added to it, so nan stays nan.
    """
    result = ctx.spec
    batch, strides = result.shape[:-2], result.strides
    rows, columns = query.shape[-2], key.shape[-2]
    # The template is made for heads of one size, which fixes an open one.
    depth, width = operator.index(query.shape[-1]), operator.index(value.shape[-1])
    heads, groups = (query.shape[-3], key.shape[-3]) if query.rank > 2 else (1, 1)
    turned = False
    if heads != groups:
        per = heads // groups
        query, key, value = (grouped(array, groups, heads) for array in (query, key, value))
        mask = None if mask is None else grouped(mask, groups, heads)
        batch = (*batch[:-1], groups, per)
        strides = (*strides[:-3], strides[-3] * per, *strides[-3:])
        if type(rows) is int and rows == 1 and not is_causal:
            # The query heads that share keys and values become the rows, so that these are read once.
            turned, rows = True, per
            query = swap(query, -2, -3)
            mask = mask if mask is None or mask.rank < 3 else swap(mask, -2, -3)
            batch, strides = (*batch[:-1], 1), (*strides[:-3], strides[-2], strides[-3], strides[-1])
    query, key, value = (
        expand_to(ctx.strided(array), (*batch, *array.shape[-2:])) for array in (query, key, value)
    )
    sums, factor = sums_dtype(query.dtype), 1 / math.sqrt(depth) if scale is None else scale
    score = e.mul(Local("acc", sums), e.like(factor, Local("acc", sums)))
    wide_mask = None if mask is None else expand_to(mask, (*batch, rows, columns))

    def emit(out: Array, span: Span | None) -> Array:
        """The attention to all keys, or to a span of them, in pieces."""
        axes = tuple(Axis(f"b{n}", as_index(size)) for n, size in enumerate(batch))
        point = [Index.var(axis.name) for axis in axes]
        outer, keys, number = [*point], as_index(columns), _N
        if span is not None:
            piece = Axis("s", as_index(span.pieces))
            axes, outer, keys = (*axes, piece), [*point, Index.var("s")], as_index(span.length)
            number = Index.var("s") * span.length + _N + span.start
        masks = None if wide_mask is None else at(wide_mask, [*point, _M, number])
        ctx.emit(
            Attention(
                out.buffer,
                axes,
                Axis("m", as_index(rows)),
                Axis("n", keys),
                Axis("d", as_index(depth)),
                Axis("e", as_index(width)),
                at(query, [*point, _M, _D]),
                at(key, [*point, number, _D]),
                at(value, [*point, number, _E]),
                (*outer, _M, _E),
                _masked(score, masks, is_causal, leaves_out),
                logs=span is not None,
            )
        )
        return out

    # A causal mask leaves the first few keys only to few queries.
    spans = () if is_causal else spans_of(batch, rows, columns)
    if spans:
        parts = [
            emit(ctx.buffer((*batch, span.pieces, rows, width + 1), sums, hint="pieces"), span)
            for span in spans
        ]
        out = merged(ctx, parts, query.dtype, strides)
    else:
        out = emit(ctx.buffer((*batch, rows, width), query.dtype, strides), None)
    return reshape(swap(out, -2, -3) if turned else out, result.shape)


def _masked(score: Expr, mask: Expr | None, is_causal: bool, leaves_out: bool) -> Expr:
    open_, closed = e.like(0, score), e.like(-math.inf, score)
    if mask is not None:
        if mask.dtype == "bool":
            return e.where(mask, score, closed)
        return e.add(score, e.cast(mask, score.dtype))
    if is_causal:
        behind = e.test("le", e.index_value(_N), e.index_value(_M))
        return e.where(behind, score, closed) if leaves_out else e.add(score, e.where(behind, open_, closed))
    return score
