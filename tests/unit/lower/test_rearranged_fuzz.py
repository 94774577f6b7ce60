"""Kernels that rearrange in registers, on random shapes, types and instruction sets: windows, small strides, transposed
and interleaved tiles, positions of the largest. Between pages without access, against eager, bit for bit."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from guarded_memory import run
from instruction_sets import INSTRUCTION_SETS
from lower_harness import record
from torch import Tensor

from lampwork.backends.native.compile import Artifacts, compile_program
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.codegen.target import Target
from lampwork.runtime.program import Program

ROUNDS = int(os.environ.get("LAMPWORK_FUZZ", "1")) * 24
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 65)
DTYPES = (
    torch.float32,
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.bool,
    torch.uint8,
)

Made = tuple[Callable[..., Any], list[Tensor]]


def _tensor(dice: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(dice.randrange(1 << 30)))
    if dtype == torch.bool:
        return numbers > 0
    if dtype == torch.uint8:
        numbers = numbers.abs()
    return (numbers * 8).round().to(dtype) if not dtype.is_floating_point else numbers.to(dtype)


def _transposed(dice: random.Random, dtype: torch.dtype) -> Made:
    x = _tensor(dice, (dice.choice((1, 3)), dice.choice(SIZES), dice.choice(SIZES)), dtype)
    return (lambda x: x.transpose(1, 2).contiguous()), [x]


def _transposed_sum(dice: random.Random, dtype: torch.dtype) -> Made:
    m, n = dice.choice(SIZES), dice.choice(SIZES)
    x, y = _tensor(dice, (m, n), dtype), _tensor(dice, (n, m), dtype)
    return (lambda x, y: x.t() ^ y if x.dtype == torch.bool else x.t() + y), [x, y]


def _stacked(dice: random.Random, dtype: torch.dtype) -> Made:
    n = dice.choice(SIZES) * dice.choice((1, 3))
    return (lambda *parts: torch.stack(parts, -1)), [
        _tensor(dice, (n,), dtype) for _ in range(dice.randint(2, 5))
    ]


def _strided(dice: random.Random, dtype: torch.dtype) -> Made:
    step, first = dice.randint(2, 5), dice.randint(0, 2)
    x = _tensor(dice, (dice.choice((1, 2)), first + 1 + step * dice.choice(SIZES)), dtype)
    return (lambda x: x[:, first::step].contiguous()), [x]


def _pooled(dice: random.Random, dtype: torch.dtype) -> Made:
    size = dice.randint(1, 5)
    given: dict[str, Any] = dict(
        kernel_size=size, stride=dice.randint(1, 3), padding=dice.randint(0, size // 2)
    )
    given["ceil_mode"] = dice.random() < 0.3
    shape = (1, dice.choice((1, 3)), *(dice.choice((5, 8, 17, 33, 64)) for _ in range(2)))
    x = _tensor(dice, shape, torch.float32)
    if dice.random() < 0.3:
        x.view(-1)[dice.randrange(x.numel())] = float("nan")
    if dice.random() < 0.5:
        return (lambda x: F.max_pool2d(x, **given)), [x]
    counts = dice.random() < 0.5
    return (lambda x: F.avg_pool2d(x, count_include_pad=counts, **given)), [x]


def _position(dice: random.Random, dtype: torch.dtype) -> Made:
    dtype = torch.int32 if dtype == torch.bool else dtype
    x = _tensor(dice, (dice.choice(SIZES), dice.choice(SIZES)), dtype)
    if dtype.is_floating_point:
        for special in dice.sample((float("nan"), float("-inf"), float("inf"), None, None), 2):
            if special is not None:
                x[torch.randint(0, x.shape[0], (2,)), torch.randint(0, x.shape[1], (2,))] = special
        if dice.random() < 0.2:
            x.fill_(float("-inf"))
    largest, dim = dice.random() < 0.5, dice.choice((0, 1, None))
    return (lambda x: x.argmax(dim) if largest else x.argmin(dim)), [x]


def _streamed(dice: random.Random, dtype: torch.dtype) -> Made:
    """A few operations on what lies side by side, and reductions of columns, of lengths around several vectors."""
    n = dice.choice((63, 64, 65, 255, 256, 257, 300, 1025))
    x, y = (_tensor(dice, (dice.choice((1, 3)), n), dtype) for _ in range(2))
    if dice.random() < 0.3:
        return (lambda x: x.amax(0)), [x]
    return (lambda x, y: (x ^ y) & ~x if x.dtype == torch.bool else x * 2 - y[:1]), [x, y]


KINDS = (_streamed, _transposed, _transposed_sum, _stacked, _strided, _pooled, _position)


def _checked(made: Made, target: Target, front: bool, what: str) -> None:
    fn, inputs = made
    recorded = record(fn, inputs, [])
    program = compile_program(recorded.graph, recorded.mutations, target, Artifacts())
    assert isinstance(program, Program)
    (got,) = run(program, inputs, [each.tensor for each in recorded.bound], front=front)
    wanted = fn(*inputs)
    near = 1e-6 if wanted.dtype == torch.float32 else 0
    torch.testing.assert_close(
        got, wanted, rtol=near, atol=near, equal_nan=True, msg=lambda m: f"{what}: {m}"
    )


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__[1:])
def test_rearranged(kind: Callable[[random.Random, torch.dtype], Made], isa: str) -> None:
    for number in range(ROUNDS // 4):
        seed = f"{kind.__name__} {number}"
        dice = random.Random(seed)
        _checked(kind(dice, dice.choice(DTYPES)), host_isa(isa), dice.random() < 0.5, f"{seed} {isa}")


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_results_past_the_caches(isa: str) -> None:
    """A machine whose caches are full at once: aligned or not, results are the same."""
    target = replace(host_isa(isa), stream_bytes=4)
    for number in range(6):
        dice = random.Random(number)
        size = dice.choice((64, 100, 333, 4096))
        x = _tensor(dice, (3, size), torch.float32)
        for fn in (lambda x: x + 1, lambda x: x.t().contiguous(), lambda x: torch.stack([x, -x], -1)):
            _checked((fn, [x]), target, dice.random() < 0.5, f"{number} {isa}")
