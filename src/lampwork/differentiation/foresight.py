"""What backward will ask of a region, foreseen where that is plain: a region that returns a loss is trained.

Elsewhere the first backward shows it. That one is eager's, of the forward run again, and takes longer than to compile.
"""

from __future__ import annotations

from torch import fx

from lampwork.differentiation.joint import Asked, dense
from lampwork.differentiation.segments import Segments, memory_of, requires_grad


def foresee(segments: Segments) -> dict[int, Asked]:
    """What the backward of the one scalar that is returned asks of each segment: gradients of all that it depends on,
    laid out as these are. Empty if no result, or more than one, is such a scalar."""
    losses = {node for node in segments.results if _is_loss(node, segments)}
    if len(losses) != 1:
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
