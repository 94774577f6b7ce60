"""Numbers that Python computes of arguments that differ between calls: one version serves them all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lampwork

X, Y = torch.randn(40), torch.randn(40).abs() + 1

FUNCTIONS: dict[str, Any] = {
    "negated": lambda x, y, rate: x.add(y, alpha=-rate),
    "in place": lambda x, y, rate: x.add_(y, alpha=1 - rate),
    "lerp": lambda x, y, rate: x.lerp_(y, 1 - rate),
    "addcdiv": lambda x, y, rate: x.addcdiv(x, y, value=-rate),
    "addcmul": lambda x, y, rate: x.addcmul(x, y, value=1 - rate),
    "product": lambda x, y, rate: x * (1 - rate) + y * -rate,
    "quotient": lambda x, y, rate: x / (rate + 1.5),
    "for each": lambda x, y, rate: torch._foreach_add([x, y], [y, x], alpha=-rate),
    "for each in place": lambda x, y, rate: (
        torch._foreach_mul_([x], 1 - rate),
        torch._foreach_lerp_([x], [y], 1 - rate),
        torch._foreach_addcmul_([x], [y], [y], -rate),
    ),
    "clamped": lambda x, y, rate: x.clamp(-abs(rate), abs(rate)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_version_for_all(name: str) -> None:
    function = FUNCTIONS[name]
    compiled = lampwork.compile(function)
    for rate in (0.1, 0.3, 0.025, 0.7, -0.2, 0.45):
        torch.testing.assert_close(compiled(X.clone(), Y, rate), function(X.clone(), Y, rate))
    assert len(compiled.entries) == 2
    # Those for which there would be other code, and those that no operator takes.
    for rate in (1.0, 0.0, -0.0, -1.0, 2.0, float("inf"), float("nan"), 1e300, -1e300, 3.5e38):
        outcomes: list[Any] = []
        for run in (compiled, function):
            x = X.clone()
            try:
                outcomes.append((run(x, Y, rate), x))
            except (RuntimeError, OverflowError) as error:
                outcomes.append((str(error), x))
        if isinstance(outcomes[1][0], str):
            assert outcomes[0][0] == outcomes[1][0]
        else:
            torch.testing.assert_close(outcomes[0][0], outcomes[1][0], equal_nan=True)
        torch.testing.assert_close(outcomes[0][1], outcomes[1][1], equal_nan=True)


def test_a_branch_on_a_computed_number_is_still_one_of_the_programs() -> None:
    def branches(x: torch.Tensor, rate: float) -> torch.Tensor:
        return x + 1 if 1 - rate == 0.5 else x - rate

    compiled = lampwork.compile(branches)
    for rate in (0.25, 0.75, 0.5, 0.3, 0.5):
        torch.testing.assert_close(compiled(X, rate), branches(X, rate))


def test_averages_of_weights() -> None:
    def average(mean: torch.Tensor, weight: torch.Tensor, decay: float) -> torch.Tensor:
        return mean.mul_(decay).add_(weight, alpha=1 - decay)

    compiled = lampwork.compile(average)
    ours, eager = X.clone(), X.clone()
    for step in range(12):
        decay = (1 + step) / (10 + step)
        torch.testing.assert_close(compiled(ours, Y, decay), average(eager, Y, decay))
    assert len(compiled.entries) == 2


def test_in_training() -> None:
    def mixed(x: torch.Tensor, y: torch.Tensor, rate: float) -> torch.Tensor:
        return torch.lerp(x.tanh(), y, 1 - rate).add(x, alpha=-rate).square().sum()

    compiled = lampwork.compile(mixed)
    for rate in (0.1, 0.3, 0.1, 0.3, 0.025, 1.0, 0.0, 0.1):
        leaves = [X.clone().requires_grad_(), X.clone().requires_grad_()]
        losses = [run(leaf, Y, rate) for run, leaf in zip((compiled, mixed), leaves, strict=True)]
        torch.testing.assert_close(*losses)
        for loss in losses:
            loss.backward()
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad)
