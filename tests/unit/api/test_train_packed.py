"""Training of recurrent layers over packed sequences: compiled forward and backward against eager, all gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import lampwork
from lampwork.runtime import autograd

MAKERS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *args, **kwargs: nn.RNN(*args, nonlinearity="relu", **kwargs),
}
KINDS = tuple(MAKERS)


@pytest.fixture(autouse=True, params=["second backward", "first backward"])
def when(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autograd, "AHEAD", request.param == "first backward")


def sequences(lengths: Sequence[int], dtype: torch.dtype) -> PackedSequence:
    torch.manual_seed(2)
    x = torch.randn(len(lengths), max(lengths), 4, dtype=dtype)
    return pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)


def train(call: Any, module: nn.RNNBase, packed: PackedSequence, read: Sequence[int]) -> list[Tensor | None]:
    """The results of one call, and the gradients of the elements, of given states and of the parameters."""
    data = packed.data.clone().requires_grad_()
    torch.manual_seed(3)
    layers = module.num_layers * (1 + module.bidirectional)
    shape = (layers, int(packed.batch_sizes[0]), module.hidden_size)
    states = [
        torch.randn(shape, dtype=data.dtype, requires_grad=True) for _ in range(1 + (module.mode == "LSTM"))
    ]
    module.zero_grad()
    out, last = call(packed._replace(data=data), tuple(states) if len(states) == 2 else states[0])
    results = [out.data, *(last if isinstance(last, tuple) else (last,))]
    weights = [torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape) for y in results]
    sum((results[n] * weights[n]).sum() for n in read if n < len(results)).backward()
    return [*results, data.grad, *(s.grad for s in states), *(p.grad for p in module.parameters())]


def check(
    kind: str,
    lengths: Sequence[int],
    dtype: torch.dtype = torch.float64,
    read: Sequence[int] = (0, 1, 2),
    **options: Any,
) -> None:
    torch.manual_seed(1)
    module = MAKERS[kind](4, 9, dtype=dtype, **options)
    packed = sequences(lengths, dtype)
    wanted = train(module, module, packed, read)
    compiled = lampwork.compile(module)
    tolerance = 1e-11 if dtype is torch.float64 else 3e-5
    for number in range(3):
        before = lampwork.stats()
        for got, want in zip(train(compiled, module, packed, read), wanted, strict=True):
            assert (got is None) == (want is None)
            if got is not None and want is not None:
                torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
        after = lampwork.stats()
        if number > 0 and len(read) == 3:
            assert after["eager_backwards"] == before["eager_backwards"]
            assert after["compiled_backwards"] > before["compiled_backwards"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_one_layer(kind: str, dtype: torch.dtype) -> None:
    check(kind, (5, 3, 7, 1, 7), dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_in_both_directions(kind: str) -> None:
    check(kind, (2, 6, 3), num_layers=2, bidirectional=True)
    check(kind, (4, 6), num_layers=2, bidirectional=True, bias=False)


@pytest.mark.parametrize("kind", KINDS)
def test_lengths(kind: str) -> None:
    for lengths in ((1,), (4,), (1, 1, 1), (3, 3), (9, 1)):
        check(kind, lengths, bidirectional=True)


@pytest.mark.parametrize("kind", KINDS)
def test_results_that_are_not_read(kind: str) -> None:
    for read in ((0,), (1,), (2,) if kind == "lstm" else (1,)):
        check(kind, (2, 5, 1), read=read, bidirectional=True)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_draws_what_eager_draws(kind: str) -> None:
    check(kind, (5, 2, 4), num_layers=3, dropout=0.4)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_are_none_stay_in_their_sequence(kind: str) -> None:
    torch.manual_seed(1)
    module = MAKERS[kind](4, 9)
    packed = sequences((4, 6, 2), torch.float32)
    packed.data[1, 2], packed.data[4, 0] = float("inf"), float("nan")
    wanted = train(module, module, packed, (0,))
    compiled = lampwork.compile(module)
    for _ in range(3):
        for got, want in zip(train(compiled, module, packed, (0,)), wanted, strict=True):
            assert got is not None and want is not None
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_batch_sizes_of_other_elements_are_refused() -> None:
    torch.manual_seed(1)
    module = nn.GRU(4, 9)
    compiled = lampwork.compile(module)
    packed = sequences((4, 6, 2), torch.float32)
    for _ in range(3):
        train(compiled, module, packed, (0,))
    for sizes in ((3, 3, 2, 2, 2, 1), (3, 3, 3, 2, 2, 1), (3, 2, 3, 2, 1, 1), (3, 2, 2, 3, 1, 1)):
        wrong = packed._replace(batch_sizes=torch.tensor(sizes))
        for call in (module, compiled):
            with pytest.raises(RuntimeError):
                train(call, module, wrong, (0,))
