"""Regions whose sizes are open are trained for all of them: compiled once, for sizes that never came before too."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lampwork

Make = Callable[[int], tuple[Tensor, ...]]


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(12, 24), nn.LayerNorm(24), nn.Linear(24, 5)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.last(F.gelu(self.norm(self.first(x)))), target)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(17, 8), nn.Linear(8, 17)

    def forward(self, x: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.table(x)).flatten(0, 1), x.roll(1, 1).flatten())


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 4, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)


NETS: dict[str, tuple[Callable[[], nn.Module], Make]] = {
    "classifier": (Classifier, lambda n: (torch.randn(n, 12), torch.randint(0, 5, (n,)))),
    "tokens": (Tokens, lambda n: (torch.randint(0, 17, (3, n)),)),
    "convolutions": (convolutions, lambda n: (torch.randn(n, 3, 8, 8),)),
    "encoder, open length": (encoder, lambda n: (torch.randn(3, n, 16),)),
    "encoder, open batch": (encoder, lambda n: (torch.randn(n, 7, 16),)),
    "lstm, open length": (
        lambda: Recurrent(nn.LSTM(6, 10, batch_first=True)),
        lambda n: (torch.randn(3, n, 6),),
    ),
    "lstm, open batch": (lambda: Recurrent(nn.LSTM(6, 10, num_layers=2)), lambda n: (torch.randn(4, n, 6),)),
    "gru, open length": (
        lambda: Recurrent(nn.GRU(6, 10, bidirectional=True)),
        lambda n: (torch.randn(n, 3, 6),),
    ),
}


def loss_of(result: Tensor) -> Tensor:
    return result if result.dim() == 0 else result.square().sub(0.3).sin().mean()


def gradients(net: nn.Module, call: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The loss, and its gradients by the inputs that are no indices and by the parameters."""
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    wanted = [x for x in leaves if x.requires_grad] + list(net.parameters())
    loss = loss_of(call(*leaves))
    return [loss.detach(), *torch.autograd.grad(loss, wanted)]


def assert_exact(found: Sequence[Tensor], net: nn.Module, inputs: Sequence[Tensor]) -> None:
    """These are the gradients in float64, in eager's strides. `net`: a copy from before the call."""
    exact = copy.deepcopy(net).double()
    doubles = [x.double() if x.is_floating_point() else x for x in inputs]
    for got, want in zip(found, gradients(exact, exact, doubles), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=2e-4, atol=2e-5, equal_nan=True)
    for got, want in zip(found, gradients(net, net, inputs), strict=True):
        assert got.stride() == want.stride()


def spent() -> dict[str, float]:
    names = ("eager_backwards", "passing_calls", "eager_calls", "backend_compiles", "regions", "breaks")
    stats = lampwork.stats()
    return {name: stats[name] for name in names}


@pytest.mark.parametrize("name", NETS)
def test_sizes_that_never_came_before(name: str) -> None:
    make_net, make = NETS[name]
    torch.manual_seed(0)
    net = make_net()
    compiled = lampwork.compile(net)
    for size in (5, 7, 9):
        gradients(net, compiled, make(size))
    before, backwards = spent(), lampwork.stats()["compiled_backwards"]
    for size in torch.randperm(60)[:20].add(2).tolist():
        inputs, known = make(size), copy.deepcopy(net)
        assert_exact(gradients(net, compiled, inputs), known, inputs)
    assert spent() == before
    assert lampwork.stats()["compiled_backwards"] == backwards + 20


def test_packed_sequences_of_ever_new_lengths() -> None:
    torch.manual_seed(0)
    layer = nn.GRU(6, 10, batch_first=True)

    def packed(net: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
        sequence = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(net(sequence)[0], batch_first=True)[0].square().sum()

    compiled = lampwork.compile(lambda x, lengths: packed(layer, x, lengths))
    exact = copy.deepcopy(layer).double()
    before: dict[str, float] = {}
    for number in range(16):
        if number == 8:
            before = spent()
        x, lengths = torch.randn(5, 12, 6), torch.randint(1, 13, (5,))
        lengths[0] = 4 + number % 8
        got = torch.autograd.grad(compiled(x, lengths), list(layer.parameters()))
        want = torch.autograd.grad(packed(exact, x.double(), lengths), list(exact.parameters()))
        for ours, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=2e-4, atol=2e-5)
    after = spent()
    assert after["eager_backwards"] == before["eager_backwards"], (before, after)


def test_one_compilation_of_each_half() -> None:
    net = nn.Sequential(nn.Linear(13, 9), nn.Tanh())
    compiled = lampwork.compile(net)
    gradients(net, compiled, [torch.randn(4, 13)])
    before = lampwork.stats()["backend_compiles"]
    for size in range(5, 25):
        gradients(net, compiled, [torch.randn(size, 13)])
    assert lampwork.stats()["backend_compiles"] == before + 3  # a forward for all sizes, and two halves


def trained(net: nn.Module, make: Make, **options: Any) -> Callable[..., Any]:
    """The net, compiled, once it is trained for all sizes of inputs that require grad."""
    compiled = lampwork.compile(net, options=options or None)
    for size in (5, 7, 9):
        gradients(net, compiled, make(size))
    return compiled


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 5))


def rows(n: int) -> tuple[Tensor]:
    return (torch.randn(n, 12),)


@pytest.mark.parametrize("size", [0, 1, 2])
def test_sizes_that_broadcast_are_versions_of_their_own(size: int) -> None:
    net = mlp()
    compiled = trained(net, rows)
    for _ in range(3):
        inputs = rows(size)
        assert_exact(gradients(net, compiled, inputs), net, inputs)


def test_sizes_that_come_back_and_many_of_them() -> None:
    net = mlp()
    compiled = trained(net, rows)
    before = spent()
    for size in (*range(20, 120), *range(20, 120, 7), 23, 23):
        inputs = rows(size)
        found = gradients(net, compiled, inputs)
        if size % 9 == 0 or size == 23:
            assert_exact(found, net, inputs)
    assert spent() == before


def test_dropout_has_eagers_masks() -> None:
    net = nn.Sequential(nn.Linear(12, 24), nn.Dropout(0.4), nn.Linear(24, 5))
    compiled = trained(net, rows)
    for size in (11, 12, 33):
        inputs = rows(size)
        torch.manual_seed(size)
        found = gradients(net, compiled, inputs)
        state = torch.get_rng_state()
        torch.manual_seed(size)
        torch.testing.assert_close(found, gradients(net, net, inputs), rtol=1e-4, atol=1e-5)
        assert torch.equal(torch.get_rng_state(), state)


def test_what_was_written_is_eagers_error_with_its_sizes() -> None:
    net = mlp()
    compiled = trained(net, rows)
    for size in (14, 15):
        messages: list[str] = []
        for call in (net, compiled):
            x = torch.randn(size, 12)
            loss = loss_of(call(x))
            x.zero_()
            with pytest.raises(RuntimeError, match="modified by an inplace") as raised:
                loss.backward()
            messages.append(str(raised.value))
        assert messages[0] == messages[1] and f"[{size}, 12]" in messages[0]


def test_weights_written_behind_autograds_back() -> None:
    net = mlp()
    weight = list(net.parameters())[2]
    compiled = trained(net, rows)
    found: list[list[Tensor]] = []
    x = torch.randn(31, 12)
    for call in (net, compiled):
        loss = loss_of(call(x))
        held = weight.data.clone()
        weight.data.mul_(2)
        found.append(list(torch.autograd.grad(loss, list(net.parameters()))))
        weight.data.copy_(held)
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_results_on_the_way_hooks_and_second_backwards() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(12, 6), nn.Linear(6, 5)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            hidden = self.first(x).tanh()
            return hidden, self.second(hidden), hidden.t()

    torch.manual_seed(0)
    net = Two()

    def run(call: Callable[..., Any], x: Tensor) -> list[Tensor]:
        heard: list[Tensor] = []
        hidden, y, turned = call(x)
        hidden.register_hook(heard.append)
        hidden.retain_grad()
        loss = y.square().sum() + turned.sin().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        found = [*heard, hidden.grad, *(p.grad.clone() for p in net.parameters() if p.grad is not None)]
        net.zero_grad()
        return found

    compiled = lampwork.compile(net)
    for size in (5, 7, 9):
        run(compiled, torch.randn(size, 12))
    before = spent()
    for size in (10, 11, 12, 10):
        x = torch.randn(size, 12)
        torch.testing.assert_close(run(compiled, x), run(net, x), rtol=1e-4, atol=1e-5)
    assert spent() == before


def test_gradients_of_gradients() -> None:
    net = mlp()
    compiled = trained(net, rows)

    def penalty(call: Callable[..., Tensor], x: Tensor) -> list[Tensor]:
        x = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(loss_of(call(x)), x, create_graph=True)
        return list(torch.autograd.grad(first.square().sum(), list(net.parameters())[::2]))

    for size in (21, 22, 21, 21, 23, 22):
        x = torch.randn(size, 12)
        torch.testing.assert_close(penalty(compiled, x), penalty(net, x), rtol=1e-4, atol=1e-5)


def test_other_gradients_than_the_first_backward_was_asked_for() -> None:
    net = mlp()
    compiled = trained(net, rows)
    for size in (21, 22):
        x = torch.randn(size, 12)
        ours = torch.autograd.grad(loss_of(compiled(x)), list(net.parameters())[3:])
        torch.testing.assert_close(ours, torch.autograd.grad(loss_of(net(x)), list(net.parameters())[3:]))
        y, want = compiled(x), net(x)
        turned = torch.randn(5, size).t()
        got = torch.autograd.grad(y, list(net.parameters()), turned)
        torch.testing.assert_close(got, torch.autograd.grad(want, list(net.parameters()), turned))


@pytest.mark.parametrize("turned", [False, True])
def test_gradients_that_come_laid_out_in_another_way(turned: bool) -> None:
    net = mlp()
    compiled = lampwork.compile(net)
    before: dict[str, float] = {}
    for size in (5, 7, 9, 10, 11, 12):
        x = torch.randn(size, 12)
        grad = torch.randn(5, size).t() if turned else torch.randn(size, 5)
        got = torch.autograd.grad(compiled(x), list(net.parameters()), grad)
        torch.testing.assert_close(got, torch.autograd.grad(net(x), list(net.parameters()), grad))
        if size == 9:
            before = spent()
    assert spent() == before


def test_less_memory() -> None:
    net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(12, 12), nn.Tanh())))
    compiled = trained(net, rows, memory_budget=0.5)
    before = spent()
    for size in (20, 21, 40):
        inputs = rows(size)
        assert_exact(gradients(net, compiled, inputs), net, inputs)
    assert spent() == before


def test_numbers_besides_sizes() -> None:
    net = mlp()

    def scaled(x: Tensor, scale: float) -> Tensor:
        return net(x).mul(scale).sin().sum()

    compiled = lampwork.compile(scaled)
    for size, scale in ((5, 0.5), (7, 0.25), (9, 0.75)):
        torch.autograd.grad(compiled(torch.randn(size, 12), scale), list(net.parameters()))
    before = spent()
    for number in range(12):
        x, scale = torch.randn(10 + number, 12), 0.1 * number + 0.05
        got = torch.autograd.grad(compiled(x, scale), list(net.parameters()))
        want = torch.autograd.grad(scaled(x, scale), list(net.parameters()))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert spent() == before


def test_sizes_beyond_what_it_is_made_for_are_trained_apart() -> None:
    torch.manual_seed(0)
    net = encoder()
    make = NETS["encoder, open length"][1]
    compiled = trained(net, make)
    for size in (520, 520, 520, 12):  # scores of so many columns are not kept
        inputs = make(size)
        assert_exact(gradients(net, compiled, inputs), net, inputs)


def test_an_operator_without_rules_for_open_sizes_is_trained_for_each() -> None:
    net = mlp()

    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.sin()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return grads[0] * (1 if grads[0].shape[0] < 30 else 2)

    def odd(x: Tensor) -> Tensor:
        return Odd.apply(net(x)).sum()

    compiled = lampwork.compile(odd)
    for size in (5, 7, 9, 12, 40, 41, 40, 40, 13):
        x = torch.randn(size, 12)
        got = torch.autograd.grad(compiled(x), list(net.parameters()))
        torch.testing.assert_close(got, torch.autograd.grad(odd(x), list(net.parameters())))
