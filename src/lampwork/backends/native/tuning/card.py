"""What a measurement on a card holds for."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from lampwork.backends.native.tuning.store import description
from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.triton_source import triton_version


def card_key(target: GpuTarget) -> str:
    """What a measurement on a card holds for: its model and driver, what torch and Triton are, and what is generated
    for it and allowed there."""
    name = "none" if target.device is None else torch.cuda.get_device_name(target.device)
    described = hashlib.sha256(description(replace(target, device=None)).encode()).hexdigest()[:16]
    versions = f"torch {torch.__version__}, triton {triton_version() or 'none'}"
    return f"{name} | {target.name} {described} | driver {_driver_version()} | {versions}"


def _driver_version() -> str:
    """The kernel module's, as NVIDIA's Linux drivers say it; else the CUDA that it serves."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return str(cast(Any, torch._C)._cuda_getDriverVersion()) if torch.cuda.is_available() else "none"
    return " ".join(text.partition("\n")[0].split())
