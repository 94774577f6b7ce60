"""Loops over parameters that look at tensors while operators are put off, in every way that one can think of."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import lampwork
from lampwork.optimizers import loops

SHAPES = [(6, 4), (5,), (2, 3, 4), (3, 1), (1,), (), (0, 2)]
RULES: list[Callable[[Any, Any, Any], None]] = []


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small parameters are worth it."""
    monkeypatch.setattr(loops, "LEAST_ELEMENTS", 0)
    monkeypatch.setattr("lampwork.optimizers.pending._SLOWNESS", 1e6)


class Loop(optim.Optimizer):
    def __init__(self, params: Any, each: Callable[..., Any], **options: Any) -> None:
        super().__init__(params, options)
        self.each = each

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for param in group["params"]:
                self.each(param, self.state[param], group)


def rule(function: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    RULES.append(function)
    return function


@rule
def masked(p: Any, state: Any, group: Any) -> None:
    momentum = state.setdefault("m", torch.zeros_like(p))
    momentum.mul_(0.9).add_(p.grad, alpha=0.1)
    mask = (momentum * p.grad > 0).to(p.grad.dtype)
    mask.div_(mask.mean().clamp_(min=1e-3))
    p.add_(momentum * mask, alpha=-0.1)


@rule
def trusted(p: Any, state: Any, group: Any) -> None:
    update = p.grad / (p.grad.square().sqrt() + 1e-6)
    weight, size = p.norm(), update.norm()
    ratio = torch.where(weight > 0, torch.where(size > 0, weight / size, 1.0), 1.0)
    p.add_(update * ratio, alpha=-0.1)


@rule
def numbers_in_tensors(p: Any, state: Any, group: Any) -> None:
    step = state.setdefault("step", torch.tensor(0))
    step += 1
    p.sub_(p.grad / step)
    p.add_(p.grad * -group["rate"])
    p.addcdiv_(p.grad, p.grad.abs() + 1, value=-group["rate"].item())
    p.sub_(group["rate"] * p)
    p.mul_(1 - 0.9 ** state["step"])


@rule
def exchanged(p: Any, state: Any, group: Any) -> None:
    old = p.data
    p.data = p.data - 0.1 * p.grad
    old.add_(100)
    state["old"] = old


@rule
def aliases(p: Any, state: Any, group: Any) -> None:
    flat = p.view(-1)
    p.mul_(2)
    flat.add_(1)
    p.mul_(3)
    if p.numel() > 2:
        flat[1:].sub_(5)
    same = p.detach()
    same.mul_(0.5)
    p.add_(same)
    p.grad.mul_(2)
    p.data.copy_(p.grad)
    p.grad.zero_()
    p.grad += 1
    p.data **= 2


@rule
def random_numbers(p: Any, state: Any, group: Any) -> None:
    p.add_(torch.randn_like(p) * 0.1)
    p.mul_(torch.rand(p.shape))
    p.add_(p.grad.new_zeros(p.shape).normal_(), alpha=0.1)


@rule
def broadcast(p: Any, state: Any, group: Any) -> None:
    p.mul_(0.9)
    if p.dim() == 2:
        rows, columns = p.grad.square().mean(-1, keepdim=True), p.grad.square().mean(0)
        p.add_(p.grad / (rows * columns + 1e-3).sqrt(), alpha=-0.1)


@rule
def branches(p: Any, state: Any, group: Any) -> None:
    p.mul_(1.5)
    if p.grad.sum() > 0:
        p.neg_()
    if bool((p > 1).any()):
        p.clamp_(max=1)
    mask = p > 0.5
    state["count"] = p.sum().item()
    p[mask] = 0.5


@rule
def objects(p: Any, state: Any, group: Any) -> None:
    assert p.add_(1) is p and p.grad.float() is p.grad and p.to(p.dtype) is p
    state.setdefault("kept", []).append(p.grad * 3)
    state["kept"][0].add_(1)
    double = p * 2
    same = double
    same += p
    state["double"] = double
    wide = p.double()
    wide.mul_(1 / 3)
    p.copy_(wide)
    state["half"] = p.to(torch.bfloat16)
    p.add_(state["half"])


@rule
def lists(p: Any, state: Any, group: Any) -> None:
    torch._foreach_add_([p], [p.grad], alpha=-0.1)
    torch._foreach_mul_([p, p.grad], [0.5, 2.0])
    torch._foreach_div_([p], torch._foreach_norm([p])[0] + 1)
    torch._foreach_copy_([p.grad], [p])
    torch._foreach_zero_([p.grad])
    (doubled,) = torch._foreach_mul([p], 2.0)
    torch._foreach_lerp_([p], [doubled], 0.3)
    torch._foreach_addcdiv_([p], [doubled], [p + 9], [0.3])
    torch._foreach_maximum_([p], 0.1)
    torch._foreach_pow_([p], 2)


@rule
def errors(p: Any, state: Any, group: Any) -> None:
    p.mul_(2)
    try:
        p.add_(torch.ones(17, 23))
    except RuntimeError as error:
        state["error"] = str(error)
    try:
        p.add_("x")
    except TypeError as error:
        state["type"] = type(error)
    p.add_(1)


@rule
def modes(p: Any, state: Any, group: Any) -> None:
    p.mul_(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        state["twice"] = p * 2
        if p.dim() == 2:
            state["product"] = p @ p.t()
    with torch.inference_mode():
        state["sum"] = (p * 2).sum().item()
        p.add_(1)
    p.sub_(3)
    with torch.enable_grad():
        state["grad"] = torch.autograd.grad((p * p).sum(), p)[0]
    p.sub_(state["grad"], alpha=0.1)


@rule
def warns(p: Any, state: Any, group: Any) -> None:
    p.mul_(2)
    warnings.warn("a step", stacklevel=1)


def check_equal(ours: Any, eager: Any) -> None:
    assert type(ours) is type(eager)
    if isinstance(ours, Tensor):
        torch.testing.assert_close(ours, eager, rtol=2e-6, atol=1e-6, equal_nan=True, check_stride=True)
        assert ours.requires_grad == eager.requires_grad
    elif isinstance(ours, list):
        for pair in zip(ours, eager, strict=True):
            check_equal(*pair)
    else:
        assert ours == eager


@pytest.mark.parametrize("each", RULES)
def test_python_sees_what_eager_shows(each: Any) -> None:
    torch.manual_seed(0)
    values = [torch.randn(shape) for shape in SHAPES * 2]
    sides = [[nn.Parameter(value.clone()) for value in values] for _ in range(2)]
    optimizers = [Loop(params, each, rate=torch.tensor(0.05)) for params in sides]
    optimizers[0].step = lampwork.compile(optimizers[0].step)
    for seed in range(4):
        for pair in zip(*sides, strict=True):
            grad = torch.randn(pair[0].shape)
            for param in pair:
                param.grad = grad.clone()
        seen: list[Any] = []
        for optimizer in optimizers:
            torch.manual_seed(seed)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                optimizer.step()
            seen.append([(str(each.message), each.filename, each.lineno) for each in caught])
        assert seen[0] == seen[1] and not torch._C._len_torch_function_stack()
    for ours, eager in zip(*sides, strict=True):
        check_equal(ours, eager)
        check_equal(ours.grad, eager.grad)
        states = optimizers[0].state[ours], optimizers[1].state[eager]
        assert states[0].keys() == states[1].keys()
        for key in states[0]:
            check_equal(states[0][key], states[1][key])
