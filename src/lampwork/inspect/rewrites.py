"""`lampwork.rewrites()`: the registered rewrites and passes, and how often each fired."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

from lampwork.display import Block, Listing, Shown, Table
from lampwork.errors import Location
from lampwork.plugins.registry import Registered, registry
from lampwork.records import record
from lampwork.transforms.pipeline import tree_rules


@record
class Row(Shown):
    """One rewrite, pass or sequence; see Registered. `hash` is abbreviated. `tolerance`: how far a rewrite may be off
    on purpose, as a share of its results' size."""

    name: str
    kind: str
    place: str
    enabled: bool
    hits: int
    refused: int
    hash: str
    source: str
    tolerance: float = 0.0


class RewriteTable(Listing[Row]):
    """Rows in the order of registration; `str()` is a table."""

    @property
    def never_fired(self) -> RewriteTable:
        """The rows that have changed no graph so far."""
        return RewriteTable(row for row in self if not row.hits)

    def to_json(self) -> str:
        """A JSON array with an object for each row."""
        return json.dumps([asdict(row) for row in self], indent=2)

    def _blocks(self) -> Iterable[Block]:
        if not self:
            return ("nothing is registered",)
        head = ("name", "kind", "place", "on", "hits", "refused", "hash", "tolerance", "source")
        lines = [head, *map(_cells, self)]
        if not any(row.tolerance for row in self):
            lines = [(*line[:-2], line[-1]) for line in lines]
        return (Table(lines[0], tuple(lines[1:])),)

    def __str__(self) -> str:
        return "\n".join(map(str, self._blocks()))


def _cells(row: Row) -> tuple[str, ...]:
    on = "yes" if row.enabled else "no"
    tolerance = f"{row.tolerance:g}" if row.tolerance else ""
    return (
        row.name,
        row.kind,
        row.place,
        on,
        str(row.hits),
        str(row.refused),
        row.hash,
        tolerance,
        row.source,
    )


def rewrites(*, all: bool = False) -> RewriteTable:
    """A table of the registered rewrites and passes: name, kind, place, whether it is enabled, hits (what was undone
    again is none) and refusals in all compilations so far, content hash, tolerance and source. `.never_fired` selects
    those without hits; `.to_json()` returns JSON.

    Args:
        all: also list Lampwork's own rewrites, in the order in which they are tried.
    """
    rows = [_row(item) for item in registry().all()]
    if all:
        tally = registry().tally
        for name, (owner, rule) in tree_rules().items():
            hits, refused = (tally[kind][name] if kind in tally else 0 for kind in ("hits", "refused"))
            rows.append(Row(name, "rewrite", owner, True, hits, refused, "", _short(rule.source)))
    return RewriteTable(rows)


def _row(item: Registered) -> Row:
    place = f"in {item.sequence}" if item.sequence else str(item.place or "rewrites")
    return Row(
        item.name,
        item.kind,
        place,
        item.enabled,
        item.hits,
        item.refused,
        item.hash[:12],
        _short(item.source),
        item.rule.tolerance if item.rule is not None else 0.0,
    )


def _short(source: Location | None) -> str:
    return f"{source.file}:{source.line}" if source is not None else ""
