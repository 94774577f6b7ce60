"""`lampwork bisect script.py`: find the rewrite that breaks a program.

The script runs with all rewrites, with none, and then with the first n of them, where n halves the remaining range. It
fails if its exit status is not 0.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from lampwork.errors import BisectError, OptionError
from lampwork.plugins.fuel import FUEL, LOG
from lampwork.records import record

PASSES = "LAMPWORK_PASSES"
_ALL = 10**9

Say = Callable[[str], None]


@record
class Finding:
    """The rewrite that makes a program fail: the `number`-th of `total`.

    `rewrite`: the name of the rule or pass. `step`: the pass that it ran in. `source`: where a rule was written.
    `node`, `target`, `line`: where it fired, in the graph and in the user's program.
    """

    number: int
    total: int
    rewrite: str
    step: str
    source: str
    node: str
    target: str
    line: str
    runs: int

    def __str__(self) -> str:
        lines = [f"rewrite {self.number} of {self.total} breaks it: {self.rewrite}"]
        lines += [
            f"  {name}: {text}"
            for name, text in (
                ("pass", self.step),
                ("written at", self.source),
                ("node", f"{self.node} ({self.target})" if self.node else ""),
                ("line", self.line),
            )
            if text
        ]
        lines.append(f"without it: {PASSES}=-{self.rewrite}    up to it: {FUEL}={self.number}")
        return "\n".join(lines)


@dataclass(slots=True)
class _Script:
    """A command that is run again and again. `switches`: passes that are off in all runs."""

    command: Sequence[str]
    log: Path
    say: Say
    timeout: float | None
    switches: str = ""
    runs: int = 0
    rewrites: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])

    def succeeds(self, fuel: int, switches: str | None = None) -> bool:
        """Run it with so many rewrites; afterwards `rewrites` are those that happened."""
        self.log.write_text("")
        self.runs += 1
        switches = self.switches if switches is None else switches
        environment = {**os.environ, FUEL: str(fuel), LOG: str(self.log)}
        if switches:
            environment[PASSES] = ",".join(filter(None, [os.environ.get(PASSES, ""), switches]))
        try:
            done = subprocess.run(
                self.command, env=environment, capture_output=True, timeout=self.timeout, check=False
            )
            status = f"exit status {done.returncode}"
            good = done.returncode == 0
        except subprocess.TimeoutExpired:
            status, good = f"no end in {self.timeout} seconds", False
        self.rewrites = [json.loads(line) for line in self.log.read_text().splitlines()]
        count = "all" if fuel == _ALL else str(fuel)
        off = f" and {switches}" if switches else ""
        self.say(f"run {self.runs}, {count} rewrites{off}: {'right' if good else 'wrong'}, {status}")
        return good


def bisect(
    script: str,
    arguments: Sequence[str] = (),
    *,
    passes: bool = False,
    timeout: float | None = None,
    say: Say = print,
) -> Finding:
    """Find the rewrite that makes a script fail.

    Args:
        script: a Python file, run by this interpreter, that exits with 0 when all is right.
        arguments: its arguments.
        passes: find the pass first, which takes fewer runs where there are thousands of rewrites.
        timeout: seconds after which a run counts as wrong.
        say: is told of each run.

    Raises:
        OptionError: there is no such file.
        BisectError: it succeeds with all rewrites, fails with none, or does not do the same each time.
    """
    check_script(script)
    with tempfile.TemporaryDirectory(prefix="lampwork-bisect-") as folder:
        command = [sys.executable, script, *arguments]
        run = _Script(command, Path(folder) / "rewrites", say, timeout)
        return _bisect(run, passes)


def check_script(script: str) -> None:
    """Raise OptionError if there is no such file."""
    if not Path(script).is_file():
        raise OptionError(f"there is no file {script!r}", fix="give the path of a Python script")


def _bisect(run: _Script, passes: bool) -> Finding:
    if run.succeeds(_ALL):
        raise BisectError(
            "the script succeeds with all rewrites", fix="have it exit with 1 where it is wrong"
        )
    happened = run.rewrites
    if run.succeeds(0):
        if passes:
            run.switches = _guilty_pass(run, happened)
            if run.succeeds(_ALL):
                raise BisectError("the script does not do the same in each run", fix="seed what is random")
            happened = run.rewrites
    else:
        raise BisectError(
            "the script fails without any rewrite too, so that none is at fault",
            fix='compare with lampwork.compile(..., backend="eager") to see whether code generation is',
        )
    good, bad, log = 0, len(happened), happened
    while bad - good > 1:
        middle = (good + bad) // 2
        if run.succeeds(middle):
            good = middle
        else:
            bad, log = middle, run.rewrites
    if len(log) < bad or not bad:
        raise BisectError("the script does not do the same in each run", fix="seed what is random")
    last = cast("Mapping[str, str]", log[bad - 1])
    details = [last.get(key, "") for key in ("name", "pass", "source", "node", "target", "line")]
    return Finding(bad, len(happened), *details, runs=run.runs)


def _guilty_pass(run: _Script, happened: Sequence[Mapping[str, Any]]) -> str:
    """The switches that leave the passes up to the guilty one on."""
    names = list(dict.fromkeys(str(rewrite["pass"]) for rewrite in happened))
    good, bad = 0, len(names)
    while bad - good > 1:
        middle = (good + bad) // 2
        if run.succeeds(_ALL, _without(names[middle:])):
            good = middle
        else:
            bad = middle
    run.say(f"pass {names[bad - 1]} is at fault")
    return _without(names[bad:])


def _without(names: Sequence[str]) -> str:
    return ",".join(f"-{name}" for name in names)
