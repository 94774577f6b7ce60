"""The parts of an explanation, as data."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from lampwork.capture.model.region import Record
from lampwork.compiled.stages import TRAINED, Stages
from lampwork.display import Block, Folded, Shown, Table
from lampwork.inspect.profile.watch import UNSEEN, Times
from lampwork.records import record


@record
class GuardLine(Shown):
    """`condition`: the guard as a Python expression. `line`: the user's "file:line" that needs it, with the
    module. `slow`: whether it is checked only after a dict on the way to its value has changed."""

    condition: str
    line: str
    slow: bool = False


@record
class RegionReport(Shown):
    """One compiled region.

    Attributes:
        name: the function and the version: "f#0", or "f_resume_12#0" for the code after a graph break in line 12.
        lines: the user's lines that its operators come from, as ranges for each file: {"model.py": "12-14, 20"}.
        operators: how often each ATen operator occurs in the recorded graph, most frequent first.
        guards: the conditions on which it serves a call.
        symbols: the integers that it leaves open, and where they are read: "s0 = x.size(0)".
        breaks: the record of the graph break at its end, if there is one.
        counts: what the backend compiled it to: numbers of kernel calls, gemms, ATen calls, ...
        seconds: the time that each step of its compilation took.
        hits: how many calls it has served.
        refreshes: how often what hangs on weights alone was computed again; None where that is not known.
        stages: every stage from bytecode to machine code.
    """

    name: str
    lines: Mapping[str, str]
    operators: Mapping[str, int]
    guards: tuple[GuardLine, ...]
    symbols: tuple[str, ...]
    breaks: tuple[Record, ...]
    counts: Mapping[str, int]
    seconds: Mapping[str, float]
    hits: int
    refreshes: int | None
    stages: Stages

    def _brief(self) -> str:
        counts = (sum(self.operators.values()), "operator"), (len(self.guards), "guard"), (self.hits, "call")
        return f"{self.name}: {', '.join(_count(number, what) for number, what in counts)}"

    def _blocks(self) -> Iterable[Block]:
        return ("\n".join(_format_region(self)),)


@record
class FunctionReport(Shown):
    """A function that was compiled, or a resume function or callee of it. `regions`: the numbers of its versions among
    those of the explanation. `refusals`: why calls of it run eager."""

    name: str
    regions: tuple[int, ...]
    refusals: tuple[Record, ...]


@record
class Explanation(Shown):
    """How a function and its call were compiled. `str()` is a report to read, `to_json()` the same as data.

    `breaks`, `refusals` and `recompiles` are records with code, cause, fix, file and line. A graph break inside a
    callee ends the regions of all its callers, but is listed once. A refusal is a function that runs eager as a whole.
    `options`: those that all the functions were compiled with. `times`: how long steps took in the calls that were
    seen.
    """

    name: str
    regions: tuple[RegionReport, ...]
    breaks: tuple[Record, ...]
    refusals: tuple[Record, ...]
    recompiles: tuple[Record, ...]
    functions: tuple[FunctionReport, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    times: Times = field(default=UNSEEN, compare=False, repr=False)

    @property
    def seconds(self) -> float:
        """The total time spent compiling."""
        return sum(sum(region.seconds.values()) for region in self.regions)

    @property
    def operators(self) -> dict[str, int]:
        """How often each ATen operator occurs in all regions, most frequent first."""
        counts: dict[str, int] = {}
        for region in self.regions:
            for name, count in region.operators.items():
                counts[name] = counts.get(name, 0) + count
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def to_json(self, *, indent: int | None = 2) -> str:
        """The explanation as JSON, with the names of the stages instead of their texts."""
        return json.dumps(self.to_dict(), indent=indent)

    def to_dict(self) -> dict[str, Any]:
        """The content of `to_json` as dicts, lists, strings and numbers."""
        return {
            "name": self.name,
            "regions": [_region_dict(region) for region in self.regions],
            **{
                kind: [asdict(record) for record in getattr(self, kind)]
                for kind in ("breaks", "refusals", "recompiles")
            },
            "operators": self.operators,
            "seconds": self.seconds,
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a report as one HTML file that needs nothing else: graphs through all passes, kernels with their code,
        memory, guards, and where the time went. Gives its path; `report_data` gives what it shows.

        Raises:
            ReportError: the file cannot be written.
        """
        # Loaded where a report is made: it takes as long as all of the rest.
        from lampwork.inspect.report.data import report_data
        from lampwork.inspect.report.page import save

        return save(report_data(self), path)

    def _brief(self) -> str:
        return format_counts(self)

    def _blocks(self) -> Iterable[Block]:
        yield format_counts(self)
        head = ("region", "lines", "operators", "guards", "calls", "compiled in")
        yield Table(head, tuple(map(_region_row, self.regions)))
        records = (("break", self.breaks), ("runs eager", self.refusals), ("compiled again", self.recompiles))
        rows = [
            (what, r.code, f"{r.file}:{r.line}", r.cause, r.fix) for what, found in records for r in found
        ]
        if rows:
            yield Table(("", "code", "where", "cause", "fix"), tuple(rows))
        for region in self.regions:
            yield Folded(region.name, "\n".join(_format_region(region)))

    def __str__(self) -> str:
        return format_explanation(self)


def _region_row(region: RegionReport) -> tuple[str, ...]:
    return (
        region.name,
        "; ".join(f"{file.rpartition('/')[2]}:{lines}" for file, lines in region.lines.items()),
        str(sum(region.operators.values())),
        str(len(region.guards)),
        str(region.hits),
        f"{sum(region.seconds.values()):.2f} s",
    )


def _region_dict(region: RegionReport) -> dict[str, Any]:
    return {
        "name": region.name,
        "lines": dict(region.lines),
        "operators": dict(region.operators),
        "guards": [asdict(guard) for guard in region.guards],
        "symbols": list(region.symbols),
        "breaks": [asdict(record) for record in region.breaks],
        "counts": dict(region.counts),
        "seconds": dict(region.seconds),
        "hits": region.hits,
        "refreshes": region.refreshes,
        "stages": list(region.stages),
    }


# --- text -------------------------------------------------------------------------------------------------------------


def format_explanation(explanation: Explanation) -> str:
    """The report: a summary, each region, then refusals and recompilations with their fixes."""
    lines = [format_counts(explanation)]
    for region in explanation.regions:
        lines += ["", *_format_region(region)]
    for title, records in (
        ("runs eager", explanation.refusals),
        ("compiled again", explanation.recompiles),
    ):
        if records:
            lines += ["", f"{title}:", *(_indented(str(record)) for record in records)]
    return "\n".join(lines)


def format_counts(explanation: Explanation) -> str:
    """How many regions, graph breaks, refusals and recompilations there are, in a line."""
    counts = (
        _count(len(explanation.regions), "region"),
        _count(len(explanation.breaks), "graph break"),
        _count(len(explanation.refusals), "refusal"),
        _count(len(explanation.recompiles), "recompilation"),
    )
    return f"{explanation.name}: {', '.join(counts)}"


def _format_region(region: RegionReport) -> list[str]:
    lines = [f"{region.name}: {_count(region.hits, 'call')}"]
    lines += [f"  lines {ranges} of {file}" for file, ranges in region.lines.items()]
    total = sum(region.operators.values())
    listed = ", ".join(f"{count} {name}" for name, count in region.operators.items())
    lines.append(f"  {_count(total, 'operator')}: {listed}" if total else "  no operators")
    if region.counts:
        # The first two are of the graph, whose operators are listed.
        counts = {name: count for name, count in list(region.counts.items())[2:] if count}
        trained = {name: counts.pop(name, 0) for name in TRAINED}
        lines.append(f"  compiled to {_listed(counts)}")
        if any(trained.values()):
            lines.append(f"  trained: {_listed(trained)}")
    always = [guard for guard in region.guards if not guard.slow]
    lines.append(f"  {_count(len(always), 'guard')}{':' if always else ''}")
    lines += [f"    {_format_guard(guard)}" for guard in always]
    if region.symbols:
        lines.append(f"  left open: {', '.join(region.symbols)}")
    slow = [guard for guard in region.guards if guard.slow]
    if slow:
        lines.append(f"  {_count(len(slow), 'guard')} more, looked at when a module or global has changed")
    lines += [_indented(f"ends in a break: {record}") for record in region.breaks]
    return lines


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _format_guard(guard: GuardLine) -> str:
    return f"{guard.condition}  # {guard.line}" if guard.line else guard.condition


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
