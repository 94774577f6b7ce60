"""Random layers, of torch and of Lampwork, whose weights and options change between calls, against eager.

`LAMPWORK_FUZZ` is the number of layers.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lampwork

_COUNT = int(os.environ.get("LAMPWORK_FUZZ", "40"))
_STEPS = 4
_HEADS = 2
Case = tuple[nn.Module, tuple[Tensor, ...]]


def _quantized(pick: random.Random) -> Case:
    rank, width = pick.choice((0, 0, 1, 2)), pick.choice((4, 8, 12))
    outputs, bias = pick.choice((1, 5, 8)), pick.random() < 0.7
    if rank == 0:
        inner: nn.Module = nn.Linear(width, outputs, bias=bias)
    else:
        inner = (nn.Conv1d, nn.Conv2d)[rank - 1](width, outputs, 3, padding=pick.choice((0, 1)), bias=bias)
    x = torch.randn(pick.choice((1, 3)), width, *[5] * rank)
    model = nn.Sequential(inner).eval()
    lampwork.quantize(model, x, activations=pick.choice(("dynamic", "static", None)))  # type: ignore[arg-type]
    return model, (x,)


def _recurrent(pick: random.Random) -> Case:
    kind = pick.choice((nn.LSTM, nn.GRU, nn.RNN))
    model = kind(
        3, 4, pick.choice((1, 2)), bidirectional=pick.random() < 0.4, batch_first=pick.random() < 0.5
    )
    return model, (torch.randn(2, 3, 3),)


def _attention(pick: random.Random) -> Case:
    model = nn.MultiheadAttention(8, _HEADS, bias=pick.random() < 0.7, batch_first=pick.random() < 0.5)
    return model, (torch.randn(2, 3, 8),) * 3


def _encoder(pick: random.Random) -> Case:
    model = nn.TransformerEncoderLayer(
        8, _HEADS, 12, dropout=0, batch_first=True, norm_first=pick.random() < 0.5
    )
    return model, (torch.randn(2, 3, 8),)


def _convolution(pick: random.Random) -> Case:
    kind = pick.choice((nn.Conv2d, nn.ConvTranspose2d))
    mode = pick.choice(("zeros", "circular")) if kind is nn.Conv2d else "zeros"
    layers: list[nn.Module] = [
        kind(4, 8, 3, groups=pick.choice((1, 2)), padding_mode=mode),
        nn.BatchNorm2d(8),
        nn.PReLU(8),
    ]
    return nn.Sequential(*layers), (torch.randn(2, 4, 6, 6),)


_LAYERS = (_quantized, _quantized, _recurrent, _attention, _encoder, _convolution)


def _other(pick: random.Random, value: Tensor) -> Tensor:
    """Other numbers of the same kind; variances stay positive."""
    if value.dtype is torch.int8:
        return -value
    return value * pick.choice((0.5, 1.5, 2.0)) if value.is_floating_point() else value.clone()


def _loaded(pick: random.Random, model: nn.Module) -> None:
    state = {name: _other(pick, value) for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=pick.random() < 0.6 and not isinstance(model, nn.RNNBase))


def _tensor(pick: random.Random, model: nn.Module) -> tuple[Any, str, Tensor]:
    """One of a model's: the module that holds it, and its name there."""
    path = pick.choice([name for name, value in model.state_dict().items() if value.dtype is not torch.int64])
    owner, _, name = path.rpartition(".")
    holder = model.get_submodule(owner)
    return holder, name, getattr(holder, name)


def _replaced(pick: random.Random, model: nn.Module) -> None:
    holder, name, value = _tensor(pick, model)
    if isinstance(holder, nn.RNNBase):
        return  # It refers to its weights weakly, and to other ones in its next call, which is left to eager.
    new = _other(pick, value.detach())
    setattr(holder, name, nn.Parameter(new, requires_grad=False) if isinstance(value, nn.Parameter) else new)


def _written(pick: random.Random, model: nn.Module) -> None:
    _, _, value = _tensor(pick, model)
    value.detach().copy_(_other(pick, value.detach()))


def _given_data(pick: random.Random, model: nn.Module) -> None:
    _, _, value = _tensor(pick, model)
    value.data = _other(pick, value.detach())


def _written_by_numpy(pick: random.Random, model: nn.Module) -> None:
    _, _, value = _tensor(pick, model)
    value.detach().numpy()[...] = _other(pick, value.detach()).numpy()


def _hooked(pick: random.Random, model: nn.Module) -> None:
    def doubled(module: nn.Module, args: Any, output: Any) -> Any:
        return (2 * output[0], *output[1:]) if type(output) is tuple else 2 * output

    pick.choice(list(model.modules())).register_forward_hook(doubled)


def _optioned(pick: random.Random, model: nn.Module) -> None:
    options = {"eps": 0.5, "padding": (2, 2), "norm_first": True, "activations": None}
    places = [(module, name) for module in model.modules() for name in options if hasattr(module, name)]
    places = [(module, name) for module, name in places if name != "padding" or isinstance(module, nn.Conv2d)]
    if places:
        module, name = pick.choice(places)
        setattr(module, name, options[name])


_CHANGES = (_loaded, _replaced, _replaced, _written, _given_data, _written_by_numpy, _hooked, _optioned)


def _same(compiled: Any, model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", range(_COUNT))
def test_what_a_layer_reads_may_change_between_calls(seed: int) -> None:
    torch.manual_seed(seed)
    pick = random.Random(seed)
    model, inputs = pick.choice(_LAYERS)(pick)
    model.eval()
    compiled = lampwork.compile(model, dynamic=pick.choice((None, True)))
    with torch.no_grad():
        _same(compiled, model, inputs)
        for _ in range(_STEPS):
            change = pick.choice(_CHANGES)
            print(f"seed {seed}: {change.__name__} of {model}")
            change(pick, model)
            _same(compiled, model, inputs)


@pytest.mark.parametrize("seed", range(_COUNT // 4))
def test_functional_calls_read_the_tensors_that_they_are_given(seed: int) -> None:
    torch.manual_seed(seed)
    pick = random.Random(seed)
    model, inputs = pick.choice([make for make in _LAYERS if make is not _recurrent])(pick)
    model.eval()
    given = {name: _other(pick, value) for name, value in model.state_dict().items()}

    def call(*args: Tensor) -> Any:
        return torch.func.functional_call(model, given, args)

    with torch.no_grad():
        torch.testing.assert_close(lampwork.compile(call)(*inputs), call(*inputs), rtol=1e-3, atol=1e-4)
