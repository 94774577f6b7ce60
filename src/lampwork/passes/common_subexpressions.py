"""The pass `common-subexpressions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import fx

from lampwork.passes.context import PassContext
from lampwork.rewrite.aliasing import may_stand_for
from lampwork.rewrite.edit import replace
from lampwork.rewrite.schema import bind, is_pinned
from lampwork.verdict import No


@dataclass(frozen=True, slots=True)
class CommonSubexpressions:
    """Compute equal values once. Random ops and effects are never merged, nor are two results of the graph.

    before:  %a = relu(%x), %b = relu(%x), %c = add(%a, %b)
    after:   %a = relu(%x), %c = add(%a, %a)
    """

    name: ClassVar[str] = "common-subexpressions"

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        seen: dict[Any, fx.Node] = {}
        for node in list(graph.nodes):
            if node.op != "call_function" or is_pinned(node):
                continue
            values = bind(node.target, node.args, node.kwargs)
            if values is None:
                continue
            key = (node.target, _key(values))
            first = seen.setdefault(key, node)
            if first is node:
                continue
            verdict = may_stand_for(first, node)
            if isinstance(verdict, No):
                ctx.refuse(self.name, verdict.reason)
            elif first.meta["val"] == node.meta["val"] and ctx.spend(self.name):
                replace(graph, node, first)


def _key(value: Any) -> Any:
    """A hashable that is equal for equal arguments only: 1, 1.0, True and -0.0 all differ."""
    if isinstance(value, fx.Node):
        return value
    if isinstance(value, list | tuple):
        return tuple(_key(v) for v in cast("Sequence[Any]", value))
    if isinstance(value, Mapping):
        return tuple((k, _key(v)) for k, v in cast("Mapping[Any, Any]", value).items())
    if isinstance(value, torch.Generator):
        return id(value)
    return type(value), repr(value)
