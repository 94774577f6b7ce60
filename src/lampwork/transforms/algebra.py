"""The pass `algebra`."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

from torch import fx

from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.algebra import algebra_rules
from lampwork.rewriting.apply.driver import Rewriter
from lampwork.rewriting.padding import padding_rules
from lampwork.rewriting.views import view_rules


@record
class Algebra:
    """Apply the algebra of rewrite.algebra and rewrite.views until nothing more fires.

    before:  %a = mul(%x, 1), %b = neg(%a), %c = neg(%b), %d = pow(%c, 2)
    after:   %d = mul(%x, %x)
    """

    name: ClassVar[str] = "algebra"

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        _rewriter().run(graph, ctx)


@lru_cache(maxsize=1)
def _rewriter() -> Rewriter:
    return Rewriter((*algebra_rules(), *view_rules(), *padding_rules()))
