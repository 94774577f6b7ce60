"""A piece's graph as the rules of ONNX take it: sizes are numbers, and what depends on no input is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor, fx

from lampwork import pristine
from lampwork.exports.pieces import Piece, results_of
from lampwork.graph.concrete import concrete_graph
from lampwork.graph.interpret import compute
from lampwork.graph.opinfo import is_seeded
from lampwork.graph.reach import needed
from lampwork.graph.spec import TensorSpec
from lampwork.records import record
from lampwork.rewriting.schema import packet_name
from lampwork.standard import operator

_OF_SHAPE = ("new_ones", "new_zeros", "new_full", "ones_like", "zeros_like", "full_like")
"""Operators that look at the shape of a tensor only."""


@record(eq=False)
class Prepared:
    """`calls`: those that have to be written, in order. `known`: what the others give that they read."""

    graph: fx.Graph
    calls: tuple[fx.Node, ...]
    known: dict[fx.Node, Tensor]


def prepared(piece: Piece) -> Prepared:
    """A copy of a piece's graph for the sizes of the call that was captured.

    before:  %i = arange(4), %m = new_ones(%x, [4]), %c = cat([%empty, %x], 0), %y = index(%c, [%i])
    after:   %i and %m known, %c = cat([%x], 0), %y = index(%c, [%i])
    """
    graph = concrete_graph(piece.graph, piece.hints)
    results = results_of(graph)
    known: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if packet_name(node.target) == "cat":
            _drop_empty(node)
        if _is_known(node, known):
            known[node] = compute(node, {**known, **_stand_ins(node)})
    wanted = needed(results)
    calls = [
        node for node in graph.nodes if node.op == "call_function" and node in wanted and node not in known
    ]
    calls = [node for node in calls if node.target is not operator.getitem]
    return Prepared(graph, tuple(calls), {n: v for n, v in known.items() if isinstance(v, Tensor)})


def _is_known(node: fx.Node, known: dict[fx.Node, Any]) -> bool:
    if node.target is not operator.getitem and (is_seeded(node.target) or "effect" in node.meta):
        return False
    return packet_name(node.target) in _OF_SHAPE or all(each in known for each in node.all_input_nodes)


def _stand_ins(node: fx.Node) -> dict[fx.Node, Tensor]:
    """For operators that look at shapes only, tensors that have these, and no memory."""
    if packet_name(node.target) not in _OF_SHAPE:
        return {}
    specs = {each: cast(TensorSpec, each.meta["val"]) for each in node.all_input_nodes}
    return {each: pristine.zeros((), dtype=spec.dtype).expand(spec.shape) for each, spec in specs.items()}


def _drop_empty(node: fx.Node) -> None:
    """torch takes tensors of no elements and one dimension among those of any number of dimensions."""
    tensors = cast("Sequence[fx.Node]", node.args[0])
    kept = [each for each in tensors if tuple(each.meta["val"].shape) != (0,)]
    if kept and len(kept) < len(tensors):
        node.args = (kept, *node.args[1:])
