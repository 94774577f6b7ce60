"""Turns of backends: few, in order; clusters, costs, smallest parts, and nonsense answers."""

from __future__ import annotations

import random

import pytest
import torch
from graphkit import record

from lampwork.backends.protocol import Traits
from lampwork.errors import BackendAnswerError, OptionError
from lampwork.graph.interpret import run_graph
from lampwork.partitioning import partition
from lampwork.verdict import No, Yes

aten = torch.ops.aten
X = torch.randn(4, 4)


class For:
    """A backend for the operators of the given names."""

    def __init__(self, name, *ops, **attributes):
        self.name = name
        self.ops = ops
        for key, value in attributes.items():
            setattr(self, key, value)

    def supports(self, node):
        return Yes() if node.target.overloadpacket in self.ops else No("another op")

    def compile(self, graph, example_inputs, options):
        return lambda *tensors: run_graph(graph, tensors)


def parts_of(fn, backends, *inputs):
    return [
        (part.backend.name, [n.name for n in part.nodes]) for part in partition(record(fn, *inputs), backends)
    ]


def test_independent_branches_share_parts() -> None:
    def fn(x):
        left = x.exp().cumsum(0).exp()
        right = x.cos().exp().cumsum(0).exp()
        return left + right

    parts = parts_of(fn, [For("a", aten.exp, aten.cos, aten.add)], X)
    assert [name for name, _ in parts] == ["a", "eager", "a"]
    assert parts[1][1] == ["cumsum", "cumsum_1"]


def test_the_better_of_two_starts() -> None:
    # Starting with a makes a, eager, a; starting with eager: eager, a.
    parts = parts_of(lambda x: x.exp() + x.cumsum(0), [For("a", aten.exp, aten.add)], X)
    assert parts == [("eager", ["cumsum"]), ("a", ["exp", "add"])]


@pytest.mark.parametrize("seed", range(8))
def test_two_backends_take_as_few_turns_as_there_can_be(seed: int) -> None:
    rng = random.Random(seed)

    def fn(x):
        pool = [x]
        for _ in range(30):
            op = rng.choice([torch.exp, torch.cos])
            pool.append(op(rng.choice(pool[-5:])))
        return tuple(pool)

    graph = record(fn, X)
    parts = partition(graph, [For("a", aten.exp)])
    # The longest alternation on any path, and one more if both sorts start one of that length.
    depth: dict = {}
    for node in graph.nodes:
        if node.op == "call_function":
            inputs = [depth[n] + (n.target != node.target) for n in node.all_input_nodes if n in depth]
            depth[node] = max(inputs, default=1)
    assert len(parts) - max(depth.values()) in (0, 1)


@pytest.mark.parametrize("seed", range(6))
def test_parts_of_three_backends_run_in_order(seed: int) -> None:
    rng = random.Random(seed)

    def fn(x):
        pool = [x]
        for _ in range(40):
            left, right = rng.choice(pool[-6:]), rng.choice(pool[-6:])
            pool.append(rng.choice([torch.exp, torch.cos, torch.neg, torch.sin])(left) + right)
        return tuple(pool)

    backends = [For("a", aten.exp), For("b", aten.cos, aten.add), For("c", aten.neg)]
    graph = record(fn, X)
    done: set = {n for n in graph.nodes if n.op == "placeholder"}
    for part in partition(graph, backends):
        inside = set(part.nodes)
        for node in part.nodes:
            assert all(needed in done or needed in inside for needed in node.all_input_nodes)
        done |= inside
    assert done == {n for n in graph.nodes if n.op != "output"}


class Clustered(For):
    """Wants each division with the product that it divides, and takes nothing else."""

    def supports(self, node):
        return No("in a cluster only")

    def clusters(self, graph):
        for node in graph.nodes:
            if node.target is aten.div.Tensor and node.args[0].target is aten.matmul.default:
                yield [node.args[0], node]


def test_a_cluster_is_taken_together() -> None:
    def fn(x):
        return (x @ x) / 2 + (x @ x).cumsum(0) / 3

    (first,) = [nodes for name, nodes in parts_of(fn, [Clustered("a")], X) if name == "a"]
    assert first == ["matmul", "div"]


def test_a_cluster_that_a_path_leaves_and_enters_again_is_not_taken() -> None:
    class Around(For):
        def supports(self, node):
            return No("in a cluster only")

        def clusters(self, graph):
            return [[n for n in graph.nodes if n.target in (aten.exp.default, aten.add.Tensor)]]

    def fn(x):
        y = x.exp()
        return y.cumsum(0) + y

    assert {name for name, _ in parts_of(fn, [Around("a")], X)} == {"eager"}


def test_a_cluster_with_a_node_of_an_earlier_backend_is_not_taken() -> None:
    parts = parts_of(lambda x: (x @ x) / 2, [For("first", aten.div), Clustered("a")], X)
    assert [name for name, _ in parts] == ["eager", "first"]


def test_small_parts_go_to_the_next_backend() -> None:
    def fn(x):
        return x.exp().cos().cumsum(0).exp()

    a, b = For("a", aten.exp, aten.cos, min_block_size=2), For("b", aten.exp)
    assert parts_of(fn, [a, b], X) == [("a", ["exp", "cos"]), ("eager", ["cumsum"]), ("b", ["exp_1"])]
    a.min_block_size = 3
    assert parts_of(fn, [a], X) == [("eager", ["exp", "cos", "cumsum", "exp_1"])]


def test_the_cheaper_of_two_backends_wins() -> None:
    a = For("a", aten.exp, aten.cos, cost=lambda nodes: 3.0 * len(nodes))
    b = For("b", aten.exp, aten.cos, cost=lambda nodes: 4.0)
    # One by one they cost less with a, together with b.
    assert parts_of(lambda x: x.exp().cos(), [a, b], X) == [("b", ["exp", "cos"])]
    assert parts_of(lambda x: x.exp().cumsum(0), [a, b], X)[0] == ("a", ["exp"])
    assert parts_of(lambda x: x.exp().cumsum(0), [b, a], X)[0] == ("a", ["exp"])
    free = For("free", aten.exp)
    assert parts_of(lambda x: x.exp(), [free, b], X) == [("free", ["exp"])]


@pytest.mark.parametrize(
    "attributes, message",
    [
        ({"supports": lambda node: None}, "backend a: supports returned NoneType, expected lampwork.Yes"),
        ({"supports": lambda node: 1 / 0}, "backend a: supports raised ZeroDivisionError: division by zero"),
        ({"clusters": lambda graph: [[3]]}, "backend a: clusters named 3, which is none of the nodes"),
        ({"clusters": lambda graph: 1 / 0}, "backend a: clusters raised ZeroDivisionError"),
        ({"cost": lambda nodes: -1.0}, "backend a: cost returned -1.0, expected seconds for node exp"),
        ({"cost": lambda nodes: "1 s"}, "backend a: cost returned '1 s', expected seconds for node exp"),
        ({"cost": lambda nodes: 1 / 0}, "backend a: cost raised ZeroDivisionError"),
    ],
)
def test_nonsense_is_reported_once_and_counts_as_a_refusal(attributes, message) -> None:
    backends = [For("a", aten.exp, aten.cos, **attributes), For("b", aten.exp, cost=lambda nodes: 1.0)]
    graph = record(lambda x: (x.exp(), x.exp(), x.cumsum(0)), X)
    with pytest.raises(BackendAnswerError) as caught:
        partition(graph, backends)
    assert caught.value.code == "LW415"
    found: list = []
    parts = partition(graph, backends, lambda error, instead, calling=False: found.append(error))
    assert len(found) == 1
    assert found[0].cause.startswith(message)
    assert {p.backend.name for p in parts} <= {"a", "b", "eager"}


@pytest.mark.parametrize(
    "attributes, message",
    [
        ({"min_block_size": 0}, "min_block_size is 0"),
        ({"min_block_size": "2"}, "min_block_size is '2'"),
        ({"bakes_weights": 1}, "bakes_weights is 1"),
        ({"cost": 3}, "cost is 3"),
        ({"prepare": 3}, "prepare is 3"),
        ({"keep_ops": "gelu"}, "keep_ops is 'gelu'"),
        ({"keep_ops": [3]}, "keep_ops: 3 is no operator"),
    ],
)
def test_attributes_are_checked(attributes, message) -> None:
    with pytest.raises(OptionError, match=message):
        Traits.of(For("a", **attributes))


def test_keep_ops_takes_packets() -> None:
    kept = Traits.of(For("a", keep_ops=[aten.gelu, aten.add.Tensor])).keep_ops
    assert aten.gelu.default in kept and aten.add.Tensor in kept and aten.add.Scalar not in kept
