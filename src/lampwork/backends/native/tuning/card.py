"""What a measurement on a card holds for."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import torch

from lampwork.backends.native.tuning.store import description
from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.cubins import driver_version
from lampwork.codegen.gpu.triton_source import triton_version


def card_key(target: GpuTarget) -> str:
    """What a measurement on a card holds for: its model and driver, what torch and Triton are, and what is generated
    for it and allowed there."""
    here = target.device is not None
    name = torch.cuda.get_device_name(target.device) if here else "none"
    driver = driver_version() if here else "none"
    described = hashlib.sha256(description(replace(target, device=None)).encode()).hexdigest()[:16]
    versions = f"torch {torch.__version__}, triton {triton_version() or 'none'}"
    return f"{name} | {target.name} {described} | driver {driver} | {versions}"
