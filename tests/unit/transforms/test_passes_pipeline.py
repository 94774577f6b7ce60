"""The pipeline: order, switches, fuel, verification, records; whole networks and random programs through all passes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from graphkit import assert_equal, find, ops, record, run
from torch import fx

from lampwork.config import Config
from lampwork.errors import OptionError, PassError
from lampwork.graph.hashing import structural_hash
from lampwork.plugins.context import PassContext
from lampwork.transforms.pipeline import (
    check_switches,
    default_passes,
    format_records,
    run_passes,
    select_passes,
)

F = torch.nn.functional


def x34() -> torch.Tensor:
    return torch.linspace(-3, 3, 12, dtype=torch.float64).reshape(3, 4)


def test_records_say_what_each_pass_did() -> None:
    graph = record(lambda x: -(-(x.exp() * 1)) + (x + 1, x.cos())[1], x34())
    records = run_passes(graph, Config(verify=True))
    assert [r.name for r in records] == [p.name for p in default_passes()]
    assert ops(graph) == ["exp", "cos", "add"]
    assert next(r for r in records if r.name == "dead-code").rewrites == 1
    algebra = next(r for r in records if r.name == "algebra")
    assert (algebra.rewrites, algebra.nodes_before - algebra.nodes_after) == (2, 3)
    assert format_records(records).splitlines()[0].startswith("dead-code: 1 rewrites, 9 -> 8 nodes, ")


def test_passes_are_switched_by_name() -> None:
    assert all(p.name != "algebra" for p in select_passes("-algebra"))
    graph = record(lambda x: -(-x.exp()), x34())
    run_passes(graph, Config(passes="-algebra, -canonicalize"))
    assert ops(graph) == ["exp", "neg", "neg"]
    with pytest.raises(OptionError, match="no pass or rewrite is called 'algebre'"):
        check_switches("-algebre")
    with pytest.raises(OptionError, match="'algebra' has no sign"):
        select_passes("algebra")


def test_fuel_is_shared_by_all_passes() -> None:
    def program(x):
        return -(-(x.exp() * 1)) + (x.exp() + 0 * x, x.cos())[1].clone()

    full = PassContext()
    run_passes(record(program, x34()), ctx=full)
    total = full.hits.total()
    assert total > 4
    for fuel in range(total + 1):
        graph = record(program, x34())
        ctx = PassContext(fuel=fuel)
        run_passes(graph, Config(verify=True), ctx=ctx)
        assert ctx.hits.total() == fuel
        assert_equal(run(graph, x34()), [program(x34())])


def test_fuel_comes_from_the_configuration() -> None:
    graph = record(lambda x: -(-x.exp()), x34())
    run_passes(graph, Config(fuel=0))
    assert ops(graph) == ["exp", "neg", "neg"]


def test_a_pass_that_breaks_the_graph_is_named() -> None:
    @dataclass(frozen=True)
    class Vandal:
        name: ClassVar[str] = "vandal"

        def run(self, graph: fx.Graph, ctx: PassContext) -> None:
            del find(graph, "exp").meta["val"]

    graph = record(lambda x: x.exp(), x34())
    with pytest.raises(PassError, match="pass vandal left an invalid graph"):
        run_passes(graph, Config(verify=True), passes=[Vandal()])


def test_the_same_program_gives_the_same_graph() -> None:
    def program(x, w, b):
        return torch.softmax(F.linear(x, w.t(), b) * 1 / 8, -1), x.t().reshape(-1)

    graphs = []
    for _ in range(2):
        graph = record(
            program, x34(), bound=[torch.ones(4, 4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)]
        )
        run_passes(graph)
        graphs.append(graph)
    assert structural_hash(graphs[0]) == structural_hash(graphs[1])
    assert [n.name for n in graphs[0].nodes] == [n.name for n in graphs[1].nodes]


def test_passes_are_idempotent() -> None:
    def program(x, w, b):
        y = torch.addmm(b, x, w.t())
        return (y * 1).reshape(2, -1).transpose(0, 1).contiguous() / 4 + F.relu(F.relu(y)).sum()

    bound = [torch.ones(4, 4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)]
    graph = record(program, x34(), bound=bound)
    run_passes(graph)
    first = structural_hash(graph)
    records = run_passes(graph)
    assert structural_hash(graph) == first
    assert not any(r.rewrites for r in records), format_records(records)


UNARY = [
    lambda x: x * 1,
    lambda x: x + 0,
    lambda x: x - 0.0,
    lambda x: x / 1,
    lambda x: x / 4,
    lambda x: -x,
    lambda x: x.abs(),
    lambda x: x.relu(),
    lambda x: x**2 * 0.1,
    lambda x: x.clamp(-3, 3).exp(),
    lambda x: x.t(),
    lambda x: x.t().contiguous(),
    lambda x: x.reshape(-1).reshape(4, 4),
    lambda x: x.permute(1, 0).clone(),
    lambda x: x.view(2, 8) if x.is_contiguous() else x.reshape(2, 8),
    lambda x: x[:, :2].repeat(1, 2),
    lambda x: x[1:3],
    lambda x: x.unsqueeze(1).squeeze(1),
    lambda x: x.expand(4, 4) if x.shape == (4, 4) else x,
    lambda x: x.to(torch.float32).to(torch.float64),
    lambda x: x.to(torch.float64),
    lambda x: torch.where(x > 0, x, x),
    lambda x: torch.cat([x]),
    lambda x: x.flatten().unflatten(0, (4, -1)),
    lambda x: F.dropout(x, 0.3, False),
    lambda x: x.detach(),
    lambda x: x.softmax(-1),
    lambda x: torch.maximum(x, x),
    lambda x: x.sum(-1, keepdim=True).expand(x.shape),
]
BINARY = [torch.add, torch.sub, torch.mul, torch.maximum, lambda a, b: torch.where(a > b, a, b)]


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_keep_every_bit_stride_and_alias(seed: int) -> None:
    """Values, strides, dtypes, and which results share memory with an argument or with each other."""

    def program(x, y, w):
        rng = random.Random(seed)
        pool = [x, y, w]
        for _ in range(rng.randrange(4, 24)):
            if rng.random() < 0.7:
                value = rng.choice(UNARY)(rng.choice(pool))
            else:
                a, b = rng.choice(pool), rng.choice(pool)
                value = rng.choice(BINARY)(a, b) if a.shape == b.shape else a * 1
            pool.append(value if value.numel() == 16 else value.sum().expand(4, 4))
            if pool[-1].shape != (4, 4) and rng.random() < 0.7:
                pool.append(pool[-1].reshape(4, 4))
        return [rng.choice(pool) for _ in range(3)] + [pool[-1]]

    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(4, 4, dtype=torch.float64, generator=generator) for _ in range(3)]
    graph = record(program, *inputs[:2], bound=inputs[2:])
    unoptimized = run(graph, *inputs)
    run_passes(graph, Config(verify=True))
    optimized = run(graph, *inputs)
    assert_equal(optimized, unoptimized)
    assert sharing(optimized, inputs) == sharing(unoptimized, inputs)


def sharing(results, inputs):
    """For each pair among results and inputs: the same memory?"""
    pointers = [t.untyped_storage().data_ptr() for t in (*results, *inputs)]
    return [[a == b for b in pointers] for a in pointers]
