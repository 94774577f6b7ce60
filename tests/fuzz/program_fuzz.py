"""The fuzzer of programs: breaks, exceptions, generators, coroutines, managers, threads, forks and limits together.

    python tests/fuzz/program_fuzz.py -n 200             # 200 programs
    python tests/fuzz/program_fuzz.py --seed 17 -n 1     # one of them
    python tests/fuzz/program_fuzz.py --file failing.py  # a program that was printed

Each program runs eager and compiled, several calls with state changed between, and all that can be seen is compared:
results, logs, exceptions with their tracebacks and contexts, generators, output, warnings, leaked trace tensors. All
in forked children: a crash or a hang is a finding. A finding is shrunk to a smaller program that differs likewise.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import gc
import json
import re
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]

import torch  # noqa: E402
from children import forked  # noqa: E402
from leaked import leaks  # noqa: E402
from program_grammar import grown  # noqa: E402
from program_shrink import shrunk  # noqa: E402
from program_sides import Side, compared, difference, run  # noqa: E402

import lampwork  # noqa: E402

BATCH = 25
LIMIT = 40  # seconds for one program
FLAKY = "flaky"


@dataclass(slots=True)
class Finding:
    seed: int
    what: str
    text: str

    def __str__(self) -> str:
        lines = self.text.rstrip().splitlines()
        return f"seed {self.seed}: {self.what}\n" + "\n".join(f"  | {line}" for line in lines)


def backend_of(seed: int) -> str:
    """Most programs are about Python, so most need no machine code."""
    return "native" if seed % 8 == 0 else "eager"


@dataclass(frozen=True, slots=True)
class Fuzzer:
    """A family of programs: the program of a seed, what runs it, and what --help says."""

    grown: Callable[[int], str]
    side: type[Side]
    about: str

    def judged(self, text: str, backend: str, leak: bool = True) -> str | None:
        """The difference between eager and compiled of one program, tried in a child of its own; "flaky" where eager
        differs from eager."""

        def task(send: Any) -> None:
            faulthandler.dump_traceback_later(LIMIT, exit=True)
            found = compared(text, backend, self.side)
            send(found=found or (leaks() if leak else None))

        found = _answer(task)
        if found is None:
            return None

        def twice(send: Any) -> None:
            faulthandler.dump_traceback_later(LIMIT, exit=True)
            first = run(text, None, self.side)
            gc.collect()
            send(found=difference(run(text, None, self.side), first))

        return found if _answer(twice) is None else FLAKY

    def sweep(self, seeds: list[int], quick: bool = False, trials: int = 250) -> tuple[int, list[Finding]]:
        """Try programs; how many were compared, and what differs, shrunk."""
        tried, findings, left = 0, list[Finding](), list(seeds)
        while left:
            batch, left = left[:BATCH], left[BATCH:]
            suspects: list[int] = []
            done: list[int] = []
            current: int | None = None

            def task(send: Any, batch: list[int] = batch) -> None:
                for seed in batch:
                    faulthandler.dump_traceback_later(LIMIT, exit=True)
                    send(start=seed)
                    send(done=seed, found=compared(self.grown(seed), backend_of(seed), self.side))
                faulthandler.cancel_dump_traceback_later()
                send(leak=leaks())

            for message in forked(task, LIMIT * 2):
                if "start" in message:
                    current = message["start"]
                elif "done" in message:
                    done.append(message["done"])
                    current = None
                    if message["found"] is not None:
                        suspects.append(message["done"])
                elif "leak" in message:
                    suspects += batch if message["leak"] is not None else []
                elif current is not None:
                    done.append(current)
                    suspects.append(current)
            left = [seed for seed in batch if seed not in done] + left
            if not done:
                raise RuntimeError("a batch of programs ended before its first one")
            tried += len(done)
            for seed in dict.fromkeys(suspects):
                found = self.examined(seed, quick, trials)
                if found is not None:
                    findings.append(found)
        return tried, findings

    def examined(self, seed: int, quick: bool, trials: int) -> Finding | None:
        """A program that differed in company: alone, and shrunk."""
        text, backend = self.grown(seed), backend_of(seed)
        what = self.judged(text, backend)
        if what is None or what == FLAKY:
            return None
        if quick:
            return Finding(seed, what, text)
        leak = what.startswith("leak")

        def fails(smaller: str) -> bool:
            found = self.judged(smaller, backend, leak)
            return found is not None and found != FLAKY and alike(found, what)

        text = shrunk(text, fails, trials)
        return Finding(seed, self.judged(text, backend) or what, text)

    def prepare(self) -> None:
        """Import all that a compilation imports, before any fork."""

        def used(x: torch.Tensor) -> torch.Tensor:
            print(end="")
            return torch.nn.functional.softmax(x @ x, 0) * 2

        for backend in ("native", "eager"):
            lampwork.compile(used, backend=backend)(torch.randn(3, 3))
            for seed in range(3):
                compared(self.grown(seed), backend, self.side)
        gc.collect()


def _answer(task: Any) -> str | None:
    for message in forked(task, LIMIT * 2):
        if "found" in message:
            return message["found"]
        return "crash: " + str(message.get("crash") or message.get("error"))
    return "crash: no answer"


def cause(what: str) -> str:
    """What is likely to have one cause: a finding without its numbers."""
    return re.sub(r"\d+", "#", what)[:60]


def alike(found: str, what: str) -> bool:
    """Whether two findings are of one kind: a shrunk program must not fail for another reason."""
    kinds = ("crash", "leak", "'faults'", "lampwork", ".lines", ".log", "context", "RecursionError", "anew")
    return [kind in found for kind in kinds] == [kind in what for kind in kinds]


def main(fuzzer: Fuzzer) -> int:
    parser = argparse.ArgumentParser(
        description=fuzzer.about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=100, help="programs")
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--file", help="a program to compare instead")
    parser.add_argument("--backend", default="eager", help="for --file")
    parser.add_argument("--print", action="store_true", help="print the programs and run nothing")
    parser.add_argument("--quick", action="store_true", help="do not shrink")
    parser.add_argument("--json", help="write the findings here, one a line")
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    warnings.simplefilter("ignore", SyntaxWarning)
    seeds = list(range(options.seed, options.seed + options.n))
    if options.print:
        print("\n".join(fuzzer.grown(seed) for seed in seeds))
        return 0
    torch.set_num_threads(1)
    fuzzer.prepare()
    if options.file:
        what = fuzzer.judged(Path(options.file).read_text(), options.backend)
        print(what)
        return 0 if what is None else 1
    start = time.time()
    tried, findings = 0, list[Finding]()
    while seeds and time.time() - start < options.seconds:
        some, seeds = seeds[:BATCH], seeds[BATCH:]
        count, found = fuzzer.sweep(some, options.quick)
        tried += count
        findings += found
        for finding in found:
            print(finding, flush=True)
            if options.json:
                with open(options.json, "a") as file:
                    file.write(json.dumps(asdict(finding)) + "\n")
    print(f"{tried} programs, {len(findings)} differ; seeds from {options.seed}; {time.time() - start:.0f} s")
    for kind, number in collections.Counter(cause(f.what) for f in findings).most_common():
        print(f"  {number:5} {kind}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(Fuzzer(grown, Side, __doc__)))
