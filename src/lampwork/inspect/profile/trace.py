"""A profile as a trace in the format of Chrome's tracing, which https://ui.perfetto.dev shows too."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lampwork.inspect.profile.memory import memory_of
from lampwork.inspect.profile.spans import WHAT, ThreadSpans

_CATEGORIES = {
    "run": "region",
    "call": "kernel",
    "operator": "operator",
    "label": "label",
    "backward": "autograd",
    "compile": "compile",
}


def trace_of(threads: Sequence[ThreadSpans], begin: int) -> dict[str, Any]:
    """The document. `begin`: the nanosecond that is its 0."""
    return {"displayTimeUnit": "ms", "traceEvents": list(_events(threads, begin))}


def _events(threads: Sequence[ThreadSpans], begin: int) -> Iterator[dict[str, Any]]:
    process = os.getpid()
    held = {
        id(program): {each.index: each for each in memory_of(program)}
        for thread in threads
        for program in thread.programs
    }
    for thread in threads:
        of_thread = {"pid": process, "tid": thread.number}
        yield {"ph": "M", "name": "thread_name", "args": {"name": f"thread {thread.number}"}, **of_thread}
        # What begins first comes first, and what holds others before them.
        order = np.lexsort((thread.spans["depth"], thread.spans["begin"]))
        for span in thread.spans[order]:
            what = WHAT[span["what"]]
            at = (int(span["begin"]) - begin) / 1000
            event: dict[str, Any] = {
                "ph": "X",
                "name": thread.name(span),
                "cat": _CATEGORIES[what],
                "ts": at,
                "dur": (int(span["end"]) - int(span["begin"])) / 1000,
                **of_thread,
            }
            if what == "call":
                event["args"] = _arguments(thread, span)
                memory = held[id(thread.programs[span["of"]])].get(int(span["index"]))
                if memory is not None:
                    sizes = {"arena": memory.arena, "fresh": memory.fresh, "heap": memory.heap}
                    yield {"ph": "C", "name": "bytes in use", "ts": at, "args": sizes, **of_thread}
            yield event


def _arguments(thread: ThreadSpans, span: Any) -> dict[str, Any]:
    facts = thread.steps[span["of"]].get(int(span["index"]))
    if facts is None:
        return {}
    return {
        "kind": facts.kind,
        "nodes": ", ".join(facts.nodes),
        "modules": ", ".join(facts.modules),
        "lines": ", ".join(map(str, facts.lines)),
        "flops": facts.flops,
        "bytes read": facts.bytes_read,
        "bytes written": facts.bytes_written,
    }
