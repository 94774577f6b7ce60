"""What a notebook shows of a compiled callable."""

from __future__ import annotations

from collections.abc import Iterable

from lampwork.compiled.entries import Entries
from lampwork.compiled.function import Function
from lampwork.display import Block, Shown, Table
from lampwork.records import record


@record(eq=False)
class Overview(Shown):
    """The versions of a compiled callable, and what ran eager."""

    function: Function

    def _brief(self) -> str:
        return f"{self.function.name}: {len(self.function.entries)} versions"

    def _title(self) -> str:
        return f"{self.function.name}, compiled by lampwork"

    def _blocks(self) -> Iterable[Block]:
        function = self.function
        entries = Entries(function.entries)
        if not entries:
            yield function.compiled.stages.why_none()
            return
        yield from entries._blocks()
        rows = tuple((r.code, f"{r.file}:{r.line}", r.cause, r.fix) for r in function.refusals)
        if rows:
            yield Table(("runs eager", "where", "cause", "fix"), rows)
