"""The pass `dead-code`."""

from __future__ import annotations

from typing import ClassVar

from torch import fx

from lampwork.graph.totality import may_raise
from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.schema import is_pinned


@record
class DeadCode:
    """Erase nodes that no output needs. Random ops stay (they advance the generator), as do effects and what raises for
    some data.

    before:  %a = relu(%x), %b = neg(%x), return %a
    after:   %a = relu(%x), return %a
    """

    name: ClassVar[str] = "dead-code"

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        for node in reversed(list(graph.nodes)):
            if (
                node.op == "call_function"
                and not node.users
                and not is_pinned(node)
                and not may_raise(node)
                and ctx.spend(self.name, node)
            ):
                graph.erase_node(node)
