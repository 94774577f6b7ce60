"""The section of one architecture on the page of a study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lampwork.display.units import time_text
from lampwork.study.worth import worth

MOST = 8
"""Operators, rewrites and calls that are named."""


def details(row: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[str]:
    """What there is to say of an architecture beyond the tables, as lines of Markdown."""
    yield f"\n### {row['name']}\n"
    yield f"{row['says'][0].upper()}{row['says'][1:]}."
    if row.get("failure"):
        yield f"\nIt could not be measured: {_plain(row['failure'])}"
        return
    found, fusion = row["representation"], row["fusion"]
    yield ""
    yield f"* Recorded: {_counted(found['operators'])}."
    for what, records in (("Graph break", found["breaks"]), ("Runs eager", found["refusals"])):
        for each in records:
            yield f"* {what} {each['code']}: {_plain(each['cause'])}."
    yield f"* Passes: {_counted(row['passes'])}." if row["passes"] else "* No pass changed anything."
    own = {name: count for name, count in row["rewrites"].items() if name not in row["passes"]}
    if own:
        yield f"* Rewrites: {_counted(own)}."
    yield f"* Steps: {_counted(fusion['kinds'])}; {fusion['distinct_functions']} distinct functions."
    if fusion["aten"]:
        yield f"* Left to ATen: {_counted(fusion['aten'])}."
    if fusion["reasons"]:
        reasons = "; ".join(f"{_plain(reason)} ({count})" for reason, count in fusion["reasons"].items())
        yield f"* Not joined, most often: {reasons}."
    if row["symbols_when_open"]:
        yield f"* Open sizes: {', '.join(f'`{each}`' for each in row['symbols_when_open'][:MOST])}."
    yield f"* Compiled in {_spent(row['compile_seconds'])}."
    yield from _worth(row, document)
    for name, column in {**row["columns"], **row["switches"]}.items():
        if column["failure"]:
            yield f"* {name} failed: {_plain(column['failure'])}."


def _worth(row: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[str]:
    cells = [cell for each in document["switches"] if (cell := worth(row, each["name"])) is not None]
    helping = sorted((c for c in cells if c.helps), key=lambda c: -c.ratio)
    costing = sorted((c for c in cells if c.costs), key=lambda c: c.ratio)
    if helping:
        yield f"* Helps: {', '.join(f'{c.switch} ({c.ratio:.2f})' for c in helping)}."
    if costing:
        yield f"* Costs: {', '.join(f'{c.switch} ({c.ratio:.2f})' for c in costing)}."


def _counted(counts: Mapping[str, int]) -> str:
    names = list(counts)
    more = f" and {len(names) - MOST} more kinds" if len(names) > MOST else ""
    return ", ".join(f"{counts[name]} `{name}`" for name in names[:MOST]) + more


def _spent(seconds: Mapping[str, float]) -> str:
    parts = sorted(seconds.items(), key=lambda each: -each[1])[:4]
    total = time_text(sum(seconds.values()))
    return f"{total}: {', '.join(f'{name} {time_text(spent)}' for name, spent in parts)}"


def _plain(text: str) -> str:
    """In one line, without what Markdown would read as markup of its own."""
    line = " ".join(text.split()).rstrip(".")
    return "".join(f"\\{each}" if each in "*_<>[]`|\\" else each for each in line)
