"""Counters since the process started or `reset()`: what was compiled, what ran compiled, and what silently did not."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from lampwork.locks import new_lock


@dataclass(slots=True)
class Counters:
    """`compiled_calls`: calls served by a compiled version without a graph break. `partial_calls`: calls compiled
    around a graph break. `eager_calls`: calls that ran eager as a whole. `regions`, `breaks`, `recompiles`: how many
    there were. `constant_refreshes`: how often constant parts were computed again because a weight had changed.
    `backend_compiles`: parts of graphs that a backend compiled; `backend_cache_hits`: parts that were already compiled.
    `backend_restored`: parts whose compiled programs came from the cache folder.
    `trained`: regions whose backward was compiled; `compiled_backwards`, `eager_backwards`: what ran of their segments.
    `passing_calls`: calls of trained regions that ran eager because they had new sizes, forward and backward.
    `double_backwards`: what ran compiled of those with `create_graph=True`.
    `compile_seconds`: total time spent compiling."""

    compiled_calls: int = 0
    partial_calls: int = 0
    eager_calls: int = 0
    regions: int = 0
    breaks: int = 0
    recompiles: int = 0
    constant_refreshes: int = 0
    backend_compiles: int = 0
    backend_cache_hits: int = 0
    backend_restored: int = 0
    trained: int = 0
    compiled_backwards: int = 0
    eager_backwards: int = 0
    passing_calls: int = 0
    double_backwards: int = 0
    compile_seconds: float = 0.0


@dataclass(slots=True)
class _Store:
    counters: Counters = field(default_factory=Counters)
    before: dict[str, int] = field(default_factory=dict[str, int])
    lock: threading.RLock = field(default_factory=new_lock)


# The one process-wide table of counters. Calls and refreshes are counted in C++, from the start of the process;
# `before` is what they stood at when the counters were last reset.
_store = _Store()


def add(name: str, amount: float = 1) -> None:
    with _store.lock:
        setattr(_store.counters, name, getattr(_store.counters, name) + amount)


def snapshot(native: Mapping[str, int]) -> dict[str, float]:
    """The counters now; `native` are those of the C++ runtime."""
    with _store.lock:
        found = asdict(_store.counters)
        for name in found:
            if name in native:
                found[name] += native[name] - _store.before.get(name, 0)
        return found


def reset(native: Mapping[str, int]) -> None:
    with _store.lock:
        _store.counters = Counters()
        _store.before = dict(native)
