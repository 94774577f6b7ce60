"""The pass `rewrites`."""

from __future__ import annotations

from typing import ClassVar

from torch import fx

from lampwork.plugins.context import PassContext
from lampwork.plugins.guarded import apply_rules
from lampwork.records import record


@record
class Rewrites:
    """Apply the rewrites that users registered with `lampwork.rewrite`, until nothing more fires.

    before:  %a = add(%x, %y), %b = div(%a, 8.0)
    after:   %b = mine.add_div(%x, %y, 8.0)
    """

    name: ClassVar[str] = "rewrites"

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        apply_rules(self.name, ctx.selection.rules, graph, ctx)
