"""Products by warpgroups on the card, launched by the driver itself, against float64, and large ones against float32.

A kernel that waits for what does not come ends the process after a while."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from card_products import card, check, launch
from product_cases import EPILOGUES, ORDERS, ProductCase, product

import gpu
import lampwork
from lampwork.backends.native.tuning import race, tune_card
from lampwork.codegen.gpu.mma.source import TensorCores
from lampwork.codegen.gpu.mma.warpgroups import CAPABILITY, GROUPS, Groups
from lampwork.errors import CodegenError
from lampwork.loops.ir.index import Index

gpu.require()
if not gpu.ON_GPU:
    pytest.skip("kernels of cards run on cards", allow_module_level=True)
if card().capability != CAPABILITY:
    pytest.skip("this card has no warpgroups that multiply", allow_module_level=True)

FUZZ = int(os.environ.get("LAMPWORK_FUZZ", "24"))


def possible(groups: Groups | None, orders: str) -> bool:
    """Whether there are such tiles: lines of 192 places are not copied."""
    assert groups is not None
    return (groups.m != 192 or orders[0] == "n") and (groups.n != 192 or orders[1] == "t")


@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("groups", [each.name for each in GROUPS])
def test_every_tile(groups: str, orders: str) -> None:
    """Edges in all directions, both dtypes, each epilogue; turns enough to come to the first room again."""
    number = [each.name for each in GROUPS].index(groups) + ORDERS.index(orders)
    epilogue, (dtype, k) = EPILOGUES[number % len(EPILOGUES)], (("bf16", 840), ("f16", 456))[number % 2]
    case = ProductCase(product(dtype, 264, 328, k, orders=orders, epilogue=epilogue), epilogue)
    if possible(Groups.named(groups), orders):
        check(case, groups, True)
        return
    with pytest.raises(CodegenError):
        check(case, groups, True)


@pytest.mark.parametrize("seed", range(FUZZ))
def test_products_fuzz(seed: int) -> None:
    """Random sizes, strides and batches, of which some can be copied 16 bytes at a time and some cannot."""
    draw = random.Random(seed)
    step = draw.choice((1, 8, 8, 64))
    m, n, k = (step * draw.randint(1, 400 // step) for _ in range(3))
    orders, epilogue = draw.choice(ORDERS), draw.choice(EPILOGUES)
    batch = draw.choice(((), (), (2,), (2, 3))) if epilogue != "rows" else ()
    dtype, padding = draw.choice(("bf16", "f16")), draw.choice((0, 8))
    gemm = product(dtype, m, n, k, batch=batch, orders=orders, epilogue=epilogue, padding=padding)
    names = [each.name for each in GROUPS if possible(each, orders)]
    case = ProductCase(gemm, epilogue, seed=seed)
    name = draw.choice(names)
    for aligned in (True, False):
        check(case, name, aligned)


def test_open_sizes() -> None:
    names = ("s0", "s1", "s2")
    m, n, k = map(Index.sym, names)
    gemm = product("bf16", m, n, k, orders="nt", epilogue="residual")
    for sizes in ((256, 512, 1024), (120, 136, 264), (65, 35, 67)):
        case = ProductCase(gemm, "residual", dict(zip(names, sizes, strict=True)))
        check(case, GROUPS[0].name, True)


@pytest.mark.parametrize("orders", ["nt", "tn"])
@pytest.mark.parametrize("groups", GROUPS[:4])
def test_large_ones(groups: Groups, orders: str) -> None:
    """As many blocks as keep all multiprocessors busy for several turns, again and again."""
    if not possible(groups, orders):
        return
    m, n, k = 2048, 4096, 1088
    gemm = product("bf16", m, n, k, orders=orders)
    code = TensorCores().compile(gemm, card(), groups.name, "lw_product")
    blocks = code.extent.as_int()
    assert blocks is not None

    def matrix(rows: int, columns: int, order: str) -> torch.Tensor:
        shape = (columns, rows) if order == "t" else (rows, columns)
        found = torch.randn(shape, device="cuda").to(torch.bfloat16)
        return found.T if order == "t" else found

    a, b = matrix(m, k, orders[0]), matrix(k, n, orders[1])
    want = a.float() @ b.float()
    for _ in range(3):
        out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
        given: Mapping[str, torch.Tensor] = {"a": a, "b": b, "out": out}
        launch(code, [given[each.name] for each in code.params], (), blocks)
        torch.testing.assert_close(out.float(), want, rtol=2.0**-8, atol=2.0**-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_as_the_winner_of_a_race(dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the runtime's own launch, where they are said to be faster than the call of ATen."""
    monkeypatch.setenv("LAMPWORK_CACHE", str(tmp_path))
    race.forget()
    raced: list[str] = []

    def fake(watch: Any, runs: Any, kept: str) -> dict[str, float]:
        raced[:] = runs
        best = next((name for name in runs if Groups.named(name)), kept)
        return {name: 0.5 if name == best else 1.0 for name in runs}

    monkeypatch.setattr(tune_card, "measure_on", fake)

    def fn(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, w, bias))

    x, w, bias = (torch.randn(shape, device="cuda").to(dtype) for shape in ((300, 256), (512, 256), (512,)))
    compiled = lampwork.compile(fn, mode="max-autotune-no-cudagraphs")
    with torch.no_grad():
        gpu.assert_near(fn, compiled(x, w, bias), (x, w, bias))
    race.forget()
    assert any(Groups.named(name) for name in raced)
    assert "mma wgmma" in compiled.stages.tuning
