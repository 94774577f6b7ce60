"""Steps that an outsider tried: gradients of other dtypes and layouts, rules that write nothing, schedulers."""

from __future__ import annotations

import sys

import pytest
import torch

import lampwork
from lampwork.errors import CodegenError
from lampwork.optimizers import steps
from lampwork.optimizers.update import Updater


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_momentum_of_gradients_of_another_dtype(dtype):
    results = []
    for compiled in (False, True):
        param = torch.nn.Parameter(torch.linspace(-1, 1, 1001))
        param.grad_dtype = None
        param.grad = torch.linspace(1, 2, 1001, dtype=dtype)
        optimizer = torch.optim.SGD([param], lr=0.1, momentum=0.9)
        if compiled:
            optimizer.step = lampwork.compile(optimizer.step)
        optimizer.step()
        optimizer.step()
        results.append((param.detach(), optimizer.state[param]["momentum_buffer"]))
    for eager, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("rule", [lambda p, g: None, lambda p, g: p + g])
def test_rules_that_write_nothing(rule):
    params = [torch.ones(4)]
    with torch.no_grad():
        lampwork.optimizers.update(rule, params, [torch.ones(4)])
    assert torch.equal(params[0], torch.ones(4))


def test_a_rule_that_writes_to_gradients_of_another_layout():
    def rule(param, grad):
        grad.clamp_(-0.2, 0.2)
        param.sub_(grad)

    params, grads = [torch.randn(3, 4)], [torch.randn(4, 3).t()]
    expected = grads[0].clamp(-0.2, 0.2)
    with torch.no_grad():
        lampwork.optimizers.update(rule, params, grads)
    assert torch.equal(grads[0], expected)


@pytest.mark.parametrize("kind", [torch.optim.NAdam, torch.optim.ASGD, torch.optim.Adam])
def test_a_scheduler_after_compile(kind):
    results = []
    for compiled in (False, True):
        param = torch.nn.Parameter(torch.ones(3))
        optimizer = kind([param], lr=0.1)
        if compiled:
            optimizer.step = lampwork.compile(optimizer.step)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for i in range(4):
            param.grad = torch.full((3,), i + 1.0)
            optimizer.step()
            scheduler.step()
        results.append(param.detach())
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("strict", [False, True])
def test_a_rule_that_does_not_compile(monkeypatch: pytest.MonkeyPatch, strict: bool) -> None:
    """It is run by eager, unless the options of the step, which win over the environment, say that it must not be."""

    def refuses(*args: object) -> None:
        raise CodegenError("a card of the tests is too old")

    monkeypatch.setenv("LAMPWORK_STRICT", "0")
    monkeypatch.setattr(sys.modules[Updater.__module__], "compile_rule", refuses)
    monkeypatch.setattr(steps, "updater_for", lambda target: Updater(target))  # of its own, which is spoilt
    weight = torch.nn.Parameter(torch.ones(5))
    weight.grad = torch.ones(5)
    optimizer = torch.optim.Adamax([weight])
    lampwork.compile(optimizer.step)()
    assert not torch.equal(weight, torch.ones(5))
    monkeypatch.setenv("LAMPWORK_STRICT", str(int(not strict)))
    step = lampwork.compile(optimizer.step, options={"strict": strict})
    for _ in range(2):
        if strict:
            with pytest.raises(CodegenError, match="too old"):
                step()
        else:
            step()
