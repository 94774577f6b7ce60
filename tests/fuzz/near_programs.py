"""Random small programs, and others that differ from one in a single thing: what a key of a cache has to tell apart.

A program is plain data: inputs and steps. `changed` gives one that differs in a number, an operator, a dimension, a
dtype, sizes, strides, in whether an input is written to, or whether gradients are on. Some steps do nothing, or are
undone: programs with and without them are different graphs that passes make one of.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

Step = tuple[str, Any]

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "neg": torch.neg,
    "square": torch.square,
    "gelu": torch.nn.functional.gelu,
}
BINARY: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "maximum": lambda x, n: torch.clamp(x, min=n),
}
ALONG: dict[str, Callable[[Tensor, int], Tensor]] = {
    "softmax": lambda x, dim: torch.softmax(x, dim),
    "cumsum": lambda x, dim: torch.cumsum(x, dim),
    "sum": lambda x, dim: x.sum(dim, keepdim=True),
    "amax": lambda x, dim: x.amax(dim, keepdim=True),
    "flip": lambda x, dim: x.flip(dim),
}
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "t": lambda x: x.transpose(0, 1),
    "rest": lambda x: x[1:] if x.shape[0] > 1 else x,
    "flat": lambda x: x.reshape(1, -1),
}
PAIRS: dict[str, Callable[[Tensor], Tensor]] = {
    "zero": lambda x: x + 0.0,
    "one": lambda x: x * 1,
    "neg twice": lambda x: -(-x),
    "t twice": lambda x: x.t().t(),
    "cast": lambda x: x.to(x.dtype),
    "half of two": lambda x: torch.stack([x, x])[1],
    "relu twice": lambda x: x.relu().relu(),
    "same twice": lambda x: x.exp() - x.exp(),
    "mean": lambda x: x - x.mean(-1, keepdim=True),
}
NUMBERS = (0.5, 2.0, -1.5, 3.0)
DTYPES = (torch.float32, torch.float64)
LAYOUTS = ("contiguous", "transposed", "strided")


@dataclass(frozen=True)
class Program:
    """`shape`, `dtype`, `layout`: of the input; `writes`: a number that is added to it in place, None: it is not;
    `grad`: whether the weight requires grad."""

    shape: tuple[int, int]
    dtype: torch.dtype
    layout: str
    steps: tuple[Step, ...]
    writes: float | None = None
    grad: bool = False

    def __call__(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        if self.writes is not None:
            x.add_(self.writes)
        value = x
        for name, given in self.steps:
            if name in UNARY:
                value = UNARY[name](value)
            elif name in BINARY:
                value = BINARY[name](value, given)
            elif name in ALONG:
                value = ALONG[name](value, given)
            elif name in VIEWS:
                value = VIEWS[name](value)
            elif name in PAIRS:
                value = PAIRS[name](value)
            else:
                value = value + weight if given else value * weight
        return value, value.sum()

    def inputs(self) -> tuple[Tensor, Tensor]:
        """The same for each call."""
        generator = torch.Generator().manual_seed(1)
        rows, columns = self.shape
        if self.layout == "transposed":
            x = torch.randn(columns, rows, generator=generator, dtype=self.dtype).t()
        elif self.layout == "strided":
            x = torch.randn(rows, 2 * columns, generator=generator, dtype=self.dtype)[:, ::2]
        else:
            x = torch.randn(rows, columns, generator=generator, dtype=self.dtype)
        return x, torch.randn(1, generator=generator, dtype=self.dtype, requires_grad=self.grad)


def grown(seed: int) -> Program:
    """A random program."""
    pick = random.Random(seed)
    steps = tuple(_step(pick) for _ in range(pick.randint(1, 4)))
    writes = pick.choice((None, None, 1.0))
    return Program(
        (pick.randint(2, 4), pick.randint(2, 5)), pick.choice(DTYPES), pick.choice(LAYOUTS), steps, writes
    )


def changed(program: Program, pick: random.Random) -> Program:
    """One that differs in a single thing."""
    kind = pick.choice(
        ("step", "step", "number", "shape", "dtype", "layout", "writes", "pair", "pair", "grad")
    )
    if kind == "grad":
        return replace(program, grad=not program.grad)
    if kind == "pair":
        where = pick.randint(0, len(program.steps))
        step: Step = (pick.choice(sorted(PAIRS)), None)
        return replace(program, steps=(*program.steps[:where], step, *program.steps[where:]))
    if kind == "shape":
        rows, columns = program.shape
        return replace(
            program, shape=pick.choice(((rows + 1, columns), (rows, columns + 1), (columns, rows)))
        )
    if kind == "dtype":
        return replace(program, dtype=DTYPES[1 - DTYPES.index(program.dtype)])
    if kind == "layout":
        return replace(program, layout=pick.choice(LAYOUTS))
    if kind == "writes":
        return replace(program, writes=pick.choice((None, 1.0, 2.0)))
    at = pick.randrange(len(program.steps))
    name, given = program.steps[at]
    if kind == "number" and name in BINARY:
        other: Step = (name, pick.choice(NUMBERS))
    elif kind == "number" and name in ALONG:
        other = (name, 1 - given)
    else:
        other = _step(pick)
    return replace(program, steps=(*program.steps[:at], other, *program.steps[at + 1 :]))


def _step(pick: random.Random) -> Step:
    table = pick.choice((UNARY, BINARY, ALONG, VIEWS, PAIRS, None))
    if table is None:
        return ("weight", pick.choice((True, False)))
    name = pick.choice(sorted(table))
    return name, pick.choice(NUMBERS) if table is BINARY else pick.choice((0, 1)) if table is ALONG else None
