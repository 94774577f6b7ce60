"""Printing, Python source, hashing, verifying and interpreting of graphs."""

from __future__ import annotations

import gc
import math
import textwrap
import weakref
from collections.abc import Callable
from operator import getitem
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from recording import record
from torch import fx

from lampwork.errors import InvalidGraphError, Location, RuntimeFailure
from lampwork.graph.compiled_masks import COMPILED_ONLY
from lampwork.graph.hashing import structural_hash
from lampwork.graph.interpret import run_graph
from lampwork.graph.origin import Origin, Place
from lampwork.graph.printing import format_graph, to_python
from lampwork.graph.record import Recorder
from lampwork.graph.spec import TensorSpec
from lampwork.graph.verify import verify

aten = torch.ops.aten
X = torch.arange(32.0).reshape(4, 8)


def program(x: torch.Tensor) -> Any:
    y = F.dropout(torch.cat([x, x.t().reshape(4, 8)], 1), 0.5)
    values, places = y.to(torch.float64).topk(2)
    x.masked_fill_(x > 3, -math.inf)
    return values, places, torch.full((2,), math.nan), y.clone(memory_format=torch.contiguous_format)


def graph_of(fn: Callable[..., Any], *inputs: torch.Tensor) -> fx.Graph:
    return record(fn, inputs)[0].graph


# --- printing --------------------------------------------------------------------------------------------------------


def test_format_graph() -> None:
    weight = torch.ones(3, 8).t()

    def small(x: torch.Tensor) -> Any:
        return F.dropout(x @ weight, 0.1), x.view(2, 16).t()

    assert format_graph(graph_of(small, X)) == textwrap.dedent(
        """\
        %x0: float32[4, 8] = input
        %outside_0: float32[8, 3](1, 8) = bound
        %matmul: float32[4, 3] = aten.matmul.default(%x0, %outside_0)
        %dropout: float32[4, 3] = aten.dropout.default(%matmul, 0.1, True)  # random
        %view: float32[2, 16] = aten.view.default(%x0, [2, 16])
        %t: float32[16, 2](1, 16) = aten.t.default(%view)
        return (%dropout, %t)
        """
    )


def test_format_graph_is_stable() -> None:
    assert format_graph(graph_of(program, X)) == format_graph(graph_of(program, X))


def test_to_python_runs_and_gives_the_same() -> None:
    recorded, _ = record(program, [X])
    source = to_python(recorded.graph)
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    inputs = [X, *(b.tensor for b in recorded.bound)]
    torch.manual_seed(0)
    expected = run_graph(recorded.graph, inputs)
    torch.manual_seed(0)
    found = namespace["forward"](*inputs)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_to_python_avoids_shadowing() -> None:
    with Recorder() as rec:
        device, aten_ = rec.input(X, "device"), rec.input(X, "aten")
        y = torch.zeros(4, 8) + device + aten_
    namespace: dict[str, Any] = {}
    exec(to_python(rec.finish([y]).graph), namespace)
    assert torch.equal(namespace["forward"](X, X)[0], X + X)


# --- hashing ---------------------------------------------------------------------------------------------------------


def test_hash_ignores_names_and_places() -> None:
    def other(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).relu()

    one = graph_of(lambda x: (x + 1).relu(), X)
    with Recorder() as rec:
        rec.where = lambda: Place(Location("elsewhere.py", 3), Origin("layer", "Net", ()))
        y = other(rec.input(X, "another_name"))
    assert structural_hash(one) == structural_hash(rec.finish([y]).graph)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: (x + 2).relu(),
        lambda x: (x + 1.0).relu(),
        lambda x: (x + True).relu(),
        lambda x: (x - 1).relu(),
        lambda x: torch.relu(x) + 1,
        lambda x: ((x + 1).relu(), x),
        lambda x: torch.add(x, 1, alpha=1).relu().detach(),
        lambda x: torch.add(x, 1, alpha=2).relu(),
    ],
)
def test_hash_tells_graphs_apart(other: Callable[..., Any]) -> None:
    assert structural_hash(graph_of(lambda x: (x + 1).relu(), X)) != structural_hash(graph_of(other, X))


def test_hash_tells_apart_what_passes_look_at() -> None:
    graph = graph_of(lambda x: x + 1, X)
    before = structural_hash(graph)
    next(node for node in graph.nodes if node.op == "call_function").meta[COMPILED_ONLY] = True
    assert structural_hash(graph) != before


def test_hash_tells_specs_apart() -> None:
    inputs = [X, X.double(), X[:2], torch.randn(8, 4).t(), X.clone().requires_grad_()]
    assert len({structural_hash(graph_of(lambda x: x + 1, x)) for x in inputs}) == len(inputs)


# --- verifying -------------------------------------------------------------------------------------------------------


def small_graph() -> tuple[fx.Graph, fx.Node, fx.Node]:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = TensorSpec.of(X)
    y = graph.call_function(aten.relu.default, (x,))
    y.meta["val"] = TensorSpec.of(X)
    return graph, x, y


def test_verify_accepts_what_the_recorder_makes() -> None:
    verify(graph_of(program, X))


def break_output(graph: fx.Graph, x: fx.Node, y: fx.Node) -> None:
    graph.output(y)


def break_no_output(graph: fx.Graph, x: fx.Node, y: fx.Node) -> None:
    pass


def break_nested(graph: fx.Graph, x: fx.Node, y: fx.Node) -> None:
    graph.output(((y,),))


def break_constant(graph: fx.Graph, x: fx.Node, y: fx.Node) -> None:
    graph.output((y, 3))


def break_spec(graph: fx.Graph, x: fx.Node, y: fx.Node) -> None:
    del y.meta["val"]
    graph.output((y,))


def break_function(graph: fx.Graph, x: fx.Node, y: fx.Node) -> None:
    y.target = torch.relu
    graph.output((y,))


def break_mutation(graph: fx.Graph, x: fx.Node, y: fx.Node) -> None:
    y.target = aten.relu_.default
    graph.output((y,))


def break_order(graph: fx.Graph, x: fx.Node, y: fx.Node) -> None:
    y.append(x)
    graph.output((y,))


def break_late_placeholder(graph: fx.Graph, x: fx.Node, y: fx.Node) -> None:
    graph.placeholder("z").meta["val"] = TensorSpec.of(X)
    graph.output((y,))


def break_bound_order(graph: fx.Graph, x: fx.Node, y: fx.Node) -> None:
    with graph.inserting_before(x):
        z = graph.placeholder("z")
    z.meta.update(val=TensorSpec.of(X), bound=True)
    graph.output((y,))


def break_getitem(graph: fx.Graph, x: fx.Node, y: fx.Node) -> None:
    z = graph.call_function(getitem, (y, 0))
    z.meta["val"] = TensorSpec.of(X)
    graph.output((z,))


def break_attribute(graph: fx.Graph, x: fx.Node, y: fx.Node) -> None:
    graph.create_node("get_attr", "weight")
    graph.output((y,))


def break_arguments(graph: fx.Graph, x: fx.Node, y: fx.Node) -> None:
    y.kwargs = {"beta": 2}
    graph.output((y,))


BREAKS = [
    (break_output, "does not return a tuple"), (break_no_output, "no output node"), (break_nested, "which is no node"),
    (break_constant, "returns 3"), (break_spec, "has no TensorSpec"), (break_function, "which is no operator"),
    (break_mutation, "writes to its arguments"), (break_order, "does not come before it"),
    (break_late_placeholder, "behind the first operator"), (break_bound_order, "input behind a bound placeholder"),
    (break_getitem, "has one result"), (break_attribute, "is a get_attr"), (break_arguments, "'beta'"),
]  # fmt: skip


@pytest.mark.parametrize(("breaking", "message"), BREAKS, ids=[b[0].__name__ for b in BREAKS])
def test_verify_refuses(breaking: Callable[..., None], message: str) -> None:
    graph, x, y = small_graph()
    breaking(graph, x, y)
    with pytest.raises(InvalidGraphError, match=message):
        verify(graph)


def test_an_effect_may_write() -> None:
    graph, _, y = small_graph()
    y.target = aten.relu_.default
    y.meta["effect"] = True
    graph.output((y,))
    verify(graph)


# --- interpreting ----------------------------------------------------------------------------------------------------


def test_run_graph_counts_its_inputs() -> None:
    graph = graph_of(lambda x, y: x + y, X, X)
    with pytest.raises(RuntimeFailure, match="too few"):
        run_graph(graph, [X])
    with pytest.raises(RuntimeFailure, match="too many"):
        run_graph(graph, [X, X, X])


def test_run_graph_works_under_autograd() -> None:
    x = X.clone().requires_grad_()
    (loss,) = run_graph(graph_of(lambda x: (x.exp() * 0.1).sum(), x), [x])
    loss.backward()
    twin = X.clone().requires_grad_()
    (twin.exp() * 0.1).sum().backward()
    assert x.grad is not None and twin.grad is not None and torch.equal(x.grad, twin.grad)


def test_run_graph_frees_values_after_their_last_use() -> None:
    graph = graph_of(lambda x: ((x + 1) * 2).exp().sum(), X)
    alive: list[int] = []
    seen: list[weakref.ref[torch.Tensor]] = []

    def watch(node: fx.Node) -> None:
        real = node.target

        def call(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            seen.append(weakref.ref(result))
            gc.collect()
            alive.append(sum(ref() is not None for ref in seen))
            return result

        node.target = call

    for node in graph.nodes:
        if node.op == "call_function":
            watch(node)
    run_graph(graph, [X])
    assert max(alive) == 2
