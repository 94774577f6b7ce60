"""What was measured best, as it lies in the cache: by the machine and the product, or kernel, that it is about."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, cast

import torch

from lampwork.cache import Key
from lampwork.codegen.target import Target
from lampwork.processor import cpu_info
from lampwork.records import record

KIND = "tuning"
"""Of the entries."""
VERSION = 1
"""Of what there is to choose from: with another one everything is measured again."""


@record
class Winner:
    """What was measured best for a product. `variant`: its name (`codegen.variants`); "": the model's choice.

    seconds, model_seconds: a call with it, and with the model's choice.
    """

    variant: str
    seconds: float
    model_seconds: float


class DamagedWinner(Exception):
    """Contents of an entry that name no winner; args[0] is the reason."""


def winner_to_bytes(winner: Winner) -> bytes:
    """As JSON."""
    fields = {
        "variant": winner.variant,
        "seconds": winner.seconds,
        "model_seconds": winner.model_seconds,
    }
    return json.dumps(fields).encode()


def winner_from_bytes(content: bytes) -> Winner:
    """What `winner_to_bytes` wrote.

    Raises:
        DamagedWinner: it is something else.
    """
    try:
        found: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedWinner(f"no JSON: {error}") from error
    fields = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    variant, times = fields.get("variant"), [fields.get("seconds"), fields.get("model_seconds")]
    if type(variant) is not str or not all(type(time) is float and time > 0 for time in times):
        raise DamagedWinner("without a winner")
    return Winner(variant, cast(float, times[0]), cast(float, times[1]))


def tuning_key(machine: Mapping[str, str], **what: str) -> Key:
    """Of the winner for a product or kernel. `machine`: what a measurement holds for."""
    return Key(KIND, {**machine, **what, "version": str(VERSION)})


def cpu_parts(target: Target, threads: int) -> dict[str, str]:
    """What a measurement on a CPU holds for: its model, what is generated for it, torch, whose calls take part, and how
    many threads run."""
    return {
        "cpu": _cpu_model(),
        "target": f"{target.name} {description_digest(target)}",
        "threads": str(threads),
        "torch": str(torch.__version__),
    }


def description_digest(target: Target) -> str:
    """Stands for the numbers of a target, the same in every process."""
    return hashlib.sha256(_description(target).encode()).hexdigest()[:16]


def _description(target: Target) -> str:
    """Without the functions in it, and with sets in order."""
    parts: list[str] = []
    for name in target.__dataclass_fields__:
        value = getattr(target, name)
        if name == "dots":
            value = [(dot.dtype, dot.steps) for dot in target.dots]
        elif name == "units":
            value = [(unit.dtype, unit.steps) for unit in target.units]
        elif isinstance(value, frozenset):
            value = sorted(cast("frozenset[str]", value))
        elif callable(value):
            value = "given"
        parts.append(f"{name}={value!r}")
    return " ".join(parts)


_X86 = ("model name", "cpu family", "model", "stepping", "cache size")
_ARM = ("CPU implementer", "CPU variant", "CPU part", "CPU revision")


def _cpu_model() -> str:
    fields = cpu_info()
    names = _ARM if _ARM[0] in fields else _X86
    return ", ".join(fields.get(name, "?") for name in names) if fields else "unknown CPU"
