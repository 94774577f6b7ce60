"""Random programs: captured, broken and resumed, they do what eager does. A failure prints the program's source."""

from __future__ import annotations

import linecache
import os
import random
from typing import Any

import pytest
import torch
from capture_reference import Reference, outcome, same

COUNT = int(os.environ.get("LAMPWORK_FUZZ", "60"))


class Program:
    """Grows the source of a function `f(x, n, items)` over tensors of one shape, integers and a list."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.depth = 1
        self.tensors = ["x"]
        self.ints = ["n"]
        self.fresh = 0

    def emit(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def tensor(self) -> str:
        r = self.random
        a, b = r.choice(self.tensors), r.choice(self.tensors)
        return r.choice(
            [
                f"{a} + {b}",
                f"{a} * {self.int()}",
                f"torch.relu({a} - {b})",
                f"{a}.t().t() - {self.int()}",
                f"helper({a}, {self.int()})",
                f"helper({a}, k={self.int()})",
                f"sum([{a}, {b}])",
                f"{a} if {self.int()} > 2 else {b}",
                f"[t * 2 for t in ({a}, {b})][-1]",
                f"Box({a}).get({self.int()})",
                f"torch.stack(list(twice({a}))).sum(0)",
                f"(lambda v: v + {a})({b})",
            ]
        )

    def int(self) -> str:
        r = self.random
        a = r.choice(self.ints)
        return r.choice(
            [a, str(r.randint(0, 4)), f"({a} + 1) % 5", "len(items)", "x.shape[0]", f"int({a} > 1)"]
        )

    def name(self, kind: list[str]) -> str:
        if self.random.random() < 0.4:
            return self.random.choice(kind)
        self.fresh += 1
        return f"{'t' if kind is self.tensors else 'i'}{self.fresh}"

    def block(self, budget: int) -> None:
        known = list(self.tensors), list(self.ints)
        self.depth += 1
        for _ in range(self.random.randint(1, budget)):
            self.statement(budget - 1)
        self.depth -= 1
        self.tensors, self.ints = known

    def statement(self, budget: int) -> None:
        r = self.random
        kind = r.choices(
            [
                "tensor",
                "int",
                "item",
                "if",
                "data_if",
                "print",
                "loop",
                "try",
                "with",
                "effect",
                "closure",
                "while",
            ],
            [9, 4, 2, 3 * (budget > 0), 1.0 * (budget > 0), 1.5, 2 * (budget > 0), 2 * (budget > 0)]
            + [1.5 * (budget > 0), 2, 1, 1.0 * (budget > 0)],
        )[0]
        if kind == "tensor":
            value, name = self.tensor(), self.name(self.tensors)
            self.emit(f"{name} = {value}")
            self.tensors.append(name)
        elif kind == "int":
            value, name = self.int(), self.name(self.ints)
            self.emit(f"{name} = {value}")
            self.ints.append(name)
        elif kind == "item":
            name = self.name(self.ints)
            self.emit(f"{name} = int({r.choice(self.tensors)}.sum().item()) % 5")
            self.ints.append(name)
        elif kind in ("if", "data_if"):
            test = (
                f"{r.choice(self.tensors)}.sum() > 3" if kind == "data_if" else f"{self.int()} > {self.int()}"
            )
            self.emit(f"if {test}:")
            self.block(budget)
            if r.random() < 0.5:
                self.emit("else:")
                self.block(budget)
        elif kind == "print":
            self.emit(f"print({self.int()}, {r.choice(self.tensors)}.shape)")
        elif kind == "loop":
            self.emit(f"for i in range({r.randint(0, 3)}):")
            self.block(budget)
        elif kind == "while":
            self.fresh += 1
            self.emit(f"w{self.fresh} = 0")
            self.emit(f"while w{self.fresh} < 2:")
            counter = f"w{self.fresh}"
            self.depth += 1
            self.emit(f"{counter} += 1")
            self.depth -= 1
            self.block(budget)
        elif kind == "try":
            self.emit("try:")
            self.block(budget)
            self.depth += 1
            self.emit(r.choice(["pass", f"check({self.int()})", "raise KeyError('k')"]))
            self.depth -= 1
            self.emit("except (ValueError, KeyError) as error:")
            self.depth += 1
            self.emit("items.append(str(error))")
            self.depth -= 1
            if r.random() < 0.5:
                self.emit("finally:")
                self.block(budget)
        elif kind == "with":
            self.emit(r.choice(["with torch.no_grad():", "with Manager(items):"]))
            self.block(budget)
        elif kind == "effect":
            self.emit(
                r.choice([f"items.append({self.int()})", "items[0] = n", f"box.value = {self.tensor()}"])
            )
        else:
            self.fresh += 1
            self.emit(f"def c{self.fresh}(a):")
            self.emit(f"    nonlocal count; count += 1; return a * count + {r.choice(self.tensors)}")
            self.emit(f"x = c{self.fresh}({r.choice(self.tensors)})")

    def source(self) -> str:
        self.emit("count = 0")
        self.emit("box = Box(x)")
        for _ in range(self.random.randint(3, 7)):
            self.statement(2)
        self.emit(f"return {{'x': x, 'all': [{', '.join(dict.fromkeys(self.tensors))}], 'n': count}}, box")
        return PRELUDE + "def f(x, n, items):\n" + "\n".join(self.lines) + "\n"


PRELUDE = """
import torch
def helper(a, k=1, *, j=2):
    return a * k - j
def check(i):
    if i > 2:
        raise ValueError(f"{i} is too large")
def twice(v):
    for k in range(2):
        yield v + k
class Box:
    def __init__(self, value):
        self.value = value
    def get(self, k):
        return self.value + k
class Manager:
    def __init__(self, log):
        self.log = log
    def __enter__(self):
        self.log.append('in')
    def __exit__(self, kind, error, trace):
        self.log.append(kind.__name__ if kind else 'out')
        return kind is KeyError
"""


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_program(seed):
    source = Program(seed).source()
    name = f"<fuzz {seed}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space: dict[str, Any] = {"__name__": "fuzz"}
    exec(compile(source, name, "exec"), space)
    f = space["f"]
    reference = Reference(f)
    for n in (1, 3, 1):
        for x in (torch.arange(4.0).reshape(2, 2), -torch.ones(2, 2)):
            mine, theirs = [0], [0]
            eager = outcome(f, (x.clone(), n, theirs), {})
            ours = outcome(reference, (x.clone(), n, mine), {})
            try:
                assert ours[1:] == eager[1:]
                same(ours[0], eager[0])
                same(mine, theirs)
                assert torch.is_grad_enabled()
            except AssertionError:
                print(source)
                raise
