"""Classes: instances made, read and written inside the region."""

from __future__ import annotations

import torch
from harness import program


class Point:
    __slots__ = ("x", "y")

    def __init__(self, x, y):
        self.x = x
        self.y = y


@program(lambda: (torch.ones(3),))
def slots_made_inside(x):
    p = Point(x, x + 1)
    p.y = p.y * 2
    return p.x + p.y


@program(lambda: (torch.ones(3), [1, 2]), again=lambda: (torch.zeros(4), [5]))
def appends_to_argument(x, items):
    items.append(x + len(items))
    return x * 2, items


@program(lambda: (torch.ones(3),), breaks=1)
def prints(x):
    y = x + 1
    print("sum", y.shape)
    return y * 2
