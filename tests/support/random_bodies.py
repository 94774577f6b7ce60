"""Random kernels of rows: shared loops, reductions and serial loops that pass values on through scratch and results.

All is int32, so that the order of a sum does not show.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import (
    Axis,
    Buffer,
    Const,
    Expr,
    Kernel,
    Let,
    Load,
    Local,
    Loop,
    Op,
    ReduceLoop,
    Reducer,
    ScanLoop,
    Stmt,
    Store,
)

ROWS, SERIAL = 5, 3


class RandomBody:
    """A random kernel over rows of n elements. x is read, y and z are read and written; s and t are scratch."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.n = self.rng.choice((6, 20, 40, 70))
        self.row = Index.var("i")
        self.params = [Buffer(name, "i32", (as_index(ROWS * self.n),), (as_index(1),)) for name in "xyz"]
        self.scratch = [Buffer(name, "i32", (as_index(self.n),), (as_index(1),)) for name in "st"]
        self.names = 0

    def build(self) -> Kernel:
        fills = [self.fill(buffer) for buffer in self.scratch]
        body = [*fills, *self.block(2, [], [])]
        ends = [Store(self.params[2], self.place(self.params[2], as_index(0)), Const(1, "i32"))]
        loop = Loop(Axis("i", as_index(ROWS)), "parallel", (*body, *ends))
        return Kernel(f"body_{self.n}", tuple(self.params), (), tuple(self.scratch), (loop,))

    def name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}{self.names}"

    def place(self, buffer: Buffer, element: Index) -> tuple[Index, ...]:
        return (element if buffer in self.scratch else self.row * self.n + element,)

    def load(self, buffer: Buffer, element: Index) -> Load:
        return Load(buffer, self.place(buffer, element))

    def fill(self, buffer: Buffer) -> Loop:
        j = Index.var("j")
        store = Store(buffer, self.place(buffer, j), self.load(self.params[0], self.n - 1 - j))
        return Loop(Axis("j", as_index(self.n)), "vector", (store,))

    # --- statements ---------------------------------------------------------------------------------------------------

    def block(self, depth: int, known: Sequence[Local], serial: Sequence[Index]) -> list[Stmt]:
        known, found = list(known), []
        for _ in range(self.rng.randint(1, 4)):
            found += self.statement(depth, known, serial)
        return found

    def statement(self, depth: int, known: list[Local], serial: Sequence[Index]) -> list[Stmt]:
        kind = self.rng.random()
        if kind < 0.35:
            body, _ = self.stores(known)
            limit = None if self.rng.random() < 0.8 else self.row + 3
            return [Loop(Axis("j", as_index(self.extent())), "vector", body, limit)]
        if kind < 0.5:
            return [self.reduce(known)]
        if kind < 0.58:
            return [self.scan(known)]
        if kind < 0.65:
            local = Local(self.name("l"), "i32")
            let = Let(local.name, self.scalar(known, serial))
            known.append(local)
            return [let]
        if kind < 0.75 or not depth:
            buffer = self.rng.choice([*self.params[1:], *self.scratch])
            return [Store(buffer, self.place(buffer, self.element(serial)), self.scalar(known, serial))]
        return [self.serial(depth, known, serial)]

    def serial(self, depth: int, known: list[Local], serial: Sequence[Index]) -> Stmt:
        axis = Axis(self.name("k"), as_index(self.rng.choice((1, SERIAL))))
        inner = [*serial, Index.var(axis.name)]
        body = tuple(self.block(depth - 1, known, inner))
        kind = self.rng.random()
        if kind < 0.5:
            return Loop(axis, "serial", body)
        local = Local(self.name("a"), "i32")
        value = self.scalar(known, inner)
        known.append(local)
        return ReduceLoop(axis, "serial", body, (Reducer(local.name, "sum", value, "i32"),))

    def scan(self, known: list[Local]) -> ScanLoop:
        """Sums up to each element, and what is made of them."""
        after, free = self.stores(known)
        local = Local(self.name("a"), "i32")
        value = self.element_value(known, free)
        first = after[0]
        assert isinstance(first, Store)
        stores = (replace(first, value=Op("add", (first.value, local), "i32")), *after[1:])
        return ScanLoop(Axis("j", as_index(self.extent())), (), local.name, "sum", value, "i32", stores)

    def reduce(self, known: list[Local]) -> ReduceLoop:
        body, free = self.stores(known) if self.rng.random() < 0.4 else ((), [*self.params, *self.scratch])
        local = Local(self.name("a"), "i32")
        how = self.rng.choice(("sum", "max", "min"))
        reducer = Reducer(local.name, how, self.element_value(known, free), "i32")
        known.append(local)
        return ReduceLoop(Axis("j", as_index(self.extent())), "vector", body, (reducer,))

    def stores(self, known: Sequence[Local]) -> tuple[tuple[Stmt, ...], list[Buffer]]:
        """Stores of a shared loop, and the buffers that it may read anywhere: its turns do not depend on each other."""
        others = [*self.params[1:], *self.scratch]
        self.rng.shuffle(others)
        written = others[: self.rng.choice((1, 1, 2))]
        free = [each for each in [*self.params, *self.scratch] if each not in written]
        j = Index.var("j")
        found = []
        for buffer in written:
            element = self.rng.choice((j, self.n - 1 - j))
            value = self.element_value(known, free)
            if self.rng.random() < 0.3:
                value = Op("sub", (value, self.load(buffer, element)), "i32")
            found.append(Store(buffer, self.place(buffer, element), value))
        return tuple(found), free

    def extent(self) -> int:
        return self.rng.choice((self.n, self.n, self.n // 2))

    # --- values -------------------------------------------------------------------------------------------------------

    def element(self, serial: Sequence[Index]) -> Index:
        places = [as_index(self.rng.randrange(self.n)), *serial]
        return self.rng.choice(places)

    def scalar(self, known: Sequence[Local], serial: Sequence[Index]) -> Expr:
        buffer = self.rng.choice([*self.params, *self.scratch])
        value: Expr = self.load(buffer, self.element(serial))
        if known:
            value = Op(self.rng.choice(("add", "sub")), (value, self.rng.choice(known)), "i32")
        return value

    def element_value(self, known: Sequence[Local], free: Sequence[Buffer]) -> Expr:
        j = Index.var("j")
        element = self.rng.choice((j, self.n - 1 - j, j // 2, as_index(0)))
        value: Expr = self.load(self.rng.choice(free), element)
        if known and self.rng.random() < 0.5:
            value = Op("add", (value, self.rng.choice(known)), "i32")
        if self.rng.random() < 0.4:
            value = Op("maximum", (value, self.load(self.rng.choice(free), j)), "i32")
        return value
