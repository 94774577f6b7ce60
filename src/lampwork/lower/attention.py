"""scaled_dot_product_attention: torch's fused CPU kernel where it applies, else two products around a softmax."""

from __future__ import annotations

import math

from lampwork.graph.spec import TensorSpec
from lampwork.loops.nodes import Expr, Local
from lampwork.lower import exprs as e
from lampwork.lower import extern
from lampwork.lower.arrays import AXES, Array, read
from lampwork.lower.context import Context, keep
from lampwork.lower.dtypes import FLOATS, TORCH_DTYPES
from lampwork.lower.matmul import gemm
from lampwork.lower.reduce import reduce_value
from lampwork.lower.registry import NotExpressible, Registry
from lampwork.lower.views import expand_to, reshape, swap, unsqueeze_dim

rules = Registry()

_FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu.default"


@rules.lowers("scaled_dot_product_attention")
def attention(
    ctx: Context,
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    """softmax(query @ key^T * scale + mask) @ value. A bool mask adds -inf where it is false."""
    if dropout_p != 0.0 or (is_causal and attn_mask is not None):
        raise NotExpressible("attention with dropout, or causal and masked at once")
    if enable_gqa and query.rank == key.rank == value.rank == 4:
        key, value = _for_each_head(key, query), _for_each_head(value, query)
    elif enable_gqa:
        raise NotExpressible("grouped heads of tensors that have not 4 dimensions")
    if not {query.dtype} == {key.dtype} == {value.dtype} or query.dtype not in FLOATS:
        raise NotExpressible("attention of mixed dtypes")
    mask = None if attn_mask is None else _numbers(ctx, attn_mask, query)
    if _fused_applies(query, key, value, mask):
        return _fused(ctx, query, key, value, mask, is_causal, scale)
    if query.dtype in ("f32", "f64") and query.rank >= 2 and query.rank == key.rank == value.rank:
        return _by_products(ctx, query, key, value, mask, is_causal, scale)
    raise NotExpressible("attention of half types that the fused kernel does not take")


def _for_each_head(shared: Array, query: Array) -> Array:
    """Heads that several query heads share, repeated (a view: no data moves)."""
    heads, wanted = shared.shape[1], query.shape[1]
    if heads == wanted:
        return shared
    batch, _, length, size = shared.shape
    repeated = expand_to(unsqueeze_dim(shared, 2), (batch, heads, wanted // heads, length, size))
    return reshape(repeated, (batch, wanted, length, size))


def _numbers(ctx: Context, mask: Array, query: Array) -> Array:
    """A bool mask as 0 and -inf of the query's dtype; made once for all attentions that share the mask."""
    if mask.dtype != "bool":
        if mask.dtype != query.dtype:
            raise NotExpressible(f"an attention mask of {mask.dtype}")
        return mask
    load = read(mask, mask.shape)
    key = (load, query.dtype)
    known = ctx.masks.get(key)
    # A mask made in the constant part can be read everywhere; one made in the main part only there.
    if (
        known is not None
        and known.shape == mask.shape
        and (known.buffer.name in ctx.fixed or not ctx.in_constant_part)
    ):
        return known
    number = e.where(load, e.const(0.0, query.dtype), e.const(-math.inf, query.dtype))
    made = ctx.map(mask.shape, number, hint="mask", reads=[mask])
    ctx.masks[key] = made
    return made


def _fused_applies(query: Array, key: Array, value: Array, mask: Array | None) -> bool:
    """The conditions of torch's own choice (sdp_utils_cpp)."""
    if not query.rank == key.rank == value.rank == 4:
        return False
    if not query.shape[:2] == key.shape[:2] == value.shape[:2] or key.shape[2] != value.shape[2]:
        return False
    if not query.shape[-1] == key.shape[-1] == value.shape[-1] or 0 in query.shape or 0 in key.shape:
        return False
    if any(array.strides is not None and array.strides[-1] != 1 for array in (query, key, value)):
        return False
    if mask is None:
        return True
    wanted = (*query.shape[:3], key.shape[2])
    if mask.rank not in (2, 4):
        return False
    return all(have in (1, want) for have, want in zip(reversed(mask.shape), reversed(wanted), strict=False))


def _fused(
    ctx: Context,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    is_causal: bool,
    scale: float | None,
) -> Array:
    spec = ctx.spec
    batch, heads, length, _ = query.shape
    sums_dtype = TORCH_DTYPES["f64" if query.dtype == "f64" else "f32"]
    # The kernel also returns the logarithms of the sums, laid out (batch, length, heads).
    sums = TensorSpec((batch, heads, length), (length * heads, 1, heads), sums_dtype, spec.device)
    ctx.val = (spec, sums)
    results = extern.call(
        ctx, _FUSED, [query, key, value, 0.0, is_causal], {"attn_mask": mask, "scale": scale}
    )
    ctx.val = spec
    if isinstance(results, Array):
        raise NotExpressible("the fused kernel gives two results")
    return results[0]


def _by_products(
    ctx: Context,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    is_causal: bool,
    scale: float | None,
) -> Array:
    batch = ctx.spec.shape[:-2]
    rows, columns = query.shape[-2], key.shape[-2]
    if 0 in (rows, columns, query.shape[-1], *batch):
        raise NotExpressible("attention over nothing")
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale

    def wide(array: Array) -> Array:
        return ctx.strided(expand_to(ctx.strided(array), (*batch, *array.shape[-2:])))

    scaled: Expr = Local("acc", query.dtype)
    scaled = e.mul(scaled, e.like(factor, scaled))
    shape = (*batch, rows, columns)
    scores = gemm(
        ctx,
        wide(query),
        swap(wide(key), -2, -1),
        shape,
        batch=batch,
        rows=(rows,),
        epilogue=scaled,
        hint="scores",
    )
    score: Expr = read(scores, shape)
    if mask is not None:
        score = e.add(score, read(mask, shape))
    if is_causal:
        ahead = e.test("le", e.index_value(AXES[len(shape) - 1]), e.index_value(AXES[len(shape) - 2]))
        score = e.where(ahead, score, e.like(-math.inf, score))
    last = [len(shape) - 1]
    masked = ctx.map(shape, score, hint="masked") if score != read(scores, shape) else scores
    entry = read(masked, shape)
    top = keep(reduce_value(ctx, "max", shape, last, entry, hint="max"), shape, last)
    highest = read(top, shape)
    powers = ctx.map(shape, e.op("exp", e.sub(entry, highest)), hint="exp")
    total = keep(reduce_value(ctx, "sum", shape, last, read(powers, shape), hint="sum"), shape, last)
    share = e.div(read(powers, shape), read(total, shape))
    # A row without a single open place gives 0, as torch's own decomposition does.
    share = e.where(e.test("eq", highest, e.like(-math.inf, highest)), e.like(0, share), share)
    weights = ctx.map(shape, share, hint="weights")
    return gemm(
        ctx,
        weights,
        wide(value),
        ctx.spec.shape,
        batch=batch,
        rows=(rows,),
        strides=ctx.spec.strides,
    )
