"""The pass `drop-open-masks`."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import fx

from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.apply.edit import replace
from lampwork.rewriting.apply.layout import adopt_strides, propagate_strides
from lampwork.rewriting.library.ranges import literal_value
from lampwork.rewriting.matching.values import fill_value
from lampwork.rewriting.schema import bound_args, is_pinned, packet_name
from lampwork.transforms.convolution import spec
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten

_MOVING = frozenset(
    {
        aten.alias.default,
        aten.clone.default,
        aten.detach.default,
        aten.expand.default,
        aten.squeeze.dim,
        aten.unsqueeze.default,
        aten.view.default,
    }
)
"""Operators whose result has elements of their first argument, and no others."""


@record
class DropOpenMasks:
    """Attention on a CUDA device whose mask is known to leave every place open has none: ATen's kernels read a mask for
    each head, some copy it into rows of a multiple of 16 first, and the fastest one takes none at all. Adding 0 to the
    scores is adding nothing, to an infinity and to nan as well.

    before:  %m = where(ge(arange(197), 0), 0.0, -inf), %a = scaled_dot_product_attention(%q, %k, %v, %m)    on cuda:0
    after:   %a = scaled_dot_product_attention(%q, %k, %v)
    """

    name: ClassVar[str] = "drop-open-masks"

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        known: dict[fx.Node, bool] = {}
        changed: list[fx.Node] = []
        for node in list(graph.nodes):
            if node.target is not aten.scaled_dot_product_attention.default:
                continue
            query, key, value, mask, *rest = bound_args(node)
            if mask is None or spec(node).device.type != "cuda":
                continue
            if mask not in known:
                known[mask] = _is_open(mask)
            verdict = (
                No("a backend from outside takes it") if ctx.foreign(node) else _eligible(node, known[mask])
            )
            if isinstance(verdict, No):
                ctx.refuse(self.name, verdict.reason)
            elif ctx.spend(self.name, node):
                was = spec(node)
                dropout, causal, scale, grouped = rest
                options: dict[str, Any] = {"scale": scale, "enable_gqa": grouped}
                edit = ctx.editor(graph, node)
                new = edit.call(node.target, query, key, value, None, dropout, causal, **options)
                replace(graph, node, new)
                if adopt_strides(new, was):
                    changed.append(new)
        propagate_strides(graph, ctx.infer, changed)


def _eligible(node: fx.Node, is_open: bool) -> Verdict:
    if not is_open:
        return No("a place may be closed")
    if is_pinned(node):
        return No("it draws random numbers, which another kernel draws otherwise")
    return Yes()


def _is_open(mask: fx.Node) -> bool:
    """Whether every element of a mask is known to be true, or of numbers, which are added: 0."""
    return _is_true(mask) if spec(mask).dtype is torch.bool else _is_zero(mask)


def _is_true(mask: fx.Node) -> bool:
    while mask.target in _MOVING:
        mask = bound_args(mask)[0]
    known = literal_value(mask)
    return known is not None and bool(known.all())


def _is_zero(mask: fx.Node) -> bool:
    while mask.target in _MOVING or mask.target is aten._to_copy.default:
        mask = bound_args(mask)[0]
    if mask.op == "call_function" and packet_name(mask.target) == "where" and len(mask.args) == 3:
        condition, inside, _ = bound_args(mask)
        if _number(inside) == 0 and _is_true(condition):
            return True
    known = literal_value(mask)
    return known is not None and not bool(known.any())


def _number(value: Any) -> Any:
    return fill_value(value) if isinstance(value, fx.Node) else value
