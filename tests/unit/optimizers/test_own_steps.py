"""`lampwork.compile(optimizer.step)` for steps that have no compiled form: they stay eager's, and compile nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler

import lampwork
from lampwork.errors import GraphBreakError


class Lion(optim.Optimizer):
    """A loop over parameters, as one writes it."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["average"], state["step"] = torch.zeros_like(param), 0
                state["step"] += 1
                update = (state["average"] * 0.9 + param.grad * 0.1).sign_()
                param.add_(update, alpha=-group["lr"] / state["step"])
                state["average"].lerp_(param.grad, 0.01)


class Foreach(optim.Optimizer):
    """Lists of tensors, gathered by a method."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    def _gathered(self, group: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
        params = [param for param in group["params"] if param.grad is not None]
        return params, [param.grad for param in params if param.grad is not None]

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore
        for group in self.param_groups:
            params, grads = self._gathered(group)
            averages = [self.state[param].setdefault("m", torch.zeros_like(param)) for param in params]
            torch._foreach_mul_(averages, 0.9)
            torch._foreach_add_(averages, grads, alpha=0.1)
            torch._foreach_add_(params, averages, alpha=-group["lr"])


class Ruled(optim.Optimizer):
    """A rule, applied to all parameters."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore
        def rule(param: Any, grad: Any, *, lr: float) -> None:
            param.add_(grad.sign(), alpha=-lr)

        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            lampwork.optimizers.update(rule, params, [param.grad for param in params], lr=group["lr"])


CLASSES = [
    Lion,
    Foreach,
    Ruled,
    optim.Rprop,
    optim.NAdam,
    optim.ASGD,
    optim.Adafactor,
    optim.Muon,
    optim.SparseAdam,
    optim.LBFGS,
]


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("count", [1, 200])
def test_steps_are_eagers_and_compile_nothing(cls: Any, count: int) -> None:
    numbers = torch.Generator().manual_seed(count)
    values = [torch.randn(4, 3, generator=numbers) for _ in range(count)]
    sides = [[nn.Parameter(value.clone()) for value in values] for _ in range(2)]
    optimizers = [cls(side, lr=0.01) for side in sides]
    ours = optimizers[0]
    ours.step = lampwork.compile(ours.step)
    schedulers = [lr_scheduler.ExponentialLR(each, 0.9) for each in optimizers]
    before = lampwork.stats()
    for _ in range(4):
        for place in range(count):
            grad = torch.randn(4, 3, generator=numbers)
            for side in sides:
                side[place].grad = grad.to_sparse() if cls is optim.SparseAdam else grad.clone()
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step(*([lambda: torch.ones(())] if cls is optim.LBFGS else []))
            scheduler.step()
    for mine, theirs in zip(*sides, strict=True):
        assert torch.equal(mine, theirs)
    after = lampwork.stats()
    assert [after[name] - before[name] for name in ("regions", "recompiles")] == [0, 0]
    assert str(ours.step.stages).count("plain Python") and ours.step.entries == ()


def test_it_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    optimizer = Lion([nn.Parameter(torch.ones(2))])
    with lampwork.config.using(logs="breaks"):
        lampwork.compile(optimizer.step)
    assert "Lion.step stays in plain Python" in capfd.readouterr().err


def test_one_graph_is_asked_for() -> None:
    param = nn.Parameter(torch.ones(2))
    param.grad = torch.ones(2)
    with pytest.raises(GraphBreakError):
        lampwork.compile(Lion([param]).step, fullgraph=True)()


def test_a_step_that_calls_one_of_torchs_runs_it_compiled() -> None:
    class Looking(optim.SGD):
        def step(self, closure: Any = None) -> Any:
            self.steps = getattr(self, "steps", 0) + 1
            return super().step(closure)

    param = nn.Parameter(torch.ones(3))
    optimizer = Looking([param], lr=0.1)
    step: Any = lampwork.compile(optimizer.step)
    for _ in range(3):
        param.grad = torch.ones(3)
        step()
    torch.testing.assert_close(param.detach(), torch.full((3,), 0.7))
    assert optimizer.steps == 3 and step.entries
