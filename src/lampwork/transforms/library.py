"""The pass `library`."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

from torch import fx

from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.apply.driver import Rewriter
from lampwork.rewriting.library.table import library_stages


@record
class Library:
    """Apply the rewrites of rewrite.library, stage by stage, until nothing more fires.

    before:  %s = sigmoid(%x), %y = mul(%x, %s)
    after:   %y = silu(%x)
    """

    name: ClassVar[str] = "library"

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        for rewriter in _rewriters():
            rewriter.run(graph, ctx)


@lru_cache(maxsize=1)
def _rewriters() -> tuple[Rewriter, ...]:
    return tuple(Rewriter(stage) for stage in library_stages())
