"""Partitions: convex, in order, complete; and what runs them."""

from __future__ import annotations

import operator
import random

import pytest
import torch
from graphkit import find, record
from torch import fx

from lampwork.backends.eager import EagerBackend
from lampwork.backends.protocol import CompileOptions
from lampwork.backends.registry import get_backend, list_backends, register_backend
from lampwork.capture.model.region import Arg, GlobalState, Recipe, Region
from lampwork.errors import BackendError, OptionError
from lampwork.graph.interpret import run_graph
from lampwork.graph.spec import TensorSpec
from lampwork.graph.verify import verify
from lampwork.partitioning import Chain, compile_parts, dry_run, format_partition, partition, subgraph
from lampwork.plugins.context import PassContext
from lampwork.transforms.split_constants import SplitConstants
from lampwork.verdict import No, Yes

aten = torch.ops.aten


class Takes:
    """A backend for some ops; it runs them eagerly and keeps the graphs it saw."""

    def __init__(self, name, *targets):
        self.name = name
        self.targets = targets
        self.graphs: list[fx.Graph] = []

    def supports(self, node):
        return Yes() if node.target in self.targets else No(f"only {len(self.targets)} ops")

    def compile(self, graph, example_inputs, options):
        verify(graph)
        self.graphs.append(graph)
        return lambda *tensors: run_graph(graph, tensors)


def names(parts):
    return [(p.backend.name, [n.name for n in p.nodes]) for p in parts]


def region_of(graph, n_inputs, bound=(), mutations=()):
    state = GlobalState.now()
    inputs = tuple(Arg(i) for i in range(n_inputs))
    bound_names = tuple(f"w{i}" for i in range(len(bound)))
    return Region(
        graph, inputs, tuple(bound), bound_names, (), state, Recipe((), 0), tuple(mutations), n_inputs, ()
    )


def test_alternating_backends_give_convex_parts() -> None:
    x = torch.randn(4, 4)
    graph = record(lambda x: (torch.cumsum(x.exp(), 0).exp() + x.exp()).relu(), x)
    a = Takes("a", aten.exp.default, aten.add.Tensor, aten.relu.default)
    parts = partition(graph, [a])
    assert names(parts) == [
        ("a", ["exp", "exp_1"]),
        ("eager", ["cumsum"]),
        ("a", ["exp_2", "add", "relu"]),
    ] or names(parts) == [
        ("a", ["exp", "exp_2"]),
        ("eager", ["cumsum"]),
        ("a", ["exp_1", "add", "relu"]),
    ]
    assert format_partition(parts).splitlines()[0] == "part 0: a, 2 nodes: exp x2"


def test_the_first_backend_that_takes_a_node_gets_it() -> None:
    x = torch.randn(4)
    graph = record(lambda x: x.exp().relu(), x)
    a, b = Takes("a", aten.relu.default), Takes("b", aten.relu.default, aten.exp.default)
    assert names(partition(graph, [a, b])) == [("b", ["exp"]), ("a", ["relu"])]
    assert names(partition(graph, [b, a])) == [("b", ["exp", "relu"])]


def test_results_of_one_op_stay_with_it() -> None:
    x = torch.randn(4, 4)
    graph = record(lambda x: torch.sort(x)[0].exp(), x)
    getitem = Takes("a", operator.getitem, aten.exp.default)
    assert names(partition(graph, [getitem]))[0] == ("eager", ["sort", "sort_0", "sort_1"])


def test_random_ops_keep_their_order_across_backends() -> None:
    graph = fx.Graph()
    spec = TensorSpec((3,), (1,), torch.float32, torch.device("cpu"))
    made = []
    for target in (aten.rand.default, aten.randn.default, aten.rand.default):
        node = graph.call_function(target, ([3],))
        node.meta.update(val=spec, random=True)
        made.append(node)
    graph.output(tuple(made))
    parts = partition(graph, [Takes("a", aten.rand.default)])
    assert names(parts) == [("a", ["rand_default"]), ("eager", ["randn_default"]), ("a", ["rand_default_1"])]


def test_a_graph_without_calls_is_one_empty_part() -> None:
    x = torch.randn(3)
    graph = record(lambda x: x, x)
    parts = partition(graph, [EagerBackend()])
    assert names(parts) == [("eager", [])]
    chain = compile_parts(parts, region_of(graph, 1))
    assert chain([x])[0] is x


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_run_right_in_any_partition(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    unary = [torch.exp, torch.relu, torch.neg, torch.sigmoid, torch.cos]

    def program(*tensors):
        pool = list(tensors)
        for _ in range(25):
            if rng.random() < 0.5:
                pool.append(rng.choice(unary)(rng.choice(pool)).clamp(-2, 2))
            else:
                pool.append(rng.choice(pool) * 0.5 - rng.choice(pool))
        return pool[-1], pool[rng.randrange(3, len(pool))], pool[-2]

    inputs = [torch.randn(3, 5, dtype=torch.float64) for _ in range(2)]
    bound = [torch.randn(3, 5, dtype=torch.float64)]
    graph = record(program, *inputs, bound=bound)
    SplitConstants().run(graph, PassContext())
    targets = sorted({n.target for n in graph.nodes if n.op == "call_function"}, key=str)
    a = Takes("a", *rng.sample(targets, len(targets) // 2))
    b = Takes("b", *rng.sample(targets, len(targets) // 2))
    parts = partition(graph, [a, b])
    seen = [n for p in parts for n in p.nodes]
    assert len(seen) == len(set(seen))
    assert set(seen) == {n for n in graph.nodes if n.op == "call_function" and not n.meta.get("constant")}
    expected = run_graph(graph, [*inputs, *bound])
    actual = compile_parts(parts, region_of(graph, 2, bound))(inputs)
    for left, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


@pytest.mark.parametrize("keeps", [False, True])
def test_constants_are_computed_once_by_us_or_by_the_backend_that_keeps_them(keeps: bool) -> None:
    x, w = torch.randn(3, 4), torch.randn(4, 4)
    graph = record(lambda x, w: torch.cumsum(x @ w.exp().t(), 0) * w.exp().t()[0], x, bound=[w])
    SplitConstants().run(graph, PassContext())
    a = Takes("a", aten.matmul.default, aten.mul.Tensor)
    a.keeps_constants = keeps
    chain = compile_parts(partition(graph, [a]), region_of(graph, 1, [w]))
    first = a.graphs[0]
    calls = [n.name for n in first.nodes if n.op == "call_function"]
    assert calls == (["exp", "t", "matmul"] if keeps else ["matmul"])
    assert not keeps or find(first, "exp").meta["constant"]
    assert [n.meta["bound"] for n in first.nodes if n.op == "placeholder"] == [False, True]
    for _ in range(2):
        torch.testing.assert_close(chain([x])[0], torch.cumsum(x @ w.exp().t(), 0) * w.exp().t()[0])
        w.mul_(0.5)


def test_mutations_are_written_back() -> None:
    x, y = torch.randn(3), torch.randn(3)
    graph = record(lambda x, y: ((x + y), (x + y).cumsum(0)), x, y)
    chain = compile_parts(partition(graph, [Takes("a", aten.add.Tensor)]), region_of(graph, 2, (), [(0, 1)]))
    assert isinstance(chain, Chain)
    before = x.clone()
    result = chain([x, y])
    torch.testing.assert_close(result[0], before + y)
    torch.testing.assert_close(x, (before + y).cumsum(0))


def test_subgraph_of_a_part() -> None:
    x, w = torch.randn(3), torch.randn(3)
    graph = record(lambda x, w: (x + w).exp().cumsum(0), x, bound=[w])
    part = partition(graph, [Takes("a", aten.add.Tensor, aten.exp.default)])[0]
    extracted, inputs, outputs = subgraph(part)
    verify(extracted)
    assert [n.name for n in inputs] == ["x0", "w0"] and [n.name for n in outputs] == ["exp"]


def test_dry_run_names_every_reason() -> None:
    x = torch.randn(4, 4)
    graph = record(lambda x: x.exp().cumsum(0).cumsum(1).exp(), x)
    text = dry_run(graph, [Takes("a", aten.exp.default)])
    assert text.splitlines() == [
        "a: 2 of 4 nodes",
        "eager: 2 of 4 nodes",
        "part 0: a, 1 nodes: exp",
        "part 1: eager, 2 nodes: cumsum x2",
        "part 2: a, 1 nodes: exp",
        "a did not take cumsum: only 1 ops, at cumsum (2 nodes)",
    ]


def test_a_failing_backend_is_named() -> None:
    class Broken(Takes):
        def compile(self, graph, example_inputs, options):
            raise ValueError("no such thing")

    x = torch.randn(3)
    graph = record(lambda x: x.exp(), x)
    with pytest.raises(BackendError, match="backend a failed: ValueError: no such thing"):
        compile_parts(partition(graph, [Broken("a", aten.exp.default)]), region_of(graph, 1))


def test_registry() -> None:
    assert {"eager", "native"} <= set(list_backends())
    assert get_backend("eager").name == "eager"
    mine = Takes("mine", aten.exp.default)
    register_backend(mine)
    assert get_backend("mine") is mine
    with pytest.raises(OptionError, match="did you mean 'native'"):
        get_backend("nativ")
    with pytest.raises(OptionError, match="is no backend"):
        register_backend(object())
    with pytest.raises(OptionError, match="no name"):
        register_backend(Takes("Mine!"))


def test_eager_backend_runs_a_graph() -> None:
    x = torch.randn(3)
    graph = record(lambda x: (x.exp(), x + 1), x)
    run = EagerBackend().compile(graph, (), CompileOptions())
    for left, right in zip(run(x), (x.exp(), x + 1), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


def test_native_and_eager_parts_in_one_program() -> None:
    x, w = torch.randn(8, 16), torch.randn(16, 16)
    mutation = torch.randn(8, 16)

    def program(x, m, w):
        y = (x @ w.t()).relu()
        return y.cumsum(0) * 2 + m, y

    graph = record(program, x, mutation, bound=[w])
    SplitConstants().run(graph, PassContext())

    class Some(Takes):
        def supports(self, node):
            return No("not mine") if node.target is aten.cumsum.default else Yes()

        def compile(self, graph, example_inputs, options):
            return get_backend("native").compile(graph, example_inputs, options)

    chain = compile_parts(partition(graph, [Some("some")]), region_of(graph, 2, [w], [(1, 1)]))
    expected = program(x, mutation, w)
    actual = chain([x, mutation])
    for left, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mutation, expected[1], rtol=1e-5, atol=1e-5)
