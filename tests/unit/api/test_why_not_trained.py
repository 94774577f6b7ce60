"""`lampwork.why_not` of versions that are trained: it says what was rewritten, and what to write for training."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lampwork
from lampwork.plugins.registry import registry


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Nothing stays registered."""
    yield
    for item in registry().all():
        item.unregister()


IMAGES = torch.randn(2, 4, 9, 9)
CONV = nn.Conv2d(4, 4, 3, 2, 1)
LAYER, GROUP, BATCH = nn.LayerNorm(9), nn.GroupNorm(2, 4), nn.BatchNorm2d(4)
WEIGHT = torch.randn(5, 9, requires_grad=True)


def clamped(call: str) -> tuple[str, str]:
    return f"relu({call})", f"clamp_min({call}, 0.0)"


Program = Callable[[Tensor], Tensor]

# (program, the operator in inference, the rewrite there, the operator in training, the rewrite there)
DIFFERENT: dict[str, tuple[Program, tuple[str, str], str, tuple[str, str]]] = {
    "conv2d": (
        lambda x: -CONV(x),
        ("neg(conv2d(x, w, b, ...o))", "conv2d(x, neg(w), neg(b), ...o)"),
        "convolution(args_0_, CONV_weight, CONV_bias, ...)",
        ("neg(convolution(x, w, b, ...o))", "convolution(x, neg(w), neg(b), ...o)"),
    ),
    "layer_norm": (
        lambda x: LAYER(x).relu(),
        clamped("layer_norm(x, [9], w, b)"),
        "native_layer_norm(args_0_, [9], LAYER_weight, LAYER_bias, ...)[0]",
        clamped("native_layer_norm(x, [9], w, b, 1e-5)[0]"),
    ),
    "group_norm": (
        lambda x: GROUP(x).relu(),
        clamped("group_norm(x, 2, w, b)"),
        "native_group_norm(args_0_, GROUP_weight, GROUP_bias, ...)[0]",
        clamped("native_group_norm(x, w, b, ...)[0]"),
    ),
    "max_pool2d": (
        lambda x: F.max_pool2d(x * 2, 2).relu(),
        clamped("max_pool2d(x, [2, 2])"),
        "max_pool2d_with_indices(mul, ...)[0]",
        clamped("max_pool2d_with_indices(x, ...)[0]"),
    ),
    "scaled_dot_product_attention": (
        lambda x: F.scaled_dot_product_attention(x * 2, x, x).relu(),
        clamped("scaled_dot_product_attention(q, k, v)"),
        "these",
        clamped("view(bmm(x, y), [2, 4, 9, 9])"),
    ),
}


def trained(program: Program, steps: int = 1) -> Callable[[Tensor], Tensor]:
    compiled = lampwork.compile(lambda x: program(x).sum())
    for _ in range(steps):
        compiled(IMAGES.clone().requires_grad_()).backward()
    return compiled


@pytest.mark.parametrize("name", DIFFERENT)
def test_operators_that_autograd_replaces(name: str) -> None:
    program, inference, told, training = DIFFERENT[name]
    mine = lampwork.rewrite(*inference, name="in inference")
    compiled = trained(program)
    found = lampwork.why_not(mine, compiled)
    assert found.fired == mine.hits == 0
    (answer,) = found.answers
    assert answer.version.endswith(" forward")
    assert answer.trained.startswith(f"it fires in inference only: in training {name} is recorded as ")
    assert answer.trained.endswith(f"write another rewrite for {told}") and answer.trained in str(found)

    with torch.no_grad():
        compiled(IMAGES)
    found = lampwork.why_not(mine, compiled)
    assert found.fired == mine.hits == 1 and not found.answers[-1].trained

    mine.disable()
    other = lampwork.rewrite(*training, name="in training")
    compiled(IMAGES.clone().requires_grad_()).backward()
    assert lampwork.why_not(other, compiled).fired == other.hits > 0


def test_linear_between_views() -> None:
    mine = lampwork.rewrite(*clamped("linear(x, w)"), name="mine")
    found = lampwork.why_not(mine, trained(lambda x: F.linear(x, WEIGHT).relu()))
    assert found.fired == mine.hits == 0
    assert "it fires in inference only: in training autograd has other operators around it" in str(found)
    assert "expected linear, got view" in str(found)


SAME: dict[str, tuple[Program, tuple[str, str]]] = {
    "softmax": (lambda x: F.softmax(x * 2, -1).relu(), clamped("softmax(x, -1)")),
    "gelu": (lambda x: F.gelu(x * 2).relu(), clamped("gelu(x)")),
    "tanh": (lambda x: (-x.tanh()).sin(), ("neg(tanh(x))", "tanh(neg(x))")),
    "batch_norm": (
        lambda x: BATCH(x).relu(),
        clamped("_native_batch_norm_legit_functional(x, ...)[0]"),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_hits_are_what_fired(name: str) -> None:
    program, given = SAME[name]
    mine = lampwork.rewrite(*given, name="mine")
    compiled = trained(program)
    found = lampwork.why_not(mine, compiled)
    assert found.fired == mine.hits > 0 and not any(answer.trained for answer in found.answers)


def test_a_version_that_is_trained_later() -> None:
    mine = lampwork.rewrite("neg(tanh(x))", "tanh(neg(x))", name="mine")
    compiled = lampwork.compile(lambda x: (-x.tanh()).sin())
    for _ in range(2):
        compiled(torch.randn(3, requires_grad=True)).sum().backward()
    found = lampwork.why_not(mine, compiled)
    assert [answer.version.partition(" ")[2] for answer in found.answers] == ["", "forward", "backward"]
    assert found.fired == mine.hits == 3


def test_what_fires_nowhere() -> None:
    mine = lampwork.rewrite("neg(cos(x))", "cos(x)", name="mine")
    found = lampwork.why_not(mine, trained(lambda x: -x.tanh()))
    assert len(found.answers) == 1 and not found.answers[0].trained
    assert "expected cos, got tanh" in str(found)
