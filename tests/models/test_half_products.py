"""Matrix products of bfloat16 and float16 inside of compiled functions."""

from __future__ import annotations

import pytest
import torch
from same import assert_same
from scalar_target import native_on, target_named
from torch import nn

import lampwork
from lampwork.codegen.llvm.isa import x86

HALVES = (torch.bfloat16, torch.float16)
STRICT = {"strict": True}


def layers(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    found = nn.Sequential(nn.Linear(65, 129), nn.GELU(), nn.Linear(129, 33), nn.ReLU())
    return found.to(dtype).eval()


@pytest.mark.parametrize("isa", ["scalar", "sse4", "avx2", ""])
@pytest.mark.parametrize("dtype", HALVES)
@torch.no_grad()
def test_linear_layers(isa: str, dtype: torch.dtype) -> None:
    model = layers(dtype)
    with native_on(target_named(isa)):
        compiled = lampwork.compile(model, options=STRICT)
        for rows in (1, 3, 16, 50):
            x = torch.randn(rows, 65).to(dtype)
            assert_same(model, compiled(x), x)


@pytest.mark.parametrize("dtype", HALVES)
@torch.no_grad()
def test_weights_that_change_are_packed_again(dtype: torch.dtype) -> None:
    model, x = layers(dtype), torch.randn(20, 65).to(dtype)
    compiled = lampwork.compile(model, options=STRICT)
    before = compiled(x)
    model[0].weight.mul_(2)
    after = compiled(x)
    assert not torch.equal(before, after)
    assert_same(model, after, x)
    assert len(compiled.entries) == 1


@pytest.mark.parametrize("dtype", HALVES)
@torch.no_grad()
def test_the_family_of_products(dtype: torch.dtype) -> None:
    def fn(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.bmm(a, b),
            torch.baddbmm(c, a, b),
            torch.addmm(c, a[0], b[0], alpha=2, beta=0.5),
            a @ b[0],
            torch.mv(a[0], c[0, :41]),
        )

    a, b, c = (torch.randn(*shape).to(dtype) for shape in ((3, 17, 41), (3, 41, 50), (17, 50)))
    assert_same(fn, lampwork.compile(fn, options=STRICT)(a, b, c), a, b, c)


@torch.no_grad()
def test_autocast() -> None:
    model, x = layers(torch.float32), torch.randn(20, 65)
    with torch.autocast("cpu", torch.bfloat16):
        found, eager = lampwork.compile(model, options=STRICT)(x), model(x)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found, eager)


@pytest.mark.parametrize(
    ("more", "left", "pairs"),
    [((), {"bf16", "f16"}, False), (("avx512_bf16",), {"bf16", "f16"}, True)]
    + [(("avx512_bf16", "amx_fp16"), {"bf16"}, True), (("avx512_fp16",), {"bf16", "f16"}, False)],
)
def test_types_with_units_of_their_own_are_left_to_aten(
    monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], left: set[str], pairs: bool
) -> None:
    monkeypatch.setattr(x86, "host_flags", lambda: frozenset((*x86._AVX512, *more)))
    target = x86.host_isa("")
    assert target.products == {"f32", "f64", "i8"} | left
    assert (target.steps("bf16") == 2) is pairs and target.steps("f16") == 1


@pytest.mark.parametrize("layer", [torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_recurrent_layers_of_half_types(layer: type[torch.nn.Module], dtype: torch.dtype) -> None:
    module, x = layer(4, 4).to(dtype).eval(), torch.randn(3, 1, 4).to(dtype)
    with torch.no_grad():
        ours, eager = lampwork.compile(module, options={"strict": True})(x)[0], module(x)[0]
    torch.testing.assert_close(ours, eager, rtol=1e-2, atol=1e-2)
