"""Calls on DTensors that require grad: captured where eager's gradients come out, by eager's collectives."""

from __future__ import annotations

from torch import fx

from lampwork import pristine
from lampwork.capture.model.region import Region
from lampwork.capture.state.contexts import beyond_function_modes
from lampwork.differentiation.foresight import everything
from lampwork.differentiation.joint import record_joint
from lampwork.differentiation.segments import cut
from lampwork.graph.islands import contracted
from lampwork.runtime.tape import below_autocast


def with_islands(region: Region, graph: fx.Graph) -> fx.Graph:
    """A region's graph as it is differentiated."""
    if not region.islands and not region.dtensors:
        return graph
    return contracted(graph, region.islands, tuple(number for number, _ in region.dtensors))


def check_islands(region: Region) -> None:
    """See how the gradients of a region's DTensors are sharded, if it has islands.

    Raises:
        CaptureError: that cannot be told without data, is no part of the DTensor's shape, or would take other
            collectives than eager's.
    """
    if region.graph is None or not region.islands:
        return
    graph = with_islands(region, region.graph)
    with pristine.no_grad(), below_autocast(), beyond_function_modes():
        segments = cut(graph)
        record_joint(graph, segments, segments.results, everything(segments))
