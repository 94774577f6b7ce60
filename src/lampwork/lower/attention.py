"""scaled_dot_product_attention: one `Attention`, two products around a softmax, or torch's fused CPU kernel.

An `Attention` (tiled_attention.py) needs memory for a block of scores at a time, and takes half types. Few scores are
faster as two products in our own Gemm around a softmax that is one kernel over the rows, with masks and scaling fused
(Target.tiled_scores). Where there is no template, long sequences and half types take the fused kernel.
"""

from __future__ import annotations

from math import prod

from lampwork.graph.spec import TensorSpec
from lampwork.loops.ir.nodes import Expr, Local
from lampwork.lower import exprs as e
from lampwork.lower import extern
from lampwork.lower.arrays import AXES, Array, read
from lampwork.lower.context import Context, keep
from lampwork.lower.dtypes import FLOATS, HALVES, TORCH_DTYPES
from lampwork.lower.matmul import gemm
from lampwork.lower.reduce import reduce_value
from lampwork.lower.registry import NotExpressible, Registry
from lampwork.lower.softmax import shares
from lampwork.lower.tiled_attention import applies as tiled_applies
from lampwork.lower.tiled_attention import grouped, tiled
from lampwork.lower.views import expand_to, reshape, swap, unsqueeze_dim
from lampwork.standard import math

rules = Registry()

MOST_SCORES = 1 << 24
"""Scores (batch * heads * rows * columns) up to which all of them are held in memory where there is no template: more
are for torch's fused kernel."""

_LARGEST_HEAD = 512
"""Rows of larger heads would take too much of a thread's stack."""

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
    """softmax(query @ key^T * scale + mask) @ value. A bool mask selects, one of numbers is added."""
    if dropout_p != 0.0 or (is_causal and attn_mask is not None):
        raise NotExpressible("attention with dropout, or causal and masked at once")
    if query.rank < 2 or not query.rank == key.rank == value.rank or (enable_gqa and query.rank != 4):
        raise NotExpressible("attention of tensors of unequal ranks")
    if not {query.dtype} == {key.dtype} == {value.dtype} or query.dtype not in FLOATS:
        raise NotExpressible("attention of mixed dtypes")
    if is_causal and scale is not None and not scale > 0:
        raise NotExpressible("causal attention whose -inf the scale turns into something else")
    if attn_mask is not None and attn_mask.dtype not in ("bool", query.dtype):
        raise NotExpressible(f"an attention mask of {attn_mask.dtype}")
    # Only the fused kernel leaves out what comes later; else it is masked by adding -inf, and nan stays nan.
    leaves_out = is_causal and _fused_applies(query, key, value, attn_mask, enable_gqa)
    if _is_tiled(ctx, query, key, value, leaves_out):
        return tiled(ctx, query, key, value, attn_mask, is_causal, scale, leaves_out)
    scores = prod(ctx.spec.shape[:-1]) * key.shape[-2]
    # Half types are faster in the fused kernel.
    in_products = query.dtype in ctx.products and query.dtype not in HALVES
    few = in_products and scores <= MOST_SCORES
    selects = in_products and attn_mask is not None and attn_mask.dtype == "bool"
    ours = few or selects or (in_products and ctx.standalone)
    if not ours and _fused_applies(query, key, value, attn_mask, enable_gqa):
        mask = None if attn_mask is None else _numbers(ctx, attn_mask, query)
        key, value = _for_each_head(key, query), _for_each_head(value, query)
        return _fused(ctx, query, key, value, mask, is_causal, scale)
    if in_products:
        return _by_products(ctx, query, key, value, attn_mask, is_causal, scale, leaves_out)
    raise NotExpressible(f"attention of {query.dtype} that the fused kernel does not take")


def _is_tiled(ctx: Context, query: Array, key: Array, value: Array, leaves_out: bool) -> bool:
    """Whether one kernel is faster than three: many scores, one query, open lengths, or a dtype whose products are not
    computed in its own precision."""
    sizes = (*ctx.spec.shape, *key.shape[-2:])
    heads, groups = (query.shape[-3], key.shape[-3]) if query.rank > 2 else (1, 1)
    if 0 in sizes or heads % groups or not tiled_applies(ctx, query):
        return False
    if query.shape[-1] > _LARGEST_HEAD or value.shape[-1] > _LARGEST_HEAD:
        return False
    rows, columns = query.shape[-2], key.shape[-2]
    if query.dtype not in ctx.products or query.dtype in HALVES:
        return True
    if type(rows) is not int or type(columns) is not int or rows == 1:
        return True
    return 2 * rows * columns >= (2 if leaves_out else 3) * ctx.tiled_scores


def _for_each_head(shared: Array, query: Array) -> Array:
    """Heads that several query heads share, repeated."""
    if shared.shape[1] == query.shape[1]:
        return shared
    heads, wanted = shared.shape[1], query.shape[1]
    batch, _, length, size = shared.shape
    repeated = expand_to(unsqueeze_dim(shared, 2), (batch, heads, wanted // heads, length, size))
    return reshape(repeated, (batch, wanted, length, size))


def _numbers(ctx: Context, mask: Array, query: Array) -> Array:
    """A bool mask as 0 and -inf of the query's dtype."""
    if mask.dtype != "bool":
        return mask
    load = read(mask, mask.shape)
    number = e.where(load, e.const(0.0, query.dtype), e.const(-math.inf, query.dtype))
    return ctx.map(mask.shape, number, hint="mask", reads=[mask])


def _fused_applies(query: Array, key: Array, value: Array, mask: Array | None, enable_gqa: bool) -> bool:
    """The conditions of torch's own choice (sdp_utils_cpp)."""
    if not query.rank == key.rank == value.rank == 4:
        return False
    if query.shape[0] != key.shape[0] or key.shape[:3] != value.shape[:3]:
        return False
    if query.shape[1] != key.shape[1] and (not enable_gqa or query.shape[1] % key.shape[1]):
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
    leaves_out: bool,
) -> Array:
    """Heads that share a key and value head become another batch dimension, along which those are not copied."""
    result = ctx.spec
    batch, strides = result.shape[:-2], result.strides
    rows, columns = query.shape[-2], key.shape[-2]
    if 0 in (rows, columns, query.shape[-1], *batch):
        raise NotExpressible("attention over nothing")
    heads, groups = query.shape[-3] if query.rank > 2 else 1, key.shape[-3] if key.rank > 2 else 1
    if heads % groups:
        raise NotExpressible(f"attention of {heads} heads to {groups}, to which those are expanded")
    if heads != groups:
        per = heads // groups
        query, key, value = (grouped(array, groups, heads) for array in (query, key, value))
        mask = None if mask is None else grouped(mask, groups, heads)
        batch = (*batch[:-1], groups, per)
        strides = (*strides[:-3], strides[-3] * per, *strides[-3:])
    shape = (*batch, rows, columns)
    masked = _scores(ctx, query, key, mask, shape, is_causal, scale, leaves_out)
    entry = read(masked, shape)
    last = [len(shape) - 1]
    top = keep(reduce_value(ctx, "max", shape, last, entry, hint="max"), shape, last)
    highest = read(top, shape)
    powers = ctx.map(shape, e.op("exp", e.sub(entry, highest)), hint="exp")
    share = shares(ctx, powers, last[0])
    if mask is not None:
        # A row without a single open place gives 0, as torch's own decomposition does.
        share = e.where(e.test("eq", highest, e.like(-math.inf, highest)), e.like(0, share), share)
    weights = ctx.map(shape, share, hint="weights")
    value = _in_batch(ctx, value, batch)
    out_shape = (*batch, rows, result.shape[-1])
    out = gemm(ctx, weights, value, out_shape, batch=batch, rows=(rows,), strides=strides)
    return reshape(out, result.shape)


def _in_batch(ctx: Context, array: Array, batch: tuple[int, ...]) -> Array:
    return expand_to(ctx.strided(array), (*batch, *array.shape[-2:]))


def _scores(
    ctx: Context,
    query: Array,
    key: Array,
    mask: Array | None,
    shape: tuple[int, ...],
    is_causal: bool,
    scale: float | None,
    leaves_out: bool,
) -> Array:
    """query @ key^T * scale, masked, as (batch…, rows, columns)."""
    batch, rows = shape[:-2], shape[-2]
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    product = Local("acc", query.dtype)
    scores = gemm(
        ctx,
        _in_batch(ctx, query, batch),
        swap(_in_batch(ctx, key, batch), -2, -1),
        shape,
        batch=batch,
        rows=(rows,),
        epilogue=e.mul(product, e.like(factor, product)),
        hint="scores",
    )
    score: Expr = read(scores, shape)
    open_, closed = e.like(0, score), e.like(-math.inf, score)
    if mask is not None:
        given = read(mask, shape)
        # Nan in a closed place does not spread, as masked_fill was written: see graph.canonical_attention.attention.
        score = e.where(given, score, closed) if mask.dtype == "bool" else e.add(score, given)
    elif is_causal:
        behind = e.test("le", e.index_value(AXES[len(shape) - 1]), e.index_value(AXES[len(shape) - 2]))
        masked = e.where(behind, score, closed)
        score = masked if leaves_out else e.add(score, e.where(behind, open_, closed))
    else:
        return scores
    return ctx.map(shape, score, hint="masked")
