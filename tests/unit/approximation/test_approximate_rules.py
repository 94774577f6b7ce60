"""Each rule of lampwork.approximate by itself: what it is for, what it is not for, what it makes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lampwork
from lampwork import No
from lampwork.approximation import (
    ChannelAffine,
    HalfLinear,
    LowRankLinear,
    Statistics,
    bf16_weights,
    gelu_to_relu,
    gelu_to_tanh,
    layer_norm_to_affine,
    low_rank,
    weights,
)
from lampwork.approximation.statistics import collect
from lampwork.codegen.llvm.isa.x86 import host_isa


class NotGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class GEGLU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return a * F.gelu(b)


class TwoArgumentsGELU(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.gelu(x) * y


def test_gelu_is_known_in_all_spellings() -> None:
    activations = pytest.importorskip("transformers.activations")
    exact = [nn.GELU(), activations.GELUActivation(), activations.GELUActivation(use_gelu_python=True)]
    near = [
        nn.GELU("tanh"),
        activations.NewGELUActivation(),
        activations.FastGELUActivation(),
        activations.QuickGELUActivation(),
        activations.GELUTanh(),
    ]
    others = [
        nn.ReLU(),
        nn.SiLU(),
        NotGELU(),
        GEGLU(),
        TwoArgumentsGELU(),
        activations.ClippedGELUActivation(-1, 1),
    ]
    for module in exact:
        assert gelu_to_relu.applies("", module) and gelu_to_tanh.applies("", module)
    for module in near:
        assert gelu_to_relu.applies("", module) and not gelu_to_tanh.applies("", module)
    for module in others:
        assert not gelu_to_relu.applies("", module) and not gelu_to_tanh.applies("", module)
    x = torch.linspace(-6, 6, 1001)
    assert (gelu_to_relu.replace(nn.GELU(), None)(x) - F.gelu(x)).abs().max() < 0.171
    assert (gelu_to_tanh.replace(nn.GELU(), None)(x) - F.gelu(x)).abs().max() < 5e-4


def test_statistics_over_several_calls_are_those_of_all() -> None:
    module, batches = nn.LayerNorm(4), [torch.randn(3, 5, 4) * 2 + 100, torch.randn(7, 4) + 100]
    statistics = collect([module], lambda: [_run(module, batch) for batch in batches])[0]
    xs = torch.cat([batch.reshape(-1, 4) for batch in batches]).double()
    with torch.no_grad():
        ys = torch.cat([module(batch).reshape(-1, 4) for batch in batches]).double()
    assert statistics.count == len(xs) == 22
    torch.testing.assert_close(statistics.input_mean, xs.mean(0))
    torch.testing.assert_close(statistics.output_mean, ys.mean(0))
    torch.testing.assert_close(statistics.input_variance, xs.var(0, correction=0))
    torch.testing.assert_close(statistics.output_variance, ys.var(0, correction=0))
    both = ((xs - xs.mean(0)) * (ys - ys.mean(0))).mean(0)
    torch.testing.assert_close(statistics.covariance, both)
    assert not module._forward_hooks


def test_statistics_of_other_shapes_and_of_nothing() -> None:
    linear = nn.Linear(4, 3)
    statistics = collect([linear], lambda: _run(linear, input=torch.randn(5, 4)))[0]
    assert statistics.count == 5 and statistics.covariance is None
    assert statistics.output_mean.shape == (3,)
    empty = Statistics()
    empty.add(torch.arange(3), torch.arange(3))
    empty.add(torch.ones(0, 3), torch.ones(0, 3))
    assert empty.count == 0 and empty.covariance is None
    with pytest.raises(ValueError, match="no call"):
        _ = empty.input_mean
    with pytest.raises(ValueError, match="no call"):
        _ = empty.input_variance


def test_layer_norm_is_fitted_by_least_squares() -> None:
    norm = nn.LayerNorm(6)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(50, 6) * torch.rand(50, 1)
    statistics = collect([norm], lambda: _run(norm, x))[0]
    new = layer_norm_to_affine.replace(norm, statistics)
    assert isinstance(new, ChannelAffine)
    with torch.no_grad():
        y = norm(x)
        for c in range(6):
            best = torch.linalg.lstsq(
                torch.stack([x[:, c], torch.ones(50)], 1).double(), y[:, c, None].double()
            ).solution
            torch.testing.assert_close(new.weight[c].double(), best[0, 0], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(new.bias[c].double(), best[1, 0], atol=1e-5, rtol=1e-5)


def _run(module: nn.Module, *args: Tensor, **kwargs: Tensor) -> None:
    module(*args, **kwargs)


def test_layer_norm_over_constant_channels_and_none_and_several_axes() -> None:
    norm = nn.LayerNorm(3, elementwise_affine=False)
    x = torch.tensor([[1.0, 2.0, 3.0]]).expand(4, 3)
    new = layer_norm_to_affine.replace(norm, collect([norm], lambda: _run(norm, x))[0])
    torch.testing.assert_close(new(x), norm(x))
    assert new.weight.requires_grad
    assert isinstance(layer_norm_to_affine.replace(norm, Statistics()), No)
    assert isinstance(layer_norm_to_affine.applies("", nn.LayerNorm((2, 3))), No)
    assert layer_norm_to_affine.applies("", nn.BatchNorm1d(3)) is False
    frozen = nn.LayerNorm(3).requires_grad_(False)
    new = layer_norm_to_affine.replace(frozen, collect([frozen], lambda: _run(frozen, x))[0])
    assert not any(p.requires_grad for p in new.parameters())


def test_unreached_layer_norm_is_refused_by_name() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.LayerNorm(4), nn.LayerNorm(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    report = lampwork.approximate(
        Model(), ["layer-norm-to-affine"], calibration=torch.randn(9, 4), budget=9.0, measure_speed=False
    )
    assert report.rules[0].kept == ("used",)
    assert [(r.name, r.reason) for r in report.rules[0].refused] == [
        ("unused", "the calibration inputs do not reach it")
    ]


@pytest.mark.parametrize("bias", [True, False])
def test_low_rank_is_exact_where_the_weight_is(bias: bool) -> None:
    linear = nn.Linear(24, 16, bias=bias)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(16, 3) @ torch.randn(3, 24))
    new = low_rank(energy=1 - 1e-9).replace(linear, None)
    assert isinstance(new, LowRankLinear) and new.rank == 3
    assert (new.in_features, new.out_features) == (24, 16)
    x = torch.randn(2, 5, 24)
    torch.testing.assert_close(new(x), linear(x), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(new.weight, linear.weight, atol=1e-4, rtol=1e-4)
    assert "rank=3" in repr(new) and (new.bias is not None) is bias


def test_low_rank_is_the_nearest_of_its_rank() -> None:
    linear = nn.Linear(20, 20)
    new = low_rank(rank=4).replace(linear, None)
    s = torch.linalg.svdvals(linear.weight.detach())
    assert torch.linalg.matrix_norm((new.weight - linear.weight).detach()) == pytest.approx(
        float(s[4:].square().sum().sqrt()), rel=1e-4
    )


def test_low_rank_only_where_it_saves() -> None:
    linear = nn.Linear(16, 16)
    assert "saves no multiplications" in low_rank(rank=8).replace(linear, None).reason
    assert isinstance(low_rank(rank=7).replace(linear, None), LowRankLinear)
    assert "of the energy needs rank" in low_rank(0.999).replace(linear, None).reason
    with torch.no_grad():
        linear.weight.zero_()
    assert low_rank(0.999).replace(linear, None).rank == 1


@pytest.mark.parametrize("rule", [low_rank(), bf16_weights()])
def test_linear_layers_that_are_left(rule) -> None:
    attention = nn.MultiheadAttention(4, 2)
    assert rule.applies("", nn.Linear(4, 4))
    assert rule.applies("", attention.out_proj) is False
    assert rule.applies("", nn.Conv1d(4, 4, 1)) is False
    parametrized = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    assert rule.applies("", parametrized).reason == "its weight is computed from other parameters"


@pytest.mark.parametrize("compute", ["bfloat16", "float32", None])
def test_bf16_weights(compute) -> None:
    linear = nn.Linear(32, 8).requires_grad_(False)
    new = bf16_weights(compute).replace(linear, None)
    assert isinstance(new, HalfLinear) and new.weight.dtype is torch.bfloat16
    assert not new.weight.requires_grad and (new.in_features, new.out_features) == (32, 8)
    x = torch.randn(3, 32)
    assert new(x).dtype is torch.float32
    torch.testing.assert_close(new(x), linear(x), atol=2e-2, rtol=2e-2)
    compiled = lampwork.compile(new, fullgraph=True)
    torch.testing.assert_close(compiled(x), new(x), atol=1e-2, rtol=1e-2)
    assert isinstance(bf16_weights().applies("", nn.Linear(4, 4).half()), No)


def test_bf16_computes_in_what_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = nn.Linear(64, 32)
    statistics = Statistics()
    statistics.add(torch.ones(100, 64), torch.ones(100, 32))
    statistics.add(torch.ones(2, 50, 64), torch.ones(2, 50, 32))
    assert (statistics.calls, statistics.count) == (2, 200)

    def chosen(bf16_work: int | None) -> torch.dtype:
        monkeypatch.setattr(weights, "_target", lambda: replace(host_isa(), bf16_work=bf16_work))
        return bf16_weights().replace(linear, statistics).computes_in

    assert chosen(100 * 64 * 32) is torch.bfloat16
    assert chosen(100 * 64 * 32 + 1) is torch.float32
    assert chosen(None) is torch.float32


def test_sequential_rules_see_what_came_before() -> None:
    """The second of two layer norms is fitted to what the first's replacement puts out."""
    model, x = nn.Sequential(nn.LayerNorm(4), nn.ReLU(), nn.LayerNorm(4)), torch.randn(30, 4)
    lampwork.approximate(model, ["layer-norm-to-affine"], calibration=x, budget=99.0, measure_speed=False)
    with torch.no_grad():
        seen = model[1](model[0](x))
        want = layer_norm_to_affine.replace(
            nn.LayerNorm(4), collect([norm := nn.LayerNorm(4)], lambda: _run(norm, seen))[0]
        )
    torch.testing.assert_close(model[2].weight, want.weight)


def test_statistics_of_one_pass_are_of_the_model_before_the_rule() -> None:
    means: list[Tensor] = []

    class Shift:
        name = "shift"

        def applies(self, name: str, module: nn.Module) -> bool:
            return isinstance(module, nn.Identity)

        def replace(self, module: nn.Module, statistics: Statistics | None) -> nn.Module:
            assert statistics is not None
            means.append(statistics.input_mean)
            return nn.Sequential(nn.Identity(), ChannelAffine(torch.ones(3), torch.ones(3)))

    model, x = nn.Sequential(nn.Identity(), nn.Identity()), torch.zeros(4, 3)
    lampwork.approximate(
        model, [Shift()], calibration=[x, x], budget=99.0, metric=lambda a, b: 0.0, measure_speed=False
    )
    assert len(means) == 2 and all(not mean.any() for mean in means)
    assert torch.equal(model(x), torch.full((4, 3), 2.0))


@pytest.mark.parametrize(
    ("rule", "atol"), [(low_rank(1 - 1e-9), 1e-4), (low_rank(rank=3), 1e-4), (bf16_weights("bfloat16"), 0.2)]
)
def test_linear_layers_of_gpt2(rule, atol: float) -> None:
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D(32, 16)
    with torch.no_grad():
        conv1d.weight.copy_(torch.randn(16, 3) @ torch.randn(3, 32))
    assert rule.applies("", conv1d)
    new = rule.replace(conv1d, None)
    x = torch.randn(2, 5, 16)
    assert (new.in_features, new.out_features) == (16, 32)
    torch.testing.assert_close(new(x), conv1d(x), atol=atol, rtol=1e-2)
