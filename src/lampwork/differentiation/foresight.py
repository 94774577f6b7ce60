"""What backward will ask of a region, foreseen where that is plain: a region that returns a loss is trained.

Elsewhere the first backward shows it. That one is eager's, of the forward run again, and takes longer than to compile.
"""

from __future__ import annotations

import torch
from torch import fx

from lampwork.differentiation.joint import Asked, dense
from lampwork.differentiation.segments import Segments, memory_of, requires_grad

aten = torch.ops.aten

_LAID_OUT_BY_VALUES = frozenset(
    {aten.prod.default, aten.median.default, aten.nanmedian.default, aten.max.default, aten.min.default}
)
"""Whose gradients autograd computes in one of several ways, as the values say. Their layouts differ where the operand
is not contiguous."""


def foresee(segments: Segments) -> dict[int, Asked]:
    """What the backward of the one scalar that is returned asks of each segment: gradients of all that it depends on,
    laid out as these are. Empty if no result, or more than one, is such a scalar, or if layouts depend on values."""
    losses = {node for node in segments.results if _is_loss(node, segments)}
    if len(losses) != 1 or any(_is_laid_out_by_values(node) for node in segments.label):
        return {}
    asked: dict[int, Asked] = {}
    given = losses
    for segment in reversed(segments.segments):
        if given.isdisjoint(segment.results):
            continue
        asked[segment.number] = Asked(
            tuple(dense(node.meta["val"]) if node in given else None for node in segment.results),
            (False,) * len(segment.results),
            tuple(map(requires_grad, segment.sources)),
            None,
        )
        given |= {memory_of(source) for source in segment.sources}
    return asked


def _is_laid_out_by_values(node: fx.Node) -> bool:
    return node.target in _LAID_OUT_BY_VALUES and not node.all_input_nodes[0].meta["val"].is_contiguous


def everything(segments: Segments) -> dict[int, Asked]:
    """What is asked of each segment if all results have gradients, laid out as these are."""
    return {
        segment.number: Asked(
            tuple(dense(node.meta["val"]) if requires_grad(node) else None for node in segment.results),
            (False,) * len(segment.results),
            tuple(map(requires_grad, segment.sources)),
            None,
        )
        for segment in segments.segments
    }


def _is_loss(node: fx.Node, segments: Segments) -> bool:
    return node in segments.cuts and requires_grad(node) and node.meta["val"].shape == ()
