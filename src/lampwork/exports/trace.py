"""What was compiled as records of torch's structured trace, which `tlparse` makes a page of.

A record is a name, metadata, and a text: the graph under the names that torch has for its own graphs, everything else
as an artifact. The number of a function stands for torch's frame, that of a version for its compilation of the frame.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import fx

from lampwork.backends.native.print_program import format_program
from lampwork.capture.model.region import Record
from lampwork.compiled.callables import target_of
from lampwork.compiled.entries import Entry
from lampwork.compiled.function import Function
from lampwork.compiled.stages import Compilation, Stages
from lampwork.errors import ExportError, text_of
from lampwork.graph.printing import format_graph
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import SymbolicInt
from lampwork.records import record
from lampwork.written import write_whole

FILE = "dedicated_log_torch_trace_lampwork.log"
"""The name that tlparse finds in a folder begins like this."""

ARTIFACTS = ("passes", "partition", "definitions", "fusion", "program", "tuning", "saved", "llvm")
"""Stages that torch has no name for."""

Metadata = Callable[[Callable[[str], int]], Mapping[str, Any]]
"""What a record says, from what numbers the names of files."""


@record(eq=False)
class Said:
    """One record. `frame`, `version`: what it is of."""

    name: str
    metadata: Metadata
    text: str | None
    frame: int
    version: int


class _Placed(Protocol):
    @property
    def entry(self) -> Entry: ...
    @property
    def function(self) -> Function: ...


def _artifact(name: str, text: str, frame: int, version: int) -> Said:
    return Said("artifact", lambda number: {"name": name, "encoding": "string"}, text, frame, version)


def said_of(function: Function, entry: Entry, frame: int, version: int) -> Iterator[Said]:
    """All of a version."""
    stages = entry.stages
    yield _start(function, frame, version)
    if stages.aten is not None:
        sizes = _sizes(stages.aten)
        yield Said(
            "dynamo_output_graph", lambda number: {"sizes": sizes}, stages.text("graph"), frame, version
        )
    if "optimized" in stages and not stages.halves:
        yield Said("inductor_post_grad_graph", lambda number: {}, stages.text("optimized"), frame, version)
    if "kernels" in stages:
        code = {"filename": f"lampwork_{frame}_{version}.txt"}
        yield Said("inductor_output_code", lambda number: code, stages.text("kernels"), frame, version)
    for name in stages.halves:
        yield from said_of_half(stages, name, frame, version)
    for stage in ARTIFACTS:
        if stage in stages and (text := stages.text(stage)):
            yield _artifact(f"lampwork_{stage}", text, frame, version)
    yield Said("dynamo_cpp_guards_str", lambda number: {}, str(entry.guards), frame, version)
    for broken in entry.breaks:
        yield _artifact("dynamo_graph_break_reason", str(broken), frame, version)
    metrics = _metrics(function, entry)
    yield Said("compilation_metrics", lambda number: metrics, None, frame, version)


def said_of_half(
    stages: Stages, name: str, frame: int, version: int, only: Compilation | None = None
) -> Iterator[Said]:
    """The forward or backward of a version: its graphs and programs. `only`: one of several."""
    for made in stages.made(name) if only is None else (only,):
        yield Said(f"aot_{name}_graph", lambda number: {}, format_graph(made.graph), frame, version)
        if made.inside is not None:
            for program in made.programs:
                yield _artifact(f"lampwork_{name}_program", format_program(program), frame, version)


def said_of_refusal(function: Function, refusal: Record, frame: int, version: int) -> Iterator[Said]:
    """A call that runs eager."""
    yield _start(function, frame, version)
    metrics = {
        **_place(function),
        "fail_type": refusal.code,
        "fail_reason": f"{refusal.cause}\n{refusal.fix}".strip(),
        "fail_user_frame_filename": refusal.file,
        "fail_user_frame_lineno": refusal.line,
    }
    yield Said("compilation_metrics", lambda number: metrics, None, frame, version)


def _start(function: Function, frame: int, version: int) -> Said:
    file, line = target_of(function.fn).place

    def metadata(number: Callable[[str], int]) -> Mapping[str, Any]:
        return {"stack": [{"line": line, "name": function.name, "filename": number(file)}]}

    return Said("dynamo_start", metadata, None, frame, version)


def _place(function: Function) -> dict[str, Any]:
    file, line = target_of(function.fn).place
    return {"co_name": function.name, "co_filename": file, "co_firstlineno": line}


def _sizes(graph: fx.Graph) -> dict[str, list[Any]]:
    specs = {node.name: node.meta.get("val") for node in graph.nodes}
    return {
        name: [str(size) if isinstance(size, SymbolicInt) else size for size in spec.shape]
        for name, spec in specs.items()
        if isinstance(spec, TensorSpec)
    }


def _metrics(function: Function, entry: Entry) -> dict[str, Any]:
    region, seconds, graph = entry.region, entry.stages.seconds, entry.stages.aten
    total = sum(seconds.values())
    return {
        **_place(function),
        "cache_size": max(0, function.versions - 1),
        "guard_count": len(region.guards) + len(region.slow_guards),
        "shape_env_guard_count": len(region.conditions),
        "graph_op_count": sum(entry.operators.values()),
        "graph_node_count": 0 if graph is None else len(graph.nodes),
        "graph_input_count": len(region.inputs),
        "entire_frame_compile_time_s": total,
        "backend_compile_time_s": total - seconds.get("capture", 0.0),
        "code_gen_time_s": seconds.get("codegen", 0.0),
        "restart_reasons": [broken.cause for broken in entry.breaks],
        "non_compliant_ops": [],
        "compliant_custom_ops": [],
    }


# --- a file -----------------------------------------------------------------------------------------------------------


def save_trace(found: Sequence[_Placed], folder: Path) -> Path:
    """Write a trace of regions, and of what their functions refused, to a folder; gives the file.

    Raises:
        ExportError: it cannot be written.
    """
    file = folder / FILE
    frames: dict[int, int] = {}
    said: list[Said] = []
    for place in found:
        frame = frames.setdefault(id(place.function), len(frames))
        versions = list(place.function.entries)
        number = next((i for i, each in enumerate(versions) if each is place.entry), len(versions))
        said += said_of(place.function, place.entry, frame, number)
    functions = {id(place.function): place.function for place in found}
    for key, function in functions.items():
        for count, refusal in enumerate(function.refusals):
            said += said_of_refusal(function, refusal, frames[key], function.versions + count)
    text = "".join(_lines(said))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise ExportError(
            f"the trace cannot be written to {folder}: {text_of(error)}",
            fix="give the path of a folder that can be made, or written to",
        ) from error
    return write_whole(file, text, "the trace", ExportError)


def _lines(said: Sequence[Said]) -> Iterator[str]:
    numbers: dict[str, int] = {}
    fresh: list[str] = []

    def number(text: str) -> int:
        if text not in numbers:
            numbers[text] = len(numbers)
            fresh.append(text)
        return numbers[text]

    for each in said:
        metadata = each.metadata(number)
        for text in fresh:
            yield _line({"str": [text, numbers[text]]}, None)
        fresh.clear()
        found = {each.name: metadata, "frame_id": each.frame, "frame_compile_id": each.version, "attempt": 0}
        yield _line(found, each.text)


def _line(found: Mapping[str, Any], text: str | None) -> str:
    """As torch's formatter writes it: a prefix of glog, JSON, and the text in lines that begin with a tab."""
    now = time.time()
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now))
    head = f"V{stamp}.{int(now % 1 * 1e6):06d} {os.getpid()} lampwork/exports/trace.py:1]"
    if text is None:
        return f"{head} {json.dumps(found)}\n"
    digest = hashlib.md5(text.encode("utf-8", "backslashreplace"), usedforsecurity=False).hexdigest()
    body = "".join(f"\n\t{line}" for line in text.split("\n"))
    return f"{head} {json.dumps({**found, 'has_payload': digest})}{body}\n"
