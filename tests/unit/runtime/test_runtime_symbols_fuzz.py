"""Random regions with symbols: the C++ entry accepts and answers exactly what the Python reference does."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch
from regions import fits_call, run_recipe
from runtime_programs import make_region

from lampwork.capture.model.region import Arg, Guard, Recipe, Region, Step, Symbol, TensorGuard
from lampwork.graph.symbols import Condition
from lampwork.loops.ir.polynomial import Index, as_index
from lampwork.runtime import Compiled, make_entry

COUNT = int(os.environ.get("LAMPWORK_FUZZ", "150"))
MISS = object()


def random_tensor(rng: random.Random) -> torch.Tensor:
    shape = [rng.choice([0, 1, 2, 3, 4, 8]) for _ in range(rng.choice([1, 2, 2, 2, 3]))]
    tensor = torch.zeros(shape, dtype=rng.choice([torch.float32, torch.float32, torch.int64]))
    if rng.random() < 0.3:
        tensor = tensor.t() if tensor.dim() == 2 else tensor[::2]
    return tensor.requires_grad_() if tensor.is_floating_point() and rng.random() < 0.1 else tensor


def random_argument(rng: random.Random, like: Any = None) -> Any:
    if like is not None and rng.random() < 0.3:
        return like
    if isinstance(like, torch.Tensor) or (like is None and rng.random() < 0.6):
        return random_tensor(rng)
    return rng.choice([0, 1, 2, 3, 5, 8, -2, -7, 100, True, 2.0, None])


def random_index(rng: random.Random, names: list[str], depth: int = 2) -> Index:
    if depth == 0 or rng.random() < 0.3:
        return Index.sym(rng.choice(names)) if rng.random() < 0.8 else as_index(rng.randint(-4, 9))
    a, b = random_index(rng, names, depth - 1), random_index(rng, names, depth - 1)
    match rng.choice("++-*/%"):
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "/":
            return a // rng.randint(1, 5)
        case _:
            return a % rng.randint(1, 5)


def random_region(rng: random.Random, args: tuple[Any, ...]) -> Region:
    """A region that fits `args`, with some sizes, strides and ints left open."""
    guards: list[Guard] = []
    symbols: list[Symbol] = []
    for number, value in enumerate(args):
        source = Arg(number)
        if isinstance(value, torch.Tensor):
            kept: list[list[int | None]] = []
            for kind, numbers in (("size", value.shape), ("stride", value.stride())):
                openings = [rng.random() < 0.6 for _ in numbers]
                kept.append([None if left else n for n, left in zip(numbers, openings, strict=True)])
                for dim, left in enumerate(openings):
                    if left and rng.random() < 0.8:
                        symbols.append(
                            Symbol(f"s{len(symbols)}", source, kind, dim)  # pyright: ignore[reportArgumentType]
                        )
            sizes, strides = map(tuple, kept)
            expected = TensorGuard(
                torch.Tensor, value.dtype, value.device, sizes, strides, value.requires_grad
            )
            guards.append(Guard(source, "tensor", expected))
        elif type(value) is int and rng.random() < 0.8:
            symbols.append(Symbol(f"s{len(symbols)}", source, "int", negated=value < 0))
        else:
            guards.append(Guard(source, "equals", value))
    rng.shuffle(symbols)
    names = [symbol.name for symbol in symbols] or ["s0"]
    indices = [random_index(rng, names) for _ in range(3)] if symbols else []
    steps = [Step("symbol", index) for index in indices]
    steps.append(Step("tuple", args=tuple(range(len(steps)))))
    region = make_region((), tuple(guards), n_args=len(args), recipe=Recipe(tuple(steps), len(steps) - 1))
    region.symbols = tuple(symbols)
    conditions: list[Condition] = []
    for _ in range(rng.randint(0, 3) if symbols else 0):
        conditions.append(Condition(rng.choice(["==", "!=", ">=", ">="]), random_index(rng, names)))
    region.conditions = conditions
    return region


@pytest.mark.parametrize("seed", range(COUNT))
def test_fuzz_entries_with_symbols(seed: int) -> None:
    rng = random.Random(seed)
    args = tuple(random_argument(rng) for _ in range(rng.randint(1, 3)))
    region = random_region(rng, args)
    entry = make_entry(region, None)
    compiled = Compiled(lambda args, kwargs: MISS)
    compiled.add_entry(entry)
    for _ in range(40):
        call = tuple(random_argument(rng, like) for like in args)
        fits = fits_call(region, call, {})
        assert entry.matches(call, {}) is fits, f"seed {seed}: {region.symbols} {region.conditions} {call}"
        assert (entry.explain(call, {}) is None) is fits
        result = compiled(*call)
        assert (result is not MISS) is fits
        if fits:
            assert result == run_recipe(region, (), call, {}), f"seed {seed}"
