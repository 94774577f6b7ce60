"""`report_data`: all that a report shows, as dicts, lists, strings and numbers.

What is not known is left out. `format` rises when a key changes its meaning or is dropped; new keys may come.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from lampwork.backends.observer import Inside
from lampwork.compiled.stages import Stages
from lampwork.inspect.report.graphs import graphs_data, partition_data
from lampwork.inspect.report.groups import groups_data
from lampwork.inspect.report.machine import machine_data
from lampwork.inspect.report.memory import Steps, constants_data, memory_data
from lampwork.inspect.report.tables import Tables
from lampwork.loops.fusion.group import Decision
from lampwork.transforms.pipeline import PassRecord
from lampwork.version import __version__

if TYPE_CHECKING:
    from lampwork.capture.model.region import Record
    from lampwork.inspect.explanation import Explanation, RegionReport

FORMAT = 1

TEXTS = {"program": "program", "bytecode": "bytecode", "definitions": "definitions", "saved": "saved"}
"""Key of a region -> the stage whose text it refers to."""


def report_data(explanation: Explanation) -> dict[str, Any]:
    """The data of the report of an explanation.

    Node names are those of each region's graphs; numbers under `texts`, `program` and the like count in the list
    `texts` of the whole, those under `stack` in `stacks`. Times are in seconds, sizes in bytes.
    """
    tables = Tables()
    regions = [region_data(region, tables) for region in explanation.regions]
    records = list(_records(explanation, tables))
    return {
        "format": FORMAT,
        "lampwork": __version__,
        "torch": torch.__version__,
        "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "title": explanation.name,
        "machine": machine_data(),
        "options": dict(explanation.options),
        "records": records,
        "regions": regions,
        "functions": [
            {
                "name": function.name,
                "regions": list(function.regions),
                "refusals": [str(each) for each in function.refusals],
            }
            for function in explanation.functions
        ],
        **tables.data(),
    }


# --- regions ----------------------------------------------------------------------------------------------------------


def region_data(region: RegionReport, tables: Tables) -> dict[str, Any]:
    """One compiled region."""
    stages = region.stages
    for guard in region.guards:
        file, _, line = guard.line.rpartition(":")
        if file and line.isdecimal():
            tables.refer(file, int(line))
    return {
        "name": region.name,
        "kind": "training" if stages.trained else "inference",
        "hits": region.hits,
        "seconds": dict(region.seconds),
        "counts": dict(region.counts),
        "flame": flame(region.seconds, stages.records),
        "lines": dict(region.lines),
        "guards": [
            {
                "condition": guard.condition,
                **({"line": guard.line} if guard.line else {}),
                "slow": guard.slow,
            }
            for guard in region.guards
        ],
        "symbols": list(region.symbols),
        "graphs": graphs_data(stages, tables),
        "partition": partition_data(stages.parts),
        **{key: tables.text(stages.text(stage)) for key, stage in TEXTS.items() if stage in stages},
        **_inside(stages, tables),
    }


def _inside(stages: Stages, tables: Tables) -> dict[str, Any]:
    inside = stages.inside
    if inside is None:
        return {}
    return inside_data(inside, stages, tables)


def inside_data(inside: Inside, stages: Stages, tables: Tables) -> dict[str, Any]:
    """What the native backend made of the part of a region that it took."""
    steps = Steps.of(inside, stages.trained)
    groups = groups_data(inside, steps, stages, tables)
    memory = memory_data(steps, inside)
    memory["steps"] = [group["id"] for group in groups]
    if "saved bytes" in stages.counts and stages.trained:
        memory["saved"] = stages.counts["saved bytes"]
    return {
        "groups": groups,
        "fusion": [_decision(each) for each in inside.decisions],
        "memory": memory,
        "constants": constants_data(inside),
    }


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "what": decision.what,
        "fused": decision.verdict,
        "why": decision.reason,
        **dict(zip(("a", "b"), decision.names, strict=False)),
    }


def flame(seconds: Mapping[str, float], records: Sequence[PassRecord]) -> list[dict[str, Any]]:
    """The steps of a compilation laid end to end, in order, and the passes below theirs."""
    found: list[dict[str, Any]] = []
    start = 0.0
    for name, spent in seconds.items():
        found.append({"name": name, "start": start, "seconds": spent, "depth": 0})
        if name == "passes":
            below = start
            for each in records:
                found.append({"name": each.name, "start": below, "seconds": each.seconds, "depth": 1})
                below += each.seconds
        start += spent
    return found


# --- records ----------------------------------------------------------------------------------------------------------


def _records(explanation: Explanation, tables: Tables) -> Iterator[dict[str, Any]]:
    ends = {record: number for number, region in enumerate(explanation.regions) for record in region.breaks}
    for record in explanation.breaks:
        yield _record("break", record, tables) | ({"region": ends[record]} if record in ends else {})
    for record in explanation.refusals:
        yield _record("fault" if _is_fault(record) else "refusal", record, tables)
    for record in explanation.recompiles:
        yield _record("recompile", record, tables)


def _is_fault(record: Record) -> bool:
    """Whether it tells of a plug-in or of us, and not of what the program does."""
    return record.code[:3] in ("LW2", "LW3", "LW4", "LW5")


def _record(kind: str, record: Record, tables: Tables) -> dict[str, Any]:
    tables.refer(record.file, record.line)
    return {
        "kind": kind,
        "code": record.code,
        "cause": record.cause,
        "fix": record.fix,
        "file": record.file,
        "line": record.line,
        "function": record.function,
    }
