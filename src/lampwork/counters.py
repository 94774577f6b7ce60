"""Counters since start or `reset()`: what was compiled, what ran compiled, and what silently did not."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field


@dataclass(slots=True)
class Counters:
    """`compiled_calls`: answered by a compiled entry, no graph break. `partial_calls`: compiled around a break.
    `eager_calls`: captured nothing and ran eager. `regions`, `breaks`, `recompiles`: made while compiling.
    `constant_refreshes`: constant parts computed again because a weight changed. `compile_seconds`: spent in all."""

    compiled_calls: int = 0
    partial_calls: int = 0
    eager_calls: int = 0
    regions: int = 0
    breaks: int = 0
    recompiles: int = 0
    constant_refreshes: int = 0
    compile_seconds: float = 0.0


@dataclass(slots=True)
class _Store:
    counters: Counters = field(default_factory=Counters)
    lock: threading.Lock = field(default_factory=threading.Lock)


# The one process-wide table of counters; the calls themselves are counted in C++ and added when read (see api.stats).
_store = _Store()


def add(name: str, amount: float = 1) -> None:
    with _store.lock:
        setattr(_store.counters, name, getattr(_store.counters, name) + amount)


def snapshot() -> dict[str, float]:
    with _store.lock:
        return asdict(_store.counters)


def reset() -> None:
    with _store.lock:
        _store.counters = Counters()
