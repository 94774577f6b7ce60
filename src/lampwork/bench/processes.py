"""Measurements in processes of their own."""

from __future__ import annotations

import compileall
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def precompile() -> None:
    """As an installer does for every package, and so for the peers: a first call should not parse Python source."""
    compileall.compile_dir(Path(__file__).parents[1], quiet=2)


def answer(
    module: str, *arguments: str, timeout: float, env: Mapping[str, str] | None = None
) -> dict[str, Any] | str:
    """The document that `python -m module arguments` prints as JSON on its last line, or why there is none.

    timeout: seconds. env: what is added to the environment.
    """
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**os.environ, **(env or {})},
        )
    except subprocess.TimeoutExpired:
        return f"no result within {timeout:g} s"
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return last[:200]
    return json.loads(done.stdout.splitlines()[-1])
