"""Between forward and backward a tensor that is saved is given its own memory in another layout: eager's backward reads
it in that one where the tensor itself is saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lampwork

WRITES: dict[str, Callable[[Tensor], Tensor]] = {
    "turned": lambda data: data.t(),
    "expanded": lambda data: data[:1].expand(3, 3),
    "doubled": lambda data: data * 2,
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("target", ["weight", "x"])
def test_gradients_see_the_new_layout(write: str, target: str) -> None:
    weight = nn.Parameter(torch.empty(3, 3))

    def function(x: Tensor) -> Tensor:
        return (x * weight.sin()).exp() + x.square()

    compiled = lampwork.compile(function)
    for _ in range(4):
        seen: list[Any] = []
        for called in (function, compiled):
            weight.data = torch.arange(9.0).view(3, 3) / 9
            weight.grad = None
            x = torch.linspace(-1, 1, 9).view(3, 3).clone().requires_grad_()
            y = called(x)
            written = weight if target == "weight" else x
            written.data = WRITES[write](written.data)
            y.sum().backward()
            seen.append((x.grad, weight.grad))
        torch.testing.assert_close(seen[1], seen[0])
