"""Bags of embeddings, by an operator of the runtime (csrc/bags.cpp)."""

from __future__ import annotations

from lampwork.lower import extern
from lampwork.lower.arrays import Array
from lampwork.lower.context import Context
from lampwork.lower.registry import NotExpressible, Registry

rules = Registry()


@rules.lowers("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    ctx: Context,
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Array, ...]:
    """Means, maxima, and sums that leave out a row."""
    if ctx.wanted != frozenset({0}):
        raise NotExpressible("what backward needs")
    if per_sample_weights is not None or (mode == 0 and padding_idx < 0):
        raise NotExpressible("plain sums and those of weighted rows, which ATen generates code for")
    if weight.dtype != "f32" or indices.dtype != "i64" or offsets.dtype != "i64" or 0 in ctx.first.shape:
        raise NotExpressible(f"rows of {weight.dtype}, indices of {indices.dtype}, or no elements")
    out = ctx.buffer(ctx.first.shape, "f32")
    args = (weight, indices, offsets, mode, include_last_offset, padding_idx)
    extern.emit(ctx, "lampwork::embedding_bag.default", args, (out.buffer,))
    return out, ctx.nothing(), ctx.nothing(), ctx.nothing()
