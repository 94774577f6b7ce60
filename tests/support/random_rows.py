"""Random definitions over rows: chains of elementwise work, reductions, values read from elsewhere in the row."""

from __future__ import annotations

import random

import numpy as np
from grids import Case
from loops_build import I, at, buffer, op, pointwise, random_inputs, reduce

from lampwork.loops.ir.index import as_index
from lampwork.loops.ir.nodes import Scan

SIZES = (1, 3, 8, 33, 40, 64, 70, 90)
UNARY = ("neg", "abs", "sigmoid", "tanh")
BINARY = ("add", "sub", "mul", "maximum", "minimum")


class RandomRows:
    """A random program over (m, n). full, row, column: buffers of (m, n), (m,) and (n,) that are known."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.m, self.n = self.rng.choice((1, 2, 3, 5)), self.rng.choice(SIZES)
        self.full = [buffer("x", self.m, self.n), buffer("w", self.m, self.n)]
        self.row = [buffer("r", self.m)]
        self.column = [buffer("c", self.n)]
        self.inputs = random_inputs(seed, *self.full, *self.row, *self.column)
        self.definitions = []

    def build(self) -> Case:
        for number in range(self.rng.randint(3, 9)):
            self.step(number)
        made = [definition.out.name for definition in self.definitions]
        chosen = {name for name in made if self.rng.random() < 0.3} | {made[-1]}
        return Case(self.definitions, frozenset(chosen), self.inputs, tolerance=1e-3)

    def step(self, number: int) -> None:
        kind = self.rng.random()
        name = f"t{number}"
        if kind < 0.4:
            out = buffer(name, self.m)
            how = self.rng.choice(("sum", "max", "min"))
            value = at(self.full[-1], I[0], I[1]) if self.rng.random() < 0.6 else self.value(2)
            self.definitions.append(reduce(out, (self.n,), how, value))
            self.row.append(out)
        elif kind < 0.45:
            out = buffer(name, self.m)
            self.definitions.append(pointwise(out, self.of_row()))
            self.row.append(out)
        elif kind < 0.52:
            out = buffer(name, self.m, self.n)
            how = self.rng.choice(("sum", "max"))
            rows, along = pointwise(out, self.value(1)).axes
            self.definitions.append(Scan(out, (rows,), along, (I[0], I[1]), how, self.value(1)))
            self.full.append(out)
        else:
            out = buffer(name, self.m, self.n)
            self.definitions.append(pointwise(out, self.value(3)))
            self.full.append(out)

    def of_row(self):
        return op(self.rng.choice(BINARY), at(self.rng.choice(self.row)), at(self.rng.choice(self.row)))

    def value(self, depth: int):
        kind = self.rng.random()
        if depth and kind < 0.3:
            return op(self.rng.choice(UNARY), self.value(depth - 1))
        if depth and kind < 0.75:
            return op(self.rng.choice(BINARY), self.value(depth - 1), self.value(depth - 1))
        if kind < 0.82:
            return at(self.rng.choice(self.row[-2:]), I[0])
        if kind < 0.86:
            return at(self.rng.choice(self.column), I[1])
        place = self.rng.choice((I[1], I[1], I[1], as_index(self.n - 1) - I[1], I[1] // 2))
        return at(self.rng.choice(self.full[-3:]), I[0], place)


def random_rows(seed: int) -> Case:
    with np.errstate(all="ignore"):
        return RandomRows(seed).build()
