"""The pass `common-subexpressions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import fx

from lampwork.literals import literal_text
from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.apply.aliasing import may_stand_for
from lampwork.rewriting.apply.edit import replace
from lampwork.rewriting.schema import bind, is_pinned
from lampwork.verdict import No

aten = torch.ops.aten

# Bit for bit; the third argument, if there is one, must be an alpha of 1.
_EXCHANGEABLE = frozenset(
    {
        aten.add.Tensor,
        aten.mul.Tensor,
        aten.maximum.default,
        aten.minimum.default,
        aten.eq.Tensor,
        aten.ne.Tensor,
        aten.logical_and.default,
        aten.logical_or.default,
        aten.logical_xor.default,
        aten.bitwise_and.Tensor,
        aten.bitwise_or.Tensor,
        aten.bitwise_xor.Tensor,
    }
)


@record
class CommonSubexpressions:
    """Compute equal values once, sums and products in either order. Random ops and effects are never merged, nor are
    two results of the graph.

    before:  %a = mul(%x, %y), %b = mul(%y, %x), %c = add(%a, %b)
    after:   %a = mul(%x, %y), %c = add(%a, %a)
    """

    name: ClassVar[str] = "common-subexpressions"

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        seen: dict[Any, fx.Node] = {}
        order = {node: number for number, node in enumerate(graph.nodes)}
        for node in list(graph.nodes):
            if node.op != "call_function" or is_pinned(node):
                continue
            values = bind(node.target, node.args, node.kwargs)
            if values is None:
                continue
            key = (node.target, _key(_sorted(node, values, order)))
            first = seen.setdefault(key, node)
            if first is node:
                continue
            verdict = may_stand_for(first, node)
            if isinstance(verdict, No):
                ctx.refuse(self.name, verdict.reason)
            elif first.meta["val"] == node.meta["val"] and ctx.spend(self.name, node):
                replace(graph, node, first)


def _sorted(node: fx.Node, values: tuple[Any, ...], order: Mapping[fx.Node, int]) -> tuple[Any, ...]:
    """The arguments of an op whose first two may be exchanged, in the order of the graph."""
    if node.target not in _EXCHANGEABLE:
        return values
    a, b, *rest = values
    if not isinstance(a, fx.Node) or not isinstance(b, fx.Node) or (rest and rest != [1]):
        return values
    return (b, a, *rest) if order[b] < order[a] else values


def _key(value: Any) -> Any:
    """A hashable that is equal for equal arguments only: 1, 1.0, True and -0.0 all differ."""
    if isinstance(value, fx.Node):
        return value
    if isinstance(value, list | tuple):
        return tuple(_key(v) for v in cast("Sequence[Any]", value))
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in cast("dict[Any, Any]", value).items())
    if isinstance(value, torch.Generator):
        return id(value)
    return type(value), literal_text(value)
