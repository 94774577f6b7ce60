"""Steps over batches without rows: gradients of weights are zeros, as in eager, from the first step on."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import lampwork


class First(nn.Module):
    """The first result of a layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


LAYERS = {
    "linear": nn.Linear(4, 4),
    "rnn": First(nn.RNN(4, 4)),
    "gru": First(nn.GRU(4, 4)),
    "lstm": First(nn.LSTM(4, 4)),
    "encoder": nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
    "mlp": nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 4)),
}


@pytest.mark.parametrize("with_loss", [False, True])
@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (0, 0, 4)])
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_zeros(name: str, shape: tuple[int, ...], with_loss: bool) -> None:
    if name in ("rnn", "gru", "lstm") and shape[0] == 0:
        pytest.skip("eager refuses sequences without steps")
    eager = copy.deepcopy(LAYERS[name])
    mine = copy.deepcopy(eager)
    compiled = lampwork.compile((lambda x: mine(x).square().sum()) if with_loss else mine)
    for _ in range(3):
        sources = [torch.randn(shape, requires_grad=True) for _ in range(2)]
        eager(sources[0]).square().sum().backward()
        result = compiled(sources[1])
        (result if with_loss else result.square().sum()).backward()
        for want, have in zip(
            (sources[0], *eager.parameters()), (sources[1], *mine.parameters()), strict=True
        ):
            assert want.grad is not None and have.grad is not None
            assert torch.equal(have.grad, want.grad)


def test_batch_norm_with_open_sizes_ends_in_an_empty_batch() -> None:
    """Eager's kernels of batch norms look at no size, so nobody may ask them what they think of one."""
    norm = nn.BatchNorm1d(4, dtype=torch.float64)
    twin = copy.deepcopy(norm)
    compiled = lampwork.compile(norm, dynamic=True)
    for rows in (5, 7, 0, 3, 0):
        x = torch.randn(rows, 4, 4, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), twin(x))
        torch.testing.assert_close(norm.running_mean, twin.running_mean)
