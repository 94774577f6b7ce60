"""Programs that index and write through views: compiled as eager, errors included, and never out of their memory.

Each batch runs in a child of its own, so that an access outside of a buffer is a failure and not the end of the tests.
LAMPWORK_FUZZ=n tries n programs; a failure prints the seed.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest
import torch
from children import failure
from indexing_programs import Program, generate

import lampwork

COUNT = int(os.environ.get("LAMPWORK_FUZZ", "60"))
FIRST = int(os.environ.get("LAMPWORK_FUZZ_SEED", "0"))
BATCH = 20

# Found by the generator or by hand, one for each cause.
REFUSED = {
    "an index into an empty dimension": "out.append(w[:0][j])",
    "an embedding of an empty table": "out.append(F.embedding(j, w[:0]))",
    "a result without elements": "out.append(F.embedding(j + 100, w[:, :0]))",
    "an index whose element is cut off": "out.append(F.embedding(j + 100, w)[:0])",
    "an embedding that only its shape is read of": "out.append(torch.zeros_like(F.embedding(j + 100, w)))",
    "an unread embedding": "F.embedding(j + 100, w)",
    "an unread class": "F.one_hot(j.long() + 100, 3)",
    "an unread loss": "F.cross_entropy(w, j.long()[: w.shape[0]] + 100)",
    "an unread probability": "F.binary_cross_entropy(w * 100, w)",
    "an unread factor": "torch.linalg.cholesky(-w @ w.t())",
    "an unread division": "j // (j * 0)",
    "a shifted copy": "x[1:].copy_(x[:-1])",
    "a shifted sum": "x[1:] += x[:-1]",
    "a transposed operand": "x[:, :2][:2].add_(x[:, :2][:2].t())",
    "a target that overlaps itself": "y.as_strided((2, 2), (1, 1)).add_(1)",
    "a shifted result": "torch.add(x[1:], 1, out=x[:-1])",
    "rows over each other": "x[:, 1:].mul_(x[:, :-1])",
    "memory past the end": "out.append(x.as_strided((100,), (1,)))",
}


def outcome(function: Any, arguments: list[torch.Tensor]) -> tuple[str, list[Any]]:
    """("value", everything returned and the arguments afterwards), or the error."""
    flat: list[Any] = []

    def collect(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            flat.append((tuple(value.shape), value.dtype, value.detach().clone()))
        elif isinstance(value, list | tuple):
            for item in value:
                collect(item)

    try:
        collect(function(*arguments))
        kind = "value"
    except Exception as error:  # noqa: BLE001
        kind = f"{type(error).__name__}: {error}"
    collect(arguments)
    return kind, flat


def difference(program: Program) -> str:
    """What differs between eager and compiled; "" if nothing does."""
    torch.manual_seed(0)
    kind, expected = outcome(program.function(), program.inputs())
    state = torch.get_rng_state()
    torch.manual_seed(0)
    compiled = lampwork.compile(program.function())
    got_kind, got = outcome(compiled, program.inputs())
    if kind != got_kind:
        return f"eager: {kind}\ncompiled: {got_kind}"
    for number, (a, b) in enumerate(zip(expected, got, strict=True)):
        if a[:2] != b[:2] or not torch.allclose(a[2], b[2], rtol=1e-5, atol=1e-5, equal_nan=True):
            return f"value {number}\neager: {a}\ncompiled: {b}"
    return "" if torch.equal(state, torch.get_rng_state()) else "the generator is elsewhere"


def failing(programs: list[tuple[str, Program]]) -> str:
    """The first difference among the programs, or the one that ended the child."""
    return failure(
        [(f"{name}\n{program.source}", partial(difference, program)) for name, program in programs]
    )


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str) -> None:
    source = (
        f"def run(x, w, i, j):\n    y = x.clone()\n    out = []\n    {REFUSED[name]}\n    return x, y, out\n"
    )

    def inputs() -> list[torch.Tensor]:
        return [
            torch.arange(32.0).view(4, 8),
            torch.ones(3, 3),
            torch.tensor([0, 1]),
            torch.tensor([0, 1, 2]),
        ]

    assert not failing([(name, Program(source, inputs))])


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, BATCH))
def test_indexing_fuzz(first: int) -> None:
    programs = [(f"seed {seed}", generate(seed)) for seed in range(first, min(first + BATCH, FIRST + COUNT))]
    assert not failing(programs)
