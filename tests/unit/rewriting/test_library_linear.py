"""Constants go into the weights of layers; what is no constant, or has other readers, stays."""

from __future__ import annotations

import pytest
import torch
from graphkit import ops
from librarykit import assert_becomes, assert_stays, rewritten
from torch import nn

import lampwork

F = torch.nn.functional


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(dtype)


X, W, B = values(2, 5, 16), values(24, 16), values(24)
BY_OUTPUT, BY_INPUT = values(24).abs() + 0.5, values(16).abs() + 0.5


def test_a_number_behind_a_layer() -> None:
    assert_becomes(
        lambda x, w, b: F.linear(x, w, b) / 3, lambda x, w, b: F.linear(x, w / 3, b / 3), [X], [W, B]
    )
    assert_becomes(lambda x, w: 0.3 * F.linear(x, w), lambda x, w: F.linear(x, w * 0.3), [X], [W])
    ctx = assert_becomes(lambda x, w: x @ w.t() / 3, lambda x, w: F.linear(x, w / 3), [X], [W])
    assert ctx.hits["scale_behind_layer"] == 1


def test_a_number_for_each_output_and_a_shift() -> None:
    graph, ctx = rewritten(lambda x, w, b, g: F.linear(x, w, b) * g - g, [X], [W, B, BY_OUTPUT])
    assert ops(graph) == ["view", "mul", "mul", "sub", "linear"]
    assert (ctx.hits["scale_behind_layer"], ctx.hits["shift_behind_layer"]) == (1, 1)


def test_a_bias_of_its_own() -> None:
    assert_becomes(lambda x, w, b: F.linear(x, w) + b, F.linear, [X], [W, B])
    assert_becomes(lambda x, w, b: F.linear(x, w) - b, lambda x, w, b: F.linear(x, w, -b), [X], [W, B])
    assert_becomes(lambda x, w, b: F.linear(x, w, b) + 2, lambda x, w, b: F.linear(x, w, b + 2), [X], [W, B])


def test_heads_take_the_factor_before_they_are_split() -> None:
    def heads(x, w, b):
        return F.linear(x, w, b).view(2, 5, 4, 6).transpose(1, 2) / 3

    graph, ctx = rewritten(heads, [X], [W, B])
    assert ctx.hits["scale_behind_heads"] == 1
    assert ops(graph) == ["div", "div", "linear", "view", "permute"]
    assert all(n.meta.get("constant") for n in graph.nodes if "div" in n.name)


def test_a_factor_of_the_input() -> None:
    assert_becomes(
        lambda x, w, b: F.linear(x * 0.3, w, b), lambda x, w, b: F.linear(x, w * 0.3, b), [X], [W, B]
    )
    assert_becomes(
        lambda x, w, b, u: F.linear(x * u, w, b),
        lambda x, w, b, u: F.linear(x, w * u.view(1, 16), b),
        [X],
        [W, B, BY_INPUT],
    )


def test_convolutions() -> None:
    x, w, b = values(2, 3, 8, 8), values(6, 3, 3, 3), values(6)
    scale = values(6).abs() + 0.5
    _, ctx = rewritten(
        lambda x, w, b, g: F.conv2d(x, w, b, 2, 1) * g.view(-1, 1, 1) + g.view(1, -1, 1, 1),
        [x],
        [w, b, scale],
    )
    assert (ctx.hits["scale_behind_layer"], ctx.hits["shift_behind_layer"]) == (1, 1)
    _, ctx = rewritten(lambda x, w, b: F.conv1d(x[:, :, 0], w[:, :, 0], b) / 7, [x], [w, b])
    assert ctx.hits["scale_behind_layer"] == 1
    _, ctx = rewritten(lambda x, w: F.conv2d(x, w) * 3.0, [x], [w])
    assert ctx.hits["scale_behind_layer"] == 1


STAYS = {
    "a weight of the call": (lambda x, w: F.linear(x, w) / 3, [X, W], []),
    "a factor of the call": (lambda x, g, w: F.linear(x, w) * g, [X, BY_OUTPUT], [W]),
    "a result read twice": (lambda x, w: (lambda y: (y / 3, torch.relu(y)))(F.linear(x, w)), [X], [W]),
    "a weight read twice": (lambda x, w: F.linear(x, w) / 3 + w.sum(), [X], [W]),
    "a factor of each row": (lambda x, w, g: F.linear(x, w) * g, [X], [W, values(5, 1)]),
    "a factor that broadcasts": (lambda x, w, g: F.linear(x, w) * g, [X], [W, values(3, 1, 1, 24)]),
    "a factor of another dtype": (lambda x, w, g: F.linear(x, w) * g, [X], [W, BY_OUTPUT.double()]),
    "zero": (lambda x, w: F.linear(x, w) * 0.0, [X], [W]),
    "infinity": (lambda x, w: F.linear(x, w) * float("inf"), [X], [W]),
    "a tiny factor": (lambda x, w: F.linear(x, w) * 1e-30, [X], [W]),
    "a number without a bias": (lambda x, w: F.linear(x, w) + 2, [X], [W]),
    "a shift of each row": (lambda x, w, g: F.linear(x, w) + g, [X], [W, values(5, 24)]),
    "a shift that is no vector": (lambda x, w, g: F.linear(x, w) + g, [X], [W, values(1)]),
    "thirds in half precision": (
        lambda x, w: F.linear(x, w) / 3,
        [X.to(torch.bfloat16)],
        [W.to(torch.bfloat16)],
    ),
    "an input read twice": (lambda x, w: (lambda y: F.linear(y, w) + y.sum())(x * 0.3), [X], [W]),
    "channels of another dimension": (
        lambda x, w, g: F.conv2d(x, w) * g,
        [values(2, 3, 8, 8)],
        [values(6, 3, 3, 3), values(6)],
    ),
}


@pytest.mark.parametrize("twin", STAYS)
def test_what_only_looks_like_it_stays(twin: str) -> None:
    assert_stays(*STAYS[twin])


def test_powers_of_two_move_in_half_precision() -> None:
    x, w = X.to(torch.bfloat16), W.to(torch.bfloat16)
    assert_becomes(lambda x, w: F.linear(x, w) / 8, lambda x, w: F.linear(x, w / 8), [x], [w])


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 24)

    def forward(self, x):
        return self.layer(x) / 3


def test_weights_are_watched_and_gradients_are_the_models() -> None:
    torch.manual_seed(0)
    model = Scaled()
    compiled = lampwork.compile(model)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(X), model(X))
            model.layer.weight.add_(1)
            model.layer.bias = nn.Parameter(model.layer.bias * 2)
    trained = lampwork.compile(model)
    trained(X).sum().backward()
    assert "library: 0 rewrites" in trained.stages.text("passes")
    got = model.layer.weight.grad.clone()
    model.layer.weight.grad = None
    model(X).sum().backward()
    torch.testing.assert_close(got, model.layer.weight.grad)
