"""Who takes which node of a graph, and what becomes of it."""

from lampwork.partition.chain import Chain, compile_parts
from lampwork.partition.coverage import dry_run, format_partition
from lampwork.partition.parts import Part, partition, subgraph
from lampwork.partition.sizes import compile_for_sizes

__all__ = [
    "Chain",
    "Part",
    "compile_for_sizes",
    "compile_parts",
    "dry_run",
    "format_partition",
    "partition",
    "subgraph",
]
