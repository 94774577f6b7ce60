"""Attention of few queries to many keys, cut into pieces that threads share, against float64."""

from __future__ import annotations

import math
import os
import random

import pytest
import torch
import torch.nn.functional as F
from attention_support import Case, check, compiled
from instruction_sets import INSTRUCTION_SETS
from scalar_target import target_named

import lampwork
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.lower.split_attention import Span, spans_of

COUNT = int(os.environ.get("LAMPWORK_FUZZ", "6"))
INF = math.inf


def draw(seed: int) -> Case:
    """Few queries, thousands of keys, lengths of all kinds of remainders, masks that close whole pieces."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype = rng.choice([torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16])
    batch, groups, per = rng.choice([(1, 1, 1), (1, 1, 8), (1, 2, 1), (2, 1, 4), (1, 1, 5), (1, 2, 3)])
    rows = 1 if per > 1 else rng.choice([1, 2, 8])
    columns = rng.choice([2048, 2049, 3000, 4096, 4099, 5113, 9001])
    depth, width = rng.choice([(8, 8), (16, 5), (33, 64), (64, 64), (20, 1)])

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float32)

    if rng.random() < 0.5:
        k, v = normal(batch, groups, columns, depth), normal(batch, groups, columns, width)
    else:
        k = normal(batch, columns, groups, depth).transpose(1, 2)
        v = normal(batch, columns, groups, width).transpose(1, 2)
    heads, mask, kind = groups * per, None, rng.choice(["none", "bool", "numbers"])
    if kind != "none":
        mask = torch.rand(batch, 1, rows, columns, generator=generator) < 0.7
        mask[..., : rng.choice([0, 1100, columns - 1, columns])] = False
        if kind == "numbers":
            mask = normal(batch, heads, rows, columns).masked_fill(~mask, -INF).to(dtype)
    scale = rng.choice([None, 0.3, -0.2, 0.0])
    q = normal(batch, heads, rows, depth)
    return Case(q.to(dtype), k.to(dtype), v.to(dtype), mask, scale=scale, enable_gqa=per > 1)


@pytest.mark.parametrize("seed", range(COUNT))
@pytest.mark.parametrize("isa", [*INSTRUCTION_SETS, "scalar"])
def test_a_random_attention_in_pieces(isa: str, seed: int) -> None:
    check(draw(seed), target_named(isa))


def case(columns: int = 4100, heads: int = 8, mask: torch.Tensor | None = None) -> Case:
    generator = torch.Generator().manual_seed(columns)
    q = torch.randn(1, heads, 1, 32, generator=generator)
    k, v = (torch.randn(1, 1, columns, 32, generator=generator) for _ in range(2))
    return Case(q, k, v, mask, enable_gqa=heads > 1)


def test_pieces_are_of_one_length_or_leave_a_rest() -> None:
    assert spans_of((1, 1), 8, 32768) == (Span(0, 8, 4096),)
    assert spans_of((1,), 1, 9000) == (Span(0, 8, 1125),)
    assert spans_of((2, 1), 1, 8191) == (Span(0, 4, 2047), Span(8188, 1, 3))
    assert spans_of((8,), 1, 32768) == () == spans_of((1,), 9, 32768)
    assert spans_of((1,), 1, 2047) == ()
    for columns in range(2048, 12000, 7):
        spans, at = spans_of((1,), 4, columns), 0
        for span in spans:
            assert span.start == at
            at += span.pieces * span.length
        assert at == columns


def test_a_row_without_an_open_place_is_zero() -> None:
    mask = torch.zeros(8, 4100, dtype=torch.bool)[:, None]
    mask[3, 0, 4099] = mask[4, 0, 17] = True
    each = case(mask=mask)
    result = compiled(each, host_isa(""))
    expected = torch.zeros(1, 8, 1, 32)
    expected[0, 3, 0], expected[0, 4, 0] = each.v[0, 0, 4099], each.v[0, 0, 17]
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("special", [math.nan, INF, -INF])
@pytest.mark.parametrize("where", ["q", "k", "v", "mask"])
def test_special_numbers_are_where_they_are_in_float64(special: float, where: str) -> None:
    each = case(mask=torch.zeros(1, 4100))
    operand = getattr(each, where)
    if where == "q":
        operand[0, 2, 0, 5] = special
    elif where == "mask":
        operand[0, 4099] = special
    else:
        operand[0, 0, 1500, 5] = special
    result, exact = compiled(each, host_isa("")), each.exact()
    torch.testing.assert_close(result.double(), exact, atol=1e-5, rtol=1e-5, equal_nan=True)


def test_large_scores_keep_their_weights() -> None:
    each = case()
    each.k.mul_(60)
    check(each, host_isa(""))


@pytest.mark.parametrize("columns", [4096, 4099])
def test_threads_share_a_head(columns: int) -> None:
    each = case(columns)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(compiled(each, host_isa("")))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


def test_open_lengths_and_causal_masks_are_not_cut() -> None:
    q, k, v = torch.randn(1, 1, 2, 16), torch.randn(1, 1, 4096, 16), torch.randn(1, 1, 4096, 16)
    with torch.no_grad():
        causal = lampwork.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
        torch.testing.assert_close(causal(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True))
        assert "pieces" not in causal.stages.definitions
        opened = lampwork.compile(F.scaled_dot_product_attention, dynamic=True)
        torch.testing.assert_close(opened(q, k, v), F.scaled_dot_product_attention(q, k, v))
        assert "pieces" not in opened.stages.definitions
        whole = lampwork.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))
        q = q[:, :, :1]
        torch.testing.assert_close(whole(q, k, v), F.scaled_dot_product_attention(q, k, v))
        assert "and then log" in whole.stages.definitions
