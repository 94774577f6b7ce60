"""What differs between two reports, as data, as text and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lampwork.display import Block, Shown, Table
from lampwork.display.units import bytes_text, time_text
from lampwork.records import record

KINDS: Mapping[str, str] = {
    "slower": "slower",
    "breaks": "new graph breaks",
    "refusals": "newly run eager",
    "faults": "new faults",
    "recompiles": "new recompilations",
    "unfused": "no longer fused",
    "regrouped": "fused otherwise",
    "changed": "changed kernels",
    "kernels": "new kernels",
    "regions": "new regions",
    "memory": "more memory",
    "compile": "longer to compile",
    "operators": "operators recorded",
    "faster": "faster",
    "breaks-gone": "graph breaks gone",
    "refusals-gone": "no longer run eager",
    "faults-gone": "faults gone",
    "recompiles-gone": "recompilations gone",
    "fused": "now fused",
    "kernels-gone": "kernels gone",
    "regions-gone": "regions gone",
    "memory-less": "less memory",
    "compile-less": "shorter to compile",
}
"""The kinds of findings, in the order in which they are listed, and their titles."""

REPEATED = 3
"""Layers of one kind, from which what differs in each is one row of the text."""

HEAD = ("change", "before", "after", "what", "where", "fix")


@record
class Finding(Shown):
    """Something that differs.

    Attributes:
        kind: one of `KINDS`.
        what: kernels by their operators, "linear + gelu"; the cause of a break; an operator; a stage.
        where: module, line and region, as far as they are known.
        before, after: a time, a size or a count, if both or one of them are known.
        unit: of them: "s", "bytes" or "".
        fix: what to do about a break or the like.
    """

    kind: str
    what: str
    where: str = ""
    before: float | None = None
    after: float | None = None
    unit: str = ""
    fix: str = ""

    def _brief(self) -> str:
        return ", ".join(filter(None, (KINDS[self.kind], *self.cells()[:-1])))

    @property
    def size(self) -> float:
        """By how much a time or a number of bytes differs; 0 of what is neither."""
        if self.before is None or self.after is None or not self.unit:
            return 0.0
        return abs(self.after - self.before)

    def cells(self) -> tuple[str, ...]:
        """A row of the table whose head is `HEAD`."""
        numbers = (amount(number, self.unit) for number in (self.before, self.after))
        return (change(self.before, self.after), *numbers, self.what, self.where, self.fix)


@record
class Reported(Shown):
    """One of the two reports: where it is from, of what, and how many kernels of which kind it has. `seconds`: of a run
    of all of them, if the time of each is known."""

    source: str
    title: str
    made: str
    kernels: Mapping[str, int]
    seconds: float | None

    def _brief(self) -> str:
        return str(self)

    def __str__(self) -> str:
        made = f"made {self.made}" if self.made else ""
        return ", ".join(filter(None, (self.source, self.title if self.title != self.source else "", made)))


@record
class Difference(Shown):
    """What differs between two reports. `str()` is a text to read, `to_json()` the same as data.

    Attributes:
        before, after: the reports.
        threshold: the part by which a time has to differ to count: 0.05 is 5 %.
        conditions: what they were made with, where that differs: {"threads": ("2", "4")}. Times of other machines say
            little about the program.
        findings: what differs, by kind, the most important first.
    """

    before: Reported
    after: Reported
    threshold: float
    conditions: Mapping[str, tuple[str, str]]
    findings: tuple[Finding, ...]

    def of(self, *kinds: str) -> tuple[Finding, ...]:
        """The findings of these kinds."""
        return tuple(each for each in self.findings if each.kind in kinds)

    def to_dict(self) -> dict[str, Any]:
        """The content of `to_json` as dicts, lists, strings and numbers."""
        return {
            "format": 1,
            "before": _reported(self.before),
            "after": _reported(self.after),
            "threshold": self.threshold,
            "conditions": {name: list(values) for name, values in self.conditions.items()},
            "findings": [
                {
                    "kind": each.kind,
                    "what": each.what,
                    "where": each.where,
                    "before": each.before,
                    "after": each.after,
                    "unit": each.unit,
                    "fix": each.fix,
                }
                for each in self.findings
            ],
        }

    def to_json(self, *, indent: int | None = 2) -> str:
        """The difference as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def _brief(self) -> str:
        counts = [f"{len(found)} {KINDS[kind]}" for kind, found in self._by_kind()]
        return ", ".join(counts) if counts else "nothing differs"

    def _by_kind(self) -> Iterator[tuple[str, tuple[Finding, ...]]]:
        for kind in KINDS:
            if found := self.of(kind):
                yield kind, found

    def _blocks(self) -> Iterable[Block]:
        yield f"before: {self.before}\nafter:  {self.after}\n{self._kernels()}"
        if self.conditions:
            yield "made otherwise, so that times may differ for it:"
            rows = ((name, before or "-", after or "-") for name, (before, after) in self.conditions.items())
            yield Table(("", "before", "after"), tuple(rows))
        for kind, found in self._by_kind():
            yield f"{KINDS[kind]}, {len(found)}:"
            yield _table(found)
        if not self.findings:
            yield "nothing differs"

    def _kernels(self) -> str:
        ours, theirs = self.before, self.after
        parts = [f"kernels: {sum(ours.kernels.values())} -> {sum(theirs.kernels.values())}"]
        for kind in dict.fromkeys((*ours.kernels, *theirs.kernels)):
            parts.append(f"{kind} {ours.kernels.get(kind, 0)} -> {theirs.kernels.get(kind, 0)}")
        if ours.seconds is not None and theirs.seconds is not None:
            took = f"{time_text(ours.seconds)} -> {time_text(theirs.seconds)}"
            parts.append(f"{took} ({change(ours.seconds, theirs.seconds)})")
        return ", ".join(parts)

    def __str__(self) -> str:
        lines: list[str] = []
        for block in self._blocks():
            if isinstance(block, Table):
                lines += [f"  {line}" for line in str(block).splitlines()]
            else:
                lines += [*([""] if lines else []), str(block)]
        return "\n".join(lines)


def _reported(side: Reported) -> dict[str, Any]:
    return {
        "source": side.source,
        "title": side.title,
        "made": side.made,
        "kernels": dict(side.kernels),
        "seconds": side.seconds,
    }


def _table(findings: Iterable[Finding]) -> Table:
    """Without the columns that say nothing; what repeats in many layers in one row."""
    rows = [tuple(" ".join(cell.split()) for cell in each.cells()) for each in _folded(findings)]
    shown = [n for n, title in enumerate(HEAD) if title == "what" or any(row[n] for row in rows)]
    return Table(tuple(HEAD[n] for n in shown), tuple(tuple(row[n] for n in shown) for row in rows))


def _folded(findings: Iterable[Finding]) -> list[Finding]:
    """12 times the same in "encoder.layer.0" to "encoder.layer.11" as one finding in "encoder.layer.*": of times the
    sum."""
    alike: dict[tuple[object, ...], list[Finding]] = {}
    for each in findings:
        where = re.sub(r"(?<=\.)\d+(?=[., ]|$)", "*", each.where)
        known = each.before is None, each.after is None
        alike.setdefault((each.what, where, each.fix, each.unit, *known), []).append(each)
    found: list[Finding] = []
    for (_, where, *_), some in alike.items():
        if len(some) < REPEATED:
            found += some
            continue
        first, what = some[0], f"{len(some)} x {some[0].what}"
        numbers = [_sum(each.before for each in some), _sum(each.after for each in some)]
        found.append(Finding(first.kind, what, str(where), *numbers, unit=first.unit, fix=first.fix))
    return sorted(found, key=lambda each: -each.size)


def _sum(numbers: Iterable[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def amount(number: float | None, unit: str) -> str:
    """ "1.23 ms", "1.2 MiB", "12"; "" for None."""
    if number is None:
        return ""
    if unit == "s":
        return time_text(number)
    return bytes_text(int(number)) if unit == "bytes" else f"{number:.0f}"


def change(before: float | None, after: float | None) -> str:
    """ "+12 %"; "" where there is nothing to compare with."""
    if before is None or after is None or not before:
        return ""
    share = 100 * (after / before - 1)
    return f"{share:+.1f} %" if abs(share) < 9.95 else f"{share:+,.0f} %"
