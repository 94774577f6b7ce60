"""Attention that is written out: every spelling becomes the fused op, twins do not, and the numbers stay eager's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphkit import assert_same, ops, record, run
from same_numbers import close
from torch import Tensor

import lampwork
from lampwork.plugins.context import PassContext
from lampwork.rewriting.apply.driver import Rewriter
from lampwork.rewriting.library.attention import attention_rules
from lampwork.transforms.canonicalize import Canonicalize
from lampwork.transforms.common_subexpressions import CommonSubexpressions
from lampwork.transforms.dead_code import DeadCode
from lampwork.transforms.pipeline import run_passes
from lampwork.transforms.remove_noops import RemoveNoops
from lampwork.transforms.split_constants import SplitConstants

SDPA = "scaled_dot_product_attention"
LOWEST = torch.finfo(torch.float32).min
INF = math.inf


def prepared(fn: Callable[..., Any], *inputs: Tensor, bound: tuple[Tensor, ...] = ()):
    graph = record(fn, *inputs, bound=bound)
    run_passes(
        graph, passes=(SplitConstants(), Canonicalize(), RemoveNoops(), CommonSubexpressions(), DeadCode())
    )
    return graph


def rewritten(fn: Callable[..., Any], *inputs: Tensor, bound: tuple[Tensor, ...] = ()):
    graph = prepared(fn, *inputs, bound=bound)
    ctx = PassContext()
    Rewriter(attention_rules()).run(graph, ctx)
    run_passes(graph, passes=(CommonSubexpressions(), DeadCode()))
    return graph, ctx


def heads(batch: int = 2, count: int = 4, rows: int = 6, size: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(batch, count, rows, size) for _ in range(3))


def folded() -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(8, 6, 8) for _ in range(3))


def rows_first() -> tuple[Tensor, Tensor, Tensor]:
    """[batch, length, heads, size]."""
    return tuple(torch.randn(2, 6, 4, 8) for _ in range(3))


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def with_scale(scale: float):
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=scale)


# name -> (written out, fused, inputs)
SPELLINGS: dict[str, Any] = {
    "divided": (lambda q, k, v: F.softmax(q @ k.transpose(-1, -2) / math.sqrt(8), -1) @ v, plain, heads),
    "multiplied": (lambda q, k, v: torch.softmax(q @ k.mT * 8**-0.5, dim=3).matmul(v), plain, heads),
    "scale first": (lambda q, k, v: F.softmax(8**-0.5 * (q @ k.mT), -1) @ v, plain, heads),
    "scaled query": (lambda q, k, v: F.softmax((q * 8**-0.5) @ k.mT, -1) @ v, plain, heads),
    "divided query": (lambda q, k, v: F.softmax((q / 2) @ k.mT, -1) @ v, with_scale(0.5), heads),
    "scaled key": (lambda q, k, v: F.softmax(q @ (k * 0.5).mT, -1) @ v, with_scale(0.5), heads),
    "scaled key transposed": (lambda q, k, v: F.softmax(q @ (k.mT * 0.5), -1) @ v, with_scale(0.5), heads),
    "both scaled": (lambda q, k, v: F.softmax((q * 0.5) @ (k * 0.5).mT, -1) @ v, with_scale(0.25), heads),
    "no scale": (lambda q, k, v: F.softmax(q @ k.mT, -1) @ v, with_scale(1.0), heads),
    "scale tensor": (
        lambda q, k, v: F.softmax(q @ k.mT / torch.full([], 2.0), -1) @ v,
        with_scale(0.5),
        heads,
    ),
    "eval dropout": (
        lambda q, k, v: F.dropout(F.softmax(q @ k.mT * 0.5, -1), 0.1, False) @ v,
        with_scale(0.5),
        heads,
    ),
    "float32 softmax": (
        lambda q, k, v: F.softmax(q @ k.mT * 0.5, -1, dtype=torch.float32).to(q.dtype) @ v,
        with_scale(0.5),
        heads,
    ),
    "folded heads": (
        lambda q, k, v: torch.bmm(F.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.5, -1), v),
        with_scale(0.5),
        folded,
    ),
    "baddbmm": (
        lambda q, k, v: torch.bmm(
            torch.baddbmm(q.new_zeros(8, 6, 6), q, k.transpose(1, 2), beta=0, alpha=0.5).softmax(-1), v
        ),
        with_scale(0.5),
        folded,
    ),
    "one head": (
        lambda q, k, v: F.softmax(q @ k.T * 0.5, -1) @ v,
        with_scale(0.5),
        lambda: tuple(torch.randn(6, 8) for _ in range(3)),
    ),
    "longer keys": (
        lambda q, k, v: F.softmax(q @ k.mT * 0.5, -1) @ v,
        with_scale(0.5),
        lambda: (torch.randn(2, 4, 3, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 5)),
    ),
    "causal by tril": (
        lambda q, k, v: F.softmax((q @ k.mT).masked_fill(torch.tril(torch.ones(6, 6)) == 0, -INF), -1) @ v,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0),
        heads,
    ),
    "causal by triu": (
        lambda q, k, v: (
            F.softmax((q @ k.mT).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -1e9), -1) @ v
        ),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0),
        heads,
    ),
    "causal by positions": (
        lambda q, k, v: (
            F.softmax(torch.where(torch.arange(6)[None] <= torch.arange(6)[:, None], q @ k.mT, LOWEST), -1)
            @ v
        ),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0),
        heads,
    ),
    "causal by a sum": (
        lambda q, k, v: F.softmax(q @ k.mT + torch.full((6, 6), -INF).triu(1), -1) @ v,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0),
        heads,
    ),
    "softmax by rows of another layout": (
        lambda q, k, v: (q @ k.mT).view(8, 6, 6).softmax(-1).view(2, 4, 6, 6) @ v,
        with_scale(1.0),
        heads,
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling_is_fused(name: str) -> None:
    by_hand, fused, inputs = SPELLINGS[name]
    given = inputs()
    graph, ctx = rewritten(by_hand, *given)
    assert ops(graph).count(SDPA) == 1 and "softmax" not in ops(graph), ctx.refusals
    close(by_hand, graph, *given)
    kept = [n for n in ops(graph) if n != "clone"]
    if kept == [SDPA]:
        call, wanted = (
            next(n for n in g.nodes if n.name.startswith(SDPA)) for g in (graph, prepared(fused, *given))
        )
        assert call.kwargs == pytest.approx(dict(wanted.kwargs)), (call.kwargs, wanted.kwargs)
        assert call.args[5:] == wanted.args[5:]


EINSUMS = {
    "heads first": ("bhid,bhjd->bhij", "bhij,bhjd->bhid", heads),
    "rows first": ("bihd,bjhd->bhij", "bhij,bjhd->bihd", rows_first),
    "folded": ("bid,bjd->bij", "bij,bjd->bid", folded),
}


@pytest.mark.parametrize("name", EINSUMS)
def test_einsum_is_fused(name: str) -> None:
    scores, weights, inputs = EINSUMS[name]

    def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.einsum(weights, torch.softmax(torch.einsum(scores, q, k) * 0.3, -1), v)

    given = inputs()
    graph, ctx = rewritten(by_hand, *given)
    assert ops(graph).count(SDPA) == 1 and "bmm" not in ops(graph), ctx.refusals
    close(by_hand, graph, *given)


def test_heads_first_graph() -> None:
    given = heads()
    graph, _ = rewritten(lambda q, k, v: torch.relu(F.softmax(q @ k.mT / math.sqrt(8), -1) @ v), *given)
    assert_same(graph, prepared(lambda q, k, v: torch.relu(plain(q, k, v)), *given))


# --- masks that come from outside -------------------------------------------------------------------------------------


def closed_rows() -> Tensor:
    """bool[2, 1, 6, 6]: open places; none in one row."""
    opened = torch.rand(2, 1, 6, 6) > 0.5
    opened[0, 0, 2] = False
    opened[1, 0, 3] = False
    return opened


def causal() -> Tensor:
    return torch.tril(torch.ones(6, 6)).bool().expand(2, 1, 6, 6).contiguous()


def added(value: float):
    def mask(opened: Tensor) -> Tensor:
        return torch.where(opened, 0.0, value)

    return mask


MASKED: dict[str, Any] = {
    "added": (lambda q, k, v, m: F.softmax(q @ k.mT * 0.5 + m, -1) @ v, added(-INF)),
    "added finite": (lambda q, k, v, m: F.softmax(q @ k.mT * 0.5 + m, -1) @ v, added(LOWEST)),
    "added first": (lambda q, k, v, m: F.softmax(m + q @ k.mT, -1) @ v, added(-INF)),
    "subtracted": (lambda q, k, v, m: F.softmax(q @ k.mT - m, -1) @ v, added(INF)),
    "before the scale": (lambda q, k, v, m: F.softmax((q @ k.mT + m) / 4, -1) @ v, added(-INF)),
    "filled": (lambda q, k, v, m: F.softmax((q @ k.mT).masked_fill(~m, -INF), -1) @ v, None),
    "filled with the least": (
        lambda q, k, v, m: F.softmax((q @ k.mT).masked_fill(m == 0, LOWEST), -1) @ v,
        None,
    ),
    "filled with -1e9": (
        lambda q, k, v, m: F.softmax((q @ k.mT).masked_fill(m.logical_not(), -1e9), -1) @ v,
        None,
    ),
    "filled before the scale": (
        lambda q, k, v, m: F.softmax((q @ k.mT).masked_fill(~m, -INF) * 0.5, -1) @ v,
        None,
    ),
    "where": (lambda q, k, v, m: F.softmax(torch.where(m, q @ k.mT, -INF), -1) @ v, None),
    "where the least": (lambda q, k, v, m: F.softmax(torch.where(m, q @ k.mT, LOWEST), -1) @ v, None),
    "where a tensor": (
        lambda q, k, v, m: F.softmax(torch.where(m, q @ k.mT, torch.full([], LOWEST)), -1) @ v,
        None,
    ),
    "where closed": (lambda q, k, v, m: F.softmax(torch.where(~m, -INF, q @ k.mT), -1) @ v, None),
    "twice": (
        lambda q, k, v, m: (
            F.softmax((q @ k.mT).masked_fill(torch.ones(6, 6).triu(1).bool(), -INF).masked_fill(~m, -INF), -1)
            @ v
        ),
        None,
    ),
    "numbers of a mask": (
        lambda q, k, v, m: F.softmax(q @ k.mT + (1.0 - m.float()) * LOWEST, -1) @ v,
        None,
    ),
}


@pytest.mark.parametrize("opened", [closed_rows, causal], ids=["closed rows", "open rows"])
@pytest.mark.parametrize("bound", [False, True], ids=["input", "buffer"])
@pytest.mark.parametrize("name", MASKED)
def test_mask(name: str, bound: bool, opened: Callable[[], Tensor]) -> None:
    by_hand, of = MASKED[name]
    mask = opened() if of is None else of(opened())
    given = heads()
    graph, ctx = rewritten(by_hand, *given, *([] if bound else [mask]), bound=(mask,) if bound else ())
    assert ops(graph).count(SDPA) == 1 and "softmax" not in ops(graph), ctx.refusals
    close(by_hand, graph, *given, mask)


def test_masks_known_to_be_finite_need_nothing_more() -> None:
    def by_hand(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return torch.relu(F.softmax(q @ k.mT + torch.where(m, 0.0, LOWEST), -1) @ v)

    def fused(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return torch.relu(F.scaled_dot_product_attention(q, k, v, torch.where(m, 0.0, LOWEST), scale=1.0))

    given = (*heads(), closed_rows())
    assert_same(rewritten(by_hand, *given)[0], prepared(fused, *given))


def test_nan_in_closed_places_does_not_leak() -> None:
    def by_hand(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return F.softmax((q @ k.mT).masked_fill(~m, -INF), -1) @ v

    q, k, v = heads()
    k[:, :, 5] = math.nan
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[:, 5] = False
    compiled = lampwork.compile(by_hand)
    assert not compiled(q, k, v, mask).isnan().any()
    assert SDPA in compiled.stages.optimized


def test_bias_and_mask_are_added_up() -> None:
    def by_hand(q: Tensor, k: Tensor, v: Tensor, m: Tensor, bias: Tensor) -> Tensor:
        return F.softmax(q @ k.mT + bias + torch.where(m, 0.0, LOWEST), -1) @ v

    given = (*heads(), closed_rows())
    bias = torch.randn(1, 4, 6, 6)
    graph, ctx = rewritten(by_hand, *given, bound=(bias,))
    assert ops(graph).count(SDPA) == 1, ctx.refusals
    close(by_hand, graph, *given, bias)


def test_bias_of_folded_heads() -> None:
    """As BLOOM has it."""

    def by_hand(q: Tensor, k: Tensor, v: Tensor, alibi: Tensor, m: Tensor) -> Tensor:
        scores = alibi.baddbmm(q, k.transpose(1, 2), beta=1.0, alpha=0.3).view(2, 4, 6, 6)
        weights = F.softmax(scores + torch.where(m, 0.0, LOWEST), -1).view(8, 6, 6)
        return torch.bmm(weights, v)

    given = (*folded(), torch.randn(8, 1, 6), torch.ones(1, 1, 6, 6, dtype=torch.bool).tril())
    graph, ctx = rewritten(by_hand, *given)
    assert ops(graph).count(SDPA) == 1, ctx.refusals
    close(by_hand, graph, *given)


def test_factor_of_each_head() -> None:
    """As Swin v2 has it."""

    def by_hand(q: Tensor, k: Tensor, v: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * scale.clamp(max=4.6).exp()
        return F.softmax(scores + bias, -1) @ v

    given, scale, bias = heads(), torch.randn(4, 1, 1), torch.randn(1, 4, 6, 6)
    graph, ctx = rewritten(by_hand, *given, bound=(scale, bias))
    assert ops(graph).count(SDPA) == 1, ctx.refusals
    close(by_hand, graph, *given, scale, bias)


def test_windows_with_a_mask_each() -> None:
    """As Swin v2 has them: windows are split off the batch for their masks, the factor meets them before."""

    def by_hand(q: Tensor, k: Tensor, v: Tensor, m: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        scores = (q @ k.mT * scale + bias).view(2, 3, 4, 6, 6) + m[:, None]
        return F.softmax(scores.view(6, 4, 6, 6), -1) @ v

    given = (*heads(6), torch.where(torch.rand(3, 6, 6) > 0.5, 0.0, -100.0))
    scale, bias = torch.rand(4, 1, 1), torch.randn(1, 4, 6, 6)
    graph, ctx = rewritten(by_hand, *given, bound=(scale, bias))
    assert ops(graph).count(SDPA) == 1, ctx.refusals
    close(by_hand, graph, *given, scale, bias)


# --- shared heads -----------------------------------------------------------------------------------------------------


def repeat(x: Tensor, times: int) -> Tensor:
    batch, count, length, size = x.shape
    return x[:, :, None].expand(batch, count, times, length, size).reshape(batch, count * times, length, size)


SHARED = {
    "expand": repeat,
    "repeat_interleave": lambda x, times: torch.repeat_interleave(x, times, dim=1),
}


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("masked", [False, True])
def test_shared_heads_are_not_copied(name: str, masked: bool) -> None:
    many = SHARED[name]

    def by_hand(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        scores = q @ many(k, 2).transpose(2, 3) * 0.5
        if masked:
            scores = scores.masked_fill(~m, LOWEST)
        return F.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ many(v, 2)

    given = (torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8), closed_rows())
    graph, ctx = rewritten(by_hand, *given)
    assert ops(graph).count(SDPA) == 1 and "repeat_interleave" not in ops(graph), ctx.refusals
    node = next(n for n in graph.nodes if n.name.startswith(SDPA))
    assert node.kwargs["enable_gqa"] is True
    close(by_hand, graph, *given)


@pytest.mark.parametrize("name", SHARED)
def test_fused_attention_of_repeated_heads(name: str) -> None:
    many = SHARED[name]

    def by_hand(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, many(k, 2), many(v, 2), attn_mask=m, scale=0.5)

    def shared(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=m, scale=0.5, enable_gqa=True)

    given = (torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8), causal())
    graph, ctx = rewritten(by_hand, *given)
    assert ctx.hits.total() == 1, ctx.refusals
    assert_same(graph, prepared(shared, *given))
    close(by_hand, graph, *given)


REPEATED_TWINS: dict[str, Any] = {
    "keys only": lambda q, k, v: F.scaled_dot_product_attention(q, repeat(k, 2), torch.cat([v, v], 1)),
    "heads in turn": lambda q, k, v: F.scaled_dot_product_attention(
        q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)
    ),
    "bfloat16": lambda q, k, v: F.scaled_dot_product_attention(
        q.bfloat16(), repeat(k.bfloat16(), 2), repeat(v.bfloat16(), 2)
    ),
    "longer, not more": lambda q, k, v: F.scaled_dot_product_attention(
        q,
        torch.repeat_interleave(k, 2, 2)[:, [0, 0, 1, 1]],
        torch.repeat_interleave(v, 2, 2)[:, [0, 0, 1, 1]],
    ),
}


@pytest.mark.parametrize("name", REPEATED_TWINS)
def test_heads_that_are_not_repeated_so_stay(name: str) -> None:
    given = (torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8))
    _, ctx = rewritten(REPEATED_TWINS[name], *given)
    assert not ctx.hits


def test_one_head_of_keys_for_all() -> None:
    def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.softmax(q @ k.mT * 0.5, -1) @ v

    given = (torch.randn(2, 4, 6, 8), torch.randn(2, 1, 6, 8), torch.randn(2, 1, 6, 8))
    graph, ctx = rewritten(by_hand, *given)
    assert ops(graph).count(SDPA) == 1, ctx.refusals
    close(by_hand, graph, *given)


# --- what must stay ---------------------------------------------------------------------------------------------------


def both(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = F.softmax(q @ k.mT, -1)
    return weights @ v, weights


def scores_too(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT
    return F.softmax(scores, -1) @ v, scores + 1


TWINS: dict[str, Any] = {
    "weights returned": (both, heads, "also read"),
    "scores read": (scores_too, heads, "also read"),
    "softmax over rows": (lambda q, k, v: F.softmax(q @ k.mT, -2) @ v, heads, "last dimension"),
    "no product": (lambda q, k, v: F.softmax(q @ k.mT + 1, -1).exp() @ v, heads, None),
    "tanh between": (lambda q, k, v: F.softmax(torch.tanh(q @ k.mT), -1) @ v, heads, "no product"),
    "training": (lambda q, k, v: F.dropout(F.softmax(q @ k.mT, -1), 0.5, True) @ v, heads, None),
    "infinite scale": (lambda q, k, v: F.softmax(q @ k.mT * INF, -1) @ v, heads, "scaled by inf"),
    "weights transposed": (lambda q, k, v: F.softmax(q @ k.mT, -1).mT @ v, heads, "as the softmax gives"),
    "weights with heads exchanged": (
        lambda q, k, v: F.softmax(q @ k.mT, -1).transpose(0, 1) @ v.transpose(0, 1),
        heads,
        "as the softmax gives",
    ),
    "weights rounded": (
        lambda q, k, v: F.softmax(q @ k.mT, -1).bfloat16().float() @ v,
        heads,
        "rounds the weights",
    ),
    "weights on the right": (lambda q, k, v: v.mT @ F.softmax(q @ k.mT, -1), heads, None),
    "filled with a small number": (
        lambda q, k, v: F.softmax((q @ k.mT).masked_fill(q[..., :6] > 0, -10.0), -1) @ v,
        heads,
        "no mask",
    ),
    "filled with two numbers": (
        lambda q, k, v: (
            F.softmax((q @ k.mT).masked_fill(q[..., :6] > 0, -INF).masked_fill(v[..., :6] > 0, -1e9), -1) @ v
        ),
        heads,
        "different numbers",
    ),
    "negative scale of a mask": (
        lambda q, k, v: F.softmax((q @ k.mT).masked_fill(q[..., :6] > 0, -INF) * -1, -1) @ v,
        heads,
        "no mask",
    ),
    "added behind closed places": (
        lambda q, k, v: F.softmax((q @ k.mT).masked_fill(q[..., :6] > 0, LOWEST) + v[..., :6], -1) @ v,
        heads,
        "after places were closed",
    ),
    "scores broadcast": (
        lambda q, k, v: F.softmax(q[:1] @ k[:1].mT + torch.randn(2, 4, 6, 6), -1) @ v,
        heads,
        "broadcasts",
    ),
    "softmax kept in float32": (
        lambda q, k, v: F.softmax(q.half() @ k.half().mT, -1, dtype=torch.float32) @ v,
        heads,
        "dtypes",
    ),
    "factor of each column": (
        lambda q, k, v: F.softmax(q @ k.mT * v[..., :1, :6], -1) @ v,
        heads,
        "no product",
    ),
    "factor behind a sum": (
        lambda q, k, v: F.softmax((q @ k.mT + v[..., :6]) * v[..., :1], -1) @ v,
        heads,
        "multiplied by a tensor after",
    ),
    "a query for all heads": (
        lambda q, k, v: F.softmax(q[:, :1] @ k.mT, -1) @ v,
        heads,
        "the query is shared",
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_twin_stays(name: str) -> None:
    by_hand, inputs, why = TWINS[name]
    graph, ctx = rewritten(by_hand, *inputs())
    assert SDPA not in ops(graph)
    assert why is None or any(why in reason for _, reason in ctx.refusals), ctx.refusals


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_takes_the_fused_kernel(dtype: torch.dtype) -> None:
    def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.softmax(q @ k.mT * 0.5, -1, dtype=torch.float32).to(q.dtype) @ v

    given = tuple(x.to(dtype) for x in heads())
    graph, ctx = rewritten(by_hand, *given)
    assert ops(graph).count(SDPA) == 1 and "_to_copy" not in ops(graph), ctx.refusals
    got, exact = run(graph, *given)[0], by_hand(*(x.double() for x in given))
    assert (got.double() - exact).abs().max() <= 2 * (by_hand(*given).double() - exact).abs().max()


def test_half_that_is_masked_by_choice() -> None:
    """The fused kernel adds its mask, but leaves out later places of causal attention."""
    given = tuple(x.half() for x in heads())
    for causal, fused in ((True, 1), (False, 0)):

        def by_hand(q: Tensor, k: Tensor, v: Tensor, above: int = 1 if causal else 2) -> Tensor:
            closed = torch.ones(6, 6, dtype=torch.bool).triu(above)
            return F.softmax((q @ k.mT * 0.5).masked_fill(closed, -INF), -1) @ v

        graph, ctx = rewritten(by_hand, *given)
        assert ops(graph).count(SDPA) == fused, ctx.refusals


def test_so_many_scores_are_no_products() -> None:
    def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.softmax(q @ k.mT * 0.5, -1) @ v

    graph, _ = rewritten(by_hand, *(torch.randn(1, 5, 2048, 8) for _ in range(3)))
    assert SDPA in ops(graph)
