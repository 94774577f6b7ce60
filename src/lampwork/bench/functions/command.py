"""Functions of one or a few operators at three sizes, each compiled as a user compiles it, beside every peer and the
limits of the machine.

`python -m lampwork.bench functions [--only PATTERN] [--threads N ...] [--peers ...] [--seconds S] [--json FILE]`.
Contenders take turns in one process in samples of at least 5 ms; a time is the smallest of a contender's samples. `%`
is of the multiply-adds, or of the bandwidth, measured in the same run. Results are compared with eager's in float64.
"""

from __future__ import annotations

import copy
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lampwork.bench.functions.function import Function
from lampwork.bench.functions.peers import DEFAULT, PEERS, contenders
from lampwork.bench.functions.table import functions
from lampwork.bench.kernels.case import Call
from lampwork.bench.kernels.runs import arguments, format_limits, run, seconds_of, write
from lampwork.bench.machine import machine, where
from lampwork.bench.measure import errors, tensor_of
from lampwork.bench.summary import geometric_mean
from lampwork.inspect.machine.limits import Limits
from lampwork.records import record

SAMPLE_SECONDS = 0.005
ROUNDS = 5  # at least
GOAL = 1.05  # of the fastest peer


@record
class Row:
    """One function, measured. seconds: of a call, by contender; wrong: the peers whose results are not eager's, which
    are no peers. rate: ours, in `unit`; percent: of the limit. ratio: the fastest peer's time / ours. right: our result
    is as near to float64 as eager's."""

    family: str
    name: str
    size: str
    shapes: str
    dtype: str
    threads: int
    unit: str
    rate: float
    percent: float
    ratio: float
    fastest_peer: str
    seconds: dict[str, float]
    failures: dict[str, str]
    wrong: tuple[str, ...]
    right: bool

    @property
    def title(self) -> str:
        return f"{self.family} {self.name} {self.size}"


def measure(
    function: Function,
    limits: Limits,
    peers: Sequence[str] = DEFAULT,
    seconds: float = 0.3,
    sample: float = SAMPLE_SECONDS,
) -> Row:
    """`seconds` for all contenders together, and at least ROUNDS samples of each."""
    torch.manual_seed(0)
    inputs = function.inputs()
    names = ("eager", *(peer for peer in peers if peer != "eager"))
    with torch.no_grad():
        found = contenders(function.fn, inputs, names, limits.threads)
        # Theirs are copied: some answer in a buffer of their own.
        results = {name: tensor_of(call()).clone() for name, call in found.calls.items()}
        verdicts = {name: agrees(function, inputs, result) for name, result in results.items()}
        reads, writes = sum(map(_bytes, inputs)), _bytes(results["lampwork"])
        results.clear()
        times = interleaved(found.calls, seconds, sample)
    mine = times["lampwork"]
    rivals = [name for name in times if name != "lampwork" and (verdicts[name] or name == "eager")]
    best = min(rivals, key=lambda name: times[name])
    rate = (function.flops or reads + writes) / mine / 1e9
    limit = limits.gflops if function.flops else limits.bandwidth(reads, writes)
    return Row(
        function.family,
        function.name,
        function.size,
        " ".join("x".join(map(str, x.shape)) or "scalar" for x in inputs),
        str(inputs[0].dtype).removeprefix("torch."),
        limits.threads,
        "GFLOP/s" if function.flops else "GB/s",
        rate,
        100 * rate / limit if limit else math.nan,
        times[best] / mine,
        best,
        times,
        found.failures,
        tuple(name for name in times if name not in ("lampwork", "eager") and not verdicts[name]),
        verdicts["lampwork"],
    )


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def agrees(function: Function, inputs: tuple[Tensor, ...], result: Tensor) -> bool:
    """Whether a result has eager's type and shape and is as near to float64 as eager's (twice its error, and 1e-5 of
    the scale); equal to it where it is not of floats."""
    eager = tensor_of(function.fn(*inputs))
    if result.dtype != eager.dtype or result.shape != eager.shape:
        return False
    if not eager.is_floating_point():
        return torch.equal(result, eager)
    wide: Any = function.fn
    if isinstance(wide, nn.Module):
        wide = copy.deepcopy(wide).double()
    exact = tensor_of(wide(*(x.double() if x.is_floating_point() else x for x in inputs))).double()
    finite = exact.isfinite()
    if not torch.equal(result[~finite].double(), exact[~finite]):
        return False
    if not finite.any():
        return True
    return errors(result[finite], eager[finite], exact[finite])[2]


def interleaved(calls: Mapping[str, Call], seconds: float, sample: float) -> dict[str, float]:
    """The smallest seconds of a call of each, in rounds that take a sample of each."""
    turns: dict[str, int] = {}
    for name, call in calls.items():
        count = max(1, min(100, int(sample / max(seconds_of(call, 2), 1e-7))))
        turns[name] = max(1, math.ceil(sample / max(seconds_of(call, count), 1e-8)))
    best = dict.fromkeys(calls, math.inf)
    end = time.perf_counter() + seconds
    done = 0
    while done < ROUNDS or time.perf_counter() < end:
        for name, call in calls.items():
            call()  # those before it left the shared cache full of theirs
            best[name] = min(best[name], seconds_of(call, turns[name]))
        done += 1
    return best


def format_row(r: Row) -> str:
    peers = "  ".join(f"{name} {s * 1e6:.2f}" for name, s in r.seconds.items() if name != "lampwork")
    notes = "".join(f"  {name} wrong" for name in r.wrong) + ("" if r.right else "  WRONG")
    return (
        f"{r.title:36} {r.seconds['lampwork'] * 1e6:10.2f} us {r.rate:7.1f} {r.unit:7} {r.percent:4.0f}%  "
        f"x {r.ratio:5.2f}  {peers}{notes}"
    )


def format_summary(rows: Sequence[Row]) -> str:
    """Markdown, of one number of threads: the mean, what is below the goal, and a mean for each family and size."""
    mean = geometric_mean(r.ratio for r in rows)
    below = sorted((r for r in rows if r.ratio < GOAL), key=lambda r: r.ratio)
    wrong = [r.title for r in rows if not r.right]
    lines = [
        f"Against the fastest peer of each: {mean:.2f} (geometric mean of {len(rows)}), {len(below)} below {GOAL}"
        f"{': ' if below else '.'}" + ", ".join(f"{r.title} {r.ratio:.2f} ({r.fastest_peer})" for r in below)
    ]
    lines[0] += "." if below else ""
    if wrong:
        lines[0] += f" Wrong: {', '.join(wrong)}."
    sizes = list(dict.fromkeys(r.size for r in rows))
    lines += [
        "",
        f"| family | functions | {' | '.join(sizes)} | below {GOAL} |",
        "|---|---|" + "---|" * (len(sizes) + 1),
    ]
    for family in dict.fromkeys(r.family for r in rows):
        own = [r for r in rows if r.family == family]
        means = [[r.ratio for r in own if r.size == size] for size in sizes]
        cells = " | ".join(f"{geometric_mean(each):.2f}" if each else "" for each in means)
        lines.append(f"| {family} | {len(own)} | {cells} | {sum(r.ratio < GOAL for r in own)} |")
    return "\n".join(lines)


def format_tables(limits: Sequence[Limits], rows: Sequence[Row]) -> str:
    """Markdown: for each number of threads the limits, the summary and a row for each function."""
    parts: list[str] = []
    for limit in limits:
        own = [r for r in rows if r.threads == limit.threads]
        peers = list(dict.fromkeys(name for r in own for name in r.seconds if name != "lampwork"))
        table = [
            f"| function | of | lampwork µs | rate | of the limit | fastest peer/X | {' µs | '.join(peers)} µs |",
            "|---|---|---|---|---|---|" + "---|" * len(peers),
        ]
        for r in own:
            times = [_cell(r, name) for name in peers]
            table.append(
                f"| {r.title}{'' if r.right else ' (wrong)'} | {r.dtype} {r.shapes} | "
                f"{r.seconds['lampwork'] * 1e6:.4g} | {r.rate:.1f} {r.unit} | {r.percent:.0f} % | {r.ratio:.2f} | "
                f"{' | '.join(times)} |"
            )
        parts += [format_limits(limit), format_summary(own), "\n".join(table)]
    return "\n\n".join(parts)


def _cell(r: Row, peer: str) -> str:
    if peer not in r.seconds:
        return ""
    return f"{r.seconds[peer] * 1e6:.4g}{' (wrong)' if peer in r.wrong else ''}"


def main(argv: Sequence[str]) -> int:
    parser = arguments("functions", __doc__, "family name size", 0.3)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(DEFAULT))
    parser.add_argument("--below", action="store_true", help=f"print only what is below {GOAL}")
    options = parser.parse_args(argv)
    chosen = [f for f in functions() if re.search(options.only, f.title)]
    if not chosen:
        parser.error(f"no function matches {options.only!r}")
    limits, rows = run(
        options.threads,
        chosen,
        lambda function, limit: measure(function, limit, options.peers, options.seconds),
        lambda row: format_row(row) if not options.below or row.ratio < GOAL or not row.right else None,
    )
    parts = [format_summary([r for r in rows if r.threads == limit.threads]) for limit in limits]
    print("\n\n".join(["", where(machine()), *parts]))
    write(options.json, limits, "rows", rows)
    return 0 if all(r.right for r in rows) else 1
