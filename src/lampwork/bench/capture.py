"""Capture compared with torch.compile's: `python -m lampwork.bench capture [--only NAME ...] [--json FILE]`.

Networks are those of the bench, architectures are tiny ones of `transformers`. For each: graph breaks, regions and
seconds of capture. Both compilers hand their graphs to eager, so that the first call less the second is what capture
costs; Lampwork's passes, which torch.compile's eager backend has nothing of, are part of its first call but not of its
`capture_s`. Rounds alternate between the two, in one process that has imported both and compiled something with each.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib
import json
import logging
import math
import re
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lampwork
from lampwork import config
from lampwork.backends.observer import Observer
from lampwork.backends.registry import get_backend
from lampwork.bench.architectures import ARCHITECTURES, build, inputs_of
from lampwork.bench.machine import machine
from lampwork.bench.measure import errors
from lampwork.bench.models import WORKLOADS, load
from lampwork.capture.model.region import Region
from lampwork.compiled.function import Function
from lampwork.compiled.pipeline import build_entry
from lampwork.graph.nested import leaves, replaced
from lampwork.records import record

ROUNDS = 3


@record
class Case:
    """One call to capture. `exact`: it runs in float64, so that the accuracy of float32 can be told."""

    name: str
    kind: str
    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    exact: bool = True

    def call(self, fn: Callable[..., Any]) -> Any:
        return fn(*copy.deepcopy(self.args), **copy.deepcopy(self.kwargs))


@record
class Sample:
    """One compilation: its first call less its second, how much of that was capture proper, at how many places of the
    program it broke the graph (a break in a callee breaks its callers too: one place), and how many regions it made."""

    first_s: float
    capture_s: float
    breaks: int
    regions: int


@record
class Comparison:
    """Medians over rounds. `ratio`: torch.compile's first call / Lampwork's capture. `right`: Lampwork's native code
    answers as eager does, by the rule of `measure.py`."""

    name: str
    kind: str
    breaks: int = 0
    torch_breaks: int = 0
    regions: int = 0
    torch_regions: int = 0
    capture_s: float = math.nan
    first_s: float = math.nan
    torch_first_s: float = math.nan
    ratio: float = math.nan
    right: bool = False
    failure: str = ""


@record
class Dispatch:
    """What a call of BERT-base costs besides its kernels, in microseconds.

    `guards`: all checks, weights included, in a loop; `guards_after_run`: the same once after each run, with the
    caches full of the run's data; `dispatch`: a call of a compiled function that does nothing.
    """

    model: str
    n_guards: int
    n_weights: int
    guards_us: float
    guards_after_run_us: float
    dispatch_us: float


def cases(only: Sequence[str]) -> Iterator[Case]:
    """The networks and architectures named in `only`, all if it is empty; each is built when its turn comes."""
    for name in WORKLOADS:
        if not only or name in only:
            workload = load(name)
            yield Case(name, "network", workload.fn, workload.inputs)
    for name, architecture in ARCHITECTURES.items():
        # A few names stand for both; the network is the larger one.
        if not only or name in only:
            model = build(architecture)
            kwargs = inputs_of(architecture)
            yield Case(name, architecture.kind, model, (), kwargs, exact=not architecture.single)


def compare(case: Case, rounds: int = ROUNDS) -> Comparison:
    """Capture `case` with both, `rounds` times in turn; a failure of either is a result that says why."""
    try:
        with torch.no_grad():
            case.call(case.fn)
            ours: list[Sample] = []
            theirs: list[Sample] = []
            for _ in range(rounds):
                ours.append(_lampwork(case))
                theirs.append(_torch_compile(case))
            right = is_right(case)
    except Exception as error:  # noqa: BLE001  (a table with a failure in it tells more than none)
        return Comparison(case.name, case.kind, failure=f"{type(error).__name__}: {error}"[:200])
    return Comparison(
        case.name,
        case.kind,
        breaks=ours[-1].breaks,
        torch_breaks=theirs[-1].breaks,
        regions=ours[-1].regions,
        torch_regions=theirs[-1].regions,
        capture_s=statistics.median(s.capture_s for s in ours),
        first_s=statistics.median(s.first_s for s in ours),
        torch_first_s=statistics.median(s.first_s for s in theirs),
        ratio=statistics.median(t.first_s / o.capture_s for o, t in zip(ours, theirs, strict=True)),
        right=right,
    )


def _lampwork(case: Case) -> Sample:
    backend = get_backend("eager")
    captures: list[float] = []

    def build_eager(region: Region, function: Function, observer: Observer) -> Any:
        captures.append(region.stats["capture_seconds"])
        return build_entry(region, function, observer, (backend,))

    root = Function.of(case.fn, config.current(), build_eager, fullgraph=False)
    seconds = _first_less_second(case, root.compiled)
    places: set[tuple[str, int]] = set()
    for function in root.tree():
        again = {id(record) for record in function.recompiles}
        places |= {(record.file, record.line) for record in function.records if id(record) not in again}
    return Sample(seconds, sum(captures), len(places), len(captures))


class _Places(logging.Handler):
    """Collects where torch.compile says that a graph broke."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.found: set[tuple[str, int]] = set()

    def emit(self, record: logging.LogRecord) -> None:
        match = re.search(r"in user code at (.+):(\d+)", record.getMessage())
        if match is not None:
            self.found.add((match[1], int(match[2])))


def _torch_compile(case: Case) -> Sample:
    dynamo: Any = importlib.import_module("torch._dynamo")
    counters: Any = importlib.import_module("torch._dynamo.utils").counters
    log: logging.Logger = importlib.import_module("torch._dynamo.symbolic_convert").graph_break_log
    dynamo.reset()
    counters.clear()
    places = _Places()
    before = log.level, log.propagate
    log.addHandler(places)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    try:
        seconds = _first_less_second(case, torch.compile(case.fn, backend="eager"))
    finally:
        log.removeHandler(places)
        log.setLevel(before[0])
        log.propagate = before[1]
    return Sample(seconds, seconds, len(places.found), counters["stats"]["unique_graphs"])


def _first_less_second(case: Case, compiled: Callable[..., Any]) -> float:
    gc.collect()
    times: list[float] = []
    for _ in range(2):
        start = time.perf_counter()
        case.call(compiled)
        times.append(time.perf_counter() - start)
    return times[0] - times[1]


def is_right(case: Case) -> bool:
    """Whether native code answers as well as eager does: see `measure.py`; without float64, within 1e-4."""
    got, want = ([*leaves(case.call(fn), Tensor)] for fn in (lampwork.compile(case.fn), case.fn))
    if len(got) != len(want):
        return False
    if not case.exact:
        return all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(got, want, strict=True))
    wide = copy.deepcopy(case.fn).double() if isinstance(case.fn, torch.nn.Module) else case.fn
    args, kwargs = replaced((case.args, case.kwargs), Tensor, _double)
    exact = leaves(wide(*args, **kwargs), Tensor)
    return all(errors(*three)[2] for three in zip(got, want, exact, strict=True))


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def dispatch(model: str = "bert", calls: int = 20_000, runs: int = 30) -> Dispatch:
    """The cost of a call besides its kernels; hot, and after runs of the model."""
    workload = load(model)
    with torch.no_grad():
        root = Function.of(workload.fn, config.current(), _build_native, fullgraph=True)
        root.compiled(*workload.inputs)
        entry: Any = next(iter(root.entries)).served
        guards = _microseconds(lambda: entry.matches(workload.inputs, {}), calls)
        after: list[float] = []
        for _ in range(runs):
            root.compiled(*workload.inputs)
            start = time.perf_counter()
            entry.matches(workload.inputs, {})
            after.append((time.perf_counter() - start) * 1e6)
        identity = lampwork.compile(lambda x: x)
        x = torch.zeros(1)
        identity(x)
        nothing = _microseconds(lambda: identity(x), calls)
    return Dispatch(
        model,
        len(entry.guards),
        len(list(workload.fn.parameters())) if isinstance(workload.fn, torch.nn.Module) else 0,
        guards,
        statistics.median(after),
        nothing,
    )


def _build_native(region: Region, function: Function, observer: Observer) -> Any:
    return build_entry(region, function, observer, (get_backend("native"),))


def _microseconds(fn: Callable[[], Any], calls: int) -> float:
    return min(timeit.repeat(fn, timer=time.process_time, number=calls, repeat=5)) / calls * 1e6


def warm() -> None:
    """Import both compilers and compile something trivial with each."""
    case = Case("warm", "function", lambda x: torch.relu(x) + 1, (torch.zeros(3),))
    with torch.no_grad():
        for sample in (_lampwork, _torch_compile):
            sample(case)


def format_row(c: Comparison) -> str:
    if c.failure:
        return f"{c.kind:15} {c.name:30} failed: {c.failure}"
    notes = ("" if c.right else "  WRONG") + ("  MORE BREAKS" if c.breaks > c.torch_breaks else "")
    return (
        f"{c.kind:15} {c.name:30} capture {c.capture_s:6.3f} s, first call {c.first_s:6.3f} s, "
        f"torch.compile {c.torch_first_s:6.3f} s: {c.ratio:5.1f}x  breaks {c.breaks} / {c.torch_breaks}  "
        f"regions {c.regions} / {c.torch_regions}{notes}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lampwork.bench capture", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="networks and architectures")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    options = parser.parse_args(argv)
    unknown = [name for name in options.only if name not in WORKLOADS and name not in ARCHITECTURES]
    if unknown:
        known = ", ".join([*WORKLOADS, *ARCHITECTURES])
        parser.error(f"unknown name {unknown[0]!r}; there are {known}")
    torch.set_num_threads(1)
    warm()
    results: list[Comparison] = []
    for case in cases(options.only):
        results.append(compare(case, options.rounds))
        print(format_row(results[-1]), flush=True)
    cost = dispatch() if not options.only or "bert" in options.only else None
    if cost is not None:
        print(
            f"{cost.model}: {cost.n_guards} guards, {cost.n_weights} weights checked in {cost.guards_us:.2f} us "
            f"({cost.guards_after_run_us:.2f} us after a run), dispatch {cost.dispatch_us:.2f} us"
        )
    if options.json:
        document = {
            "machine": machine(),
            "captures": [asdict(r) for r in results],
            "dispatch": asdict(cost) if cost is not None else None,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(r.right and r.breaks <= r.torch_breaks for r in results) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
