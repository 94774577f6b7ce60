"""The command in a pipe whose reader goes away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lampwork
from lampwork.display import run_for_reader
from lampwork.display.pipes import UNREAD

_RUN = """
import json, os, sys
from lampwork.cli import main
commands = json.loads(sys.argv[1])
for command in commands:
    child = os.fork()
    if child == 0:
        sys.exit(main(command))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(int(sys.argv[2]), b"%d " % status)
"""


def test_commands_end_quietly_when_nobody_reads_on(tmp_path: Path) -> None:
    lampwork.export(torch.relu, (torch.ones(2),), path=tmp_path / "m.lamp", targets="host")
    script = tmp_path / "script.py"
    script.write_text("1 + 1\n")
    commands = [
        ["inspect", str(tmp_path / "m.lamp")],
        ["inspect", "--json", str(tmp_path / "m.lamp")],
        ["rewrites"],
        ["rewrites", "--json"],
        ["profile", str(script)],
        ["--help"],
        ["inspect", "--help"],
        ["keygen", str(tmp_path / "key")],
    ]
    read, write = os.pipe()
    os.close(read)
    statuses, told = os.pipe()
    run = [sys.executable, "-c", _RUN, json.dumps(commands), str(told)]
    # Unbuffered, argparse itself passes over what it cannot write of its help.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(run, stdout=write, stderr=subprocess.PIPE, text=True, pass_fds=[told], env=buffered)
    os.close(write)
    assert done.stderr == ""
    found = os.read(statuses, 1000).split()
    assert dict(zip(map(" ".join, commands), map(int, found), strict=True)) == {
        " ".join(command): UNREAD for command in commands
    }
    os.close(statuses)
    os.close(told)


def test_other_pipes_that_break_are_errors() -> None:
    def fail() -> int:
        raise BrokenPipeError("a server hung up")

    with pytest.raises(BrokenPipeError, match="a server hung up"):
        run_for_reader(fail)


def test_the_status_of_what_is_read_is_its_own() -> None:
    assert run_for_reader(lambda: 2) == 2
    with pytest.raises(SystemExit, match="3"):
        run_for_reader(lambda: sys.exit(3))
