"""Blocks of keys that a mask closes for a whole strip of queries are not computed."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from attention_support import everywhere
from instruction_sets import HERE, INSTRUCTION_SETS
from scalar_target import native_on, target_named
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import lampwork
from lampwork.codegen.target import Target

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def in_small_blocks(isa: str) -> Target:
    return replace(everywhere(target_named(isa)), attention_keys=48, attention_strip=16, attention_rows=32)


def masked(q: Tensor, k: Tensor, v: Tensor, opened: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return torch._safe_softmax(torch.where(opened, scores, -math.inf), -1) @ v


def of_one_document(q: Tensor, k: Tensor, v: Tensor, document: Tensor) -> Tensor:
    """A query looks at the keys of its own document up to its own place."""
    place = torch.arange(q.shape[-2])
    same = document[: q.shape[-2], None] == document
    return masked(q, k, v, same & (torch.arange(k.shape[-2]) <= place[:, None]))


def run(fn: Attend, isa: str, *inputs: Tensor) -> Tensor:
    with native_on(in_small_blocks(isa)), torch.no_grad():
        compiled = lampwork.compile(fn)
        result = compiled(*inputs)
    assert "into an attention: scores exist a block at a time" in compiled.stages.fusion
    return result


def drawn(rng: random.Random) -> tuple[Attend, tuple[Tensor, ...]]:
    rows, columns = rng.choice([1, 3, 8, 17, 40, 100, 130]), rng.choice([2, 15, 48, 100, 131, 200])
    depth, batch = rng.choice([8, 16, 20]), rng.choice([1, 2])
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    q, k, v = (torch.randn(batch, 2, n, depth, generator=generator) for n in (rows, columns, columns))
    if rng.random() < 0.4 and rows <= columns:
        return of_one_document, (q, k, v, torch.randint(0, 4, (columns,), generator=generator).sort().values)
    rough = torch.rand(batch, 1, -(-rows // 16), -(-columns // 48), generator=generator) < rng.random()
    opened = rough.repeat_interleave(16, 2).repeat_interleave(48, 3)[..., :rows, :columns]
    return masked, (q, k, v, opened & (torch.rand(rows, columns, generator=generator) < rng.choice([0.1, 1])))


@pytest.mark.parametrize("isa", [*INSTRUCTION_SETS, "scalar"])
@pytest.mark.parametrize("seed", range(int(os.environ.get("LAMPWORK_FUZZ", "4"))))
def test_random_masks(seed: int, isa: str) -> None:
    fn, inputs = drawn(random.Random(f"{seed} {isa}"))
    exact = fn(*(x.double() if x.is_floating_point() else x for x in inputs))
    torch.testing.assert_close(run(fn, isa, *inputs).double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("isa", [*INSTRUCTION_SETS, "scalar"])
def test_closed_blocks_are_not_looked_at(isa: str) -> None:
    q, k, v = (torch.randn(1, 2, 96, 16) for _ in range(3))
    opened = torch.ones(96, 96, dtype=torch.bool)
    opened[:, 48:] = False
    exact = F.scaled_dot_product_attention(q.double(), k[:, :, :48].double(), v[:, :, :48].double())
    v[:, :, 48:] = math.nan
    torch.testing.assert_close(run(masked, isa, q, k, v, opened).double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("isa", HERE[-1:])
def test_masks_of_flex_attention(isa: str) -> None:
    """A causal window bounds the keys; documents close blocks."""
    document = torch.arange(200) // 70

    def window(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i >= j) & (i - j < 40)

    def documents(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return document[i] == document[j]

    q, k, v = (torch.randn(1, 2, 200, 16) for _ in range(3))
    i, j = torch.arange(200)[:, None], torch.arange(200)
    for mask_mod in (window, documents):
        blocks = create_block_mask(mask_mod, None, None, 200, 200, device="cpu")

        def attend(q: Tensor, k: Tensor, v: Tensor, _: Tensor, blocks: object = blocks) -> Tensor:
            return flex_attention(q, k, v, block_mask=blocks)  # pyright: ignore[reportArgumentType, reportReturnType]

        exact = masked(q.double(), k.double(), v.double(), mask_mod(i, i, i, j))
        result = run(attend, isa, q, k, v, document)
        torch.testing.assert_close(result.double(), exact, rtol=1e-4, atol=1e-5)
