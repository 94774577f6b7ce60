"""The module whose `forward` runs, by name."""

from __future__ import annotations

from lampwork.records import record


@record
class Within:
    """`path`: see `graph.origin.Origin.module`. `kind`: the name of the class. `text`: both, as messages name it; ""
    where nothing needs to be said."""

    path: str
    kind: str
    text: str

    @staticmethod
    def of(path: str, kind: str) -> Within:
        return Within(path, kind, f"{path} ({kind})" if path else "")


OUTSIDE = Within.of("", "")
