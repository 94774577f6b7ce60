"""The thin path: a few networks' worth of operators, lowered and evaluated."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from lower_harness import check

from lampwork.loops.ir.nodes import Gemm, Map, Reduce


def test_add_mul_relu():
    x, y = torch.randn(3, 5), torch.randn(5)
    lowered = check(lambda a, b: torch.relu(a * b + 2), x, y)
    assert [type(d) for d in lowered.definitions] == [Map, Map, Map]


def test_linear_view_softmax():
    x, w, b = torch.randn(2, 3, 8), torch.randn(12, 8), torch.randn(12)

    def fn(x, w, b):
        y = F.linear(x, w, b).view(2, 3, 4, 3).permute(0, 2, 1, 3)
        return torch.softmax(y, -1).transpose(1, 2).reshape(2, 3, 12)

    lowered = check(fn, x, w, b)
    kinds = [type(d) for d in lowered.definitions]
    assert kinds.count(Gemm) == 1 and kinds.count(Reduce) == 2
