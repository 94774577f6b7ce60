"""A workload, and what makes networks with random weights worth measuring."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lampwork.bench.networks.blocks import SqueezeExcite
from lampwork.records import record

Precision = Literal["f32", "bf16", "f16", "int8"]
DTYPES: dict[Precision, torch.dtype] = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "int8": torch.float32,
}
"""Of weights and inputs. "int8": each compiler quantizes the weights of linear layers itself."""

Maker = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
"""Makes a callable and its inputs, with random numbers of torch's generator."""


@record
class Workload:
    """A callable (a function or a module in eval mode) with one set of positional inputs."""

    name: str
    fn: Callable[..., Any]
    inputs: tuple[Any, ...]

    def to(self, dtype: torch.dtype) -> Workload:
        """A copy whose weights and floating-point inputs are rounded to `dtype`."""
        fn = copy.deepcopy(self.fn).to(dtype) if isinstance(self.fn, nn.Module) else self.fn
        return Workload(self.name, fn, tuple(_to(x, dtype) for x in self.inputs))


def _to(x: Any, dtype: torch.dtype) -> Any:
    return x.to(dtype, copy=True) if isinstance(x, Tensor) and x.is_floating_point() else x


@torch.no_grad()
def keep_alive(model: nn.Module) -> nn.Module:
    """Random weights with which activations stay alive to the last layer, as in a trained network: a network whose
    output underflows to a constant would hide wrong answers.

    Kaiming weights; the statistics of batch norms are those of small random images, so each layer reads numbers of
    mean 0 and variance 1, whatever gates and activations came before.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.02)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.normal_(module.bias, std=0.1)
    for module in model.modules():
        if isinstance(module, SqueezeExcite):
            # Gates that differ between channels and images, none of them shut.
            module.expand.weight.mul_(0.3)
    _calibrate([m for m in model.modules() if isinstance(m, nn.BatchNorm2d)], model)
    return model.eval()


def _calibrate(norms: list[nn.BatchNorm2d], model: nn.Module) -> None:
    """One step of training mode sets the running statistics. The images are smaller than any that is measured, so that
    no library finds the primitives of the first call in its cache."""
    if not norms:
        return
    momentum = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    model.train()(torch.randn(4, 3, 96, 96))
    for norm, before in zip(norms, momentum, strict=True):
        norm.momentum = before
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.zero_()


def image(batch: int = 1, size: int = 224) -> tuple[Tensor]:
    """float32[batch, 3, size, size]."""
    return (torch.randn(batch, 3, size, size),)


def tokens(vocabulary: int, length: int, batch: int = 1) -> tuple[Tensor]:
    """int64[batch, length]."""
    return (torch.randint(0, vocabulary, (batch, length)),)
