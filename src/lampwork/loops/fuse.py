"""Fusion."""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.loops.group import Decision, Group
from lampwork.loops.nodes import Definition, Extern, Gemm, Map, PackB, Reduce


def fuse(definitions: Sequence[Definition], outputs: frozenset[str]) -> tuple[list[Group], list[Decision]]:
    """Groups of definitions, in an order in which they can run."""
    return [_alone(definition) for definition in definitions], []


def _alone(definition: Definition) -> Group:
    if isinstance(definition, Map):
        return Group("pointwise", (definition,))
    if isinstance(definition, Reduce):
        return Group("rows", (definition,), definition.axes)
    if isinstance(definition, Gemm):
        return Group("gemm", (definition,))
    if isinstance(definition, PackB):
        return Group("pack", (definition,))
    if isinstance(definition, Extern):
        return Group("extern", (definition,))
    return Group("scan", (definition,))
