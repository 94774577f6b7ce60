"""The pass `fuse-pairs`."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

from torch import fx

from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.apply.driver import Rewriter
from lampwork.rewriting.library.pairs import pair_rules


@record
class FusePairs:
    """Pairs of pointwise ops become the one kernel that ATen has for both. For backends that run op by op, such as
    `eager`; off unless `passes="+fuse-pairs"` asks for it, as the native backend fuses pointwise ops itself.

    before:  %q = div(%y, %z), %a = add(%x, %q)
    after:   %a = addcdiv(%x, %y, %z)
    """

    name: ClassVar[str] = "fuse-pairs"

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        _rewriter().run(graph, ctx)


@lru_cache(maxsize=1)
def _rewriter() -> Rewriter:
    return Rewriter(pair_rules())
