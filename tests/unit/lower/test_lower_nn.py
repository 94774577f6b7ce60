"""Reductions, products, norms, pools, embeddings, attention and rearrangements against eager."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from lower_harness import check, externs

import lampwork
from lampwork.loops.ir.nodes import Attention, Gemm
from lampwork.lower import attention

X = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5).mul(0.37).sin()

REDUCTIONS = {
    "sum": lambda x: x.sum(),
    "sum_dim": lambda x: x.sum(1),
    "sum_dims_keep": lambda x: x.sum((0, -1), keepdim=True),
    "sum_dtype": lambda x: x.sum(dtype=torch.float64),
    "mean": lambda x: x.mean(),
    "mean_dims": lambda x: x.mean((2, 3)),
    "mean_keep": lambda x: x.mean(-1, True),
    "amax": lambda x: x.amax(1),
    "amax_keep": lambda x: x.amax((1, 2), True),
    "amin": lambda x: x.amin(),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "max_dim": lambda x: tuple(x.max(1)),
    "max_dim_values": lambda x: x.max(2).values,
    "max_dim_indices": lambda x: x.max(2, keepdim=True).indices,
    "min_dim": lambda x: tuple(x.min(-1, keepdim=True)),
    "argmax": lambda x: x.argmax(),
    "argmax_dim": lambda x: x.argmax(1),
    "argmin_keep": lambda x: x.argmin(-1, keepdim=True),
    "aminmax": lambda x: tuple(x.aminmax()),
    "prod": lambda x: x.prod(),
    "prod_dim": lambda x: x.prod(2),
    "any": lambda x: (x > 0.9).any(),
    "any_dim": lambda x: (x > 0.5).any(1),
    "all": lambda x: (x > -2).all(),
    "all_keep": lambda x: (x > 0).all(2, keepdim=True),
    "count": lambda x: (x > 0).sum(-1),
    "bool_amax": lambda x: (x > 0.5).amax(1),
    "var": lambda x: x.var(),
    "var_dim": lambda x: x.var(1, keepdim=True),
    "var_biased": lambda x: x.var((2, 3), correction=0),
    "std": lambda x: x.std(-1),
    "var_mean": lambda x: torch.var_mean(x, (1, 2)),
    "std_mean": lambda x: torch.std_mean(x, 0, keepdim=True),
    "norm": lambda x: x.norm(),
    "norm_dim": lambda x: x.norm(dim=1, keepdim=True),
    "norm1": lambda x: x.norm(p=1, dim=-1),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, math.inf, dim=(1, 2)),
    "norm3": lambda x: torch.linalg.vector_norm(x, 3, dim=1),
    "norm0": lambda x: torch.linalg.vector_norm(torch.relu(x), 0, dim=1),
    "normalize": lambda x: F.normalize(x, dim=1),
    "cosine": lambda x: F.cosine_similarity(x, x + 1, dim=2),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "logsumexp_keep": lambda x: torch.logsumexp(x, (2, 3), keepdim=True),
    "logsumexp_inf": lambda x: torch.logsumexp(x.masked_fill(x < 2, -math.inf), 1),
    "cumsum": lambda x: x.cumsum(2),
    "cumprod": lambda x: x.cumprod(-1),
    "cumsum_int": lambda x: (x > 0).cumsum(1),
    "softmax": lambda x: x.softmax(-1),
    "softmax_dim": lambda x: x.softmax(1),
    "softmax_dtype": lambda x: x.softmax(2, dtype=torch.float64),
    "softmax_masked": lambda x: x.masked_fill(x > 0, -math.inf).softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "log_softmax_dim": lambda x: F.log_softmax(x, 0),
    "softmin": lambda x: F.softmin(x, 3),
    "mse": lambda x: F.mse_loss(x, x.flip(0)),
    "mse_none": lambda x: F.mse_loss(x, x.flip(0), reduction="none"),
    "l1": lambda x: F.l1_loss(x, x.flip(1), reduction="sum"),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, 3 * x.flip(1)),
    "huber": lambda x: F.huber_loss(x, 3 * x.flip(1), delta=0.5),
    "layer_norm": lambda x: F.layer_norm(x, (5,)),
    "layer_norm_2": lambda x: F.layer_norm(x, (4, 5), x[0, 0], x[1, 1]),
    "native_layer_norm": lambda x: torch.native_layer_norm(x, (5,), x[0, 0, 0], None, 1e-5),
    "rms_norm": lambda x: F.rms_norm(x, (5,), x[0, 0, 0]),
    "rms_norm_eps": lambda x: F.rms_norm(x, (4, 5), None, 1e-3),
    "group_norm": lambda x: F.group_norm(x.reshape(2, 6, 2, 5), 3, x.reshape(-1)[:6], x.reshape(-1)[6:12]),
    "instance_norm": lambda x: F.instance_norm(x),
    "batch_norm": lambda x: F.batch_norm(x, x[0, :, 0, 0], x[0, :, 1, 1].exp(), x[0, :, 2, 2], None),
    "batch_norm_own": lambda x: F.batch_norm(x, None, None, x[0, :, 0, 0], x[0, :, 0, 1], True),
    "one_element": lambda x: (
        x[..., :1].softmax(-1),
        x[:1].sum(0),
        x[:1].argmax(0),
        x[:, :, :1].var(2, correction=0),
    ),
    "zero_dim": lambda x: (x[0, 0, 0, 0].sum(), x[0, 0, 0, 0].amax(), x[0, 0, 0, 0].softmax(0)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name):
    check(REDUCTIONS[name], X, scale=4)


@pytest.mark.parametrize("name", sorted(REDUCTIONS.keys() - {"logsumexp_inf"}))
def test_reduction_of_channels_last(name):
    # The values; what layout eager gives to the result of a reduction is the recorder's matter.
    x = X.to(memory_format=torch.channels_last)
    check(REDUCTIONS[name], x, scale=8)


HALF = [
    "sum",
    "mean_dims",
    "amax",
    "max_dim",
    "argmax_dim",
    "var_dim",
    "softmax",
    "log_softmax",
    "layer_norm",
    "rms_norm",
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", [*HALF, "native_layer_norm", "group_norm", "batch_norm", "norm", "cumsum"])
def test_reduction_dtypes(name, dtype):
    check(REDUCTIONS[name], X.to(dtype), scale=2)


def test_nan_propagates_through_extrema():
    x = X.clone()
    x[0, 1, 2, 3] = math.nan
    for name in ("amax", "amin", "max", "min", "max_dim", "argmax", "argmax_dim", "argmin_keep"):
        check(REDUCTIONS[name], x)
    check(lambda x: F.max_pool2d(x, 2), x)


def test_integer_reductions():
    x = torch.tensor([[3, -1, 7], [2, 9, -4]], dtype=torch.int32)
    for fn in (
        torch.sum,
        torch.amax,
        torch.amin,
        torch.argmax,
        torch.prod,
        lambda x: x.sum(1),
        lambda x: x.max(0)[0],
    ):
        check(fn, x)
    check(lambda x: x.float().mean(), x)
    check(lambda x: (x[:1].argmax(0), x[:, :1].max(1)[1], x[:, :1].sum(1)), x)
    check(lambda x: x.sum(dtype=torch.int16), x)


# --- products ---------------------------------------------------------------------------------------------------------


def r(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


PRODUCTS = {
    "mm": (torch.mm, r(3, 4), r(4, 5)),
    "mm_transposed": (lambda a, b: a.t() @ b.t(), r(4, 3), r(5, 4)),
    "bmm": (torch.bmm, r(2, 3, 4), r(2, 4, 5)),
    "bmm_transposed": (lambda a, b: torch.bmm(a, b.transpose(1, 2)), r(2, 3, 4), r(2, 5, 4)),
    "addmm": (torch.addmm, r(5), r(3, 4), r(4, 5)),
    "addmm_scaled": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), r(3, 1), r(3, 4), r(4, 5)),
    "addmm_beta0": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0),
        torch.full((5,), math.nan),
        r(3, 4),
        r(4, 5),
    ),
    "baddbmm": (
        lambda c, a, b: torch.baddbmm(c, a, b, beta=0.3, alpha=1.7),
        r(2, 3, 5),
        r(2, 3, 4),
        r(2, 4, 5),
    ),
    "baddbmm_bias": (torch.baddbmm, r(1, 5), r(2, 3, 4), r(2, 4, 5)),
    "addbmm": (torch.addbmm, r(3, 5), r(2, 3, 4), r(2, 4, 5)),
    "mv": (torch.mv, r(3, 4), r(4)),
    "addmv": (torch.addmv, r(3), r(3, 4), r(4)),
    "dot": (torch.dot, r(7), r(7)),
    "outer": (torch.outer, r(3), r(4)),
    "matmul_11": (torch.matmul, r(4), r(4)),
    "matmul_12": (torch.matmul, r(4), r(4, 5)),
    "matmul_21": (torch.matmul, r(3, 4), r(4)),
    "matmul_13": (torch.matmul, r(4), r(2, 4, 5)),
    "matmul_31": (torch.matmul, r(2, 3, 4), r(4)),
    "matmul_32": (torch.matmul, r(2, 3, 4), r(4, 5)),
    "matmul_23": (torch.matmul, r(3, 4), r(2, 4, 5)),
    "matmul_44": (torch.matmul, r(2, 3, 4, 5), r(2, 3, 5, 2)),
    "matmul_broadcast": (torch.matmul, r(2, 1, 4, 5), r(3, 5, 2)),
    "matmul_one": (torch.matmul, r(2, 3, 4, 5), r(1, 5, 2)),
    "linear": (F.linear, r(2, 3, 4), r(5, 4), r(5)),
    "linear_vector": (F.linear, r(4), r(5, 4), r(5)),
    "linear_no_bias": (F.linear, r(1, 7, 4), r(5, 4)),
    "linear_one_row": (F.linear, r(3, 1, 4), r(5, 4), r(5)),
    "linear_permuted": (lambda x, w: F.linear(x.permute(1, 0, 2), w), r(2, 3, 4), r(5, 4)),
    "linear_sliced": (lambda x, w: F.linear(x[:, 1], w), r(2, 3, 4), r(5, 4)),
    "linear_merged": (
        lambda x, w: F.linear(x.permute(0, 2, 1, 3).reshape(2, 4, 15), w),
        r(2, 3, 4, 5),
        r(6, 15),
    ),
    "linear_of_t": (lambda x, w: F.linear(x, w.t()), r(2, 3, 4), r(4, 5)),
    "conv1d_as_linear": (
        lambda x, w, b: torch.addmm(b, x.view(-1, 4), w).view(2, 3, 5),
        r(2, 3, 4),
        r(4, 5),
        r(5),
    ),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), r(2, 3, 4), r(2, 5, 4)),
    "einsum_heads": (lambda a, b: torch.einsum("bqhd,bkhd->bhqk", a, b), r(2, 3, 4, 5), r(2, 6, 4, 5)),
    "scores": (
        lambda q, k: q.view(2, 3, 2, 2).transpose(1, 2) @ k.view(2, 5, 2, 2).permute(0, 2, 3, 1),
        r(2, 3, 4),
        r(2, 5, 4),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PRODUCTS)
def test_product(name, dtype):
    fn, *inputs = PRODUCTS[name]
    check(fn, *(x.to(dtype) for x in inputs), scale=8)


@pytest.mark.parametrize("name", sorted(PRODUCTS))
def test_product_operands_are_affine(name):
    """What the Gemm template needs of its operands: addresses affine in each of its axes."""
    fn, *inputs = PRODUCTS[name]
    lowered = check(fn, *inputs, scale=8)
    for gemm in lowered.definitions:
        if isinstance(gemm, Gemm):
            for load, axes in ((gemm.a, (gemm.m, gemm.k)), (gemm.b, (gemm.k, gemm.n))):
                address = sum(i * s for i, s in zip(load.index, load.buffer.strides))
                from lampwork.loops.ir.index import as_index, simplify

                every = (*gemm.batch, *axes)
                address = simplify(as_index(address), {axis.name: axis.extent for axis in every})
                for axis in every:
                    assert address.coefficient(axis.name) is not None, (str(address), axis.name)


def test_half_products_are_left_to_aten():
    check(F.linear, r(2, 4, dtype=torch.bfloat16), r(5, 4, dtype=torch.bfloat16), extern=True)
    check(torch.matmul, torch.tensor([[1, 2]]), torch.tensor([[3], [4]]), extern=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 4, 5), (17, 33, 65)])
@pytest.mark.parametrize("name", ["addmm", "addmv", "baddbmm", "addbmm"])
def test_alpha_of_zero_reads_what_eager_reads(name, shape, dtype):
    """An infinity in the matrices makes nan where eager multiplies by zero, and nothing where it skips the product."""
    m, k, n = shape
    shapes = {
        "addmm": ((m, n), (m, k), (k, n)),
        "addmv": ((m,), (m, k), (k,)),
        "baddbmm": ((2, m, n), (2, m, k), (2, k, n)),
        "addbmm": ((m, n), (2, m, k), (2, k, n)),
    }[name]
    added, left, right = (r(*each, dtype=dtype) for each in shapes)
    left.view(-1)[0] = math.inf

    def fn(*args):
        return getattr(torch, name)(*args, alpha=0, beta=2)

    torch.testing.assert_close(
        lampwork.compile(fn)(added, left, right), fn(added, left, right), rtol=0, atol=0, equal_nan=True
    )


# --- pools ------------------------------------------------------------------------------------------------------------

POOLS = {
    "max2d": lambda x: F.max_pool2d(x, 2),
    "max2d_padded": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max2d_dilated": lambda x: F.max_pool2d(x, 2, 1, 1, 2),
    "max2d_ceil": lambda x: F.max_pool2d(x, 2, 2, ceil_mode=True),
    "max1d": lambda x: F.max_pool1d(x[0], 2, 1),
    "max3d": lambda x: F.max_pool3d(x, 2, 1, 1),
    "avg2d": lambda x: F.avg_pool2d(x, 2),
    "avg2d_padded": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg2d_exclude": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg2d_ceil": lambda x: F.avg_pool2d(x, (3, 2), 2, 1, ceil_mode=True),
    "avg2d_ceil_exclude": lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True, count_include_pad=False),
    "avg2d_divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "avg1d": lambda x: F.avg_pool1d(x[0], 3, 1, 1),
    "avg3d": lambda x: F.avg_pool3d(x, 2, 1),
    "adaptive_1": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive_even": lambda x: F.adaptive_avg_pool2d(x, (2, 5)),
    "adaptive_uneven": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    "adaptive_larger": lambda x: F.adaptive_avg_pool2d(x, (7, 6)),
    "adaptive_1d": lambda x: F.adaptive_avg_pool1d(x[0], 2),
    "adaptive_3d": lambda x: F.adaptive_avg_pool3d(x, (2, 2, 1)),
    "unbatched": lambda x: F.max_pool2d(x[0], 2, 1),
}


@pytest.mark.parametrize("name", POOLS)
def test_pool(name):
    check(POOLS[name], X, scale=2)


@pytest.mark.parametrize("name", ["max2d_padded", "avg2d_exclude", "adaptive_1", "adaptive_even"])
def test_pool_of_channels_last(name):
    check(POOLS[name], X.to(memory_format=torch.channels_last), scale=2)


# --- indices ----------------------------------------------------------------------------------------------------------

INDICES = torch.tensor([[1, 0, 2], [2, 2, 0]])
INDEXING = {
    "embedding": lambda x, i: F.embedding(i, x[0, :, 0]),
    "embedding_padding": lambda x, i: F.embedding(i, x[0, :, 0], padding_idx=2),
    "index_select": lambda x, i: x.index_select(1, i[0]),
    "gather": lambda x, i: x[0, :, 0].gather(1, i),
    "take_along_dim": lambda x, i: torch.take_along_dim(x[0, 0], i[:, :1].expand(2, 4).t(), 1),
    "take": lambda x, i: x.take(i),
    "index": lambda x, i: x[:, i],
    "index_negative": lambda x, i: x[:, i - 3],
    "index_two": lambda x, i: x[:, i, i],
    "index_apart": lambda x, i: x[i[0] % 2, :, i[1]],
    "index_broadcast": lambda x, i: x[:, i, :, torch.arange(3)],
    "index_list": lambda x, i: x[:, [0, 2]],
    "index_int32": lambda x, i: x.index_select(1, i[0].int()),
}


@pytest.mark.parametrize("name", INDEXING)
def test_indexing(name):
    check(INDEXING[name], X, INDICES)


# --- rearrangements and creation --------------------------------------------------------------------------------------

REARRANGED = {
    "cat": lambda x: torch.cat([x, x[:, :1], x + 1], 1),
    "cat_dtypes": lambda x: torch.cat([x, x.double()], -1),
    "cat_empty": lambda x: torch.cat([torch.empty(0), x[0, 0], x[1, 1]]),
    "stack": lambda x: torch.stack([x, x * 2], 1),
    "stack_last": lambda x: torch.stack([x[0], x[1]], -1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=2.5),
    "pad_negative": lambda x: F.pad(x, (-1, 2)),
    "flip": lambda x: x.flip(1, 3),
    "roll": lambda x: x.roll(2, 3),
    "roll_two": lambda x: x.roll((-1, 3), (1, 2)),
    "roll_flat": lambda x: x.roll(7),
    "repeat": lambda x: x.repeat(2, 1, 3, 1),
    "repeat_more": lambda x: x[0, 0].repeat(2, 1, 2),
    "tile": lambda x: x.tile(2, 2),
    "repeat_interleave": lambda x: x.repeat_interleave(3, dim=1),
    "repeat_interleave_flat": lambda x: x.repeat_interleave(2),
    "tril": torch.tril,
    "triu": lambda x: x.triu(1),
    "rotate_half": lambda x: torch.cat((-x[..., 3:], x[..., :3]), -1),
    "slice_write": lambda x: written(x, (slice(None), slice(1, 3)), 5.0),
    "step_write": lambda x: written(x, (Ellipsis, slice(1, None, 2)), 5.0),
    "select_write": lambda x: written(x, (0, slice(None), -1), x[1, :, 0]),
    "whole_write": lambda x: written(x, slice(None), 1.0),
    "diagonal_write": lambda x: diagonal_written(x),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.reshape(1, 12, 2, 5), 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x[..., :4], 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x.reshape(2, 6, 2, 5), 3),
    "upsample": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    "upsample_size": lambda x: F.interpolate(x, size=(8, 10), mode="nearest"),
    "arange": lambda x: torch.arange(5) + x[0, 0, 0],
    "arange_step": lambda x: (torch.arange(2, 11, 3), torch.arange(1.0, 2.0, 0.3), x),
    "linspace": lambda x: (torch.linspace(-1, 3, 7), x),
    "eye": lambda x: (torch.eye(3), torch.eye(2, 4, dtype=torch.int64), x),
    "full": lambda x: (torch.full((2, 3), 1.5), torch.ones(2), torch.zeros(3, dtype=torch.bool), x),
    "new": lambda x: (x.new_zeros(2), x.new_full((3,), 2.0), x.new_ones(1)),
    "causal": lambda x: torch.full((4, 4), -math.inf).triu(1) + x[0, 0, :, :4],
    "scalar": lambda x: torch.tensor(2.0) * x,
    "meshgrid": lambda x: torch.meshgrid(x[0, 0, 0], x[0, 0, :, 0], indexing="ij"),
}


def written(x, where, value):
    y = x.clone()
    y[where] = value
    return y


def diagonal_written(x):
    y = x.clone()
    y.diagonal(-1, 2, 3).fill_(9)
    return y


@pytest.mark.parametrize("name", REARRANGED)
def test_rearranged(name):
    check(REARRANGED[name], X)


def test_cat_of_many_is_left_to_aten():
    check(lambda x: torch.cat([x] * 20), X, extern=True)


# --- attention --------------------------------------------------------------------------------------------------------

Q, K, V = r(2, 4, 3, 8), r(2, 4, 5, 8), r(2, 4, 5, 8)


ATTENTIONS = {
    "plain": lambda q, k, v, m: sdpa(q, k, v),
    "scaled": lambda q, k, v, m: sdpa(q, k, v, scale=0.3),
    "causal": lambda q, k, v, m: sdpa(q, q, q, is_causal=True),
    "row_mask": lambda q, k, v, m: sdpa(q, k, v, m[0].view(1, 1, 1, 5)),
    "closed_row": lambda q, k, v, m: sdpa(q, k, v, m),
    "head_mask": lambda q, k, v, m: sdpa(q, k, v, m.expand(2, 4, 3, 5) ^ (q[..., :1] > 0)),
    "numbers": lambda q, k, v, m: sdpa(q, k, v, q[0, 0, :, :5]),
    "shared_heads": lambda q, k, v, m: sdpa(q, k[:, :2], v[:, :2], enable_gqa=True),
    "shared_heads_mask": lambda q, k, v, m: sdpa(q, k[:, :1], v[:, :1], m.view(1, 1, 3, 5), enable_gqa=True),
    "shared_causal": lambda q, k, v, m: sdpa(q, q[:, :2], q[:, 2:], is_causal=True, enable_gqa=True),
    "transposed": lambda q, k, v, m: sdpa(
        *(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    ),
}
sdpa = F.scaled_dot_product_attention
MASK = torch.tensor([[True, False, True, True, False], [False] * 5, [True] * 5])


def without_template(monkeypatch):
    monkeypatch.setattr(attention, "tiled_applies", lambda *_: False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_in_blocks(name, dtype):
    lowered = check(ATTENTIONS[name], *(x.to(dtype) for x in (Q, K, V)), MASK, scale=8)
    assert sum(isinstance(definition, Attention) for definition in lowered.definitions) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_by_products(name, dtype, monkeypatch):
    without_template(monkeypatch)
    check(ATTENTIONS[name], *(x.to(dtype) for x in (Q, K, V)), MASK, scale=8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_fused_attention(name, dtype, monkeypatch):
    without_template(monkeypatch)
    monkeypatch.setattr(attention, "MOST_SCORES", 0)
    lowered = check(ATTENTIONS[name], *(x.to(dtype) for x in (Q, K, V)), MASK, extern=True, scale=2)
    assert any("flash_attention_for_cpu" in target for target in externs(lowered))


def test_a_bool_mask_is_converted_once(monkeypatch):
    without_template(monkeypatch)
    monkeypatch.setattr(attention, "MOST_SCORES", 0)

    def fn(q, k, v, m):
        return sdpa(sdpa(q, k, v, m), k, v, m)

    given = (torch.randn(2, 4, 5, 8), K, V, torch.ones(1, 1, 5, 5, dtype=torch.bool).tril(2))
    compiled = lampwork.compile(fn)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*given), fn(*given))
    assert compiled.stages.counts["definitions"] == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention_of_other_ranks(dtype):
    q, k, v = (x.to(dtype) for x in (Q, K, V))
    check(lambda q, k, v: sdpa(q[0], k[0], v[0]), q, k, v, scale=8)
    check(lambda q, k, v: sdpa(q[0, 0], k[0, 0], v[0, 0]), q, k, v, scale=8)
    check(lambda q, k, v: sdpa(q, k, v[..., :6]), q, k, v, scale=8)
    check(lambda q, k, v: sdpa(q[:, :, :1], k[:, :, :1], v[:, :, :1]), q, k, v, scale=8)


# --- left to ATen -----------------------------------------------------------------------------------------------------

LEFT = {
    "conv2d": lambda x: F.conv2d(x, x[:, :, :2, :2], padding=1),
    "conv1d": lambda x: F.conv1d(x[0], x[1, :, :, :2]),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x, x[:, :, :2, :2].transpose(0, 1)[:3]),
    "sort": lambda x: x.sort(-1),
    "topk": lambda x: x.topk(2, -1),
    "scatter": lambda x: x.scatter(1, torch.zeros(2, 1, 4, 5, dtype=torch.long), 3.0),
    "reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "cdist": lambda x: torch.cdist(x[0], x[1]),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_to_aten(name):
    check(LEFT[name], X, extern=True, scale=8)


@pytest.mark.parametrize("number", [1.5, float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("fn", [F.softmax, F.log_softmax, torch.ops.aten._safe_softmax], ids=str)
def test_softmax_of_a_number(fn, number):
    x = torch.tensor(number)
    torch.testing.assert_close(lampwork.compile(lambda x: fn(x, 0))(x), fn(x, 0), equal_nan=True)
