"""One run of a random program, eager or compiled, and all that can be seen of it, as plain data."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import io
import linecache
import os
import random
import signal
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import lampwork
import lampwork.compiled.function

FILE = "program.py"
WORLD = Path(__file__).parent / "program_world.py"
FAULTS = ("LW100", "LW119", "LW400", "LW410", "LW500")
_LAMPWORK = os.path.dirname(lampwork.__file__) + os.sep
_DEPTH = 5

_world = compile(WORLD.read_text(), str(WORLD), "exec")


class Side:
    """One run. `events`: what has been seen so far. `world` is executed before the program; `watched` are the names of
    its state, of which `kept` are shown once more at the end."""

    world = _world
    watched: tuple[str, ...] = ("LAYER", "TABLE")
    kept: tuple[str, ...] = ("LEVEL", "TABLE")

    def __init__(self, backend: str | None) -> None:
        self.backend = backend
        self.events: list[Any] = []
        self.faults: list[str] = []
        self.states: list[Any] = []

    def run(self, text: str) -> list[Any]:
        module = types.ModuleType("program")
        module.__file__ = FILE
        linecache.cache[FILE] = (len(text), None, text.splitlines(keepends=True), FILE)
        space = vars(module)
        space.update(
            T=lambda k: torch.full((2, 2), float(k)), gathered=_gathered, cancelled=_cancelled, listed=_listed
        )
        space.update(io=io, types=types, warnings=warnings)
        sys.modules["program"] = module
        random.seed(0)
        torch.default_generator.manual_seed(0)
        out = io.StringIO()
        hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        handler = signal.signal(signal.SIGUSR1, _nothing)
        limit = sys.getrecursionlimit()
        warn, lampwork.compiled.function.warn = lampwork.compiled.function.warn, self._warned
        modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
        try:
            with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(out):
                warnings.simplefilter("always")
                try:
                    exec(self.world, space)
                    exec(compile(text, FILE, "exec"), space)
                    for name in self.watched:
                        self._watch(space[name])
                    space["main"](self.compile, self.call, self._watch)
                except BaseException as error:  # noqa: BLE001  (what the program raises is a result)
                    self.events.append(["main raised", described(error)])
                # Handlers of exceptions are gone: what the program left behind dies here.
                self._note_states()
                self.states.clear()
                found = {k: v for k, v in space.items() if k in self.kept}
                self.events.append(["globals", described(found)])
                self.events.append(["stdout", out.getvalue()])
                self.events.append(
                    ["warnings", sorted(f"{w.category.__name__}: {w.message}" for w in caught)]
                )
                state = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
                self.events.append(["modes", state == modes, repr(sys.exc_info())])
        finally:
            lampwork.compiled.function.warn = warn
            sys.setrecursionlimit(limit)
            sys.unraisablehook = hook
            signal.signal(signal.SIGUSR1, handler)
            torch.set_grad_enabled(modes[0])
            torch.set_autocast_enabled("cpu", modes[1])
            del sys.modules["program"]
            space.clear()
        if self.faults:
            self.events.append(["faults", self.faults])
        return self.events

    def compile(self, function: Any, **keywords: Any) -> Any:
        if self.backend is None:
            return function
        options = {"strict": False, **keywords.pop("options", {})}
        return lampwork.compile(function, backend=self.backend, options=options, **keywords)

    def call(self, *thunks: Callable[[], Any], again: Callable[[], Any] | None = None) -> None:
        for thunk in (*thunks, *([again] if again is not None else [])):
            try:
                result = thunk()
            except BaseException as error:  # noqa: BLE001  (what the program raises is a result)
                result = error
            self.events.append(["call", described(result)])
            del result
            self._note_states()

    def _watch(self, state: Any) -> None:
        self.states.append(state)

    def _note_states(self) -> None:
        for state in self.states:
            self.events.append(["state", described(vars(state) if hasattr(state, "log") else state)])
            if hasattr(state, "log"):
                state.log.clear()

    def _unraisable(self, error: Any) -> None:
        self.events.append(["unraisable", type(error.exc_value).__name__, str(error.exc_value)])

    def _warned(self, text: str) -> None:
        if any(f"{code}]" in text or f"{code}:" in text for code in FAULTS):
            self.faults.append(text)


def _nothing(*_: Any) -> None:
    pass


async def _gathered(coroutines: list[Any]) -> Any:
    return await asyncio.gather(*coroutines, return_exceptions=True)


async def _cancelled(coroutine: Any) -> Any:
    task = asyncio.ensure_future(coroutine)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    return await asyncio.gather(task, return_exceptions=True)


async def _listed(stream: Any) -> Any:
    return [value async for value in stream]


# --- as plain data --------------------------------------------------------------------------------------------------


def described(value: Any, depth: int = 0) -> Any:
    """A value as plain data: what a caller could tell apart."""
    if value is None or isinstance(value, (int, str, bool)):
        return value
    if depth > _DEPTH:
        return "..."
    if isinstance(value, torch.Tensor):
        kind = type(value).__name__
        return [kind, str(value.dtype), list(value.shape), value.requires_grad, repr(value.detach().tolist())]
    if isinstance(value, BaseException):
        return _error(value, depth)
    if isinstance(value, dict):
        return {repr(key): described(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *(described(item, depth + 1) for item in value)]
    if isinstance(value, float):
        return repr(value)
    if inspect.isgenerator(value):
        return ["generator", value.__qualname__, inspect.getgeneratorstate(value)]
    if inspect.iscoroutine(value):
        return ["coroutine", value.__qualname__, inspect.getcoroutinestate(value)]
    if inspect.isasyncgen(value):
        return ["async generator", value.__qualname__, value.ag_frame is None]
    if isinstance(value, torch.nn.Module):
        return [type(value).__name__, described(dict(value.named_parameters()), depth + 1), value.calls]
    if type(value).__module__ == "program" and hasattr(value, "__dict__"):
        return [type(value).__name__, described(vars(value), depth + 2)]
    return ["object", type(value).__name__]


def _error(error: BaseException, depth: int) -> Any:
    told: dict[str, Any] = {"type": type(error).__qualname__}
    if isinstance(error, RecursionError):
        return told  # how many frames there are, and where it ends, is the limit's business
    told["text"] = str(error)
    told["args"] = [described(a, depth + 2) if not isinstance(a, str) else a for a in error.args]
    told["notes"] = getattr(error, "__notes__", None)
    told["lines"] = _lines(error.__traceback__)
    told["cause"] = described(error.__cause__, depth + 1)
    told["context"] = described(error.__context__, depth + 1)
    told["suppressed"] = error.__suppress_context__
    if isinstance(error, BaseExceptionGroup):
        told["inside"] = [described(e, depth + 1) for e in error.exceptions]
    extra = getattr(error, "extra", None)
    told["extra"] = described(extra, depth + 3)
    return told


def _lines(trace: types.TracebackType | None) -> list[str]:
    """Functions and lines, from the program's first frame on."""
    found: list[str] = []
    for frame, line in traceback.walk_tb(trace):
        code = frame.f_code
        # Frames of modules' calls are torch's business: where the rest of a forward runs, they are gone.
        if code.co_filename in (__file__, torch.nn.modules.module.__file__):
            continue
        name = os.path.basename(code.co_filename)
        if code.co_filename.startswith(_LAMPWORK):
            name = f"lampwork {name}"
        found.append(f"{name}:{line} {code.co_name}")
    return found


def difference(got: Any, want: Any, path: str = "") -> str | None:
    """The first place where two descriptions differ, in words."""
    if type(got) is type(want) is list:
        for i, (mine, theirs) in enumerate(zip(got, want, strict=False)):
            found = difference(mine, theirs, f"{path}[{i}]")
            if found is not None:
                return found
        if len(got) != len(want):
            return f"{path}: {len(got)} items, in eager {len(want)}: {got!r}, in eager {want!r}"[:900]
        return None
    if type(got) is type(want) is dict and list(got) == list(want):
        found = (difference(got[key], want[key], f"{path}.{key}") for key in want)
        return next((f for f in found if f is not None), None)
    return None if got == want else f"{path}: {got!r}, in eager {want!r}"[:900]


def run(text: str, backend: str | None, side: type[Side] = Side) -> list[Any]:
    """Run a program, compiled for a backend or eager (None); what happened, in order."""
    return side(backend).run(text)


def compared(text: str, backend: str | None, side: type[Side] = Side) -> str | None:
    """Run a program eager and compiled; the first difference, in words."""
    want = run(text, None, side)
    gc.collect()
    got = run(text, backend, side)
    for i, (mine, theirs) in enumerate(zip(got, want, strict=False)):
        found = difference(mine, theirs)
        if found is not None:
            return f"event {i} ({theirs[0]}){found}"
    if len(got) != len(want):
        return f"{len(got)} events, in eager {len(want)}: {got[len(want) :]!r}"[:1500]
    return None
