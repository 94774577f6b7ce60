"""The pass `rewrites`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from torch import fx

from lampwork.passes.context import PassContext
from lampwork.passes.registry import registry
from lampwork.rewrite.driver import Rewriter, Rule


@dataclass(frozen=True, slots=True)
class Rewrites:
    """Apply the rewrites that users registered with `lampwork.rewrite`, until nothing more fires.

    before:  %a = add(%x, %y), %b = div(%a, 8.0)
    after:   %b = mine.add_div(%x, %y, 8.0)
    """

    name: ClassVar[str] = "rewrites"

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        rules = registry().rules(ctx.config)
        if rules:
            _rewriter(rules).run(graph, ctx)


@lru_cache(maxsize=16)
def _rewriter(rules: tuple[Rule, ...]) -> Rewriter:
    return Rewriter(rules)
