"""One architecture measured: what becomes of it, what each switch is worth, other sizes and precisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lampwork import config, pristine
from lampwork.api import compile
from lampwork.errors import text_of
from lampwork.inspect.compare import compare
from lampwork.inspect.comparison import Column, Comparison
from lampwork.records import record
from lampwork.standard import functools, math
from lampwork.study.architectures import Architecture, Network
from lampwork.study.architectures.network import Inputs
from lampwork.study.facts import explained, facts, marks, steps_of, time_by_kind
from lampwork.study.switches import Switch, with_threads

EVERYTHING, EAGER, EAGER_ALONE, OPEN = "everything", "eager", "eager, one thread", "open sizes"
AGAIN = "everything, again"
"""Columns that are no switch: the default, eager, eager on one thread, sizes left open; and the default compiled once
more, which shows how far two measurements of the same program are apart on this machine."""

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
    before = pristine.get_num_threads()
    pristine.set_num_threads(settings.threads)
    try:
        # First calls compile, whatever was compiled before.
        with pristine.no_grad(), config.using(cache="off"):
            return found | _measured(architecture, switches, settings, say)
    except Exception as error:  # noqa: BLE001  (whatever it is: the row says so, and the study goes on)
        return found | {"failure": text_of(error)}
    finally:
        pristine.set_num_threads(before)


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
    everything, again, opened = compile(network), compile(network), compile(network, dynamic=True)
    without: dict[str, Any] = {}  # by switch, once its column has begun
    ways: dict[str, Any] = {
        EVERYTHING: everything,
        EAGER: None,
        EAGER_ALONE: functools.partial(with_threads, threads=1),
        **{each.name: functools.partial(_way, each, network, without) for each in switches},
        OPEN: opened,
        AGAIN: again,
    }
    compared = compare(network, ways, inputs, seconds=settings.seconds)
    for name in (EAGER, EVERYTHING):
        if compared[name].failure:
            return {"failure": f"{name}: {compared[name].failure}"}
    eager_error = _error_of(compared)
    base = explained(everything)
    found |= facts(base)
    found["symbols_when_open"] = [s for region in explained(opened).regions for s in region.symbols]
    found["reference"], found["rounds"] = compared.reference, compared.rounds
    found["columns"] = {
        name: _column(compared[name], eager_error) for name in (EVERYTHING, EAGER, EAGER_ALONE, OPEN, AGAIN)
    }
    seen = marks(base)
    found["switches"] = {
        each.name: {
            **_column(compared[each.name], eager_error),
            **_changed(each, without.get(each.name), seen, settings),
        }
        for each in switches
    }
    if not settings.alone:
        say("where the time goes")
        found["time"] = time_by_kind(lambda: everything(*inputs))
        say("one sample")
        found["one_sample"] = _one_sample(architecture, network, settings)
        say("bfloat16")
        found["bfloat16"] = _bfloat16(architecture, everything, inputs, settings)
    return found


def _way(switch: Switch, network: Network, made: dict[str, Any], _copy: Any) -> Callable[..., Any]:
    """The column of a switch: the network itself compiled without it, which is noted in `made`."""
    made[switch.name] = switch.compile(network)
    return switch.runs(made[switch.name])


def _changed(switch: Switch, compiled: Any, seen: Sequence[str], settings: Settings) -> dict[str, Any]:
    """How many steps there are without it, and whether they are others. `seen`: what there is with it."""
    if compiled is None:  # it could not be compiled
        return {"steps": 0, "changes_code": False}
    other = explained(compiled)
    runs_otherwise = switch.everywhere or switch.threads not in (0, settings.threads)
    return {
        "steps": len(list(steps_of(other.regions))),
        "changes_code": runs_otherwise or marks(other) != seen,
    }


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


def _error_of(compared: Comparison) -> float:
    """Eager's error against float64; NaN where the reference is another."""
    return compared[EAGER].error if compared.reference == "float64" else math.nan


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
    error = _error_of(compared)
    return {name: _column(compared[name], error) for name in (EVERYTHING, EAGER)}
