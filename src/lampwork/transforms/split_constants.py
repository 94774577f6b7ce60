"""The pass `split-constants`."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import torch
from torch import fx

from lampwork.graph.concrete import is_symbolic
from lampwork.graph.spec import TensorSpec
from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.apply.aliasing import escapes, storage_root
from lampwork.rewriting.matching.values import fill_value, is_constant
from lampwork.rewriting.schema import is_pinned

_GENERATED = (torch.ops.aten.arange.default, torch.ops.aten.arange.start, torch.ops.aten.arange.start_step)

_OF_PLACES = frozenset(
    overload
    for name in ("add", "sub", "le", "lt", "ge", "gt", "eq", "ne")
    for overload in (getattr(torch.ops.aten, name).Tensor, getattr(torch.ops.aten, name).Scalar)
) | {
    torch.ops.aten.bitwise_and.Tensor,
    torch.ops.aten.logical_and.default,
}


@record
class SplitConstants:
    """Mark what can be computed once per set of weights: `meta["constant"] = True` on each node that depends on bound
    placeholders, other constants and literals only.

    A node whose memory a result of the graph would share is not marked: the caller may write to it, or hold two of
    them. Nor is a node that is random, has an effect, or depends on symbolic sizes. Bound placeholders themselves are
    not marked. Tensors filled with a literal, and what compares places only (causal masks, windows), are marked only
    where a constant needs them.

    before:  %s = rsqrt(%running_var), %m = mul(%w, %s), %y = conv2d(%x, %m)
    after:   the same, %s and %m marked
    """

    name: ClassVar[str] = "split-constants"

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        shown = {storage_root(n) for n in graph.nodes if n.op == "call_function" and escapes(n)}
        for node in graph.nodes:
            node.meta.pop("constant", None)
            if node.op != "call_function" or is_pinned(node):
                continue
            root = storage_root(node)
            visible = escapes(node) if root.op == "placeholder" else root in shown
            if not visible and all(is_constant(i) for i in node.all_input_nodes) and not is_symbolic(node):
                node.meta["constant"] = True
        cheap: set[fx.Node] = set()
        for node in graph.nodes:
            if node.meta.get("constant") and (_is_cheap(node) or _compares_places(node, cheap)):
                cheap.add(node)
        for node in reversed(list(graph.nodes)):
            if node in cheap and not any(map(is_constant, node.users)):
                del node.meta["constant"]


def _is_cheap(node: fx.Node) -> bool:
    """Filled with a literal, or a view of such a tensor: a kernel uses the literal sooner than it reads memory."""
    root = storage_root(node)
    return root.target in _GENERATED or fill_value(root) is not None


def _compares_places(node: fx.Node, cheap: Collection[fx.Node]) -> bool:
    """Arithmetic on whole numbers that say where an element lies: what reads it may do without looking there."""
    spec = node.meta.get("val")
    whole = isinstance(spec, TensorSpec) and spec.dtype in (torch.bool, torch.int64)
    known = node.target in _OF_PLACES or storage_root(node) is not node
    return whole and known and all(operand in cheap for operand in node.all_input_nodes)
