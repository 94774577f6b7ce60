"""A function and a training step, compiled and compared with eager: whether Lampwork works here at all.

They run in a process of their own, so that a crash or a hang is a result like any other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, cast

import torch

from lampwork import pristine
from lampwork.api import compile
from lampwork.display import Shown
from lampwork.errors import text_of
from lampwork.records import record
from lampwork.standard import copy

SECONDS = 120
"""After which a process counts as hanging: a first call takes about one."""

_START = "result: "
_PROGRAM = """import json, sys
sys.path[:] = json.loads(sys.argv[1])
from lampwork.inspect import self_test
self_test.main(sys.argv[2])
"""


@record
class Trial(Shown):
    """One thing that was tried. `seconds`: of the first call, in which it is compiled. `failure`: "" if its results are
    eager's; else what they are, a traceback, or how the process ended."""

    name: str
    seconds: float | None = None
    failure: str = ""


def self_test(device: str = "cpu", timeout: float = SECONDS) -> tuple[Trial, ...]:
    """Try all on a device, in a new process with this one's environment and paths. Raises nothing."""
    command = [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), device]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return (Trial(f"all on {device}", None, f"no end in {timeout:g} seconds"),)
    except (OSError, ValueError) as error:
        return (Trial(f"all on {device}", None, f"no process could be started: {text_of(error)}"),)
    found = [
        _trial(line.removeprefix(_START)) for line in done.stdout.splitlines() if line.startswith(_START)
    ]
    if done.returncode or not found:
        ended = f"by signal {-done.returncode}" if done.returncode < 0 else f"with {done.returncode}"
        last = "\n".join(done.stderr.splitlines()[-20:])
        found.append(Trial(f"the process on {device}", None, f"it ended {ended}\n{last}".strip()))
    return tuple(found)


def _trial(line: str) -> Trial:
    return Trial(*cast("tuple[str, float | None, str]", json.loads(line)))


def main(device: str) -> None:
    """Try all, and print a line for each."""
    for name, what in TRIALS.items():
        print(_START + json.dumps(_tried(f"{name} on {device}", what, device)), flush=True)


def _tried(name: str, what: Callable[[str], float], device: str) -> tuple[str, float | None, str]:
    try:
        return name, what(device), ""
    except Exception:  # noqa: BLE001  (whatever goes wrong here is what is asked for)
        return name, None, traceback.format_exc()


# --- what is tried ----------------------------------------------------------------------------------------------------


_OPTIONS = MappingProxyType({"strict": True, "cache": "off"})
"""What is wrong is seen, and everything is compiled here and now."""


def _function(device: str) -> float:
    """A product with what follows it, and a sum over rows; called twice."""

    def body(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ w + 1).softmax(-1).sum(0)

    x, w = _numbers(device, 8, 16), _numbers(device, 16, 24)
    compiled = compile(body, fullgraph=True, options=dict(_OPTIONS))
    start = time.perf_counter()
    found = compiled(x, w)
    seconds = time.perf_counter() - start
    _equal("the result", found, body(x, w))
    _equal("the result of the second call", compiled(x + 1, w), body(x + 1, w))
    return seconds


def _training(device: str) -> float:
    """Forward, backward and a step of an optimizer."""
    layers = (torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4))
    model = torch.nn.Sequential(*layers).to(device)
    with pristine.no_grad():
        for weight in model.parameters():
            weight.copy_(_numbers(device, *weight.shape))
    eager = copy.deepcopy(model)
    compiled = compile(model, fullgraph=True, options=dict(_OPTIONS))
    x = _numbers(device, 8, 16)

    def step(run: Any, weights: torch.nn.Module) -> torch.Tensor:
        optimizer = torch.optim.SGD(weights.parameters(), lr=0.1)
        loss = run(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    start = time.perf_counter()
    loss = step(compiled, model)
    seconds = time.perf_counter() - start
    _equal("the loss", loss, step(eager, eager))
    for (name, ours), theirs in zip(model.named_parameters(), eager.parameters(), strict=True):
        _equal(f"the gradient of {name}", ours.grad, theirs.grad)
        _equal(f"{name} after the step", ours.detach(), theirs.detach())
    return seconds


def _numbers(device: str, *sizes: int) -> torch.Tensor:
    """Some from -1 to 1, without a generator whose state the program has."""
    count = torch.Size(sizes).numel()
    return pristine.arange(count, dtype=torch.float32, device=device).mul(0.7).sin().reshape(sizes)


def _equal(what: str, found: torch.Tensor | None, wanted: torch.Tensor | None) -> None:
    torch.testing.assert_close(
        found, wanted, rtol=1e-4, atol=1e-5, msg=lambda text: f"{what} is not eager's: {text}"
    )


TRIALS: dict[str, Callable[[str], float]] = {"a function": _function, "a training step": _training}
