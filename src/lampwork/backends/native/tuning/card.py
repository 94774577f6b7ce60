"""What a measurement on a card holds for."""

from __future__ import annotations

from dataclasses import replace

import torch

from lampwork.backends.native.tuning.winner import description_digest
from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.cubins import driver_version
from lampwork.codegen.gpu.triton_source import triton_version


def card_parts(target: GpuTarget) -> dict[str, str]:
    """What a measurement on a card holds for: its model and driver, what torch and Triton are, and what is generated
    for it and allowed there."""
    here = target.device is not None
    return {
        "card": torch.cuda.get_device_name(target.device) if here else "none",
        "target": f"{target.name} {description_digest(replace(target, device=None))}",
        "driver": driver_version() if here else "none",
        "torch": str(torch.__version__),
        "triton": triton_version() or "none",
    }
