"""The state-mutation fuzzer: every slot that a compiled function can have read is changed, and must be seen.

    python tests/fuzz/state_mutations.py                      # all programs and worlds, 20 mutations each
    python tests/fuzz/state_mutations.py worlds_classes -n 0  # all mutations of one file (0: each once)
    python tests/fuzz/state_mutations.py architectures -n 30  # the networks of `transformers`
    python tests/fuzz/state_mutations.py FILE::NAME --only 'PATH | LABEL' -v

A world is built twice. After one to three calls one slot is changed in both, one side is called eagerly and the other
compiled, and results, effects, exceptions and leaks are compared. All runs in forked children: a crash is a finding.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import dataclasses
import gc
import json
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(Path(__file__).parent), str(TESTS / "conformance"), str(TESTS / "support")]

import harness  # noqa: E402
import torch  # noqa: E402
import torch._dynamo  # noqa: E402
from children import forked  # noqa: E402
from leaked import leaks  # noqa: E402
from twins import Expired, Source, Trial, Twins, limit, tried  # noqa: E402
from unseen import UNSEEN  # noqa: E402

import lampwork  # noqa: E402

FOLDER = Path(__file__).parent
BATCH = 24  # mutations of one pair of twins, before they are built anew
TOGETHER = 8  # programs that one child tries: what the compiler keeps from one serves the next
PAIRED = 0.25  # of the mutations, how many come with a second one before the call
BEFORE = "before any mutation"
CALL_LIMIT = 20  # seconds that one mutation may take
_M_PERTURB = -6  # of malloc.h
SLOW = 0.5  # seconds of a mutation after which the twins are built anew: some worlds grow with each call


Shape = tuple[int, int, int]  # of a Trial
Step = tuple[
    str, str | None, Shape
]  # a mutation, by name, another one that comes with it, and how they are tried


@dataclass(slots=True)
class Finding:
    """A mutation that was not seen. `other` came with it; `history`: those tried on the same twins before it."""

    program: str
    edit: str
    kind: str
    what: str
    trial: Shape
    seed: int
    other: str | None = None
    history: list[Step] = field(default_factory=list)
    shrunk: str = ""

    def __str__(self) -> str:
        edit = self.edit if self.other is None else f"{self.edit}, together with {self.other}"
        return "\n  ".join([self.program, edit, f"{self.shrunk} (seed {self.seed})", self.what])

    @property
    def name(self) -> str:
        return f"{self.program} | {self.edit}"

    @property
    def cause(self) -> tuple[str, str]:
        """What is likely to have one cause, to count by."""
        return self.kind, self.edit.rsplit(" | ", 1)[-1]


@dataclass(slots=True)
class Tally:
    programs: int = 0
    mutations: int = 0
    families: collections.Counter[str] = field(default_factory=collections.Counter)
    skipped: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


# --- in the child ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    """What one run tries of each program. `count`: how many mutations, 0 for all; `only`: none but this one."""

    seed: int
    count: int
    backend: str
    only: str | None = None


def _programs(source: Source, names: list[str], job: Job, done: set[str], send: Any) -> None:
    """Try programs one after the other; of the first, the mutations `done` were tried before."""
    gc.unfreeze()  # the capture itself tells what is new by the permanent generation
    for name in names:
        send(program=name)
        _batches(source, name, job, done, send)
        send(finished=name)
        done = set()
    leak = leaks()
    if leak is not None:
        send(leak=leak)


def _batches(source: Source, name: str, job: Job, done: set[str], send: Any) -> None:
    rng = random.Random(f"{job.seed} {name}")
    twins = Twins(source, name, job.backend)
    every = [pair[0].name for pair in twins.edits()]
    names = [n for n in every if job.only is None or n == job.only]
    rng.shuffle(names)
    names = names[: job.count] if job.count else names
    left = [n for n in names if n not in done]
    fresh = True
    while left:
        batch, left = left[:BATCH], left[BATCH:]
        if not fresh:
            twins = Twins(source, name, job.backend)
        fresh = False
        trial = Trial.draw(rng)
        before = _warm(twins, trial)
        if before is not None:
            send(skip=before)
            return
        pairs = {pair[0].name: pair for pair in twins.edits()}
        history: list[Step] = []
        for i, label in enumerate(batch):
            other = rng.choice(every) if job.only is None and rng.random() < PAIRED else None
            trial = dataclasses.replace(Trial.draw(rng), warm=trial.warm)
            if label not in pairs:
                send(gone=label)
                continue
            if other == label or other not in pairs:
                other = None
            shape = dataclasses.astuple(trial)
            about = {"kind": pairs[label][0].kind, "trial": shape, "other": other, "history": history}
            send(start=label, **about)
            start = time.perf_counter()
            try:
                with limit(CALL_LIMIT):
                    found = tried(twins, [pairs[n] for n in (label, other) if n is not None], trial)
            except Expired:
                found = f"more than {CALL_LIMIT} s"
            send(done=label, found=found, **about)
            history = [*history, (label, other, shape)]
            if found is not None or twins.spent or time.perf_counter() - start > SLOW:
                left = batch[i + 1 :] + left
                break


def _warm(twins: Twins, trial: Trial) -> str | None:
    for _ in range(trial.warm):
        found = twins.call()
        if found is not None:
            return f"differs before any mutation: {found}"
    return None


# --- the programs of one file ---------------------------------------------------------------------------------------


def run_programs(source: Source, names: list[str], job: Job, tally: Tally) -> None:
    """Try the programs of one file in one child, or in as many as it takes where they crash."""
    left, done = list(names), set[str]()
    while left:
        current: dict[str, Any] | None = None
        for message in forked(lambda send: _programs(source, left, job, done, send)):
            program = f"{source.path.stem}::{left[0]}" if left else source.path.stem
            if "start" in message:
                current = message
            elif "done" in message:
                done.add(message["done"])
                current = None
                tally.mutations += 1
                tally.families[message["kind"]] += 1
                if message["found"] is not None:
                    tally.findings.append(
                        _finding(program, message, message["done"], message["found"], job.seed)
                    )
            elif "gone" in message:
                done.add(message["gone"])
            elif "skip" in message:
                tally.findings.append(Finding(program, BEFORE, BEFORE, message["skip"], (2, 0, 0), job.seed))
            elif "finished" in message:
                tally.programs += 1
                left, done = left[1:], set()
            elif "leak" in message:
                tally.findings += _leaking(source, names, job, message["leak"])
            elif "error" in message:
                tally.skipped[program] = message["error"]
                left, done = left[1:], set()
            elif "crash" in message:
                what = f"crash: {message['crash']}"
                if current is None:
                    tally.findings.append(Finding(program, BEFORE, BEFORE, what, (2, 0, 0), job.seed))
                    left, done = left[1:], set()
                else:
                    done.add(current["start"])
                    tally.mutations += 1
                    tally.families[current["kind"]] += 1
                    tally.findings.append(_finding(program, current, current["start"], what, job.seed))


def _leaking(source: Source, names: list[str], job: Job, what: str) -> list[Finding]:
    """The programs that leak, each tried in a child of its own."""
    found: list[Finding] = []
    for name in names:
        for message in forked(lambda send, name=name: _programs(source, [name], job, set(), send)):
            if "leak" in message:
                program = f"{source.path.stem}::{name}"
                found.append(Finding(program, "all of them", "leak", message["leak"], (0, 0, 0), job.seed))
    return found or [Finding(source.path.stem, "all of them", "leak", what, (0, 0, 0), job.seed)]


def _finding(program: str, message: dict[str, Any], edit: str, what: str, seed: int) -> Finding:
    history = [(name, other, tuple(shape)) for name, other, shape in message["history"]]
    return Finding(
        program, edit, message["kind"], what, tuple(message["trial"]), seed, message["other"], history
    )


def attempt(source: Source, name: str, steps: list[Step], backend: str | None) -> str | None:
    """Try mutations one after the other on fresh twins; the first difference. The first trial says how many calls come
    before all of them."""

    def task(send: Any) -> None:
        gc.unfreeze()
        twins = Twins(source, name, backend)
        found = _warm(twins, Trial(*steps[0][2]))
        pairs = {pair[0].name: pair for pair in twins.edits()}
        with limit(2 * CALL_LIMIT):
            for label, other, shape in steps:
                chosen = [pairs[n] for n in (label, other) if n in pairs]
                if found is None and not twins.spent and label in pairs:
                    found = tried(twins, chosen, Trial(*shape))
        send(found=found)

    for message in forked(task):
        if "found" in message:
            return message["found"]
        return message.get("crash") or message.get("error")
    return "no answer"


def confirm(source: Source, finding: Finding, backend: str, shrinks: bool) -> str:
    """How it is seen again: on fresh twins alone, or after the mutations before it. If `shrinks`, with the fewest calls
    and the fewest mutations. "flaky" where eager differs from eager, or where it does not happen again."""
    if finding.kind == "leak":
        return "after all mutations"
    name = finding.program.split("::")[1]
    steps = [(finding.edit, finding.other, finding.trial)]
    found = attempt(source, name, steps, backend)
    if found is None:
        steps = [*finding.history, *steps]
        found = attempt(source, name, steps, backend)
    if found is None:
        return "flaky: did not happen again"
    if attempt(source, name, steps, None) is not None:
        return "flaky: eager differs from eager"
    if shrinks:
        for step in steps[:-1]:
            fewer = [s for s in steps if s is not step]
            if attempt(source, name, fewer, backend) is not None:
                steps = fewer
        *before, (edit, other, _) = steps
        shapes: tuple[Shape, ...] = ((1, 1, 0), (2, 1, 0), (1, 2, 0), (1, 1, 1), (2, 2, 2))
        smaller = ([*before, (edit, o, shape)] for o in dict.fromkeys((None, other)) for shape in shapes)
        steps = next((s for s in smaller if attempt(source, name, s, backend) is not None), steps)
    finding.what, finding.other, finding.trial = found, *steps[-1][1:]
    shown = [f"{label} {other or ''} {shape}" for label, other, shape in steps[:-1]]
    return "warm {}, calls {}, after undoing {}".format(*finding.trial) + "".join(
        f"; after {s}" for s in shown
    )


# --- the command ----------------------------------------------------------------------------------------------------


def sources(patterns: list[str]) -> list[tuple[Source, list[str]]]:
    """Files and programs: FILE, FILE::NAME, or all."""
    files = [*FOLDER.glob("worlds_*.py"), *harness.all_files()]
    if any("architectures" in p for p in patterns):
        files.append(FOLDER / "architectures.py")
    chosen: list[tuple[Source, list[str]]] = []
    for path in sorted(files, key=lambda p: (not p.stem.startswith("worlds"), p.stem)):
        wanted = [p for p in patterns if p.split("::")[0] in path.stem]
        if patterns and not wanted:
            continue
        source = Source.of(path)
        names = [
            n
            for n in source.names
            if not wanted or any("::" not in p or p.split("::")[1] == n for p in wanted)
        ]
        chosen.append((source, names))
    return chosen


def prepare() -> None:
    """Import all that a compilation imports, before any fork. Memory that nobody has initialised, which a program may
    read where a mutation leaves it tensors that do not fit, holds the same on both sides from now on."""
    ctypes.CDLL(None).mallopt(_M_PERTURB, 0x2A)

    def used(x: torch.Tensor) -> torch.Tensor:
        print(end="")
        return torch.nn.functional.softmax(x @ x, 0) * 2

    weight = torch.randn(3, 3, requires_grad=True)
    for backend in ("native", "eager"):
        compiled = lampwork.compile(used, backend=backend)
        compiled(weight).sum().backward()
        compiled(torch.randn(3, 3))
    gc.collect()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("-n", type=int, default=20, help="mutations of each program; 0: all of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="native")
    parser.add_argument("--only", help="one mutation, as printed: PATH | LABEL")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--json", help="write the findings here, one a line")
    parser.add_argument("--quick", action="store_true", help="do not shrink")
    parser.add_argument("-v", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = sources(options.patterns)
    prepare()
    tally = Tally()
    start = time.time()
    shown: set[str] = set()  # programs of which a finding was shrunk
    job = Job(options.seed, options.n, options.backend, options.only)
    for source, names in chosen:
        for i in range(0, len(names), TOGETHER):
            if time.time() - start > options.seconds:
                break
            before = len(tally.findings)
            run_programs(source, names[i : i + TOGETHER], job, tally)
            for finding in tally.findings[before:]:
                if not options.quick:
                    finding.shrunk = confirm(source, finding, options.backend, finding.program not in shown)
                    shown.add(finding.program)
                if not finding.shrunk.startswith("flaky") and finding.name not in UNSEEN:
                    print(finding, flush=True)
                if options.json:
                    with open(options.json, "a") as f:
                        f.write(json.dumps(dataclasses.asdict(finding)) + "\n")
            if options.v:
                print(
                    f"# {source.path.stem}: {tally.mutations} mutations, {time.time() - start:.0f} s",
                    flush=True,
                )
    real = [f for f in tally.findings if not f.shrunk.startswith("flaky") and f.name not in UNSEEN]
    flaky = [f for f in tally.findings if f.shrunk.startswith("flaky")]
    print(
        f"{tally.programs} programs, {len(tally.skipped)} skipped, {tally.mutations} mutations, {len(real)} unseen, "
        f"{len(flaky)} that did not happen again; seed {options.seed}"
    )
    for (kind, label), number in collections.Counter(f.cause for f in real).most_common(60):
        print(f"  {number:5} {kind}: {label}")
    for finding in flaky:
        print(f"  {finding.shrunk}: {finding.name}: {finding.what.splitlines()[0][:150]}")
    for program, why in tally.skipped.items():
        print(f"  skipped {program}: {why.splitlines()[0][:200]}")
    if options.v:
        print("  " + ", ".join(f"{kind} {n}" for kind, n in tally.families.most_common()))
    return 1 if real else 0


if __name__ == "__main__":
    sys.exit(main())
