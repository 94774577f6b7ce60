"""`lampwork.inspect.diff`: what differs between two reports."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from lampwork.errors import OptionError
from lampwork.inspect.difference.align import same_nodes, same_regions
from lampwork.inspect.difference.difference import KINDS, Difference, Finding, Reported
from lampwork.inspect.difference.kernels import Match, matches, seconds_of, short, what_of, where_of
from lampwork.inspect.difference.side import Fact, Side, side_of
from lampwork.inspect.explanation import Explanation
from lampwork.inspect.report.data import report_data
from lampwork.inspect.report.read import read_report
from lampwork.standard import math

THRESHOLD = 0.05

CLOCK = 1e-6
"""Seconds that two runs of one kernel differ by in any case."""

COMPILING = 0.01
"""Seconds below which differences of compile times say nothing."""

Given = Explanation | Mapping[str, Any] | str | os.PathLike[str]

_FACTS = {"break": "breaks", "refusal": "refusals", "fault": "faults", "recompile": "recompiles"}
_FATES = {"new": "kernels", "gone": "kernels-gone"}


def diff(before: Given, after: Given, *, threshold: float = THRESHOLD) -> Difference:
    """What differs between two reports: what is faster and slower, fused and unfused, breaks and their fixes, kernels,
    memory, operators and the time to compile.

    Kernels are compared by what they compute, the operators of which modules, and not by their names.

    Args:
        before, after: explanations, data as `report_data` gives it, or paths of reports (`.html`) or of such data
            (`.json`).
        threshold: the part by which a time has to differ to count: 0.05 is 5 %.

    Raises:
        OptionError: the threshold is no number, 0 or more.
        ReportReadError: a file cannot be read, or is no report.
    """
    if type(threshold) not in (int, float) or not 0 <= threshold < math.inf:
        raise OptionError(
            f"a threshold is a number, 0 or more, got {threshold!r}", fix="pass 0.05 for 5 percent"
        )
    ours, theirs = _side(before, "before"), _side(after, "after")
    return Difference(
        _reported(ours),
        _reported(theirs),
        float(threshold),
        _conditions(ours, theirs),
        tuple(_findings(ours, theirs, threshold)),
    )


def _side(given: Any, name: str) -> Side:
    if isinstance(given, Explanation):
        return side_of(read_report(report_data(given), name))
    if isinstance(given, Mapping | str | os.PathLike):
        return side_of(read_report(given, name))
    raise OptionError(
        f"diff() compares reports, got an object of type {type(given).__name__}",
        fix="pass what lampwork.explain(fn)(*args) gives, its data, or the path of its report",
    )


def _reported(side: Side) -> Reported:
    kinds = Counter(kernel.kind or "other" for kernel in side.kernels)
    return Reported(side.source, side.title, side.made, dict(sorted(kinds.items())), side.seconds)


def _conditions(before: Side, after: Side) -> dict[str, tuple[str, str]]:
    names = dict.fromkeys((*before.conditions, *after.conditions))
    pairs = {name: (before.conditions.get(name, ""), after.conditions.get(name, "")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _findings(before: Side, after: Side, threshold: float) -> list[Finding]:
    """In the order of `KINDS`, and within a kind in that of `after`; times and sizes by how much they differ."""
    regions = same_regions(before, after)
    found = [
        *_kernels(before, after, regions, threshold),
        *_regions(before, after, regions, threshold),
        *_facts(before.facts, after.facts),
        *_memory(before, after),
        *_compile(before, after, threshold),
        *_operators(before, after),
    ]
    order = {kind: place for place, kind in enumerate(KINDS)}
    return sorted(found, key=lambda each: (order[each.kind], -each.size))


# --- kernels and regions ----------------------------------------------------------------------------------------------


def _kernels(before: Side, after: Side, regions: Mapping[int, int], threshold: float) -> Iterator[Finding]:
    known = set(regions.values())
    for match in matches(before, after, same_nodes(before, after, regions)):
        times = seconds_of(match.before), seconds_of(match.after)
        what, where = _what(match, before, after), _where(match, before, after)
        # Kernels of a region that is new, or gone, are counted there.
        listed = any(kernel.region in regions for kernel in match.before) or any(
            kernel.region in known for kernel in match.after
        )
        if match.fate != "same" and (listed or (match.before and match.after)):
            kind = _FATES.get(match.fate, match.fate)
            yield Finding(kind, what, where, *times, unit="s")
        if match.before and match.after and (kind := _trend(*times, threshold, CLOCK)):
            yield Finding(kind, what, where, *times, unit="s")


def _what(match: Match, before: Side, after: Side) -> str:
    was, now = what_of(match.before, before), what_of(match.after, after)
    if match.fate == "same" or not match.before:
        return now
    if not match.after:
        return was
    if was == now:
        kinds = ["; ".join(kernel.kind for kernel in each) for each in (match.before, match.after)]
        return f"{was}, {kinds[0]} -> {kinds[1]}" if kinds[0] != kinds[1] else was
    return f"{was} -> {now}"


def _where(match: Match, before: Side, after: Side) -> str:
    return where_of(match.after, after) if match.after else where_of(match.before, before)


def _trend(before: float | None, after: float | None, threshold: float, least: float) -> str:
    """ "slower", "faster", or "" where that is not known or not beyond the threshold."""
    if before is None or after is None or abs(after - before) < least:
        return ""
    if after > before * (1 + threshold):
        return "slower"
    return "faster" if before > after * (1 + threshold) else ""


def _regions(before: Side, after: Side, regions: Mapping[int, int], threshold: float) -> Iterator[Finding]:
    for ours, theirs in regions.items():
        times = before.regions[ours].seconds, after.regions[theirs].seconds
        if kind := _trend(*times, threshold, CLOCK):
            yield Finding(kind, f"all of {after.regions[theirs].name}", "", *times, unit="s")
    known = set(regions.values())
    for kind, side, numbers in (("regions", after, known), ("regions-gone", before, set(regions))):
        counts = Counter(kernel.region for kernel in side.kernels)
        for number, region in enumerate(side.regions):
            if number not in numbers:
                count = counts[number]
                yield Finding(kind, f"{region.name}: {count} kernel{'' if count == 1 else 's'}")


# --- breaks and the like ----------------------------------------------------------------------------------------------


def _facts(before: Sequence[Fact], after: Sequence[Fact]) -> Iterator[Finding]:
    """Equal ones in equal places are the same, whatever has become of the numbers of lines; then those on one line,
    whose causes tell of other values."""
    gone, new = list(before), list(after)

    def drop(key: Callable[[Fact], Hashable]) -> None:
        nonlocal gone
        left: dict[Hashable, list[int]] = {}
        for place, each in enumerate(new):
            left.setdefault(key(each), []).append(place)
        rest: list[Fact] = []
        taken: set[int] = set()
        for each in gone:
            places = left.get(key(each))
            if places:
                taken.add(places.pop(0))
            else:
                rest.append(each)
        gone = rest
        new[:] = [each for place, each in enumerate(new) if place not in taken]

    def place(fact: Fact) -> tuple[str, ...]:
        return (fact.kind, fact.code, fact.file.rpartition("/")[2], fact.function, fact.module)

    drop(lambda fact: (*place(fact), fact.cause))
    drop(lambda fact: (*place(fact), fact.line))
    for facts, ending in ((new, ""), (gone, "-gone")):
        for each in facts:
            kind = _FACTS.get(each.kind, "faults") + ending
            code = f"[{each.code}] " if each.code else ""
            yield Finding(kind, f"{code}{each.cause}", each.where, fix="" if ending else each.fix)


# --- totals -----------------------------------------------------------------------------------------------------------


def _memory(before: Side, after: Side) -> Iterator[Finding]:
    for what in dict.fromkeys((*before.memory, *after.memory)):
        was, now = before.memory.get(what, 0.0), after.memory.get(what, 0.0)
        if was != now:
            yield Finding("memory" if now > was else "memory-less", what, "", was, now, "bytes")


def _compile(before: Side, after: Side, threshold: float) -> Iterator[Finding]:
    kinds = {"slower": "compile", "faster": "compile-less"}
    total = sum(before.compile.values()), sum(after.compile.values())
    stages = {
        stage: (before.compile.get(stage, 0.0), after.compile.get(stage, 0.0))
        for stage in dict.fromkeys((*before.compile, *after.compile))
    }
    # A side that was not timed has nothing to compare with.
    if not before.compile or not after.compile:
        return
    for what, times in {"all stages": total, **stages}.items():
        if trend := _trend(*times, threshold, COMPILING):
            yield Finding(kinds[trend], what, "", *times, unit="s")


def _operators(before: Side, after: Side) -> Iterator[Finding]:
    ours, theirs = before.operators, after.operators
    for operator in sorted({*ours, *theirs}):
        if ours[operator] != theirs[operator]:
            counts = float(ours[operator]), float(theirs[operator])
            yield Finding("operators", short(operator), "", *counts)
