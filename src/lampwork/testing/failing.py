"""Whether a function fails once it is compiled: with wrong results, by a crash, or as it is slow."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import select
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Literal

import torch
from torch import Tensor

from lampwork.api import check_keywords, compile, function_of
from lampwork.capture.model.region import Record
from lampwork.display import Shown
from lampwork.errors import OptionError, text_of
from lampwork.graph.nested import leaves
from lampwork.records import record
from lampwork.testing.compare import difference, widened
from lampwork.timing import rounds

Kind = Literal["wrong", "crash", "slow"]
KINDS: tuple[Kind, ...] = ("wrong", "crash", "slow")

_MEASURED = 0.3
"""Seconds that calls are measured for, where it matters how long they take."""


@record
class Failure(Shown):
    """How a function fails. `what`: which failure of its kind: the signal, the error's class, "no end" for a crash.
    `text`: what was seen."""

    kind: Kind
    what: str
    text: str = field(compare=False)

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"

    def _brief(self) -> str:
        return str(self)


@record
class Check:
    """What counts as a failure. `kinds`: these only. `slow`: so many times eager's time. `exact`: results are held to
    double precision; False where that is another program, as with random numbers. `seconds`: a child's time."""

    kinds: tuple[Kind, ...] = ("wrong", "crash")
    slow: float = 2.0
    exact: bool = True
    seconds: float = 60.0


class NoProgram(Exception):
    """The function raises in eager PyTorch as well, or cannot be called with these inputs."""


def failure(
    fn: Callable[..., Any],
    inputs: Sequence[Tensor],
    bound: Sequence[Tensor] = (),
    *,
    kinds: Sequence[Kind] = ("wrong", "crash"),
    slow: float = 2.0,
    exact: bool = True,
    seconds: float = 60.0,
    **keywords: Any,
) -> Failure | None:
    """Compile `fn` in a forked child process, and say how it fails there; None if it does not.

    "wrong": results, or gradients of inputs that require them, are farther from double precision than twice eager's
    error plus a few roundings, or have another shape, dtype or layout. "crash": the process ends by a signal, the
    compiled function raises, it ran eager because the compiler failed, or it takes longer than `seconds`. "slow": a
    call takes more than `slow` times as long as eager's. The child has one thread.

    Args:
        fn: a function of the inputs, followed by the bound tensors. It changes none of them.
        inputs: tensors that a call is given.
        bound: tensors that are constants of the compiled function, as weights are.
        kinds: the kinds of failures that count.
        exact: False: compare with eager's own results, not with double precision.
        keywords: of `lampwork.compile`.

    Raises:
        OptionError: a kind or keyword that there is not, or `fn` raises in eager PyTorch too.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds or isinstance(kinds, str):
        raise OptionError(f"kinds is {kinds!r}", fix=f"give some of {', '.join(KINDS)}, as a tuple")
    check_keywords(**keywords)
    check = Check(tuple(kinds), slow, exact, seconds)
    try:
        return failure_in_child(lambda: fn, inputs, bound, check, keywords)
    except NoProgram as error:
        raise OptionError(f"the function fails without being compiled: {error}") from None


def failure_in_child(
    make: Callable[[], Callable[..., Any]],
    inputs: Sequence[Tensor],
    bound: Sequence[Tensor],
    check: Check,
    keywords: dict[str, Any],
) -> Failure | None:
    """`failure` of the function that `make` gives in the child.

    Raises:
        NoProgram: it fails in eager PyTorch too.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _run_child(writing, lambda: _verdict(make, inputs, bound, check, keywords))
    os.close(writing)
    told, ended = _read(reading, check.seconds)
    if not ended:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    stages = [json.loads(line) for line in told.splitlines()]
    last: dict[str, str] = stages[-1] if stages else {}
    if "none" in last:
        raise NoProgram(last["none"])
    if "begun" not in last and "kind" not in last and "right" not in last:
        raise NoProgram("eager PyTorch came to no end" if not ended else "eager PyTorch ended the process")
    if "kind" in last:
        found = Failure(last["kind"], last["what"], last["text"])  # pyright: ignore[reportArgumentType]
    elif "right" in last:
        return None
    elif not ended:
        found = Failure("crash", "no end", f"no end in {check.seconds:g} seconds")
    elif os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        found = Failure("crash", name, f"the process ended by {name}")
    else:
        code = os.WEXITSTATUS(status)
        found = Failure("crash", f"exit {code}", f"the process ended with exit {code}")
    return found if found.kind in check.kinds else None


def _read(pipe: int, seconds: float) -> tuple[bytes, bool]:
    """What comes through a pipe until its other end is closed, and whether that was in time."""
    deadline = time.monotonic() + seconds
    told = b""
    with os.fdopen(pipe, "rb", buffering=0) as reading:
        while select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
            chunk = reading.read(1 << 16)
            if not chunk:
                return told, True
            told += chunk
    return told, False


Told = dict[str, str]


def _run_child(pipe: int, verdict: Callable[[], Any]) -> None:
    """Tell the parent what `verdict` yields, and end this process. OpenMP's threads do not live on in a forked
    process, so eager has one thread."""
    torch.set_num_threads(1)
    gc.freeze()  # what was there before is not garbage here, and a search would copy its memory
    faulthandler.disable()  # its report would go to a descriptor of its own
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    try:
        for message in verdict():
            os.write(pipe, json.dumps(message).encode() + b"\n")
    finally:
        os._exit(0)


def _verdict(
    make: Callable[[], Callable[..., Any]],
    inputs: Sequence[Tensor],
    bound: Sequence[Tensor],
    check: Check,
    keywords: dict[str, Any],
) -> Any:
    """Messages for the parent: that eager has run, then how the compiled function fails."""
    try:
        fn = make()
        eager = _results(_with_bound(fn, bound), inputs, bound)
    except Exception as error:  # noqa: BLE001  (the program's own failure: no failure of the compiler)
        yield {"none": text_of(error)}
        return
    exact = _exact(fn, inputs, bound) if check.exact and "wrong" in check.kinds else None
    yield {"begun": ""}
    try:
        compiled = compile(_with_bound(fn, bound), **keywords)
        # What backward asks for shows in the first call; from the second on it is compiled too.
        calls = [_results(compiled, inputs, bound) for _ in range(2 if _is_trained(inputs, bound) else 1)]
    except Exception as error:  # noqa: BLE001  (any exception that eager does not raise is what is looked for)
        yield {"kind": "crash", "what": type(error).__name__, "text": text_of(error)}
        return
    wrong = next(filter(None, (_difference(got, eager, exact) for got in calls)), "")
    if "wrong" in check.kinds and wrong:
        yield {"kind": "wrong", "what": "", "text": wrong}
    elif "crash" in check.kinds and (fault := _fault(compiled)):
        yield {"kind": "crash", "what": fault.code, "text": str(fault)}
    elif "slow" in check.kinds and (ratio := _ratio(compiled, _with_bound(fn, bound), inputs)) >= check.slow:
        yield {"kind": "slow", "what": "", "text": f"{ratio:.1f} times as long as eager"}
    else:
        yield {"right": ""}


def _is_trained(inputs: Sequence[Tensor], bound: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in (*inputs, *bound))


def _with_bound(fn: Callable[..., Any], bound: Sequence[Tensor]) -> Callable[..., Any]:
    constants = tuple(bound)

    def model(*inputs: Tensor) -> Any:
        return fn(*inputs, *constants)

    return model


@record
class _Results:
    outputs: list[Tensor]
    gradients: list[Tensor]


def _results(fn: Callable[..., Any], inputs: Sequence[Tensor], bound: Sequence[Tensor]) -> _Results:
    """The tensors that `fn` returns, and the gradients of the inputs and bound tensors that require them. Random
    numbers begin at the same seed."""
    torch.manual_seed(0)
    outputs = [*leaves(fn(*inputs), Tensor)]
    needing = [t for t in (*inputs, *bound) if t.requires_grad]
    roots = [t for t in outputs if t.requires_grad]
    if not needing or not roots:
        return _Results([t.detach() for t in outputs], [])
    given = [_cotangent(t) for t in roots]
    gradients = torch.autograd.grad(roots, needing, given, allow_unused=True)
    return _Results([t.detach() for t in outputs], [g for g in gradients if _is_there(g)])


def _difference(got: _Results, eager: _Results, exact: _Results | None) -> str:
    outputs, gradients = (exact.outputs, exact.gradients) if exact else (None, None)
    found = difference(got.outputs, eager.outputs, outputs)
    if not found:
        found = difference(got.gradients, eager.gradients, gradients)
        return found.replace("result", "gradient", 1)
    return found


def _is_there(gradient: Tensor | None) -> bool:
    """Whether a result depends on the input: torch gives None otherwise, which its annotations do not say."""
    return gradient is not None


def _cotangent(tensor: Tensor) -> Tensor:
    """Numbers that differ from element to element: those of a softmax, all alike, would have no gradient."""
    flat = torch.arange(tensor.numel(), dtype=torch.float64).add_(1).cos_()
    return flat.reshape(tensor.shape).to(tensor.device, tensor.dtype)


def _exact(fn: Callable[..., Any], inputs: Sequence[Tensor], bound: Sequence[Tensor]) -> _Results | None:
    """Results in double precision; None where an operator does not take that, or not beside what the program makes."""

    def wide(tensor: Tensor) -> Tensor:
        made: Tensor = widened(tensor)
        return made.requires_grad_(tensor.requires_grad)

    given, constants = [wide(t) for t in inputs], [wide(t) for t in bound]
    try:
        return _results(_with_bound(fn, constants), given, constants)
    except (RuntimeError, TypeError, NotImplementedError):
        return None


def _fault(compiled: Any) -> Record | None:
    """What ran eager because the compiler failed, which is not what ends a region."""
    function = function_of(compiled)
    records = [each for one in function.tree() for each in one.records]
    return next((each for each in records if not each.code.startswith("LW1")), None)


def _ratio(compiled: Callable[..., Any], eager: Callable[..., Any], inputs: Sequence[Tensor]) -> float:
    given = tuple(inputs)
    ours, theirs = rounds([(compiled, given), (eager, given)], _MEASURED)
    return statistics.median(ours) / statistics.median(theirs)
