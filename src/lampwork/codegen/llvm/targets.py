"""Targets by name: the kinds of machines that code can be made for ahead of time, wherever it is made.

A name is a level of an instruction set, with what a machine may have beside it: "x86-64-v4+vnni". What such code needs
of a CPU are flags as Linux names them: `flags` in /proc/cpuinfo on x86-64, the bits of HWCAP (`Features`) on AArch64.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType

from lampwork.checks import nearest
from lampwork.codegen.llvm.isa import aarch64, amx, x86
from lampwork.codegen.target import Target
from lampwork.errors import OptionError
from lampwork.processor import cpu_info
from lampwork.records import record
from lampwork.standard import functools

HOST = "host"
"""Stands for the best target that this machine runs."""


@record
class TargetFacts:
    """What a loader has to know of a target.

    machine: as `uname -m` says. isa: the name of its instruction set. needs: all flags that its code relies on.
    """

    name: str
    machine: str
    isa: str
    needs: tuple[str, ...]


@record
class Host:
    """A machine: its architecture, its CPU's flags, and those that it has and refuses, with the reason."""

    machine: str
    flags: frozenset[str]
    refused: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)


@record
class Choice:
    """chosen: the target to take; None: there is none that the machine runs. reasons: of each target that was
    offered, in words. fix: what helps where there is none."""

    chosen: TargetFacts | None
    reasons: Mapping[str, str] = field(hash=False)
    fix: str = ""


_V2 = ("cx16", "lahf_lm", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3")
_V3 = (*_V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_NEON, _DOTPROD = ("fp", "asimd"), "asimddp"

_VNNI, _BF16 = "avx512_vnni", "avx512_bf16"


def _x86(name: str, isa: x86.IsaName, needs: Sequence[str]) -> tuple[TargetFacts, Callable[[], Target]]:
    extra = tuple(flag for flag in (_VNNI, _BF16) if flag in needs)
    return TargetFacts(name, "x86_64", isa, tuple(needs)), lambda: x86.any_cpu(name, isa, extra)


def _arm(name: str, needs: Sequence[str]) -> tuple[TargetFacts, Callable[[], Target]]:
    has_dots = _DOTPROD in needs
    return TargetFacts(name, "aarch64", "neon", tuple(needs)), lambda: aarch64.describe(
        name, dot_products=has_dots
    )


_ALL = (
    _x86("x86-64-v4+amx", "amx", (*_V4, *sorted(amx.FLAGS))),
    _x86("x86-64-v4+bf16", "avx512", (*_V4, _VNNI, _BF16)),
    _x86("x86-64-v4+vnni", "avx512", (*_V4, _VNNI)),
    _x86("x86-64-v4", "avx512", _V4),
    _x86("x86-64-v3", "avx2", _V3),
    _x86("x86-64-v2", "sse4", _V2),
    _arm("aarch64+dotprod", (*_NEON, _DOTPROD)),
    _arm("aarch64", _NEON),
)

TARGETS: Mapping[str, TargetFacts] = MappingProxyType({found.name: found for found, _ in _ALL})
"""All targets that have a name; of one architecture the best first."""


def facts(name: str) -> TargetFacts:
    """What there is to know of the target `name`; of "host", of the best one that this machine runs.

    Raises:
        OptionError: there is no target of this name, or none that this machine runs.
    """
    if name == HOST:
        choice = pick(tuple(TARGETS.values()))
        if choice.chosen is None:
            raise OptionError(f"no target runs on this machine ({this_host().machine})", fix=choice.fix)
        return choice.chosen
    found = TARGETS.get(name) if isinstance(name, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if found is None:
        fix = nearest(name, (HOST, *TARGETS), "the targets are")
        raise OptionError(f"there is no target {name!r}", fix=fix)
    return found


@functools.cache
def named_target(name: str) -> Target:
    """The target `name`, one of `TARGETS`, or "host". Its code is made, and not loaded into this process.

    Raises OptionError as `facts`.
    """
    wanted = facts(name)
    return next(make() for found, make in _ALL if found is wanted)


def this_host() -> Host:
    """This machine. Whether the kernel grants AMX's registers is asked for where the CPU has them."""
    machine = platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    known = cpu_info()
    flags = frozenset(known.get("flags", known.get("Features", "")).split())
    refused = {}
    if machine == "x86_64" and flags >= amx.FLAGS and (why := amx.refusal()):
        refused = {"amx_tile": f"the kernel refuses the tile registers: {why}"}
    return Host(machine, flags, refused)


def pick(offered: Sequence[TargetFacts], host: Host | None = None) -> Choice:
    """The first of the targets `offered`, best first, that a machine runs: this one, if none is given."""
    host = this_host() if host is None else host
    chosen: TargetFacts | None = None
    reasons: dict[str, str] = {}
    for target in offered:
        why = _obstacle(target, host)
        if why:
            reasons[target.name] = why
        elif chosen is None:
            chosen = target
            reasons[target.name] = "the best one that this machine runs"
        else:
            reasons[target.name] = f"this machine runs it, and {chosen.name} is better"
    return Choice(chosen, reasons, "" if chosen is not None else _fix(host))


def _obstacle(target: TargetFacts, host: Host) -> str:
    """Why a machine does not run a target's code; "" if it does."""
    if target.machine != host.machine:
        return f"it is for {target.machine}, and this machine is {host.machine or 'unknown'}"
    missing = [flag for flag in target.needs if flag not in host.flags]
    if missing:
        return f"this CPU lacks {', '.join(missing)}"
    return next((host.refused[flag] for flag in target.needs if flag in host.refused), "")


def _fix(host: Host) -> str:
    """What to make code for, so that it runs on a machine."""
    best = next((each.name for each in TARGETS.values() if not _obstacle(each, host)), None)
    if best is None:
        return f"use another machine: no target runs on this one, whose CPU is {host.machine or 'unknown'}"
    return f'export it again with targets=["{best}", ...], which this machine runs'
