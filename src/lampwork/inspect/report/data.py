"""`report_data`: all that a report shows, as dicts, lists, strings and numbers.

What is not known is left out. `format` rises when a key changes its meaning or is dropped; new keys may come.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from lampwork.backends.native.print_program import format_program
from lampwork.compiled.stages import Compilation, Stages
from lampwork.inspect.report.graphs import graph_data, graphs_data, partition_data
from lampwork.inspect.report.groups import groups_data
from lampwork.inspect.report.machine import NOTHING, Measured, machine_data
from lampwork.inspect.report.memory import Steps, constants_data, memory_data
from lampwork.inspect.report.tables import Tables
from lampwork.loops.fusion.group import Decision
from lampwork.transforms.pipeline import PassRecord
from lampwork.version import __version__

if TYPE_CHECKING:
    from lampwork.capture.model.region import Record
    from lampwork.inspect.explanation import Explanation, GuardLine, RegionReport

FORMAT = 1

TEXTS = ("bytecode", "definitions", "saved")
"""Stages whose texts a region refers to."""


def report_data(explanation: Explanation) -> dict[str, Any]:
    """The data of the report of an explanation.

    Node names are those of each region's graphs; numbers under `texts`, `program` and the like count in the list
    `texts` of the whole, those under `stack` in `stacks`. Times are in seconds, sizes in bytes.
    """
    tables = Tables()
    measured = Measured.of(explanation.times)
    regions = [region_data(region, tables, measured) for region in explanation.regions]
    records = list(_records(explanation, tables))
    return {
        "format": FORMAT,
        "lampwork": __version__,
        "torch": torch.__version__,
        "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "title": explanation.name,
        "machine": machine_data(measured.limits),
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


def region_data(region: RegionReport, tables: Tables, measured: Measured = NOTHING) -> dict[str, Any]:
    """One compiled region."""
    stages = region.stages
    return {
        "name": region.name,
        "kind": "training" if stages.halves else "inference",
        "hits": region.hits,
        "seconds": dict(region.seconds),
        "counts": dict(region.counts),
        "flame": flame(region.seconds, () if stages.compilation is None else stages.compilation.records),
        "lines": dict(region.lines),
        "guards": [_guard(guard, tables) for guard in region.guards],
        "symbols": list(region.symbols),
        **{stage: tables.text(stages.text(stage)) for stage in TEXTS if stage in stages},
        **_compilations(stages, tables, measured, region.refreshes),
    }


_LINE = re.compile(r"(?P<file>.*):(?P<number>\d+)(, (?P<module>.*))?", re.DOTALL)
"""A line of a guard, as it is printed: "model.py:12, encoder.layer.3 (Linear)"."""


def _guard(guard: GuardLine, tables: Tables) -> dict[str, Any]:
    data = {"condition": guard.condition, "slow": guard.slow}
    found = _LINE.fullmatch(guard.line)
    if found is not None:
        tables.refer(found["file"], int(found["number"]))
        data["line"] = f"{found['file']}:{found['number']}"
        data |= {"module": found["module"]} if found["module"] else {}
    return data


def _compilations(
    stages: Stages, tables: Tables, measured: Measured, refreshes: int | None
) -> dict[str, Any]:
    """What became of the graph of a region; where it was trained, of its forward, and beside it of its backward."""
    if stages.compilation is None and not stages.halves:
        return (
            {}
            if stages.aten is None
            else {"graphs": {"recorded": graph_data(stages.aten, tables), "steps": []}}
        )
    forwards, backwards = stages.halves.get("forward", ()), stages.halves.get("backward", ())
    # Compiled with the first call, or after the first backward: then calls that need no gradient have their own.
    main = forwards[-1] if forwards else stages.compilation
    found: dict[str, Any] = {}
    if main is not None:
        found = compilation_data(main, tables, measured, trained=bool(backwards), refreshes=refreshes)
    if backwards and "memory" in found and "saved bytes" in stages.counts:
        found["memory"]["saved"] = stages.counts["saved bytes"]
    if backwards:
        found["backward"] = compilation_data(backwards[0], tables, measured, trained=True)
    if len(backwards) > 1:
        found["more_backwards"] = [
            compilation_data(each, tables, measured, trained=True) for each in backwards[1:]
        ]
    return found


def compilation_data(
    made: Compilation, tables: Tables, measured: Measured, *, trained: bool, refreshes: int | None = None
) -> dict[str, Any]:
    """What became of one graph: through the passes, and in the native backend, if that took a part of it. Times are
    of equal graphs together, as those share their code."""
    found = {"graphs": graphs_data(made, tables), "partition": partition_data(made.parts)}
    inside = made.inside
    if inside is None:
        return found
    steps = Steps.of(inside, trained)
    names = names_in(made.graph, inside.graph)
    seen = measured.times.get(inside.program)
    groups = groups_data(inside, steps, names, tables, measured)
    return {
        **found,
        # Of a graph in parts it is not the whole.
        **({"time": seen.run, "runs": seen.runs} if seen is not None and len(made.parts) == 1 else {}),
        "groups": groups,
        "fusion": [_decision(each) for each in inside.decisions],
        "memory": {**memory_data(steps, inside), "steps": [group["id"] for group in groups]},
        "constants": constants_data(inside, names, refreshes),
        "program": tables.text(format_program(steps.program)),
    }


def names_in(graph: fx.Graph, compiled: fx.Graph) -> dict[str, str]:
    """Nodes of the graph that was compiled -> their names in `graph`: equal graphs are compiled once, whatever their
    nodes are called."""
    nodes, others = list(compiled.nodes), list(graph.nodes)
    if len(nodes) != len(others):  # a part of it, by the same names
        return {node.name: node.name for node in nodes}
    return {node.name: other.name for node, other in zip(nodes, others, strict=True)}


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
        **({"module": record.module} if record.module else {}),
        **({"values": list(record.values)} if record.values else {}),
    }
