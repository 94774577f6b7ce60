"""Random expressions over mixed dtypes, layouts and broadcasts: machine code against the interpreter."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from codegen_support import NUMPY, axis, kernel, load, run_kernel, var

from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import (
    Buffer,
    Const,
    Expr,
    IndexValue,
    Let,
    Local,
    Loop,
    Op,
    ReduceLoop,
    Reducer,
    Store,
)
from lampwork.loops.reference.evaluate_kernel import run_kernel as interpret

DTYPES = ["f32", "f32", "f32", "f64", "i64", "i32", "u8", "bool"]
ARITHMETIC = ["add", "sub", "mul", "minimum", "maximum"]
SMOOTH = ["neg", "abs", "sigmoid", "tanh", "erf", "sign", "floor", "round"]
COMPARISONS = ["lt", "le", "eq", "ne", "gt", "ge"]
ROWS, COLUMNS = 5, 45


class Program:
    """A random kernel over rows and columns: lets, a reduction of each row, stores."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.inputs: list[Buffer] = []
        self.locals: list[Local] = []

    def offset(self) -> Index:
        r, j = var("r"), var("j")
        return self.rng.choice(
            [
                r * COLUMNS + j,
                j * ROWS + r,
                j,
                r,
                as_index(COLUMNS - 1) - j,
                j * 2 + r * 90,
                j // 4 + r,
                j % 16,
                j // 16,
            ]
        )

    def leaf(self, dtype: str) -> Expr:
        known = [local for local in self.locals if local.dtype == dtype]
        choice = self.rng.random()
        if known and choice < 0.3:
            return self.rng.choice(known)
        if choice < 0.45:
            value = (
                self.rng.choice([0, 1, 2]) if dtype in ("u8", "bool") else self.rng.choice([-2, -1, 0, 1, 3])
            )
            return Const(
                bool(value) if dtype == "bool" else float(value) if dtype[0] == "f" else value, dtype
            )
        if choice < 0.5 and dtype in ("i64", "i32", "f32"):
            return IndexValue(self.offset(), dtype)
        buffer = Buffer(f"x{len(self.inputs)}", dtype, (as_index(640),), (as_index(1),))
        self.inputs.append(buffer)
        mask = self.expr("bool", 1) if self.rng.random() < 0.2 else None
        return load(buffer, self.offset(), mask=mask, other=1)

    def expr(self, dtype: str, depth: int) -> Expr:
        if depth == 0:
            return self.leaf(dtype)
        choice = self.rng.random()
        if dtype == "bool" and choice < 0.6:
            of = self.rng.choice(["f32", "i64", "i32", "u8"])
            return Op(
                self.rng.choice(COMPARISONS), (self.expr(of, depth - 1), self.expr(of, depth - 1)), "bool"
            )
        if dtype == "bool":
            return Op(
                self.rng.choice(["and", "or", "xor"]),
                (self.expr("bool", depth - 1), self.leaf("bool")),
                "bool",
            )
        if choice < 0.15:
            condition = self.expr("bool", depth - 1)
            return Op("where", (condition, self.expr(dtype, depth - 1), self.leaf(dtype)), dtype)
        if choice < 0.3:
            narrow = {"u8": "bool", "i32": "u8", "i64": "i32"}.get(dtype)
            source = narrow or self.rng.choice(["i64", "i32", "f32", "u8", "bool"])
            return Op("cast", (self.expr(source, depth - 1),), dtype)
        if choice < 0.45 and dtype in ("f32", "f64"):
            return Op(self.rng.choice(SMOOTH), (self.expr(dtype, depth - 1),), dtype)
        return Op(
            self.rng.choice(ARITHMETIC), (self.expr(dtype, depth - 1), self.expr(dtype, depth - 1)), dtype
        )

    def build(self):
        r, j = var("r"), var("j")
        outs: list[Buffer] = []

        def store(value: Expr, place: Index) -> Store:
            outs.append(Buffer(f"y{len(outs)}", value.dtype, (as_index(640),), (as_index(1),)))
            return Store(outs[-1], (place,), value)

        body = []
        summed = self.expr("f32", 2)
        largest = self.expr(self.rng.choice(["f32", "i64"]), 2)
        reducers = (Reducer("s", "sum", summed, "f32"), Reducer("m", "max", largest, largest.dtype))
        body.append(ReduceLoop(axis("j", COLUMNS), "vector", (), reducers))
        self.locals = [Local("s", "f32"), Local("m", largest.dtype)]
        inner = []
        for number in range(3):
            dtype = self.rng.choice(DTYPES)
            inner.append(Let(f"v{number}", self.expr(dtype, 3)))
            self.locals.append(Local(f"v{number}", dtype))
        inner += [store(local, r * COLUMNS + j) for local in self.locals[2:]]
        inner.append(store(self.expr(self.rng.choice(DTYPES), 2), j * ROWS + r))
        body.append(Loop(axis("j", COLUMNS), self.rng.choice(["vector", "serial"]), tuple(inner)))
        loop = Loop(axis("r", ROWS), "parallel", tuple(body))
        return kernel("random", [*self.inputs, *outs], [loop]), outs


@pytest.mark.parametrize("seed", range(int(os.environ.get("LAMPWORK_FUZZ", "40"))))
def test_random_kernels(seed: int, isa: str) -> None:
    program = Program(seed)
    k, outs = program.build()
    rng = np.random.default_rng(seed)
    memory = {}
    for buffer in program.inputs:
        numbers = rng.integers(0, 2 if buffer.dtype == "bool" else 9, 640)
        memory[buffer.name] = (numbers - 4 * (buffer.dtype[0] == "f")).astype(NUMPY[buffer.dtype])
    want = {name: array.copy() for name, array in memory.items()}
    for out in outs:
        memory[out.name] = np.zeros(640, NUMPY[out.dtype])
        want[out.name] = np.zeros(640, NUMPY[out.dtype])
    assert run_kernel(k, isa, [memory[p.name] for p in k.params], end=ROWS) == 0
    interpret(k, want)
    for out in outs:
        np.testing.assert_allclose(
            memory[out.name].astype(np.float64),
            want[out.name].astype(np.float64),
            rtol=3e-5,
            atol=3e-5,
            err_msg=f"{seed}: {k}",
        )
