"""Layers of Lampwork's own whose weights, scales and options are replaced after they were compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lampwork
from lampwork.approximation import bf16_weights, low_rank

_LINEAR, _CONVOLUTION = torch.randn(5, 8), torch.randn(2, 8, 6, 6)


def _quantized(activations: Any, convolution: bool) -> tuple[nn.Sequential, Tensor]:
    model = nn.Sequential(nn.Conv2d(8, 8, 3) if convolution else nn.Linear(8, 8)).eval()
    x = _CONVOLUTION if convolution else _LINEAR
    lampwork.quantize(model, x, activations=activations)
    return model, x


def _assigned(layer: Any) -> None:
    state = {
        name: -value if value.dtype == torch.int8 else 2 * value for name, value in layer.state_dict().items()
    }
    layer.load_state_dict(state, assign=True)


def _bias(layer: Any) -> None:
    layer.bias = nn.Parameter(3 * layer.bias, requires_grad=False)


def _weight(layer: Any) -> None:
    layer.weight = nn.Buffer(-layer.weight)


def _scale(layer: Any) -> None:
    layer.scale = 2 * layer.scale


def _without_bias(layer: Any) -> None:
    layer.bias = None


def _weights_only(layer: Any) -> None:
    layer.activations = None


def _hooked(layer: Any) -> None:
    layer.register_forward_hook(lambda module, args, output: 2 * output)


@pytest.mark.parametrize("change", [_assigned, _bias, _weight, _scale, _without_bias, _weights_only, _hooked])
@pytest.mark.parametrize("convolution", [False, True])
@pytest.mark.parametrize("activations", ["dynamic", "static", None])
def test_what_a_quantized_layer_reads_may_be_replaced(
    activations: Any, convolution: bool, change: Callable[[Any], None]
) -> None:
    model, x = _quantized(activations, convolution)
    compiled = lampwork.compile(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        change(model[0])
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("activations", ["dynamic", "static", None])
def test_functional_call_gives_a_quantized_layer_its_tensors(activations: Any) -> None:
    model, x = _quantized(activations, False)
    given = {name: -value for name, value in model.state_dict().items() if not name.endswith("input_scale")}

    def call(x: Tensor) -> Tensor:
        return torch.func.functional_call(model, given, (x,))

    with torch.no_grad():
        torch.testing.assert_close(lampwork.compile(call)(x), call(x))


@pytest.mark.parametrize("rule", [low_rank(rank=2), bf16_weights()])
def test_the_weights_of_an_approximated_layer_may_be_replaced(rule: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 8)).eval()
    lampwork.approximate(model, [rule], calibration=_LINEAR, budget=10.0, measure_speed=False)
    assert type(model[0]) is not nn.Linear
    other, compiled = copy.deepcopy(model), lampwork.compile(model)
    with torch.no_grad():
        compiled(_LINEAR)
        for tensor in other.state_dict().values():
            tensor.mul_(-2)
        model.load_state_dict(other.state_dict(), assign=True)
        torch.testing.assert_close(compiled(_LINEAR), other(_LINEAR))
