"""Steps of training run without Python, and are handed over to it where they are not as the first was."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lampwork
from lampwork.runtime import autograd, heap_bytes, native


class Net(nn.Module):
    """Returns what it computes on the way too, so that there are two segments."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 40)
        self.second = nn.Linear(40, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.first(x))
        return hidden, torch.nn.functional.gelu(self.second(hidden)).softmax(-1).log()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tapes were made."""
    monkeypatch.setattr(autograd, "AHEAD", True)
    found: list[int] = []
    tape = native.Tape

    def counted(*args: Any) -> Any:
        found.append(1)
        return tape(*args)

    monkeypatch.setattr(native, "Tape", counted)
    return found


def _pair() -> tuple[Net, Net, Callable[..., Any], Tensor]:
    torch.manual_seed(3)
    net, exact = Net(), Net().double()
    exact.load_state_dict(net.state_dict())
    return net, exact, lampwork.compile(net), torch.randn(64, 24)


def _same(net: nn.Module, exact: nn.Module) -> None:
    for ours, theirs in zip(net.parameters(), exact.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None
        scale = float(theirs.grad.abs().max())
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=1e-5 * scale)


def test_steps_make_no_tape(made: list[int]) -> None:
    net, exact, compiled, x = _pair()
    before = lampwork.stats()["compiled_backwards"]
    for scale in (1.0, 2.0, 3.0):
        for model, given in ((compiled, x * scale), (exact, (x * scale).double())):
            hidden, y = model(given)
            (hidden.sum() + (y * y).mean()).backward()
    _same(net, exact)
    assert lampwork.stats()["compiled_backwards"] == before + 6
    assert not made


def _flat(x: Tensor, w: Tensor) -> Any:
    return torch.tanh(x @ w).view(-1)


def _halves(x: Tensor, w: Tensor) -> Any:
    return torch.tanh(x @ w).split(4, 1)


def _several(x: Tensor, w: Tensor) -> Any:
    y = (x * 2).sin()
    return y.t()[1:], x.unsqueeze(0), y, (y @ w).squeeze(0).unsqueeze(-1), x.detach().t()


@pytest.mark.parametrize("fn", [_flat, _halves, _several])
@pytest.mark.parametrize("rows", [1, 5])
def test_results_that_are_views_make_no_tape(
    fn: Callable[..., Any], rows: int, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(4)
    compiled = lampwork.compile(fn)
    x, w = (torch.randn(*shape, requires_grad=True) for shape in ((rows, 8), (8, 8)))
    wide = [t.detach().double().requires_grad_() for t in (x, w)]
    compiled(x, w)
    monkeypatch.setattr(autograd.DifferentiableCall, "_run", None)  # all that a plan does not do
    for scale in (1.0, 3.0):
        found = [compiled(x, w), fn(x, w), fn(*wide)]
        ours, eager, exact = ([y] if isinstance(y, Tensor) else list(y) for y in found)
        total = sum((y * y).sum() for y in ours if y.requires_grad) * scale
        grads = torch.autograd.grad(total, (x, w), retain_graph=True)
        expected = torch.autograd.grad(sum((y * y).sum() for y in exact if y.requires_grad) * scale, wide)
        torch.testing.assert_close([g.double() for g in grads], list(expected), rtol=1e-5, atol=1e-5)
        for y, theirs, right in zip(ours, eager, exact, strict=True):
            torch.testing.assert_close(y.double(), right, rtol=1e-5, atol=1e-6)
            assert (y._is_view(), y.stride(), y.requires_grad) == (
                theirs._is_view(),
                theirs.stride(),
                theirs.requires_grad,
            )
    assert not made


def test_pieces_refuse_writes_after_a_plan(made: list[int]) -> None:
    compiled = lampwork.compile(_halves)
    x, w = (torch.randn(8, 8, requires_grad=True) for _ in range(2))
    for _ in range(3):
        first, _ = compiled(x, w)
        with pytest.raises(RuntimeError, match="output of a function that returns multiple views"):
            first.mul_(2)
    assert not made


def test_a_graph_of_gradients_is_eagers(made: list[int]) -> None:
    net, exact, compiled, x = _pair()
    for model, module, given in ((compiled, net, x), (exact, exact, x.double())):
        _, y = model(given)
        grads = torch.autograd.grad(y.square().sum(), list(module.parameters()), create_graph=True)
        sum(grad.square().sum() for grad in grads).backward()
    _same(net, exact)
    assert made == [1]


def test_backward_goes_on_in_python_behind_the_first_segment(made: list[int]) -> None:
    net, exact, compiled, x = _pair()
    for model, module, given in ((compiled, net, x), (exact, exact, x.double())):
        hidden, y = model(given)
        (down,) = torch.autograd.grad(y.square().sum(), hidden)
        hidden.backward(down * 2)
        with pytest.raises(RuntimeError, match="second time"):
            y.sum().backward()
        assert module.second.weight.grad is None
        module.second(torch.zeros(1, 40, dtype=given.dtype)).sum().backward()
    _same(net, exact)
    assert made == [1]


def test_what_was_written_through_data_is_held(made: list[int]) -> None:
    net, exact, compiled, x = _pair()
    for model, module, given in ((compiled, net, x), (exact, exact, x.double())):
        _, y = model(given)
        module.second.bias.data.add_(1.0)
        y.square().sum().backward()
    _same(net, exact)


def test_writing_a_saved_tensor_is_an_error(made: list[int]) -> None:
    net, _, compiled, x = _pair()
    hidden, y = compiled(x)
    with torch.no_grad():
        hidden.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    assert made == [1]
    _, y = compiled(x)
    y.sum().backward()
    assert net.first.weight.grad is not None


def test_a_step_leaves_nothing_behind(made: list[int]) -> None:
    _, _, compiled, x = _pair()
    given = x.clone().requires_grad_()
    hidden, y = compiled(given)
    y.sum().backward()
    alive = [weakref.ref(tensor) for tensor in (given, hidden, y)]
    del given, hidden, y
    gc.collect()
    assert [ref() for ref in alive] == [None] * 3


def test_watched_and_inference_calls_are_pythons(made: list[int]) -> None:
    net, exact, compiled, x = _pair()
    compiled(x)[1].sum().backward()
    net.zero_grad()
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        _, y = compiled(x)
    assert packed
    y.sum().backward()
    exact(x.double())[1].sum().backward()
    _same(net, exact)
    with torch.inference_mode():
        frozen = x.clone()
    with pytest.raises(RuntimeError, match="Inference tensors"):
        compiled(frozen)


def _bytes_between_segments(compiled: Callable[..., Any], x: Tensor, keep: bool) -> int:
    """What the heap holds more than before backward, once that of the second segment is over."""
    found: list[int] = []
    hidden, y = compiled(x)
    loss = y.square().sum()
    hidden.register_hook(lambda grad: found.append(heap_bytes()))
    before = heap_bytes()
    loss.backward(retain_graph=keep)
    return found[0] - before


def test_saved_tensors_go_with_the_last_segment_that_reads_them(made: list[int]) -> None:
    _, _, compiled, _ = _pair()
    x = torch.randn(2048, 24)
    _bytes_between_segments(compiled, x, False)
    kept, given = (_bytes_between_segments(compiled, x, keep) for keep in (True, False))
    assert not made
    assert given <= kept - 2048 * 16 * 4


def test_segments_whose_backward_is_no_program_find_what_they_read(
    made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    backwards: list[Any] = []

    def but_the_first(compiled: Any) -> Any:
        backwards.append(compiled)
        return None if len(backwards) == 1 else backward(compiled)

    backward = native._backward
    monkeypatch.setattr(native, "_backward", but_the_first)
    net, exact, compiled, x = _pair()
    before = lampwork.stats()["compiled_backwards"]
    for model, given in ((compiled, x), (exact, x.double())):
        model(given)[1].square().sum().backward()
    _same(net, exact)
    assert backwards[0].saved & backwards[1].saved
    assert lampwork.stats()["compiled_backwards"] == before + 2
    assert made == [1]


def test_a_program_drops_saved_tensors_after_their_last_use(made: list[int]) -> None:
    name, seen = "lampwork_test_native", list[int]()

    def look(x: Tensor) -> Tensor:
        seen.append(heap_bytes())
        return x.clone()

    with torch.library._scoped_library(name, "DEF") as library:
        for op, run in (("same", torch.clone), ("look", look)):
            library.define(f"{op}(Tensor x) -> Tensor")
            library.impl(op, run, "CPU")
            library.impl(op, torch.empty_like, "Meta")
        ops = getattr(torch.ops, name)
        torch.library.register_autograd(f"{name}::same", lambda ctx, grad: ops.look(grad), lib=library)
        net = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)])
        compiled = lampwork.compile(lambda x: net(ops.same(x)))
        x = torch.randn(512, 64, requires_grad=True)
        for keep in (True, True, False):
            compiled(x).square().sum().backward(retain_graph=keep)
    *_, kept, given = seen
    assert not made
    assert given <= kept - 4 * x.numel() * 4
