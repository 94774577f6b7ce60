"""Gradients that are added to what `.grad` holds: as in eager, and each while backward still runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lampwork
from lampwork.runtime import trim_memory

WIDTH = 256
Use = Callable[[nn.Module, Callable[..., Tensor], Tensor], Any]


class Net(nn.Module):
    """Layers, one of them twice, an embedding whose weight is also the last layer's, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.convolution = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in (*self.layers, self.layers[0]):
            x = torch.tanh(layer(x))
        x = self.norm(x + self.convolution(x.transpose(1, 2)).transpose(1, 2))
        scores = x @ self.embedding.weight.t()
        return nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())


def both(use: Use) -> tuple[Any, Any]:
    """What `use` gives with the compiled loss, and in eager in float64; the gradients behind it."""
    answers: list[Any] = []
    for dtype, compiler in ((torch.float32, lampwork.compile), (torch.float64, lambda net: net)):
        torch.manual_seed(3)
        net = Net().to(dtype)
        loss, tokens = compiler(net), torch.randint(50, (4, 24))
        for _ in range(2):
            loss(tokens).backward()  # compiled from here on
        given = use(net, loss, tokens)
        answers.append((given, [None if p.grad is None else p.grad.double() for p in net.parameters()]))
    return answers[0], answers[1]


def same(ours: Any, exact: Any) -> None:
    for mine, theirs in zip(ours[1], exact[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))


def test_several_steps() -> None:
    def use(net: nn.Module, loss: Callable[..., Tensor], tokens: Tensor) -> list[Any]:
        first = [p.grad for p in net.parameters()]
        for shift in range(3):
            loss((tokens + shift) % 50).backward()
        versions = [p.grad._version for p in net.parameters() if p.grad is not None]
        return [versions, all(p.grad is grad for p, grad in zip(net.parameters(), first, strict=True))]

    ours, exact = both(use)
    assert ours[0] == exact[0]
    assert ours[0][1]
    same(ours, exact)


def test_some_have_gradients_and_some_do_not() -> None:
    def use(net: nn.Module, loss: Callable[..., Tensor], tokens: Tensor) -> None:
        for p in list(net.parameters())[::2]:
            p.grad = None
        loss(tokens).backward()

    same(*both(use))


def test_gradients_that_are_asked_for_are_not_added() -> None:
    def use(net: nn.Module, loss: Callable[..., Tensor], tokens: Tensor) -> list[Tensor]:
        parameters = list(net.parameters())
        before = [p.grad.clone() for p in parameters if p.grad is not None]
        found = torch.autograd.grad(loss(tokens), parameters)
        assert all(
            torch.equal(p.grad, old) for p, old in zip(parameters, before, strict=True) if p.grad is not None
        )
        loss(tokens).backward(inputs=parameters)
        return [gradient.double() for gradient in found]

    ours, exact = both(use)
    same(ours, exact)
    same((None, ours[0]), (None, exact[0]))


@pytest.mark.parametrize("kind", ["tensor", "after", "node"])
def test_hooks_hear_of_whole_gradients(kind: str) -> None:
    def use(net: nn.Module, loss: Callable[..., Tensor], tokens: Tensor) -> list[Tensor]:
        heard: list[Tensor] = []
        weight: Any = net.get_parameter("layers.1.weight")
        if kind == "tensor":
            weight.register_hook(lambda grad: heard.append(grad.double().clone()))
        elif kind == "after":
            weight.register_post_accumulate_grad_hook(lambda p: heard.append(p.grad.double().clone()))
        else:
            node = weight.view_as(weight).grad_fn.next_functions[0][0]
            node.register_hook(lambda *_: heard.append(weight.grad.double().clone()))
            weight.kept = node
        for _ in range(2):
            loss(tokens).backward()
        return heard

    ours, exact = both(use)
    assert len(ours[0]) == len(exact[0]) == 2
    same(ours, exact)
    same((None, ours[0]), (None, exact[0]))


def test_a_gradient_that_backward_reads_is_added_behind_it() -> None:
    """Eager refuses, or does not, by what it saves; what is computed is of the gradient before the step."""
    torch.manual_seed(0)
    weight, x = torch.randn(WIDTH, WIDTH, requires_grad=True), torch.randn(WIDTH, WIDTH, requires_grad=True)

    def loss(weight: Tensor, x: Tensor, scale: Tensor) -> Tensor:
        return ((weight @ x).tanh() * scale).sum()

    compiled, scale = lampwork.compile(loss), torch.rand(WIDTH, WIDTH)
    for _ in range(2):
        compiled(weight, x, scale).backward()
    exact = [t.detach().double().requires_grad_() for t in (weight, x)]
    x.grad = weight.grad = None
    weight.grad = scale
    loss(*exact, scale.double()).backward()
    before = scale.double()
    compiled(weight, x, scale).backward()
    assert x.grad is not None and exact[0].grad is not None
    torch.testing.assert_close(x.grad.double(), exact[1].grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scale.double(), before + exact[0].grad, rtol=1e-4, atol=1e-4)


def test_a_sum_that_fails_is_eagers_error() -> None:
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    x = torch.randn(32, WIDTH)
    messages: list[str] = []
    for compiler in (lampwork.compile, lambda net: net):
        loss = compiler(lambda: net(x).square().mean())
        for _ in range(2):
            loss().backward()
        net[1].weight.grad = torch.zeros(1).expand(WIDTH, WIDTH)
        with pytest.raises(RuntimeError) as caught:
            loss().backward()
        messages.append(str(caught.value).splitlines()[0])
        for p in net.parameters():
            p.grad = None
    assert messages[0] == messages[1]


def test_gradients_are_not_there_twice() -> None:
    net = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(16)))
    x = torch.randn(4, 1024)
    loss = lampwork.compile(lambda: net(x).square().mean())
    for _ in range(3):
        loss().backward()
    trim_memory()
    Path("/proc/self/clear_refs").write_text("5")
    before = _kilobytes("VmRSS")
    loss().backward()
    assert _kilobytes("VmHWM") - before < 16 * 4096 / 4


def _kilobytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
