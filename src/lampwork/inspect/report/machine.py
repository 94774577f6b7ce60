"""The machine that a report was made on."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from lampwork import pristine
from lampwork.codegen.llvm.isa.x86 import host_isa


def machine_data() -> dict[str, Any]:
    """The processor, the widest instruction set that code is made for, and how many threads torch uses."""
    return {"cpu": processor(), "isa": host_isa("").name, "threads": pristine.get_num_threads()}


def processor() -> str:
    """The model of the CPU."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
