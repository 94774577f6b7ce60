"""What the CPU is called."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

from lampwork.standard import functools


@functools.cache
def cpu_info() -> Mapping[str, str]:
    """What Linux says of a CPU, by name: "model name", "flags", "cache size"; nothing where that cannot be read."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def processor() -> str:
    """The model of the CPU."""
    return cpu_info().get("model name") or platform.processor() or platform.machine()
