"""The pass `remove-noops`."""

from __future__ import annotations

from typing import ClassVar, cast

import torch
from torch import fx

from lampwork.graph.layouts import same_strides
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import same_sizes
from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.apply.aliasing import escapes, may_stand_for
from lampwork.rewriting.apply.edit import replace
from lampwork.rewriting.schema import bound_args, is_pinned, signature
from lampwork.verdict import No

aten = torch.ops.aten

# Their result is always the first argument's value.
_IDENTITIES = frozenset(
    {
        aten.alias.default,
        aten.lift.default,
        aten.lift_fresh.default,
        aten.lift_fresh_copy.default,
        aten.positive.default,
        aten.resolve_conj.default,
        aten.resolve_neg.default,
        aten.clone.default,
        aten.contiguous.default,
        aten.detach.default,
    }
)
# Their result is the first argument's value if shape, dtype and strides are.
_SHAPED = frozenset(
    {
        aten._to_copy.default,
        aten.view.default,
        aten.permute.default,
        aten.expand.default,
        aten.slice.Tensor,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
    }
)
_WITHOUT_TRAINING = frozenset(
    {aten.dropout.default, aten.feature_dropout.default, aten.alpha_dropout.default}
)


@record
class RemoveNoops:
    """Drop ops that give back what they get: copies, casts to the same dtype, views of the same shape, dropout outside
    of training. What the caller could tell apart stays: a result that is a copy remains one.

    This is the only place that removes them. It runs before the rewrites, whose patterns then meet no noops, and after
    them. The recorder keeps them all, as they say what shares memory; canonicalize drops a `to` or `contiguous` that
    gives back its operand, as their spellings (`_to_copy`, `clone`) are copies; lowering has rules for what stays.

    before:  %a = clone(%x), %b = expand(%a, [2, 3]) of float32[2, 3], %y = relu(%b)
    after:   %y = relu(%x)
    """

    name: ClassVar[str] = "remove-noops"

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        for node in list(graph.nodes):
            if node.op != "call_function":
                continue
            if node.target in _WITHOUT_TRAINING and not _trains(node):
                node.meta.pop("random", None)  # it draws nothing
            if is_pinned(node) or not _does_nothing(node):
                continue
            verdict = may_stand_for(cast(fx.Node, node.args[0]), node)
            if isinstance(verdict, No):
                ctx.refuse(self.name, verdict.reason)
            elif ctx.spend(self.name, node):
                replace(graph, node, cast(fx.Node, node.args[0]))


def _trains(node: fx.Node) -> bool:
    """Whether a dropout drops anything."""
    return bool(bound_args(node)[signature(node.target).position("train")])


def _does_nothing(node: fx.Node) -> bool:
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node):
        return False
    if node.target in _WITHOUT_TRAINING:
        return not _trains(node)
    before, after = source.meta["val"], node.meta["val"]
    if not isinstance(before, TensorSpec) or not isinstance(after, TensorSpec):
        return False
    same = (before.dtype, before.device) == (after.dtype, after.device)
    if not same or not same_sizes(before.shape, after.shape) or not same_strides(before, after):
        return False
    if before.strides != after.strides and escapes(node):
        # A caller sees the strides of single-element dimensions too.
        return False
    if node.target is aten.detach.default:
        # It stops gradients, where there are any.
        return not before.requires_grad
    return node.target in _IDENTITIES or node.target in _SHAPED
