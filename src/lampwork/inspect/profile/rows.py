"""Spans become rows: what took how long, how much it computed and moved, and where in the program it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lampwork.errors import Location
from lampwork.inspect.machine.limits import Limits
from lampwork.inspect.profile.spans import WHAT, ThreadSpans
from lampwork.records import record
from lampwork.runtime.steps import StepFacts

By = Literal["kernel", "module", "line"]
BY: tuple[By, ...] = ("kernel", "module", "line")

BEGIN = "lampwork::profile"
"""The first span of the thread that a profile began in."""
OUTSIDE = "Python, and what else is not compiled"


@record
class Row:
    """What all calls of one kind took together.

    kind: of a compiled step that of its `StepFacts`; "eager" for an operator outside of compiled regions, "autograd"
    for a node of autograd's, "run" for what a compiled region does besides its steps, "label" for what is in the user's
    `record_function` and in none of these, "compile" for compilations, "outside" for the rest of the time.
    seconds: without what other rows count. least_seconds: of a machine at its limits, None where nothing is known.
    where: the module and the line that the step comes from.
    """

    name: str
    kind: str
    calls: int
    seconds: float
    region: str = ""
    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    least_seconds: float | None = None
    module: str | None = None
    line: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def gflops(self) -> float | None:
        """Billions of operations a second."""
        return self.flops / self.seconds / 1e9 if self.flops and self.seconds else None

    @property
    def gbs(self) -> float | None:
        """Billions of bytes a second, read and written."""
        moved = self.bytes_read + self.bytes_written
        return moved / self.seconds / 1e9 if moved and self.seconds else None

    @property
    def limit(self) -> float | None:
        """The share of what the machine can do at most, by arithmetic or by bytes, whichever bounds it."""
        return self.least_seconds / self.seconds if self.least_seconds and self.seconds else None


def rows_of(threads: Sequence[ThreadSpans], outside: float, limits: Limits) -> tuple[Row, ...]:
    """A row for each step of each region and each operator, the slowest first. `outside`: the seconds of no span."""
    found: dict[tuple[Any, ...], _Sum] = {}
    for thread in threads:
        spans = thread.spans[thread.spans["within"] == 0]
        for (what, of, index), calls, nanoseconds in _counted(spans):
            kind = WHAT[what]
            if kind == "label" and thread.names[of] == BEGIN:
                continue
            if kind in ("run", "call"):
                program = thread.programs[of]
                key: tuple[Any, ...] = (kind, id(program), index)
                facts = thread.steps[of].get(index)
            else:
                program, facts = None, None
                key = (kind, thread.names[of])
            total = found.get(key)
            if total is None:
                name = thread.name({"what": what, "of": of, "index": index})
                total = found[key] = _Sum(kind, name, "" if program is None else program.name, facts)
            total.calls += calls
            total.nanoseconds += nanoseconds
    rows = [total.row(limits) for total in found.values()]
    if outside > 0:
        rows.append(Row(OUTSIDE, "outside", 1, outside))
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _counted(spans: Any) -> Iterator[tuple[tuple[int, int, int], int, int]]:
    """(what, of, index), how often, and the time of each kind of span, of which there may be millions."""
    if not len(spans):
        return
    what, of, index = (spans[name].astype(np.int64) for name in ("what", "of", "index"))
    kinds = (what * (of.max() + 1) + of) * (index.max() + 2) + index + 1
    _, firsts, places, calls = np.unique(kinds, return_index=True, return_inverse=True, return_counts=True)
    times = np.bincount(places, spans["self"])  # nanoseconds are exact in float64 for a hundred days
    for first, count, nanoseconds in zip(firsts.tolist(), calls.tolist(), times.tolist(), strict=True):
        yield (int(what[first]), int(of[first]), int(index[first])), count, int(nanoseconds)


_KINDS = {"operator": "eager", "backward": "autograd"}


@dataclass(slots=True)
class _Sum:
    what: str
    name: str
    region: str
    facts: StepFacts | None
    calls: int = 0
    nanoseconds: int = 0

    def row(self, limits: Limits) -> Row:
        facts, seconds = self.facts, self.nanoseconds / 1e9
        if facts is None:
            kind = "aten" if self.what == "call" else _KINDS.get(self.what, self.what)
            name = f"{self.name}: memory, results" if self.what == "run" else self.name
            return Row(name, kind, self.calls, seconds, self.region)
        least = least_seconds(facts, limits)
        return Row(
            facts.name,
            facts.kind,
            self.calls,
            seconds,
            self.region,
            facts.flops * self.calls,
            facts.bytes_read * self.calls,
            facts.bytes_written * self.calls,
            None if least is None else least * self.calls,
            facts.modules[0] if facts.modules else None,
            _line(facts.lines[0]) if facts.lines else "",
            facts.nodes,
        )


def _line(line: Location) -> str:
    where = f"{line.file}:{line.line}"
    return f"{where} in {line.function}" if line.function else where


def least_seconds(facts: StepFacts, limits: Limits) -> float | None:
    """What a call would take at the limits of the machine; None where nothing is known of the step."""
    bounds = bounds_of(facts, limits)
    return None if bounds is None else max(bounds)


def bounds_of(facts: StepFacts, limits: Limits) -> tuple[float, float] | None:
    """The seconds that each limit of the machine allows: that of arithmetic in its dtype, and that of the smallest
    cache that holds all that it touches. None where nothing is known of the step."""
    moved = facts.bytes_read + facts.bytes_written
    if not moved and not facts.flops:
        return None
    by_bytes = moved / limits.bandwidth(facts.bytes_read, facts.bytes_written) / 1e9 if moved else 0.0
    rate = limits.rates.get(facts.dtype)
    by_flops = facts.flops / rate / 1e9 if rate else 0.0
    return by_flops, by_bytes


def grouped(rows: Iterable[Row], by: By) -> tuple[Row, ...]:
    """The rows of each module or line together; those that have none by their kind, under what they are."""
    if by == "kernel":
        return tuple(rows)
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        place = row.module if by == "module" else row.line or None
        key = (_TITLES.get(row.kind, "no " + by), "") if place is None else (place or "the model itself", by)
        groups.setdefault(key, []).append(row)
    return tuple(
        sorted((_sum(name, kind, each) for (name, kind), each in groups.items()), key=lambda r: -r.seconds)
    )


_TITLES = {
    "eager": "eager operators, outside of compiled regions",
    "autograd": "autograd",
    "run": "memory and results of regions",
    "label": "record_function",
    "compile": "compilation",
    "outside": OUTSIDE,
}


def _sum(name: str, kind: str, rows: Sequence[Row]) -> Row:
    least = [row.least_seconds for row in rows]
    known = None if any(each is None for each in least) else sum(each or 0.0 for each in least)
    return Row(
        name,
        kind,
        sum(row.calls for row in rows),
        sum(row.seconds for row in rows),
        "",
        sum(row.flops for row in rows),
        sum(row.bytes_read for row in rows),
        sum(row.bytes_written for row in rows),
        known,
    )
