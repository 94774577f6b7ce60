"""Random pointwise programs as text, with inputs full of the numbers at which roundings show.

`exact_program` uses only operators whose result eager rounds once (or not at all): compiled code owes the same bits.
`smooth_program` adds transcendental functions, for inputs without infinities; those are held to the float64 criterion.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16}
_SPECIAL = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 0.1, 1 / 3, 127.5, 255.0, 256.0, -129.0, 65504.0),
    *(65520.0, 3e38, -3e38, 1e-38, 1e-40, 6e-8, -6e-8, 2.0**24 + 1, 2.0**31, -(2.0**31), 0.499999970197678),
)
_ENDLESS = (float("inf"), float("-inf"), float("nan"))


@dataclass(frozen=True, slots=True)
class Program:
    """Line n binds `v{n}` to an expression of the inputs x, y, z and of earlier lines; `results` are returned."""

    lines: Mapping[int, str]
    results: tuple[int, ...]
    inputs: tuple[Tensor, ...]

    @property
    def source(self) -> str:
        body = "".join(f"    v{number} = {line}\n" for number, line in self.lines.items())
        return f"def f(x, y, z):\n{body}    return {', '.join(f'v{r}' for r in self.results)},\n"

    def function(self) -> Callable[..., Any]:
        names: dict[str, Any] = {"torch": torch}
        exec(compile(self.source, "<numeric program>", "exec"), names)
        return names["f"]

    def __str__(self) -> str:
        kinds = ", ".join(f"{str(t.dtype)[6:]}{list(t.shape)}" for t in self.inputs)
        return f"{self.source}# called with {kinds}"

    def shrunk(self, fails: Callable[[Program], bool]) -> Program:
        """The program with one result only, and the lines that it needs, if that still fails."""
        for result in self.results:
            needed = {result}
            for number in sorted(self.lines, reverse=True):
                if number in needed:
                    needed.update(int(name) for name in re.findall(r"\bv(\d+)\b", self.lines[number]))
            smaller = Program(
                {number: line for number, line in self.lines.items() if number in needed},
                (result,),
                self.inputs,
            )
            if fails(smaller):
                return smaller
        return self


def floats(rng: random.Random, shape: tuple[int, ...], dtype: torch.dtype, *, special: bool = True) -> Tensor:
    """Random numbers of a random size, some of them special."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    scale = rng.choice((1.0, 1.0, 10.0, 200.0, 1e-3)) if special else 1.0
    values = (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype)
    if not special or not values.numel():
        return values
    flat = values.view(-1)
    pool = _SPECIAL + (_ENDLESS if rng.random() < 0.5 else ())
    for _ in range(max(1, values.numel() // 6)):
        flat[rng.randrange(values.numel())] = rng.choice(pool)
    return values


def integers(rng: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    info = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    low, high = rng.choice(((info.min, info.max), (max(info.min, -50), 50)))
    return torch.randint(low, high, shape, generator=generator, dtype=dtype)


def _inputs(rng: random.Random, *, special: bool = True, only_floats: bool = False) -> tuple[Tensor, ...]:
    shape = rng.choice(((1,), (7,), (67,), (3, 5), (8, 33), (2, 1000)))
    inputs: list[Tensor] = []
    for position in range(3):
        own = rng.choice((shape, shape, shape, shape, (*shape[:-1], 1), ())) if position else shape
        if only_floats or position == 0 or rng.random() < 0.8:
            value = floats(rng, own, rng.choice(FLOATS), special=special)
        else:
            value = integers(rng, own, rng.choice(INTEGERS))
        if len(own) == 2 and rng.random() < 0.2:
            value = value.t().contiguous().t()
        inputs.append(value)
    return tuple(inputs)


@dataclass(slots=True)
class _Names:
    """The values of a program so far by kind, and how its lines name them."""

    rng: random.Random
    floats: list[str]
    integers: list[str]
    bools: list[str]

    def any(self) -> str:
        return self.rng.choice((*self.floats, *self.floats, *self.integers))

    def float(self) -> str:
        return self.rng.choice(self.floats[-4:])

    def bool(self) -> str:
        if self.bools and self.rng.random() < 0.7:
            return self.rng.choice(self.bools)
        return f"({self.any()} {self.rng.choice(('<', '<=', '>', '>=', '==', '!='))} {self.other()})"

    def number(self) -> str:
        return repr(self.rng.choice((0.1, -0.3, 3, 2.5, 127.5, -2, 1 / 3, 7, 1.0, 255.0, 1e-3, 0.5)))

    def other(self) -> str:
        return self.any() if self.rng.random() < 0.6 else self.number()


def _exact_float(n: _Names) -> str:
    """One operator that gives floats, rounded once."""
    rng, x = n.rng, n.float()
    kind = rng.randrange(22)
    if kind >= 20:
        # Two operators that a fused multiply-add would make one of.
        return rng.choice((f"{x} * {n.other()} + {n.other()}", f"{n.other()} - {x} * {n.other()}"))
    if kind < 8:
        left, right = (x, n.other()) if rng.random() < 0.7 else (n.number(), x)
        return f"{left} {rng.choice('+-*/+-*')} {right}"
    if kind == 8:
        return f"-{x}"
    if kind == 9:
        return rng.choice((f"{x}.abs()", f"{x}.relu()", f"{x}.sign()", f"{x}.square()"))
    if kind == 10:
        # Of float32 and float64 eager's own root (MKL's) is off by an ulp on some processors.
        return f"{x}.to(torch.{rng.choice(('bfloat16', 'float16'))}).sqrt()"
    if kind == 11:
        low, high = sorted((rng.choice((-3.0, -0.7, 0, 0.1)), rng.choice((0.3, 1, 100.0, 255))))
        return rng.choice((f"{x}.clamp({low}, {high})", f"{x}.clamp(min={low})", f"{x}.clamp(max={high})"))
    if kind == 12:
        return f"{x}.{rng.choice(('round', 'floor', 'ceil', 'trunc', 'frac'))}()"
    if kind == 13:
        return f"torch.where({n.bool()}, {x}, {n.other()})"
    if kind == 14:
        if rng.random() < 0.5:
            return f"torch.{rng.choice(('fmax', 'fmin'))}({x}, {n.float()})"
        # Which of 0.0 and -0.0 is the larger eager's vectors and scalars answer differently: the sum has no -0.0.
        return f"torch.{rng.choice(('maximum', 'minimum'))}({x}, {n.float()}) + 0.0"
    if kind == 15:
        # Eager's vectors give nan where the quotient overflows, and its scalars do not.
        name = rng.choice(("remainder", "fmod", "floor_divide"))
        by = n.number() if rng.random() < 0.6 else f"{n.float()}.clamp(min=0.1)"
        return f"torch.{name}({x}.clamp(-1e4, 1e4), {by})"
    if kind == 16:
        return f"{x}.to(torch.{str(rng.choice(FLOATS))[6:]})"
    if kind == 17:
        return f"{x}.masked_fill({n.bool()}, {rng.choice((0.1, -2, 0.0, 7.5))})"
    if kind == 18:
        return rng.choice((f"{x}.reciprocal()", f"{x} ** {rng.choice((2, 3, -1, 1, 0))}"))
    return rng.choice(
        (
            f"torch.add({x}, {n.float()}.clamp(-1e3, 1e3), alpha=2)",
            f"{x}.nan_to_num()",
            f"torch.copysign({x}, {n.number()})",
        )
    )


def _exact_integer(n: _Names) -> str:
    rng = n.rng
    if n.integers and rng.random() < 0.5:
        x, y = rng.choice(n.integers), rng.choice((*n.integers, "3", "-7", "2"))
        operators = (f"{x} {rng.choice('+-*')} {y}", f"{x}.clamp(0, 100)", f"-{x}", f"{x}.abs()", f"{x} // 3")
        return rng.choice(operators)
    return f"{n.float()}.to(torch.{str(rng.choice(INTEGERS))[6:]})"


def exact_program(rng: random.Random) -> Program:
    """A chain of operators whose bits eager fixes."""
    inputs = _inputs(rng)
    names = "xyz"[: len(inputs)]
    own = [name for name, t in zip(names, inputs, strict=True) if t.is_floating_point()]
    n = _Names(rng, own, [name for name in names if name not in own], [])
    lines: dict[int, str] = {}
    for step in range(rng.randint(1, 9)):
        choice = rng.random()
        if choice < 0.12:
            lines[step] = n.bool()
            n.bools.append(f"v{step}")
        elif choice < 0.24:
            lines[step] = _exact_integer(n)
            n.integers.append(f"v{step}")
        else:
            lines[step] = _exact_float(n)
            n.floats.append(f"v{step}")
    return Program(lines, _results(rng, len(lines)), inputs)


_SMOOTH = (
    *(
        "exp",
        "tanh",
        "sigmoid",
        "sin",
        "cos",
        "erf",
        "expm1",
        "atan",
        "sinh",
        "asinh",
        "abs",
        "neg",
        "square",
    ),
    *("relu", "exp2"),
)
_FUNCTIONAL = ("silu", "gelu", "softplus", "mish", "elu", "hardswish", "logsigmoid", "leaky_relu", "selu")


def smooth_program(rng: random.Random) -> Program:
    """A chain of continuous functions of moderate numbers."""
    inputs = _inputs(rng, special=False, only_floats=True)
    found = ["x", "y", "z"]
    lines: dict[int, str] = {}
    for step in range(rng.randint(1, 7)):
        x, y = rng.choice(found[-3:]), rng.choice(found)
        lines[step] = rng.choice(
            (
                *(f"{x} + {y}", f"{x} * 0.7", f"{x} * {y}.sigmoid()", f"{x} - {y}", f"torch.tanh({x}) * {y}"),
                f"torch.{rng.choice(_SMOOTH)}({x}.clamp(-4, 4))",
                f"torch.{rng.choice(('log', 'log2', 'log1p', 'sqrt', 'rsqrt', 'log10'))}({x}.abs() + 0.5)",
                f"torch.nn.functional.{rng.choice(_FUNCTIONAL)}({x})",
                f"torch.lerp({x}, {x}.cos(), {rng.choice((0.3, 0.8))})",
                f"torch.addcmul({x}, {x}, {x}, value=0.1).clamp(-9, 9)",
                f"({x}.abs() + 0.5) ** {rng.choice((1.7, -0.5, 0.3, 2.5))}",
            )
        )
        found.append(f"v{step}")
    return Program(lines, _results(rng, len(lines)), inputs)


def _results(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(sorted({count - 1, *(rng.randrange(count) for _ in range(rng.choice((0, 0, 1, 2))))}))


def first_difference(got: Tensor, expected: Tensor) -> str | None:
    """Where two tensors differ in dtype, shape or bits (of NaN every bit pattern is the same); None nowhere."""
    if got.dtype is not expected.dtype or got.shape != expected.shape:
        return f"{got.dtype}{list(got.shape)} instead of {expected.dtype}{list(expected.shape)}"
    wrong = got != expected
    if got.is_floating_point():
        bits = _BITS[got.element_size()]
        wrong = got.contiguous().view(bits) != expected.contiguous().view(bits)
        wrong &= ~(got.isnan() & expected.isnan())
    if not wrong.any():
        return None
    where = wrong.nonzero()[0].tolist()
    return (
        f"{int(wrong.sum())} of {wrong.numel()} differ, at {where}: {got[tuple(where)].item()!r} "
        f"instead of {expected[tuple(where)].item()!r}"
    )
