"""What this machine can do at most, measured once and kept in the cache folder."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, cast

from lampwork import config, logs, pristine
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.folders import cache_folder
from lampwork.inspect.machine.limits import Limits, measure_limits

VERSION = 1
SECONDS, LARGE = 0.015, 1 << 26
"""Of a measurement of one limit, and the bytes that count as larger than any cache: half a second for all."""


def limits_of_machine() -> Limits:
    """The limits for as many threads as torch uses now: those kept, or measured now, in half a second."""
    threads = pristine.get_num_threads()
    folder = cache_folder(config.current())
    path = None if folder is None else folder / f"limits-{_machine()}-{threads}.json"
    if path is not None and (found := _read(path)) is not None:
        return found
    measured = measure_limits(threads, SECONDS, LARGE)
    if path is not None:
        _write(path, measured)
    return measured


def _machine() -> str:
    """What tells machines apart that may share a cache folder."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = (line.partition(":") for line in info.read_text().splitlines())
        cpu = next((value.strip() for name, _, value in lines if name.strip() == "model name"), cpu)
    plain = "".join(letter if letter.isalnum() else "-" for letter in cpu)
    return f"{plain}-{host_isa('').name}-{VERSION}"


def _read(path: Path) -> Limits | None:
    try:
        found: Any = json.loads(path.read_text())
        return Limits(**{each.name: _number(found[each.name]) for each in fields(cast(Any, Limits))})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        logs.emit("tuning", f"{path} is measured again: {error}")
        return None


def _number(value: Any) -> Any:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no number")
    return value


def _write(path: Path, limits: Limits) -> None:
    """So that no reader sees half of it. A folder that cannot be written to is no reason to fail."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(asdict(cast(Any, limits)), file)
        os.replace(file.name, path)
    except OSError as error:
        logs.emit("tuning", f"the limits of the machine are not kept: {error}")
