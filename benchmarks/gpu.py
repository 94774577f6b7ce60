"""Figures of a GPU: ours beside eager, and torch.compile as far as there is time.

    python benchmarks/gpu.py [functions small networks training tuned] [--seconds 240] [--peers default max-autotune]
                             [--only NAME] [--json FILE] [--device cuda] [--tiny]

First eager and ours, on all rows of all sections; then the peers, those rows first that say most, until the seconds are
over. Each row is measured on its own: what fails is one line. The JSON file is written after each row. Results of every
compiler are compared with double precision on the same device; a `!` stands behind figures whose results are wrong.

functions: device time by events, the host being ahead, inputs in turn; GB/s of the bytes that must be read and written;
    part of the bandwidth of `copy_`, measured in the same process on as many elements of the dtype.
small: microseconds of the host for a call that waits for nothing, and until the result is there. First what a launch
    takes of that by the driver alone, and with memory for a result from torch's allocator: the rest of a call is ours.
networks, training: seconds of the first call, milliseconds of a call in a loop.
tuned: the same of BERT-base and GPT-2 by mode: default, "max-autotune" without and with CUDA graphs, winners of an
    empty store; behind a figure the seconds of the first call. Then what was measured. Only where it is asked for.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from gpu_timing import COMPILERS, PEERS, Callee, Clock, forget
from gpu_workloads import DTYPES, Function, functions, networks, small, trainings
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import lampwork
from lampwork.api import function_of
from lampwork.inspect.explain import explanation_of
from lampwork.testing.compare import difference, exact_result

SECTIONS = ("functions", "small", "networks", "training", "tuned")
UNASKED = SECTIONS[:-1]
OURS = ("eager", "ours")
ALSO_OURS = {"small": ("ours reduce",), "tuned": ("ours tuned", "ours tuned, graphs")}
TUNED = ("bert", "gpt2")
PEERS_OF = {  # modes that capture CUDA graphs copy their inputs, which is no part of a function bound by memory
    "functions": ("default",),
    "small": ("default", "reduce-overhead"),
    "networks": PEERS,
    "training": ("default",),
    "tuned": ("max-autotune",),
}
SETS = 3  # of inputs, used in turn: more than any cache holds
STEPS = 4  # of training, whose losses are compared
LOSSES_APART = 5e-3  # of a loss, after steps of AdamW

Row = dict[str, Any]


class Bench:
    """What a run shares: options, the clock, the rows so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.clock = Clock(options.device)
        self.deadline = time.perf_counter() + options.seconds
        self.rows: list[Row] = []
        self.copy_gbs: dict[str, float] = {}

    def left(self) -> float:
        return self.deadline - time.perf_counter()

    def write(self) -> None:
        if self.options.json:
            name = torch.cuda.get_device_name() if self.options.device == "cuda" else "cpu"
            data = {"device": name, "torch": torch.__version__, "copy GB/s": self.copy_gbs, "rows": self.rows}
            self.options.json.write_text(json.dumps(data, indent=1))

    def moved(self, value: Any) -> Any:
        """A module, or tensors of a tree, on the device."""
        if isinstance(value, nn.Module):
            return value.to(self.options.device)
        return pytree.tree_map_only(torch.Tensor, lambda x: x.to(self.options.device), value)


def peers_of(bench: Bench, section: str) -> list[str]:
    return [peer for peer in bench.options.peers if peer in PEERS_OF[section]]


def generated(compiled: Callee) -> str:
    """How many kernels are generated and how many calls are left to ATen, as "2+1"."""
    counts = [region.counts for region in explanation_of(function_of(compiled)).regions]
    return "+".join(str(sum(each.get(key, 0) for each in counts)) for key in ("kernel calls", "ATen calls"))


def wanted(bench: Bench, name: str) -> bool:
    return not bench.options.only or name.startswith(tuple(bench.options.only))


def fault(error: Exception) -> str:
    """The message and the last line of code of an error, in one line."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:240]} ({Path(where.filename).name}:{where.lineno})"


def guarded(bench: Bench, row: Row, compiler: str, measure: Callable[[Row, str], None]) -> None:
    """Measure one compiler on a row; what it raises is noted there."""
    try:
        measure(row, compiler)
    except Exception as error:  # noqa: BLE001  (a failure of one compiler on one row is a result)
        row.setdefault("failures", {})[compiler] = fault(error)
    if compiler in PEERS:
        forget()
    bench.write()


def judged(row: Row, compiler: str, got: Any, want: Any, exact: Any) -> None:
    text = difference(got, want, exact, strides=False)
    if text:
        row.setdefault("wrong", {})[compiler] = text


# --- sections: each yields (row, how to measure a compiler on it, whether peers come to it first) --------------------

Job = tuple[Row, Callable[[Row, str], None], bool]


def function_jobs(bench: Bench) -> Iterator[Job]:
    elements = 1 << 14 if bench.options.tiny else 1 << 24
    for name, dtype in DTYPES.items():
        source = [(torch.randn(elements, device=bench.options.device).to(dtype),) for _ in range(SETS)]
        target = torch.empty_like(source[0][0])
        copied = bench.clock.device_ms(lambda x, y=target: y.copy_(x), source)
        bench.copy_gbs[name] = 2 * target.nbytes / copied / 1e6
    for dtype in DTYPES:
        for function in functions(elements):
            row: Row = {"section": "functions", "name": function.name, "dtype": dtype}
            yield row, function_measure(bench, function), function.main


def function_measure(bench: Bench, function: Function) -> Callable[[Row, str], None]:
    def measure(row: Row, compiler: str) -> None:
        torch.manual_seed(0)
        with torch.no_grad():
            with torch.device(bench.options.device):
                sets = [function.make(DTYPES[row["dtype"]]) for _ in range(SETS)]
            # A function of its own, so that each row is compiled anew.
            call = COMPILERS[compiler](lambda *args: function.fn(*args))
            row.setdefault("first_s", {})[compiler], got = bench.clock.seconds(lambda: call(*sets[0]))
            judged(row, compiler, got, function.fn(*sets[0]), exact_result(function.fn, sets[0]))
            results = tuple(pytree.tree_leaves(got))
            every = sum(t.nbytes for t in (*sets[0], *results))
            if compiler == "ours":
                row["kernels"] = generated(call)
            row["bytes"] = function.moved(sets[0], results) if function.moved else every
            row.setdefault("ms", {})[compiler] = bench.clock.device_ms(call, sets)

    return measure


NOTHING = """.version 6.3
.target sm_70
.address_size 64
.visible .entry nothing(.param .u64 x, .param .u64 y, .param .u64 out, .param .u64 extent) { ret; }
"""


def small_jobs(bench: Bench) -> Iterator[Job]:
    for name, taken in ("the driver's launch alone", 0), ("launch and memory alone", 4000):

        def alone(row: Row, compiler: str, taken: int = taken) -> None:
            if compiler != "ours" or not bench.clock.on_gpu:
                return
            device, stream = torch.cuda.current_device(), torch.cuda.current_stream().cuda_stream
            kernel = lampwork._C.DeviceKernel(NOTHING.encode(), "nothing", 3, 0)
            kernel.load(device)

            def loop(calls: int = 50) -> float:
                torch.cuda.synchronize()
                return kernel.time_launches(device, stream, calls, taken) / calls * 1e6

            loop()
            row.setdefault("enqueue_us", {})[compiler] = statistics.median(loop() for _ in range(40))

        yield {"section": "small", "name": name, "dtype": ""}, alone, True
    torch.manual_seed(0)
    for name, (fn, inputs) in small().items():
        fn, inputs = bench.moved(fn) if isinstance(fn, nn.Module) else fn, bench.moved(inputs)

        def measure(row: Row, compiler: str, fn: Callee = fn, inputs: Any = inputs) -> None:
            with torch.no_grad():
                call = COMPILERS[compiler](fn)
                row.setdefault("first_s", {})[compiler], got = bench.clock.seconds(lambda: call(*inputs))
                judged(row, compiler, got, fn(*inputs), exact_result(fn, inputs))
                for _ in range(5):
                    call(*inputs)
                row.setdefault("enqueue_us", {})[compiler] = bench.clock.enqueue_us(call, inputs)
                row.setdefault("latency_us", {})[compiler] = bench.clock.latency_us(call, inputs)

        yield {"section": "small", "name": name, "dtype": "f32"}, measure, True


def network_jobs(bench: Bench) -> Iterator[Job]:
    for name, make in networks(bench.options.tiny).items():
        if not wanted(bench, name):
            continue
        torch.manual_seed(0)
        model, inputs = make()
        for dtype in DTYPES:
            yield (
                {"section": "networks", "name": name, "dtype": dtype},
                network_measure(bench, model, inputs),
                True,
            )


def network_measure(bench: Bench, model: nn.Module, inputs: Any) -> Callable[[Row, str], None]:
    def measure(row: Row, compiler: str) -> None:
        dtype = DTYPES[row["dtype"]]
        with torch.no_grad():
            net = bench.moved(copy.deepcopy(model)).to(dtype)
            args = tuple(x.to(dtype) if x.is_floating_point() else x for x in bench.moved(inputs))
            want = net(*args)
            lampwork.reset_stats()
            call = COMPILERS[compiler](net)
            row.setdefault("first_s", {})[compiler], got = bench.clock.seconds(lambda: call(*args))
            judged(row, compiler, got, want, exact_result(net, args))
            if compiler == "ours":
                stats = lampwork.stats()
                row["regions"], row["eager calls"] = stats["regions"], stats["eager_calls"]
                row["kernels"] = generated(call)
            row.setdefault("ms", {})[compiler] = bench.clock.wall_ms(call, args)

    return measure


def tuned_jobs(bench: Bench) -> Iterator[Job]:
    for name, make in networks(bench.options.tiny).items():
        if name not in TUNED or not wanted(bench, name):
            continue
        torch.manual_seed(0)
        model, inputs = make()
        for dtype in ("bf16", "f32"):
            row: Row = {"section": "tuned", "name": name, "dtype": dtype}
            yield row, tuned_measure(bench, network_measure(bench, model, inputs)), True


def tuned_measure(bench: Bench, measure: Callable[[Row, str], None]) -> Callable[[Row, str], None]:
    """As networks, with a store that is empty before the first of the modes that measure."""

    def with_store(row: Row, compiler: str) -> None:
        place = row.setdefault("store", tempfile.mkdtemp())
        kept = COMPILERS[compiler]

        def compiled(fn: Callee) -> Callee:
            call = kept(fn)
            row["calls"] = {**row.get("calls", {}), compiler: call}
            return call

        with lampwork.config.using(cache=place):
            COMPILERS[compiler] = compiled
            try:
                measure(row, compiler)
            finally:
                COMPILERS[compiler] = kept
        call: Any = row.pop("calls", {}).get(compiler)
        if compiler == "ours tuned" and "tuning" in call.stages:
            row["verdicts"] = call.stages.tuning

    return with_store


def training_jobs(bench: Bench) -> Iterator[Job]:
    for name, make in trainings(bench.options.tiny).items():
        for dtype in DTYPES:
            yield {"section": "training", "name": name, "dtype": dtype}, training_measure(bench, make), True


def training_measure(bench: Bench, make: Callable[[], Any]) -> Callable[[Row, str], None]:
    """bf16 is autocast, with weights of float32."""

    def measure(row: Row, compiler: str) -> None:
        torch.manual_seed(0)
        model, inputs = make()
        model, inputs = bench.moved(model), bench.moved(inputs)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, eps=1e-5, fused=True)
        call = COMPILERS[compiler](model)

        def step() -> Tensor:
            optimizer.zero_grad()
            with torch.autocast(bench.options.device, torch.bfloat16, enabled=row["dtype"] == "bf16"):
                loss = call(*inputs)
            loss.backward()
            optimizer.step()
            return loss.detach()

        lampwork.reset_stats()
        row.setdefault("first_s", {})[compiler], first = bench.clock.seconds(step)
        losses = row.setdefault("losses", {})[compiler] = [
            float(first),
            *(float(step()) for _ in range(STEPS - 1)),
        ]
        if compiler == "ours":
            row["backwards"] = [lampwork.stats()[key] for key in ("compiled_backwards", "eager_backwards")]
        apart = max(abs(a - b) / abs(b) for a, b in zip(losses, row["losses"]["eager"], strict=True))
        if not apart <= LOSSES_APART * (4 if row["dtype"] == "bf16" else 1):
            row.setdefault("wrong", {})[compiler] = f"losses {apart:.2g} apart"
        row.setdefault("ms", {})[compiler] = bench.clock.wall_ms(step, (), 0.5)

    return measure


JOBS = {
    "functions": function_jobs,
    "small": small_jobs,
    "networks": network_jobs,
    "training": training_jobs,
    "tuned": tuned_jobs,
}


# --- tables -----------------------------------------------------------------------------------------------------------


def figure(row: Row, kind: str, compiler: str, scale: float = 1.0, digits: int = 2) -> str:
    value = row.get(kind, {}).get(compiler)
    wrong = "!" if compiler in row.get("wrong", {}) else ""
    if value is None:
        return "failed" if compiler in row.get("failures", {}) else "-"
    return f"{value * scale:.{digits}f}{wrong}"


def line(bench: Bench, row: Row) -> list[str]:
    ms, name, peers = row.get("ms", {}), f"{row['name']} {row['dtype']}", peers_of(bench, row["section"])
    kernels, also = row.get("kernels", "-"), ALSO_OURS.get(row["section"], ())
    if row["section"] == "functions":
        cells = [name, kernels, figure(row, "ms", "ours", 1e3, 1), "-", "-"]
        if "ours" in ms:
            rate = row["bytes"] / ms["ours"] / 1e6
            cells[3:] = [f"{rate:.0f}", f"{100 * rate / bench.copy_gbs[row['dtype']]:.0f}%"]
        return [
            *cells,
            *(f"{ms[c] / ms['ours']:.2f}" if {c, "ours"} <= ms.keys() else "-" for c in ("eager", *peers)),
        ]
    if row["section"] == "small":
        compilers = ["eager", "ours", "ours reduce", *peers]
        pairs = [[figure(row, kind, c, 1, 1) for kind in ("enqueue_us", "latency_us")] for c in compilers]
        return [name, *("/".join(pair) for pair in pairs)]
    return [
        name,
        kernels,
        *(f"{figure(row, 'ms', c)} ({figure(row, 'first_s', c, 1, 1)})" for c in (*OURS, *also, *peers)),
    ]


def header(bench: Bench, section: str) -> list[str]:
    peers = peers_of(bench, section)
    if section == "functions":
        return ["kernels generated+ATen; times faster than", "", "us", "GB/s", "of copy", "eager", *peers]
    if section == "small":
        return ["us to enqueue/until done", "eager", "ours", "ours reduce", *peers]
    return ["ms (first call, s)", "", *OURS, *ALSO_OURS.get(section, ()), *peers]


def table(bench: Bench, section: str) -> str:
    rows = [row for row in bench.rows if row["section"] == section]
    lines = [header(bench, section), *(line(bench, row) for row in rows)]
    widths = [max(len(cells[i]) for cells in lines) for i in range(len(lines[0]))]
    text = [" ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))
            for cells in lines]  # fmt: skip
    for row in rows:
        for kind in ("failures", "wrong"):
            text += [
                f"  {row['name']} {row['dtype']} {c}: {kind}: {said}" for c, said in row.get(kind, {}).items()
            ]
        if said := row.get("verdicts"):
            better = [each for each in said.splitlines() if " times as fast " in each]
            text += [f"  {row['name']} {row['dtype']}: {each}" for each in better]
    return "\n".join(text)


# --- running ----------------------------------------------------------------------------------------------------------


def run(bench: Bench) -> None:
    jobs: list[Job] = []
    for section in bench.options.sections:
        start = time.perf_counter()
        try:
            for job in JOBS[section](bench):
                row, measure, _ = job
                if not wanted(bench, row["name"]):
                    continue
                bench.rows.append(row)
                jobs.append(job)
                for compiler in (*OURS, *ALSO_OURS.get(section, ())):
                    if bench.left() > 0:
                        guarded(bench, row, compiler, measure)
        except Exception as error:  # noqa: BLE001  (a section that cannot be set up does not end the others)
            print(f"{section}: {fault(error)}")
        took = time.perf_counter() - start
        print(f"\n{section} ({took:.0f} s)\n{table(bench, section)}", flush=True)
    for peer in bench.options.peers:
        for row, measure, _ in sorted(jobs, key=lambda job: not job[2]):
            if bench.left() > 0 and peer in peers_of(bench, row["section"]):
                guarded(bench, row, peer, measure)
    if bench.options.peers:
        for section in bench.options.sections:
            print(f"\n{section}, with peers\n{table(bench, section)}", flush=True)
    bench.write()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sections", nargs="*", default=list(UNASKED), help=", ".join(SECTIONS))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=240, help="no measurement starts after these")
    parser.add_argument("--peers", nargs="*", default=[], choices=PEERS, help="modes of torch.compile")
    parser.add_argument("--only", nargs="*", help="rows whose names begin so")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiny", action="store_true", help="small tensors and few layers, to try the script")
    options = parser.parse_args()
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    bench = Bench(options)
    run(bench)
    print(f"copy: {', '.join(f'{name} {rate:.0f} GB/s' for name, rate in bench.copy_gbs.items())}")


if __name__ == "__main__":
    main()
