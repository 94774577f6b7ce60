"""What an architecture of the study is, and what its networks have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import torch
from torch import Tensor, nn

from lampwork.records import record

Inputs = tuple[Tensor, ...]


class Network(nn.Module):
    """A network that knows what it is called with."""

    def example(self, batch: int) -> Inputs:
        """Random arguments for so many samples."""
        raise NotImplementedError


@record
class Architecture:
    """A way to build networks, and one network that stands for it.

    says: what it is made of, in a line. network: its class, whose default sizes the study measures. tiny: sizes for
    tests.
    """

    name: str
    says: str
    network: Callable[..., Network]
    tiny: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def build(self, *, tiny: bool = False, seed: int = 0) -> Network:
        """A network with random weights from `seed`, in eval mode and without gradients. Batch norms have statistics as
        after training."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            found = self.network(**(self.tiny if tiny else {})).eval().requires_grad_(False)
            for part in found.modules():
                if isinstance(part, nn.BatchNorm2d) and part.running_mean is not None:
                    part.running_mean.normal_(std=0.1)
                    assert part.running_var is not None
                    part.running_var.uniform_(0.5, 2)
        return found

    def inputs(self, network: Network, batch: int, seed: int = 1) -> Inputs:
        """Arguments of a call for so many samples."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return network.example(batch)
