"""Does code for the GPU run at all? Small functions of each kind, tried one by one in less than half a minute.

    python benchmarks/gpu_smoke.py [NAME ...] [--device cuda] [--workers 12] [--json FILE]

Processes of their own share the functions, so that a crash, a hang or a device error (which no process outlives) is one
line, and hides nothing else. A line is printed for each function that differs from eager, raises, or was not compiled:
its name, the number of the call, what is wrong, and the end of the first traceback. Differences are by the rule of
`lampwork.testing`: eager on the same device, and the CPU in double precision.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

HANG_SECONDS = 60
LAST_LINES = 3


# --- one process ------------------------------------------------------------------------------------------------------


def moved(value: Any, device: str) -> Any:
    """The same on another device, with tensors and modules of its own; tensors have the strides they had."""
    if isinstance(value, torch.nn.Module):
        return value.to(device)
    if not isinstance(value, Tensor):
        return value
    memory = torch.empty(0, dtype=value.dtype, device=value.device).set_(value.untyped_storage())
    return memory.to(device, copy=True).as_strided(value.shape, value.stride(), value.storage_offset())


def seen(fn: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call gives, its arguments afterwards, and the states of the random generators."""
    torch.manual_seed(5)
    result = fn(*args)
    states = [torch.get_rng_state()]
    if torch.cuda.is_available():
        states.append(torch.cuda.get_rng_state())
    return result, [a for a in args if isinstance(a, Tensor)], states


def problem(case: Any, compiled: Any, call: tuple[Any, ...], device: str) -> str:
    """What is wrong with one call; "" if nothing is."""
    import lampwork
    from lampwork.api import function_of
    from lampwork.inspect.explain import explanation_of
    from lampwork.testing.compare import difference, widened

    fn = moved(case.fn, device) if isinstance(case.fn, torch.nn.Module) else case.fn
    want = seen(fn, pytree.tree_map(lambda x: moved(x, device), call))
    lampwork.reset_stats()
    got = seen(compiled, pytree.tree_map(lambda x: moved(x, device), call))
    exact = None
    if case.exact:
        try:
            wide = seen(widened(fn).cpu() if isinstance(fn, torch.nn.Module) else fn, widened(call))
            exact = [t.to(w.device) for t, w in zip(*map(pytree.tree_leaves, (wide, want)), strict=True)]
        except (RuntimeError, TypeError, ValueError):
            exact = None  # a program that names dtypes has none
    text = difference(got, want, exact)
    if text:
        return f"differs: {text}"
    stats = lampwork.stats()
    if stats["compiled_calls"] != 1:
        records = [r for f in function_of(compiled).tree() for r in f.records]
        return "not compiled: " + "; ".join(f"{r.code} {r.cause}" for r in records[:2])
    regions = explanation_of(function_of(compiled)).regions
    kernels = sum(region.counts.get("kernel calls", 0) for region in regions)
    if kernels < case.kernels and any(t.numel() for t in pytree.tree_leaves(call) if isinstance(t, Tensor)):
        return f"{kernels} kernels generated, {regions[-1].counts.get('ATen calls')} ATen calls"
    return ""


def attempts(name: str, device: str) -> Iterator[dict[str, Any]]:
    """A message for each call of a case: {call, seconds, text}."""
    import gpu_cases

    import lampwork

    case = gpu_cases.cases()[name]
    torch.manual_seed(0)
    compiled = None
    for number, call in enumerate(case.make()):
        if compiled is None or not case.dynamic:
            options = {"strict": False, "verify": True}
            fn = case.fn
            if not isinstance(fn, torch.nn.Module):
                # A function of its own: versions of an earlier call are not to serve this one.
                fn = (lambda each: lambda *args: each(*args))(fn)
            else:
                fn = moved(fn, device)
            compiled = lampwork.compile(fn, dynamic=None if case.dynamic else False, options=options)
        start = time.perf_counter()
        try:
            text = problem(case, compiled, call, device)
        except Exception as error:  # noqa: BLE001  (what one function raises is a line of the report)
            lines = "".join(traceback.format_exception(error)).strip().splitlines()
            text = "raised: " + " | ".join(line.strip() for line in lines[-LAST_LINES:])
        yield {"call": number, "seconds": time.perf_counter() - start, "text": text}


def is_alive(device: str) -> bool:
    """Whether the device still takes work from this process."""
    if device != "cuda":
        return True
    try:
        torch.cuda.synchronize()
        torch.ones(1, device=device).item()
    except RuntimeError:
        return False
    return True


def work(names: Sequence[str], device: str) -> None:
    """Try cases in this process, with a message on stdout for each call. It ends where the device gives up."""
    torch.set_num_threads(1)
    for name in names:
        print(json.dumps({"begin": name}), flush=True)
        for message in attempts(name, device):
            print(json.dumps({"name": name, **message}), flush=True)
            if not is_alive(device):
                sys.exit("the device takes no more work from this process")
        print(json.dumps({"end": name}), flush=True)


# --- all of them ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Outcome:
    """Of one case: how many calls it had, the seconds of its first, and what went wrong, by call."""

    name: str
    calls: int
    first_s: float
    problems: list[str]


def tried(names: Sequence[str], device: str) -> list[Outcome]:
    """Cases in a process of their own, and in further ones after each end that it did not mean."""
    outcomes: list[Outcome] = []
    left = list(names)
    while left:
        command = [sys.executable, __file__, "--worker", "--device", device, *left]
        with tempfile.TemporaryFile("w+") as errors:
            limit = HANG_SECONDS + 2.0 * len(left)
            try:
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, timeout=limit)
                output, ending = (
                    done.stdout,
                    f"the process ended with {done.returncode}" if done.returncode else "",
                )
            except subprocess.TimeoutExpired as late:
                output, ending = late.stdout or b"", f"no end after {limit:.0f} s"
            errors.seek(0)
            last = " | ".join(errors.read().strip().splitlines()[-LAST_LINES:])
        found = gathered(output.decode())
        if ending and not found:
            return [*outcomes, *(Outcome(name, 0, 0.0, [f"{ending}: {last}"]) for name in left)]
        if ending:
            found[-1].problems.append(f"{ending}: {last}")
        outcomes += found
        left = left[len(found) :]
    return outcomes


def gathered(output: str) -> list[Outcome]:
    found: list[Outcome] = []
    for line in output.splitlines():
        try:
            message = json.loads(line)
        except json.JSONDecodeError:
            continue  # half a line of a process that was killed, or a print of a library
        if "begin" in message:
            found.append(Outcome(message["begin"], 0, 0.0, []))
        elif "name" in message:
            found[-1].first_s = found[-1].first_s or message["seconds"]
            found[-1].calls += 1
            if message["text"]:
                found[-1].problems.append(f"call {message['call']}: {message['text']}")
    return found


def summary(outcomes: Sequence[Outcome], width: int) -> str:
    """A line for each case with a problem, its first; then the totals."""
    lines: list[str] = []
    for outcome in outcomes:
        if outcome.problems:
            more = f" (and {len(outcome.problems) - 1} more)" if len(outcome.problems) > 1 else ""
            lines.append(f"{outcome.name}{more}: {outcome.problems[0]}"[:width])
    right = sum(not outcome.problems for outcome in outcomes)
    calls, bad = sum(o.calls for o in outcomes), sum(len(o.problems) for o in outcomes)
    lines.append(
        f"{right} of {len(outcomes)} functions right and compiled; {calls} calls, {bad} with a problem"
    )
    return "\n".join(lines)


def main() -> int:
    import gpu_cases

    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="functions; all of them, if none are named")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--workers", type=int, default=12, help="processes at a time")
    parser.add_argument("--width", type=int, default=400, help="characters of a line")
    parser.add_argument("--json", type=Path, help="every problem, in a file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.names, options.device)
        return 0
    names = options.names or list(gpu_cases.cases())
    start = time.perf_counter()
    count = min(options.workers, len(names))
    with ThreadPoolExecutor(count) as pool:
        parts = pool.map(lambda part: tried(part, options.device), [names[i::count] for i in range(count)])
        found = {outcome.name: outcome for part in parts for outcome in part}
    outcomes = [found[name] for name in names]
    print(summary(outcomes, options.width))
    firsts = sorted(o.first_s for o in outcomes)
    print(
        f"{time.perf_counter() - start:.1f} s; of a first call, eager's too: median {firsts[len(firsts) // 2]:.2f} s"
    )
    if options.json:
        rows = [
            {"name": o.name, "calls": o.calls, "first_s": o.first_s, "problems": o.problems} for o in outcomes
        ]
        options.json.write_text(json.dumps(rows, indent=1))
    return 1 if any(o.problems for o in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
