"""Steps of training (forward, loss, backward, AdamW) under eager, Lampwork and torch.compile.

`python -m lampwork.bench train [names] [--compilers ...] [--threads N ...] [--steps N] [--seconds S] [--json FILE]`.
AdamW is eager's fused kernel, under Lampwork `lampwork.compile(optimizer.step)`: each compiler has the faster of both.
Each compiler has a process of its own for its first steps and its memory; then all take turns in one process. `best/X`
is the step of the faster of eager and torch.compile over Lampwork's.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lampwork.bench.compilers import available
from lampwork.bench.machine import machine, where
from lampwork.bench.measure import BUDGET_SECONDS
from lampwork.bench.processes import answer, precompile
from lampwork.bench.summary import OURS, geometric_mean
from lampwork.bench.training.measure import STEPS, Alone, Together
from lampwork.bench.training.networks import NETWORKS
from lampwork.records import record

COMPILERS = ("eager", OURS, "torch.compile")
TIMEOUT_SECONDS = 600
MODULE = "lampwork.bench.training.measure"


@record
class Row:
    """One network under one compiler. failure: why a measurement is missing."""

    network: str
    compiler: str
    threads: int
    alone: Alone
    together: Together
    failure: str = ""

    @property
    def counts(self) -> bool:
        """Whether its time is one to compare with."""
        return not self.failure and (self.together.right or self.compiler == "eager")


def run(
    network: str, compilers: Sequence[str], threads: int, steps: int, seconds: float, timeout: float
) -> list[Row]:
    """Measure one network. steps, seconds: as in `measure.together`. timeout: seconds of each process."""
    with tempfile.TemporaryDirectory() as folder:
        # Of torch.compile: empty for its own process, so that it compiles; not for the common one.
        env = {"TORCHINDUCTOR_CACHE_DIR": folder}
        apart = {
            compiler: answer(MODULE, "alone", network, compiler, str(threads), timeout=timeout, env=env)
            for compiler in compilers
        }
        numbers = (str(threads), str(steps), str(seconds))
        side_by_side = answer(MODULE, "together", network, *numbers, *compilers, timeout=timeout, env=env)
    return [_row(network, name, threads, alone, side_by_side) for name, alone in apart.items()]


def _row(
    network: str, compiler: str, threads: int, apart: dict[str, Any] | str, side_by_side: dict[str, Any] | str
) -> Row:
    alone = Alone() if isinstance(apart, str) else Alone(**apart)
    together = Together() if isinstance(side_by_side, str) else Together(**side_by_side[compiler])
    reasons = (apart, side_by_side, together.failure)
    failure = next((reason for reason in reasons if reason and isinstance(reason, str)), "")
    return Row(network, compiler, threads, alone, together, failure)


def read(document: Mapping[str, Any]) -> list[Row]:
    """The rows of what `--json` wrote."""

    def row(fields: dict[str, Any]) -> Row:
        parts: dict[str, Any] = {
            "alone": Alone(**fields["alone"]),
            "together": Together(**fields["together"]),
        }
        return Row(**{**fields, **parts})

    return [row(fields) for fields in document["rows"]]


def best(rows: Sequence[Row]) -> Row | None:
    """The fastest of the others, of rows of one network."""
    rivals = [r for r in rows if r.compiler != OURS and r.counts]
    return min(rivals, key=lambda r: r.together.step_s) if rivals else None


def ratio(rows: Sequence[Row]) -> float:
    """The step of the fastest other / ours, of rows of one network; NaN if either is missing."""
    ours, rival = _of(rows, OURS), best(rows)
    return math.nan if ours is None or rival is None else rival.together.step_s / ours.together.step_s


def _of(rows: Sequence[Row], compiler: str) -> Row | None:
    return next((r for r in rows if r.compiler == compiler and not r.failure), None)


def format_row(r: Row) -> str:
    """One line."""
    head = f"{r.threads} thread{'s' if r.threads > 1 else ' '} {r.network:20} {r.compiler:14}"
    if r.failure:
        return f"{head} failed: {r.failure}"
    one, all_ = r.alone, r.together
    notes = "" if all_.right else f"  WRONG: error {all_.error:.2e}, eager's {all_.eager_error:.2e}"
    if r.compiler == OURS and (one.eager_backwards or not one.compiled_backwards):
        notes += "  backward in eager"
    return (
        f"{head} step {all_.step_s * 1e3:10.4f} ms  first {one.first_s:6.2f} s  second {one.second_s:6.2f} s  "
        f"peak {one.peak_bytes / 2**20:6.0f} MiB  loss {all_.loss:.6f}{notes}"
    )


def format_tables(rows: Sequence[Row]) -> str:
    """Markdown: for each number of threads a summary and a table."""
    parts: list[str] = []
    for threads in dict.fromkeys(r.threads for r in rows):
        own = [r for r in rows if r.threads == threads]
        parts += [f"{threads} thread{'s' * (threads > 1)}. {format_summary(own)}", _table(own)]
    return "\n\n".join(parts)


def format_summary(rows: Sequence[Row]) -> str:
    """Of one number of threads: the mean, and what is slower, wrong, failed, or differentiated in eager."""
    networks = _networks(rows)
    ratios = {name: value for name, each in networks.items() if not math.isnan(value := ratio(each))}
    below = [f"{name} {value:.2f}" for name, value in sorted(ratios.items(), key=lambda x: x[1]) if value < 1]
    ours = [r for r in rows if r.compiler == OURS]
    lists = {
        "below 1.0": below,
        "wrong": [r.network for r in ours if not r.failure and not r.together.right],
        "failed": [r.network for r in ours if r.failure],
        "backward in eager": [r.network for r in ours if not r.failure and not r.alone.compiled_backwards],
    }
    texts = [f"{what}: {', '.join(names)}" for what, names in lists.items() if names]
    mean = f"{geometric_mean(ratios.values()):.2f} (geometric mean of {len(ratios)})"
    return f"Steps of the faster of the others over Lampwork's: {'; '.join([mean, *texts])}."


def _networks(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.network, []).append(row)
    return found


def _table(rows: Sequence[Row]) -> str:
    compilers = list(dict.fromkeys(r.compiler for r in rows))
    titles = [
        "network",
        *(f"{name} ms" for name in compilers),
        "best/X",
        *(f"{name}: first, second s" for name in compilers),
        *(f"{name} MiB" for name in compilers),
        *(f"{name}: last loss" for name in compilers),
    ]
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    for network, each in _networks(rows).items():
        found = {r.compiler: r for r in each}
        value = ratio(each)
        cells = [
            network,
            *(_step(found[name]) if name in found else "" for name in compilers),
            "" if math.isnan(value) else f"{value:.2f}",
            *(_first(found[name]) if name in found else "" for name in compilers),
            *(_peak(found[name]) if name in found else "" for name in compilers),
            *(_loss(found[name]) if name in found else "" for name in compilers),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _step(r: Row) -> str:
    return "failed" if r.failure else f"{r.together.step_s * 1e3:.4g}"


def _first(r: Row) -> str:
    return "" if math.isnan(r.alone.first_s) else f"{r.alone.first_s:.2f}, {r.alone.second_s:.2f}"


def _peak(r: Row) -> str:
    return f"{r.alone.peak_bytes / 2**20:.0f}" if r.alone.peak_bytes else ""


def _loss(r: Row) -> str:
    if math.isnan(r.together.loss):
        return ""
    return f"{r.together.loss:.6f}{'' if r.together.right else ' (wrong)'}"


def main(argv: Sequence[str]) -> int:
    options = _parse(argv)
    precompile()
    compilers = available(list(dict.fromkeys(["eager", *options.compilers])))
    rows: list[Row] = []
    for threads in options.threads:
        for network in options.networks or NETWORKS:
            done = run(network, compilers, threads, options.steps, options.seconds, options.timeout)
            rows += done
            print("\n".join(map(format_row, done)), flush=True)
            print(f"  best/X {ratio(done):.2f}", flush=True)
    print(f"\n{where(machine())}\n\n{format_tables(rows)}")
    if options.json:
        document = {"machine": machine(), "rows": [asdict(r) for r in rows]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(r.together.right for r in rows if r.compiler == OURS) else 1


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m lampwork.bench train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("networks", nargs="*", metavar="network", help=f"any of: {', '.join(NETWORKS)}")
    parser.add_argument("--compilers", nargs="+", choices=COMPILERS, default=list(COMPILERS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--steps", type=int, default=STEPS, help="whose losses are compared with eager's")
    parser.add_argument(
        "--seconds",
        type=float,
        default=BUDGET_SECONDS,
        help="of the turns of all compilers, at least five each",
    )
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_SECONDS, metavar="SECONDS", help="of each process"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    options = parser.parse_args(argv)
    unknown = [name for name in options.networks if name not in NETWORKS]
    if unknown:
        parser.error(f"unknown network {unknown[0]!r}; the networks are {', '.join(NETWORKS)}")
    return options
