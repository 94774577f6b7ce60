"""Nodes are made as torch makes them, but for its look at the arguments."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch.utils import _pytree as pytree

from lampwork.graph.nodes import add_call, copy_node
from lampwork.graph.origin import NOWHERE

aten = torch.ops.aten


def test_a_node_is_what_torch_makes_of_the_same_arguments(monkeypatch: pytest.MonkeyPatch):
    graph = fx.Graph()
    x = graph.placeholder("x")
    cases = (
        (aten.convolution.default, (x, x, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1), {}),
        (aten.cat.default, ([x, x], -1), {}),
        (aten.add.Tensor, (x, 2.5), {"alpha": x}),
        (aten.rand.default, (), {"size": [2, 3]}),
    )
    expected = [graph.create_node("call_function", op, args, kwargs, "y") for op, args, kwargs in cases]
    monkeypatch.setattr(pytree, "tree_iter", None)  # torch's look at the arguments would call it
    made = [add_call(graph, op, args, kwargs, "y", NOWHERE) for op, args, kwargs in cases]
    copied = [copy_node(graph, node, {x: x}.__getitem__) for node in expected]
    for node, twin, copy in zip(expected, made, copied, strict=True):
        for each in (twin, copy):
            assert (each.op, each.target, each.args, each.kwargs) == (
                node.op,
                node.target,
                node.args,
                node.kwargs,
            )
            assert each.all_input_nodes == node.all_input_nodes
            assert all(each in used.users for used in each.all_input_nodes)
    assert [node.name for node in made] == ["y_4", "y_5", "y_6", "y_7"]
    assert copied[0].meta == {} and copied[0].meta is not expected[0].meta
