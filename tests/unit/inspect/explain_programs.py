"""Programs whose explanations are golden: lines are part of them."""

from __future__ import annotations

import torch
from torch import nn


def branches(x, y):
    x = torch.sin(x) + y
    if x.sum() < 0:
        return -y
    return y * 2


def scaled(x, n):
    if n >= 0:
        return x * (n + 1)
    return x / n


class Chatty(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x):
        y = torch.relu(self.linear(x))
        print("chatty")
        self.calls += 1
        return y + 1


def refused(x):
    yield x


def twice(x):
    print(1, end=""), print(2, end="")
    return x + 1
