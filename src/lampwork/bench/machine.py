"""What figures were taken on."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

import torch

from lampwork.processor import cpu_info, processor

_FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16")


def machine() -> dict[str, str]:
    """The CPU's name, how many the process may use, its vector instructions (of those that matter to products), and
    the versions of Python and torch."""
    flags = set(cpu_info().get("flags", "").split())
    return {
        "cpu": processor(),
        "cpus": str(len(os.sched_getaffinity(0))),
        "features": " ".join(name for name in _FEATURES if name in flags),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def where(machine: Mapping[str, str]) -> str:
    """The sentence above a table that says what it was measured on."""
    features = f" ({machine['features']})" if machine.get("features") else ""
    return f"Measured on {machine['cpu']}{features}, torch {machine['torch']}, Python {machine['python']}."
