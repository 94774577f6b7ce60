"""What figures were taken on."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


def machine() -> dict[str, str]:
    """The CPU's name, and the versions of Python and torch."""
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    return {"cpu": cpu, "python": platform.python_version(), "torch": torch.__version__}
