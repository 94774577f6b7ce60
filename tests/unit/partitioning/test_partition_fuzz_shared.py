"""Random graphs with views, expansions, windows and results that share memory, each node given at random to one of two
backends or to the rest: native or eager. Eager's values, strides and gradients, in inference and in training."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import lampwork
from lampwork.graph.interpret import run_graph

SIDE = 4
LAYOUTS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda t: t,
    lambda t: t.contiguous().clone(),
    lambda t: t.mT.contiguous().mT if t.dim() > 1 else t.clone(),
    lambda t: torch.stack([t, t], -1)[..., 1],
)
# All of 4 x 4 to 4 x 4; those that are not exact are left out, so that results are eager's in every bit.
STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a, b: -a,
    "abs": lambda a, b: a.abs(),
    "relu": lambda a, b: torch.relu(a),
    "where": lambda a, b: torch.where(a > b, a, b * 0.5),
    "t": lambda a, b: a.t(),
    "view": lambda a, b: a.reshape(-1).view(2, 8).view(SIDE, SIDE),
    "slice": lambda a, b: torch.cat([a[1:], b[:1]]),
    "flat": lambda a, b: a.permute(1, 0).flatten().unflatten(0, (SIDE, SIDE)),
    "row": lambda a, b: a[:1].expand(SIDE, SIDE),
    "column": lambda a, b: a[:, 2:3].expand(-1, SIDE),
    "one": lambda a, b: a[1, 2].expand(SIDE, SIDE),
    "windows": lambda a, b: a.reshape(-1)[: 2 * SIDE - 1].unfold(0, SIDE, 1),
    "split": lambda a, b: torch.cat(b.split(2, 1)[::-1], 1),
}


VIEWS = ["t", "view", "row", "column", "one", "windows"]


class Some:
    """Takes the nodes whose names it draws, and lays out its results by chance."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.seed = name, seed

    def supports(self, node: Any) -> bool:
        return random.Random(f"{node.name} {self.name} {self.seed}").random() < 0.4

    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        rng = random.Random(f"{self.seed} {graph}")
        lays = [rng.choice(LAYOUTS) for _ in range(64)]

        def run(*tensors: Tensor) -> Sequence[Tensor]:
            return [lay(result) for lay, result in zip(lays, run_graph(graph, tensors), strict=False)]

        return run


def program_of(seed: int) -> Any:
    """A function of two arguments and a weight."""
    rng = random.Random(seed)
    steps: list[tuple[str, int, int]] = []
    for known in range(3, 3 + rng.randint(4, 10)):
        # What comes late reads what came late, so that parts depend on each other; views are read often.
        left = max(rng.randrange(known), rng.randrange(known))
        steps.append((rng.choice(VIEWS if known < 6 else [*STEPS]), left, rng.randrange(known)))
    wanted = [rng.choice([3, 4, 5]), rng.randrange(3 + len(steps)), 3 + len(steps) // 2, 2 + len(steps)]

    def program(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        pool = [x, y, w]
        for name, i, j in steps:
            pool.append(STEPS[name](pool[i], pool[j]))
        return tuple(pool[i] for i in wanted)

    return program


def whole_numbers(*shape: int) -> Tensor:
    return torch.randint(-4, 5, shape).float()


def same(got: Sequence[Tensor], want: Sequence[Tensor], seed: int) -> None:
    for number, (one, other) in enumerate(zip(got, want, strict=True)):
        assert torch.equal(one, other), f"seed {seed}, result {number}"
        assert one.stride() == other.stride(), f"seed {seed}, result {number}"


COUNT = int(os.environ.get("LAMPWORK_FUZZ", "8"))


@pytest.mark.parametrize("rest", ["native", "eager"])
@pytest.mark.parametrize("seed", range(COUNT))
def test_inference(seed: int, rest: str) -> None:
    program, weight = program_of(seed), whole_numbers(SIDE, SIDE)
    backends: list[Any] = [Some("one", seed), Some("two", seed), rest]
    compiled = lampwork.compile(lambda x, y: program(x, y, weight), backend=backends, fullgraph=True)
    for call in range(4):
        x, y = whole_numbers(SIDE, SIDE), whole_numbers(SIDE, SIDE)
        if call == 2:
            weight.add_(1)
        got, want = compiled(x, y), program(x, y, weight)
        same(got, want, seed)
        memory = [
            [t.untyped_storage().data_ptr() for t in (*results, x, y, weight)] for results in (got, want)
        ]
        assert len({*zip(*memory, strict=True)}) == len({*memory[0]}) == len({*memory[1]}), f"seed {seed}"


@pytest.mark.parametrize("rest", ["native", "eager"])
@pytest.mark.parametrize("seed", range(COUNT))
def test_training(seed: int, rest: str) -> None:
    program, weight = program_of(seed), whole_numbers(SIDE, SIDE).requires_grad_()
    backends: list[Any] = [Some("one", seed), Some("two", seed), rest]
    compiled = lampwork.compile(lambda x, y: program(x, y, weight), backend=backends, fullgraph=True)
    for _ in range(4):
        x, y = whole_numbers(SIDE, SIDE).requires_grad_(), whole_numbers(SIDE, SIDE)
        pairs: list[list[Tensor]] = []
        results = compiled(x, y), program(x, y, weight)
        same(*results, seed)
        cotangents = [whole_numbers(*result.shape) for result in results[0]]
        for outputs in results:
            roots = [(t, c) for t, c in zip(outputs, cotangents, strict=True) if t.requires_grad]
            if not roots:
                return
            tensors, given = zip(*roots, strict=True)
            found = torch.autograd.grad(tensors, [x, weight], given, allow_unused=True)
            pairs.append([torch.zeros(1) if g is None else g for g in found])
        for one, other in zip(*pairs, strict=True):
            assert torch.equal(one, other), f"seed {seed}"
