"""Who takes which node of a graph, and what becomes of it."""

from lampwork.partitioning.chain import Chain, compile_parts, start_parts
from lampwork.partitioning.coverage import dry_run, format_partition, why_taken
from lampwork.partitioning.parts import Part, partition, subgraph
from lampwork.partitioning.sizes import compile_for_sizes, compile_open

__all__ = [
    "Chain",
    "Part",
    "compile_for_sizes",
    "compile_open",
    "compile_parts",
    "dry_run",
    "format_partition",
    "partition",
    "start_parts",
    "subgraph",
    "why_taken",
]
