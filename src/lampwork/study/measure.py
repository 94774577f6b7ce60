"""One architecture measured: what becomes of it, what each switch is worth, other sizes and precisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lampwork.api import compile
from lampwork.errors import text_of
from lampwork.inspect.compare import compare
from lampwork.inspect.comparison import Column, Comparison
from lampwork.records import record
from lampwork.standard import functools, math
from lampwork.study.architectures import Architecture, Network
from lampwork.study.architectures.network import Inputs
from lampwork.study.facts import explained, facts, marks, time_by_kind
from lampwork.study.switches import Switch, with_threads

EVERYTHING, EAGER, EAGER_ALONE, OPEN = "everything", "eager", "eager, one thread", "open sizes"
"""Columns that are no switch: the default, eager, eager on one thread, and sizes left open."""

ROUNDING = 1e-5
"""Of the scale of the values: what an error may be besides twice eager's. As in the project's other measurements."""


@record
class Settings:
    """How the study measures.

    threads: of torch, in all measurements that do not say another number. batch: samples of a call. seconds: for each
    column of a comparison, after which no further round starts. tiny: the sizes of tests. alone: nothing but the
    switches: no other batch, no bfloat16, no profile.
    """

    threads: int
    batch: int = 8
    seconds: float = 0.6
    tiny: bool = False
    alone: bool = False


Say = Callable[[str], None]


def measure(
    architecture: Architecture, switches: Sequence[Switch], settings: Settings, say: Say
) -> dict[str, Any]:
    """All that the study says of one architecture; what fails says why, under "failure"."""
    found: dict[str, Any] = {"name": architecture.name, "says": architecture.says, "batch": settings.batch}
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        with torch.no_grad():
            return found | _measured(architecture, switches, settings, say)
    except Exception as error:  # noqa: BLE001  (whatever it is: the row says so, and the study goes on)
        return found | {"failure": text_of(error)}
    finally:
        torch.set_num_threads(before)


def _measured(
    architecture: Architecture, switches: Sequence[Switch], settings: Settings, say: Say
) -> dict[str, Any]:
    network = architecture.build(tiny=settings.tiny)
    inputs = architecture.inputs(network, settings.batch)
    parameters = list(network.parameters())
    found: dict[str, Any] = {
        "parameters": sum(each.numel() for each in parameters),
        "parameter_bytes": sum(each.nbytes for each in parameters),
    }
    say("everything, and one switch after another")
    compiled = {EVERYTHING: compile(network)}
    compiled |= {each.name: each.compile(network) for each in switches}
    compiled[OPEN] = compile(network, dynamic=True)
    ways: dict[str, Any] = {
        EVERYTHING: compiled[EVERYTHING],
        EAGER: None,
        EAGER_ALONE: functools.partial(with_threads, threads=1),
        **{each.name: _way(each, compiled[each.name]) for each in switches},
        OPEN: compiled[OPEN],
    }
    compared = compare(network, ways, inputs, seconds=settings.seconds)
    base = explained(compiled[EVERYTHING])
    seen = marks(base)
    found |= facts(base)
    found["symbols_when_open"] = [s for region in explained(compiled[OPEN]).regions for s in region.symbols]
    eager_error = compared[EAGER].error
    found["reference"], found["rounds"] = compared.reference, compared.rounds
    found["columns"] = {
        name: _column(compared[name], eager_error) for name in (EVERYTHING, EAGER, EAGER_ALONE, OPEN)
    }
    found["switches"] = {}
    for each in switches:
        other = explained(compiled[each.name])
        found["switches"][each.name] = {
            **_column(compared[each.name], eager_error),
            "steps": sum(len(region.stages.steps()) for region in other.regions),
            "changes_code": each.everywhere or marks(other) != seen,
        }
    if not settings.alone:
        say("where the time goes")
        found["time"] = time_by_kind(lambda: compiled[EVERYTHING](*inputs))
        say("one sample")
        found["one_sample"] = _one_sample(architecture, network, settings)
        say("bfloat16")
        found["bfloat16"] = _bfloat16(architecture, compiled[EVERYTHING], inputs, settings)
    return found


def _way(switch: Switch, compiled: Any) -> Any:
    """The column of a switch: what is called, or what makes that of the model."""
    return compiled if not switch.threads else lambda _model: switch.runs(compiled)


def _column(column: Column, eager_error: float) -> dict[str, Any]:
    """A column as data; what is not known is None."""
    return {
        "call_seconds": _number(column.seconds),
        "speedup": _number(column.speedup),
        "noise": _number(column.noise),
        "first_call_seconds": _number(column.first_call),
        "peak_bytes": column.peak_bytes,
        "error": _number(column.error),
        "agrees": _agrees(column, eager_error),
        "failure": column.failure,
        "note": column.note,
    }


def _agrees(column: Column, eager_error: float) -> bool | None:
    """Whether the error is no more than twice eager's and a rounding; None if there is nothing to compare."""
    if column.failure or math.isnan(column.error) or math.isnan(eager_error):
        return None
    return column.error <= 2 * eager_error + ROUNDING


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


# --- other sizes and precisions ---------------------------------------------------------------------------------------


def _one_sample(architecture: Architecture, network: Network, settings: Settings) -> dict[str, Any]:
    compared = compare(
        network,
        {EVERYTHING: compile(network), EAGER: None},
        architecture.inputs(network, 1),
        seconds=settings.seconds,
    )
    return _both(compared)


def _bfloat16(architecture: Architecture, single: Any, inputs: Inputs, settings: Settings) -> dict[str, Any]:
    """Of weights and inputs rounded to bfloat16, beside a call in float32 of the rounds between."""
    rounded = architecture.build(tiny=settings.tiny).to(torch.bfloat16)
    given = tuple(_rounded(each) for each in inputs)
    calls: Mapping[str, Any] = {
        EVERYTHING: compile(rounded),
        EAGER: None,
        "float32": lambda _model: lambda *_: single(*inputs),
    }
    compared = compare(rounded, calls, given, seconds=settings.seconds)
    return {**_both(compared), "float32": _column(compared["float32"], math.nan)}


def _rounded(tensor: Tensor) -> Tensor:
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor


def _both(compared: Comparison) -> dict[str, Any]:
    error = compared[EAGER].error
    return {name: _column(compared[name], error) for name in (EVERYTHING, EAGER)}
