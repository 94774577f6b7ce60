"""The study: every architecture, every switch, as one document of plain data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lampwork.bench.machine import machine
from lampwork.checks import nearest
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.display.units import time_text
from lampwork.errors import OptionError
from lampwork.progress import Progress
from lampwork.study.architectures import ARCHITECTURES
from lampwork.study.document import SCHEMA
from lampwork.study.measure import Settings, measure
from lampwork.study.switches import switches
from lampwork.study.worth import speedup
from lampwork.version import __version__

QUICK_SWITCHES = ("fusion", "rewrites")


def run(
    only: Iterable[str] | None = None,
    *,
    without: Iterable[str] | None = None,
    quick: bool = False,
    threads: int | None = None,
    batch: int | None = None,
    seconds: float | None = None,
    say: Callable[[str], object] = str,
) -> dict[str, Any]:
    """Measure architectures, and say what each optimization is worth to each of them. Gives a document of dicts, lists,
    strings and numbers; names of numbers end in their units.

    Args:
        only: the names of architectures; None: all twelve.
        without: the names of switches, what is switched off one at a time; None: all twelve, or two if `quick`.
        quick: tiny networks, few rounds, and nothing but the switches: to see whether all of it works.
        threads: of torch; None: as many as the process may use CPUs, two at most.
        batch: samples of a call; None: 8, or 2 if `quick`.
        seconds: for each column of a comparison, after which no further round starts; None: 0.6, or 0 if `quick`.
        say: called with a line about each architecture, once it is measured; nothing hears it by default.

    Raises:
        OptionError: no architecture or switch is called so, or a number is none.
    """
    known = switches()
    names = _known(only, ARCHITECTURES, "architecture")
    off = _known(QUICK_SWITCHES if quick and without is None else without, known, "switch")
    settings = Settings(
        threads=_at_least("threads", threads, min(2, len(os.sched_getaffinity(0))), 1),
        batch=_at_least("batch", batch, 2 if quick else 8, 1),
        seconds=_at_least("seconds", seconds, 0.0 if quick else 0.6, 0),
        tiny=quick,
        alone=quick,
    )
    start = time.perf_counter()
    rows: list[dict[str, Any]] = []
    with Progress("study") as progress:
        for number, name in enumerate(names, 1):

            def at(what: str, name: str = name, number: int = number) -> None:
                progress.at(f"{name}, {number} of {len(names)}: {what}")

            begun = time.perf_counter()
            rows.append(measure(ARCHITECTURES[name], [known[each] for each in off], settings, at))
            say(f"{_line(rows[-1])}, measured in {time.perf_counter() - begun:.0f} s")
    return {
        "schema": SCHEMA,
        "lampwork": __version__,
        "machine": {**{name: str(what) for name, what in machine().items()}, "code_for": host_isa("").name},
        "settings": {
            "threads": settings.threads,
            "batch": settings.batch,
            "column_seconds": settings.seconds,
            "quick": quick,
        },
        "took_seconds": time.perf_counter() - start,
        "switches": [{"name": each, "without": known[each].without} for each in off],
        "architectures": rows,
    }


def _line(row: Mapping[str, Any]) -> str:
    """What an architecture amounts to."""
    if row.get("failure"):
        return f"{row['name']} failed: {row['failure']}"
    columns, fusion = row["columns"], row["fusion"]
    times = speedup(columns)
    fast = "" if times is None else f", {times:.2f} times as fast as eager"
    call = time_text(columns["everything"]["call_seconds"])
    return f"{row['name']}: {fusion['nodes']} operators in {fusion['steps']} steps, {call} a call{fast}"


def _known(names: Iterable[str] | None, known: Iterable[str], what: str) -> list[str]:
    every = list(known)
    if names is None:
        return every
    found = list(dict.fromkeys(names))
    for name in found:
        if name not in every:
            raise OptionError(
                f"no {what} of the study is called {name!r}", fix=nearest(name, every, "there are")
            )
    return found


def _at_least(name: str, given: Any, default: Any, least: int) -> Any:
    if given is None:
        return default
    kinds = (int,) if type(default) is int else (int, float)
    if type(given) not in kinds or not least <= given < float("inf"):
        raise OptionError(f"{name} is {given!r}, expected a number from {least} on", fix="leave it out")
    return given
