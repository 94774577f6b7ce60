"""The pass `known-masks`."""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar

import torch
from torch import fx

from lampwork import pristine
from lampwork.graph.compiled_masks import COMPILED_ONLY
from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.apply.edit import replace
from lampwork.rewriting.apply.layout import adopt_strides, propagate_strides
from lampwork.rewriting.library.ranges import literal_value
from lampwork.rewriting.matching.values import fill_value
from lampwork.rewriting.schema import bound_args, is_pinned, packet_name
from lampwork.standard import math
from lampwork.transforms.convolution import spec
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten

MOST_NODES = 256
"""Operators that a mask is made by, at most: it is computed once for a graph."""

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


class _Kind(Enum):
    """What is known of a mask: it leaves every place open, or those on and below the diagonal of a square."""

    OPEN = "open"
    CAUSAL = "causal"
    OTHER = "other"


@record
class KnownMasks:
    """Attention on a CUDA device is called without a mask that is known: ATen's kernels read a mask for each head, some
    copy it into rows of a multiple of 16 first, and the fastest one takes none at all.

    A mask that leaves every place open goes: adding 0 to the scores is adding nothing, to an infinity and to nan as
    well. One that closes what comes later becomes causal attention, which does not look there, where nan and -inf make
    nan. So only those that transformers makes for a program that is compiled, which has none in eager.

    before:  %m = where(ge(arange(197), 0), 0.0, -inf), %a = scaled_dot_product_attention(%q, %k, %v, %m)    on cuda:0
    after:   %a = scaled_dot_product_attention(%q, %k, %v)
    """

    name: ClassVar[str] = "known-masks"

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        known: dict[fx.Node, _Kind] = {}
        changed: list[fx.Node] = []
        for node in list(graph.nodes):
            if node.target is not aten.scaled_dot_product_attention.default:
                continue
            query, key, value, mask, dropout, causal, scale, grouped = bound_args(node)
            if mask is None or spec(node).device.type != "cuda":
                continue
            if mask not in known:
                known[mask] = _kind(mask)
            verdict = (
                No("a backend from outside takes it") if ctx.foreign(node) else _eligible(node, known[mask])
            )
            if isinstance(verdict, No):
                ctx.refuse(self.name, verdict.reason)
            elif ctx.spend(self.name, node):
                was = spec(node)
                options: dict[str, Any] = {"scale": scale, "enable_gqa": grouped}
                causal = causal or known[mask] is _Kind.CAUSAL
                new = ctx.editor(graph, node).call(
                    node.target, query, key, value, None, dropout, causal, **options
                )
                replace(graph, node, new)
                if adopt_strides(new, was):
                    changed.append(new)
        propagate_strides(graph, ctx.infer, changed)


def _eligible(node: fx.Node, kind: _Kind) -> Verdict:
    query, key, _, _, _, _, scale, _ = bound_args(node)
    if kind is _Kind.OTHER:
        return No("a place may be closed")
    if is_pinned(node):
        return No("it draws random numbers, which another kernel draws otherwise")
    if kind is _Kind.CAUSAL:
        if not node.meta.get(COMPILED_ONLY):
            return No("what comes later is closed, and nan there shows in eager")
        if spec(query).shape[-2] != spec(key).shape[-2] or not (scale is None or scale > 0):
            return No("causal attention is another function of these sizes, or this scale")
    return Yes()


def _kind(mask: fx.Node) -> _Kind:
    if _is_true(mask) if spec(mask).dtype is torch.bool else _is_zero(mask):
        return _Kind.OPEN
    known = literal_value(mask, MOST_NODES)
    if known is None or known.dim() < 2 or known.shape[-1] != known.shape[-2]:
        return _Kind.OTHER
    opened = known if known.dtype is torch.bool else known == 0
    closed = ~known if known.dtype is torch.bool else known == -math.inf
    wanted = pristine.ones(known.shape[-2:], dtype=torch.bool).tril()
    return _Kind.CAUSAL if bool((opened == wanted).all() and (closed != wanted).all()) else _Kind.OTHER


def _is_true(mask: fx.Node) -> bool:
    """Whether every element of a mask of bool is known to be true."""
    while mask.target in _MOVING:
        mask = bound_args(mask)[0]
    known = literal_value(mask, MOST_NODES)
    return known is not None and bool(known.all())


def _is_zero(mask: fx.Node) -> bool:
    """Whether every element of a mask of numbers, which are added, is known to be 0."""
    while mask.target in _MOVING or mask.target is aten._to_copy.default:
        mask = bound_args(mask)[0]
    if mask.op == "call_function" and packet_name(mask.target) == "where" and len(mask.args) == 3:
        condition, inside, _ = bound_args(mask)
        if _number(inside) == 0 and _is_true(condition):
            return True
    known = literal_value(mask, MOST_NODES)
    return known is not None and not bool(known.any())


def _number(value: Any) -> Any:
    return fill_value(value) if isinstance(value, fx.Node) else value
