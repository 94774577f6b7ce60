"""Texts of graphs tell apart what JSON of them tells apart, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from compiled_parts import Seen, compile_all, seen
from graphkit import record
from torch import fx

from lampwork.compiled import transformed
from lampwork.errors import SerialError
from lampwork.graph.concrete import scope_of
from lampwork.graph.copying import copy_graph
from lampwork.graph.spec import TensorSpec
from lampwork.serial import graph_to_json, to_text
from lampwork.serial.graph_texts import graph_text
from lampwork.serial.graphs import FLAGS, META, NAMES, OF_OUTPUT, SPECS

_ = seen
aten = torch.ops.aten


@pytest.fixture
def graphs(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> list[fx.Graph]:
    """Graphs as they were captured, halves of training steps, and what passes made of them."""
    found: list[fx.Graph] = []
    run = transformed.run_passes

    def noted(graph: Any, *given: Any, **named: Any) -> Any:
        found.append(copy_graph(graph))
        return run(graph, *given, **named)

    monkeypatch.setattr(transformed, "run_passes", noted)
    compile_all()
    compile_all(dynamic=True)
    return [*found, *seen.graphs]


def written(graph: fx.Graph) -> bytes:
    return to_text(graph_to_json(graph)["nodes"])


def test_one_text_for_one_graph(graphs: list[fx.Graph]) -> None:
    texts: dict[bytes, str] = {}
    for graph in graphs:
        found = graph_text(graph)
        assert texts.setdefault(written(graph), found.nodes) == found.nodes
        assert graph_text(copy_graph(graph)).nodes == found.nodes
        assert found.scope is scope_of(graph)
    assert len(texts) > 20 and len(set(texts.values())) == len(texts)
    assert {graph_text(graph).scope is None for graph in graphs} == {True, False}


NUMBERS = [0, 1, 1.0, True, -0.0, 0.0, float("inf"), float("nan"), -float("nan"), None, 2 + 1j, 1 << 40]
TEXTS = ["1", "a, b", "None", "%0", '"', "é"]
OF_TORCH = [torch.float32, torch.device("cpu"), torch.strided, torch.channels_last]
NESTED = [[], (), [1], (1,), [[1]], [1, 2], ["1, 2"], [1.0], [True], (0, None, 1)]
SLICES = [slice(None), slice(0, None, 1)]
OTHERS: list[Any] = [*NUMBERS, *TEXTS, *OF_TORCH, *NESTED, *SLICES]


def of_argument(node: fx.Node, rng: random.Random) -> None:
    args = list(node.args)
    args.insert(rng.randrange(len(args) + 1), rng.choice(OTHERS))
    if rng.random() < 0.5 and len(args) > 1:
        args.pop(rng.randrange(len(args)))
    node.args = tuple(args)


def of_keyword(node: fx.Node, rng: random.Random) -> None:
    node.kwargs = {**node.kwargs, rng.choice(("dim", "alpha")): rng.choice(OTHERS)}


def of_inputs(node: fx.Node, rng: random.Random) -> None:
    earlier = list(node.graph.nodes)[: list(node.graph.nodes).index(node)]
    node.args = tuple(rng.choice(earlier) if type(arg) is fx.Node else arg for arg in node.args)


def of_target(node: fx.Node, rng: random.Random) -> None:
    node.target = rng.choice((aten.add.Tensor, aten.add.Scalar, aten.exp.default))


def of_spec(node: fx.Node, rng: random.Random) -> None:
    spec: Any = node.meta.get("val")
    if not isinstance(spec, TensorSpec):
        node.meta["val"] = rng.choice((None, (), (None,), (None, None), ((None,),)))
        return
    changes: list[dict[str, Any]] = [
        {"dtype": torch.int32},
        {"device": torch.device("cuda", 0)},
        {"requires_grad": not spec.requires_grad},
        {"shape": (*spec.shape, 1), "strides": (*spec.strides, 1)},
        {"shape": spec.strides, "strides": spec.shape},
    ]
    node.meta["val"] = replace(spec, **rng.choice(changes))


def of_meta(node: fx.Node, rng: random.Random) -> None:
    name = rng.choice((*FLAGS, *NAMES, *SPECS, OF_OUTPUT, "location", "recorded_as"))
    spec = TensorSpec((2,), (1,), torch.float32, torch.device("cpu"))
    values: dict[str, Any] = {
        **dict.fromkeys(FLAGS, rng.random() < 0.7),
        **dict.fromkeys(NAMES, rng.choice(("x", ("x",), ("x", "y")))),
        **dict.fromkeys(SPECS, rng.choice((spec, (spec,), None))),
        OF_OUTPUT: rng.choice((0, 1)),
        "location": None,
        "recorded_as": "z",
    }
    node.meta[name] = values[name]


CHANGES: list[Callable[[fx.Node, random.Random], None]] = [
    of_argument,
    of_keyword,
    of_inputs,
    of_target,
    of_spec,
    of_meta,
]


def test_what_json_tells_apart(graphs: list[fx.Graph]) -> None:
    """One or two changes of one node each; what comes of them is compared with what came of others."""
    rng = random.Random(0)
    changed = 0
    for graph in graphs:
        texts: dict[bytes, str] = {}
        for _ in range(40):
            near = copy_graph(graph)
            calls = [node for node in near.nodes if node.op == "call_function"]
            if not calls:
                continue
            node = calls[rng.randrange(min(3, len(calls)))]
            for _ in range(rng.choice((1, 2))):
                rng.choice(CHANGES)(node, rng)
            text = graph_text(near).nodes
            assert texts.setdefault(written(near), text) == text
            changed += 1
        assert len(set(texts.values())) == len(texts)
    assert changed > 1000


def test_all_that_is_written() -> None:
    """Each kind of meta data makes a difference."""
    graph = record(lambda x: x.relu(), torch.ones(3))
    node = next(node for node in graph.nodes if node.op == "call_function")
    before = graph_text(graph).nodes
    for name in META - {"val"}:
        value: Any = {**dict.fromkeys(SPECS, node.meta["val"]), OF_OUTPUT: 1}.get(name, "x")
        node.meta[name] = value
        assert graph_text(graph).nodes != before, name
        del node.meta[name]
    assert graph_text(graph).nodes == before


def test_what_has_no_form() -> None:
    graph = record(lambda x: x.relu(), torch.ones(3))
    node = next(node for node in graph.nodes if node.op == "call_function")
    node.args = (*node.args, object())
    with pytest.raises(SerialError, match=r"relu: a builtins\.object has no serial form"):
        graph_text(graph)
