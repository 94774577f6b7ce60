"""What a switch is worth to an architecture, read off the document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lampwork.records import record

LEAST = 0.03
"""Differences of less than this part are none, however quiet the machine was."""


def margin(noise: float, drift: float) -> float:
    """How far from 1 a ratio has to be to say something."""
    return max(LEAST, 2 * noise, 2 * drift)


@record
class Worth:
    """A cell of the table. `ratio`: the time of a call without the optimization, divided by that with it: above 1 it
    helps. `noise`: half the distance between the quartiles of the rounds; `drift`: how far from 1 the same program,
    compiled once more, came out. `changes`: whether the code is another."""

    architecture: str
    switch: str
    ratio: float
    noise: float
    changes: bool
    drift: float = 0.0

    @property
    def margin(self) -> float:
        """How far from 1 a ratio has to be to say something."""
        return margin(self.noise, self.drift)

    @property
    def helps(self) -> bool:
        return self.changes and self.ratio > 1 + self.margin

    @property
    def costs(self) -> bool:
        return self.changes and self.ratio < 1 - self.margin


def measured(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The architectures that did not fail."""
    return [row for row in document["architectures"] if not row.get("failure")]


def inverse(column: Mapping[str, Any]) -> tuple[float, float] | None:
    """(how many times as long as the first column a call takes, its noise); None where that is not known."""
    speedup = column["speedup"]
    if not speedup:
        return None
    return 1 / speedup, (column["noise"] or 0.0) / speedup**2


def drift(row: Mapping[str, Any]) -> float:
    """How far from 1 the same program came out when it was measured as if it were another; 0 if that is not known."""
    found = inverse(row["columns"]["everything, again"])
    return 0.0 if found is None else abs(found[0] - 1)


def worth(row: Mapping[str, Any], switch: str) -> Worth | None:
    """The cell of an architecture and a switch; None where it was not measured."""
    column = row["switches"][switch]
    found = inverse(column)
    return None if found is None else Worth(row["name"], switch, *found, column["changes_code"], drift(row))


def cells(document: Mapping[str, Any]) -> Iterator[Worth]:
    """Every cell that was measured."""
    for row in measured(document):
        for switch in document["switches"]:
            if (cell := worth(row, switch["name"])) is not None:
                yield cell


def against(column: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[float, float] | None:
    """(how many times as fast a column is as another of its comparison, the noise of both); None if not known."""
    ours, theirs = column["speedup"], other["speedup"]
    if not ours or not theirs:
        return None
    ratio = ours / theirs
    return ratio, ratio * ((column["noise"] or 0.0) / ours + (other["noise"] or 0.0) / theirs)


def speedup(columns: Mapping[str, Any]) -> float | None:
    """How many times as fast as eager everything together is; None where that is not known."""
    found = against(columns["everything"], columns["eager"])
    return None if found is None else found[0]


def eager_bytes(row: Mapping[str, Any]) -> int:
    return row["work"]["eager_bytes_read"] + row["work"]["eager_bytes_written"]


def own_bytes(row: Mapping[str, Any]) -> int:
    return row["work"]["bytes_read"] + row["work"]["bytes_written"]
