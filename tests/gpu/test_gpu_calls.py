"""Which calls of ATen a program for a card makes: products without their bias, attention without a mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from mask_library import program
from torch import Tensor

import gpu
import lampwork
from lampwork.testing.compare import difference

gpu.require()


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=gpu.DEVICE).to(dtype) / 4


def rewrites(compiled: Any, name: str) -> int:
    """How often a pass changed what was compiled; on a card only."""
    lines = compiled.stages.text("passes").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{name}: "))


def layers(x: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Tensor:
    y = F.gelu(F.linear(x, w, b))
    return F.layer_norm(torch.addmm(c, y.flatten(0, -2), v).view(x.shape) + x, x.shape[-1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [(1,), (16,), (2, 131), (8, 128)])
@pytest.mark.parametrize("width", [33, 384])
def test_biases_are_added_by_what_follows(rows: tuple[int, ...], width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    args = [random(*shape, dtype=dtype) for shape in ((*rows, 64), (width, 64), (width,), (width, 64), (64,))]
    with torch.no_grad():
        compiled = lampwork.compile(layers, dynamic=False)
        lampwork.reset_stats()
        gpu.assert_near(layers, compiled(*args), tuple(args))
        gpu.assert_compiled(compiled)
    assert rewrites(compiled, "bias-behind-product") == 2 * (gpu.ON_GPU and dtype is torch.float32)


def test_with_tf32_biases_are_in_the_product() -> None:
    args = [random(*shape) for shape in ((16, 64), (32, 64), (32,), (32, 64), (64,))]
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with torch.no_grad():
            compiled = lampwork.compile(layers, dynamic=False)
            compiled(*args)
            assert rewrites(compiled, "bias-behind-product") == 0
            torch.backends.cuda.matmul.allow_tf32 = False
            gpu.assert_near(layers, compiled(*args), tuple(args))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def open_mask(q: Tensor, k: Tensor) -> Tensor:
    rows = torch.arange(q.shape[2], device=q.device)[None, None, :, None]
    return (rows >= 0).expand(q.shape[0], -1, -1, k.shape[2])


@pytest.mark.parametrize("causal", [False, True], ids=["open", "causal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 17, 128, 197])
def test_known_masks_give_the_bits_of_attention_without(
    causal: bool, length: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    """As transformers does it: with a mask where the code is compiled, and a flag in eager."""
    made_by_library = program(tmp_path, "create_causal_mask(q)")

    def attend(x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, -1)).transpose(1, 2) for each in x.chunk(3, -1))
        if causal:
            return made_by_library(q, k, v).transpose(1, 2).flatten(2) * 2
        mask = open_mask(q, k) if torch.compiler.is_compiling() else None
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2) * 2

    torch.manual_seed(0)
    x = random(3, length, 3 * 64, dtype=dtype)
    with torch.no_grad():
        compiled = lampwork.compile(attend, dynamic=False)
        lampwork.reset_stats()
        got, want = compiled(x), attend(x)
        gpu.assert_compiled(compiled)
    if gpu.ON_GPU:
        assert rewrites(compiled, "known-masks") == 1 and torch.equal(got, want)
    else:
        assert not difference(got, want)


def test_what_takes_long_is_begun_while_python_code_is_captured() -> None:
    if not gpu.ON_GPU:
        pytest.skip("on a card only")
    from lampwork.codegen.gpu import early

    x = random(5, 7)
    torch.testing.assert_close(lampwork.compile(lambda x: x * 2 + 1)(x), x * 2 + 1)
    thread = early._early.thread
    if thread is not None:  # there are several cores
        thread.join(60)
        assert early._early.kernel is not None
