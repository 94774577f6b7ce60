"""The middle of the pipeline: a graph goes through the passes and is divided among backends."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from lampwork.backends.observer import Observer
from lampwork.backends.protocol import Backend
from lampwork.compiled.function import Function
from lampwork.partitioning import Part, partition
from lampwork.partitioning.foreign import pass_context
from lampwork.standard import functools
from lampwork.transforms.pipeline import run_passes


def transform(
    graph: fx.Graph, function: Function, backends: Sequence[Backend], observer: Observer
) -> Sequence[Part]:
    """Run the passes over `graph`, in place, and ask the backends which part of it they take."""
    ctx = pass_context(function.config, backends)
    observer.transforming(graph, functools.partial(pass_context, function.config, tuple(backends)))
    records = run_passes(graph, function.config, ctx=ctx)
    for fault in ctx.faults:
        function.note_fault(fault, "the graph as it was before")
    observer.transformed(graph, records, ctx.backend_passes)
    parts = partition(graph, backends, function.note_fault)
    observer.partitioned(parts)
    ctx.settle()
    return parts
