"""Random programs with views, writes and results that share memory, divided at random between backends that copy, share
and reuse memory: values, strides and what can be seen of shared memory are eager's."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import lampwork
from lampwork.graph.interpret import run_graph

UNARY = [torch.exp, torch.cos, torch.neg, torch.abs, torch.sigmoid]
BINARY = [torch.add, torch.mul, torch.sub]


class Some:
    """Takes some operators; `manner` is how its results lie in memory."""

    def __init__(self, name: str, seed: int, manner: str) -> None:
        self.name, self.manner = name, manner
        self.seed = seed

    def supports(self, node: Any) -> bool:
        return random.Random(f"{node.target} {self.seed}").random() < 0.5

    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        buffers: list[Tensor] = []

        def run(*tensors: Tensor) -> Sequence[Tensor]:
            results = run_graph(graph, tensors)
            if self.manner == "copies":
                return [result.contiguous().clone() for result in results]
            if self.manner == "reuses":
                if not buffers:
                    buffers.extend(torch.empty_like(result) for result in results)
                return [buffer.copy_(result) for buffer, result in zip(buffers, results, strict=True)]
            return results

        return run


def program_of(seed: int) -> Any:
    """A function of two arguments and a weight, all of 4 x 4; what it does is chosen before it is captured."""
    rng = random.Random(seed)
    steps: list[tuple[Any, int, int]] = []
    for known in range(3, 3 + rng.randint(4, 14)):
        kind = rng.choices([_unary, _binary, Tensor.t, Tensor.contiguous, _view, _write, _row, _half], k=1)[0]
        op = {_unary: rng.choice(UNARY), _binary: rng.choice(BINARY)}.get(kind)
        steps.append(((kind, op), rng.randrange(known), rng.randrange(known)))
    wanted = [rng.randrange(3 + len(steps)) for _ in range(rng.randint(1, 4))]

    def program(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        pool = [x, y, w]
        for (kind, op), i, j in steps:
            if kind is _unary:
                made = op(pool[i].clamp(-2, 2))
            elif kind is _binary:
                made = op(pool[i], pool[j])
            elif kind is _write:
                made = pool[i % 2]
                made.mul_(0.5)
            elif kind is _row:
                made = pool[i % 2]
                made[j % 4].add_(1)
            else:
                made = kind(pool[i])
            pool.append(made)
        return tuple(pool[i] for i in wanted)

    return program


def _unary() -> None: ...
def _binary() -> None: ...
def _write() -> None: ...
def _row() -> None: ...


def _view(tensor: Tensor) -> Tensor:
    return tensor.view_as(tensor)


def _half(tensor: Tensor) -> Tensor:
    return tensor.split(2)[0].repeat(2, 1)


def shared(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    """The pairs that lie in one memory."""
    memory = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [(i, j) for i in range(len(memory)) for j in range(i) if memory[i] == memory[j]]


@pytest.mark.parametrize("manner", ["as it comes", "copies", "reuses"])
@pytest.mark.parametrize("seed", range(int(os.environ.get("LAMPWORK_FUZZ", "15"))))
def test_random_programs(seed: int, manner: str) -> None:
    program, weight = program_of(seed), torch.randn(4, 4)
    backends: list[Any] = [Some("one", seed, manner), Some("two", seed + 1000, "copies")]
    if seed % 2:
        backends.append("native")
    compiled = lampwork.compile(lambda x, y: program(x, y, weight), backend=backends, fullgraph=True)
    kept: list[tuple[Sequence[Tensor], Sequence[Tensor]]] = []
    for call in range(4):
        mine = [torch.randn(4, 4) for _ in range(2)]
        theirs = [tensor.clone() for tensor in mine]
        if call == 2:
            weight.add_(1)
        results, expected = compiled(*mine), program(*theirs, weight)
        kept.append((results, [tensor.clone() for tensor in expected]))
        for got, want in zip((*results, *mine), (*expected, *theirs), strict=True):
            torch.testing.assert_close(got, want, msg=lambda text: f"seed {seed}: {text}")
            assert got.stride() == want.stride(), f"seed {seed}"
        pairs = shared((*results, *mine, weight)), shared((*expected, *theirs, weight))
        assert pairs[0] == pairs[1], f"seed {seed}"
    for results, expected in kept:
        for got, want in zip(results, expected, strict=True):
            if got.untyped_storage().data_ptr() != weight.untyped_storage().data_ptr():
                torch.testing.assert_close(got, want, msg=lambda text: f"seed {seed}, later: {text}")
