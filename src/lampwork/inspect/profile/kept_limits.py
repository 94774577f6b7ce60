"""What this machine can do at most, measured once and kept in the cache folder."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from lampwork import config, logs, pristine
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.folders import cache_folder, kept_file
from lampwork.inspect.machine.limits import Limits, measure_limits
from lampwork.locks import new_lock
from lampwork.processor import processor

VERSION = 2
SECONDS, LARGE = 0.015, 1 << 26
"""Of a measurement of one limit, and the bytes that count as larger than any cache: half a second for all."""

_MOST_BYTES = 1 << 16
"""Of the file: it has a few hundred."""

BEYOND = 1.1
"""Of a limit: who reaches more was measured while less ran beside it than when the limit was."""


@dataclass(slots=True)
class _Known:
    """What this process knows, by number of threads. `again`: for which it has measured a second time."""

    limits: dict[int, Limits] = field(default_factory=dict[int, Limits])
    again: set[int] = field(default_factory=set[int])
    lock: threading.RLock = field(default_factory=new_lock)


_known = _Known()


def limits_of_machine() -> Limits:
    """The limits for as many threads as torch uses now: those kept, or measured now, in half a second."""
    threads = pristine.get_num_threads()
    with _known.lock:
        if threads not in _known.limits:
            path = _file(threads)
            found = None if path is None else _read(path)
            if found is None:
                found = measure_limits(threads, SECONDS, LARGE)
                _write(path, found)
            _known.limits[threads] = found
        return _known.limits[threads]


def limits_reached(limits: Limits, share: float) -> Limits:
    """The limits to show where a step reached this share of `limits`: where that is more than all, they are measured
    again, once in a process, and the larger ones kept from then on."""
    if share <= BEYOND:
        return limits
    with _known.lock:
        threads = limits.threads
        if threads not in _known.again:
            _known.again.add(threads)
            path = _file(threads)
            now = pristine.get_num_threads()
            found = limits.or_more(measure_limits(threads, SECONDS, LARGE))
            pristine.set_num_threads(now)
            _known.limits[threads] = found
            _write(path, found)
        return limits.or_more(_known.limits.get(threads, limits))


def _file(threads: int) -> Path | None:
    folder = cache_folder(config.current())
    return None if folder is None else folder / f"limits-{_machine()}-{threads}.json"


def _machine() -> str:
    """What tells machines apart that may share a cache folder."""
    plain = "".join(letter if letter.isalnum() else "-" for letter in processor())
    return f"{plain}-{host_isa('').name}-{VERSION}"


def _read(path: Path) -> Limits | None:
    try:
        text, _ = kept_file(path, _MOST_BYTES)
        if len(text) > _MOST_BYTES:
            raise ValueError(f"longer than {_MOST_BYTES} bytes")
        found: Any = json.loads(text)
        return Limits(**{each.name: _number(found[each.name]) for each in fields(cast(Any, Limits))})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        logs.emit("tuning", f"{path} is measured again: {error}")
        return None


def _number(value: Any) -> Any:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no number")
    return value


def _write(path: Path | None, limits: Limits) -> None:
    """So that no reader sees half of it. A folder that cannot be written to is no reason to fail."""
    if path is None:
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(asdict(cast(Any, limits)), file)
        os.replace(file.name, path)
    except OSError as error:
        logs.emit("tuning", f"the limits of the machine are not kept: {error}")
