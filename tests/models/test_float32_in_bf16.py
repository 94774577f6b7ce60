"""float32 products that the user lets torch compute in bfloat16."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from instruction_sets import INSTRUCTION_SETS
from scalar_target import native_on
from torch import Tensor, nn

import lampwork
from lampwork.codegen.llvm.isa.x86 import _BF16_PAIRS, describe, host_flags

needs_bf16 = pytest.mark.skipif("avx512_bf16" not in host_flags(), reason="the processor has no AVX512-BF16")
BF16 = replace(describe("avx512", host=True), dots=(_BF16_PAIRS,), bf16_work=1 << 25)
STRICT = {"strict": True}


@contextmanager
def precision(products: str = "none", convolutions: str = "none") -> Generator[None]:
    matmul, conv = torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv
    before = matmul.fp32_precision, conv.fp32_precision
    try:
        matmul.fp32_precision, conv.fp32_precision = products, convolutions
        yield
    finally:
        matmul.fp32_precision, conv.fp32_precision = before


def error(model: Callable[[Tensor], Tensor], got: Tensor, x: Tensor) -> float:
    wide = copy.deepcopy(model).double() if isinstance(model, nn.Module) else model
    exact = wide(x.double())
    assert got.dtype is torch.float32
    return float((got.double() - exact).norm() / exact.norm())


def linears() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(65, 129), nn.GELU(), nn.Linear(129, 33)).eval(), torch.randn(3, 20, 65)


def convolutions() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(3, 33, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(33, 16, 3, padding=1),
        nn.Conv2d(16, 32, 3, groups=2),
    )
    return nn.Sequential(*layers).eval(), torch.randn(2, 3, 18, 17)


@needs_bf16
@pytest.mark.parametrize(
    ("make", "asked"), [(linears, {"products": "bf16"}), (convolutions, {"convolutions": "bf16"})]
)
@torch.no_grad()
def test_a_switch_takes_effect_on_the_next_call(
    make: Callable[[], tuple[nn.Module, Tensor]], asked: dict[str, str]
) -> None:
    model, x = make()
    with native_on(BF16):
        compiled = lampwork.compile(model, options=STRICT)
        assert error(model, compiled(x), x) < 1e-6
        with precision(**asked):
            found = compiled(x)
            assert 1e-4 < error(model, found, x) < 8e-3
            assert found.stride() == model(x).stride()
        assert error(model, compiled(x), x) < 1e-6
        assert len(compiled.entries) == 2
        with precision(**asked):
            assert torch.equal(compiled(x), found)
        with precision("tf32", "tf32"):
            assert error(model, compiled(x), x) < 1e-6
        assert len(compiled.entries) == 2


@needs_bf16
@torch.no_grad()
def test_each_switch_is_for_its_operators() -> None:
    for make, asked in ((linears, {"convolutions": "bf16"}), (convolutions, {"products": "bf16"})):
        model, x = make()
        with native_on(BF16), precision(**asked):
            assert error(model, lampwork.compile(model, options=STRICT)(x), x) < 1e-6


@needs_bf16
@torch.no_grad()
def test_the_family_of_products() -> None:
    def fn(a: Tensor) -> Tensor:
        b = a.transpose(1, 2)
        return torch.baddbmm(a @ b, a, b, beta=0.5) + (a[0] @ b) + torch.addmm(a[0] @ b[0], a[1], b[1])

    a = torch.randn(3, 17, 41)
    with native_on(BF16), precision("bf16"):
        assert 1e-5 < error(fn, lampwork.compile(fn, options=STRICT)(a), a) < 8e-3


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@torch.no_grad()
def test_without_instructions_products_stay_float32(isa: str) -> None:
    model, x = linears()
    with native_on(replace(describe(isa), bf16_work=None)), precision("bf16", "bf16"):
        assert error(model, lampwork.compile(model, options=STRICT)(x), x) < 1e-6


@torch.no_grad()
def test_where_aten_has_better_ones_it_keeps_them() -> None:
    for make in (linears, convolutions):
        model, x = make()
        target = describe("avx2")
        target = replace(target, products=target.products - {"bf16"}, bf16_work=1 << 25)
        with native_on(target), precision("bf16", "bf16"):
            compiled = lampwork.compile(model, options=STRICT)
            torch.testing.assert_close(compiled(x), model(x))
            assert "aten::" in compiled.stages.program


@pytest.mark.parametrize("isa", ["avx2", "sse4"])
@torch.no_grad()
def test_without_the_instruction_float32_stays(isa: str) -> None:
    model, x = linears()
    with precision("bf16", "bf16"):
        assert error(model, lampwork.compile(model, options=STRICT | {"isa": isa})(x), x) < 1e-6
