"""Conformance: small programs, each run in eager and compiled, compared in all that a caller can tell apart.

A program is a function under `@program`. Its file is loaded twice, once for each side, so what it does to its globals
and classes on one side is not seen on the other, and is compared too. Each side is called on fresh inputs: once, once
more on equal inputs, and, where `again` is given, on those.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import random
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from snapshot import Snapshot, difference

import lampwork
from lampwork.errors import LampworkWarning

FOLDER = Path(__file__).parents[1] / "conformance"
# Codes of records that mean a fault of ours: never right, whatever the program expects.
_FAULTS = ("LW100", "LW119", "LW400", "LW410", "LW500")


@dataclass(frozen=True, slots=True)
class Program:
    """A program and what its author expects of it; see `program`."""

    function: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]
    kwargs: Callable[[], dict[str, Any]]
    again: Callable[[], tuple[Any, ...]] | None
    breaks: int
    regions: int | None
    stable: bool
    factory: bool
    backward: bool
    within: Callable[[], contextlib.AbstractContextManager[Any]]

    @property
    def name(self) -> str:
        return self.function.__name__


def program(
    inputs: Callable[[], tuple[Any, ...]] = tuple,
    *,
    kwargs: Callable[[], dict[str, Any]] = dict,
    again: Callable[[], tuple[Any, ...]] | None = None,
    breaks: int = 0,
    regions: int | None = None,
    stable: bool = True,
    factory: bool = False,
    backward: bool = False,
    within: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Callable[[Callable[..., Any]], Program]:
    """Register a function as a conformance program.

    Args:
        inputs: makes the positional arguments, afresh for each call.
        kwargs: makes the keyword arguments, likewise.
        again: makes the arguments of a third call, with other values, types or sizes.
        breaks: graph breaks of the first call, those in callees and resume functions included.
        regions: regions of the first call; None: 1 if no break is expected, else any number.
        stable: the second call, on equal inputs, compiles nothing.
        factory: the function is not the program, it makes it: a module, or a closure.
        backward: call backward() on the sum of the results, and compare gradients.
        within: makes a context manager that is entered around each call, as by code outside of the program.
    """

    def register(function: Callable[..., Any]) -> Program:
        return Program(function, inputs, kwargs, again, breaks, regions, stable, factory, backward, within)

    return register


# --- running --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _in_place(module: types.ModuleType) -> Iterator[None]:
    """As if the module had been imported."""
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        del sys.modules[module.__name__]


def load_copy(path: Path, code: types.CodeType) -> types.ModuleType:
    """A copy of its own of a file of programs."""
    module = types.ModuleType(f"conformance_{path.stem}")
    module.__file__ = str(path)
    with _in_place(module):
        exec(code, module.__dict__)
    return module


@dataclass(frozen=True, slots=True)
class Call:
    """What one call did. `parts` are compared between the sides, by name; `counts` are the compiler's counters, and
    `records` the texts of its warnings."""

    parts: dict[str, Snapshot]
    counts: dict[str, float]
    records: tuple[str, ...]


class Side:
    """One loaded copy of a program's file, and the program in it: compiled, or as it is."""

    def __init__(self, path: Path, code: types.CodeType, name: str, *, compiled: bool) -> None:
        self.path = path
        self.module = load_copy(path, code)
        with _in_place(self.module):
            self.program: Program = vars(self.module)[name]
            torch.manual_seed(0)
            self.target: Any = self.program.function() if self.program.factory else self.program.function
        self.function: Any = self.target
        if compiled:
            # Not strict: what is refused is counted, as users would see it.
            self.function = lampwork.compile(self.target, options={"strict": False})

    def call(self, inputs: Callable[[], tuple[Any, ...]]) -> Call:
        """Call the program once, and note everything that can be seen of it."""
        torch.manual_seed(0)
        random.seed(0)
        out, err = io.StringIO(), io.StringIO()
        result, error = None, None
        with _in_place(self.module), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            # torch.compile says it on each compilation, and one side may have no use for torch.compile.
            warnings.filterwarnings("ignore", "Guards may run slower on Python", RuntimeWarning)
            args, kwargs = inputs(), self.program.kwargs()
            given = [
                *args,
                *kwargs.values(),
            ]  # what is passed, kept apart from the containers it is passed in
            before = lampwork.stats()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    with self.program.within():
                        result = self.function(*args, **kwargs)
                except Exception as raised:  # noqa: BLE001  (the program's own exception is a result)
                    error = raised
            after = lampwork.stats()
            if self.program.backward and error is None:
                _differentiate(result)
        messages = [w for w in caught if not issubclass(w.category, LampworkWarning)]
        seen: dict[int, int] = {}
        shared = {
            "result": result,
            "arguments": given,
            "program": self._own_state(),
            "globals": self._globals(),
        }
        parts = {name: Snapshot.of(value, seen) for name, value in shared.items()}
        parts["exception"] = Snapshot.of(self._exception(error), {})
        parts["stdout"] = Snapshot.of(out.getvalue(), {})
        parts["stderr"] = Snapshot.of(err.getvalue(), {})
        parts["warnings"] = Snapshot.of([self._warning(w) for w in messages], {})
        parts["state"] = Snapshot.of(_torch_state(), {})
        return Call(
            parts,
            {name: after[name] - before[name] for name in after},
            tuple(str(w.message) for w in caught if issubclass(w.category, LampworkWarning)),
        )

    def _own_state(self) -> Any:
        """What the program itself holds: a module's state, or the cells of a closure."""
        if isinstance(self.target, torch.nn.Module):
            return self.target
        cells = getattr(self.target, "__closure__", None) or ()
        return [cell.cell_contents for cell in cells if not callable(cell.cell_contents)]

    def _globals(self) -> dict[str, Any]:
        """The data among the file's globals, and among the attributes of the classes it defines."""
        found: dict[str, Any] = {}
        for name, value in vars(self.module).items():
            if isinstance(value, type) and value.__module__ == self.module.__name__:
                found |= {f"{name}.{key}": item for key, item in vars(value).items() if _is_data(key, item)}
            elif _is_data(name, value):
                found[name] = value
        return found

    def _exception(self, error: BaseException | None) -> Any:
        """Type, message and user's lines of an exception and of those it came from."""
        if error is None:
            return None
        trace = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(self.path)]
        lines = [
            frame.lineno
            for frame, inner in itertools.zip_longest(trace, trace[1:])
            # After a graph break the frame of the rest of a function lies on that of the break.
            if inner is None or "_break_" not in frame.name or "_resume_" not in inner.name
        ]
        cause = None if error.__cause__ is None else self._exception(error.__cause__)
        context = None if error.__context__ is None else type(error.__context__).__qualname__
        notes = list(getattr(error, "__notes__", ()))
        return [type(error).__qualname__, str(error), lines, cause, context, notes]

    def _warning(self, warning: warnings.WarningMessage) -> Any:
        where = warning.lineno if warning.filename == str(self.path) else "elsewhere"
        return [warning.category.__name__, str(warning.message), where]


def _is_data(name: str, value: Any) -> bool:
    if name.startswith("__") or isinstance(value, (Program, types.ModuleType, type, property, classmethod)):
        return False
    if isinstance(value, (staticmethod, types.MemberDescriptorType, types.GetSetDescriptorType)):
        return False
    return not callable(value) and type(value).__module__ not in ("__future__", "typing")


def _differentiate(result: Any) -> None:
    losses = [
        t.sum().real if t.is_complex() else t.sum()
        for t in torch.utils._pytree.tree_leaves(result)
        if isinstance(t, torch.Tensor) and t.requires_grad
    ]
    if losses:
        torch.stack([loss.double() for loss in losses]).sum().backward()


def _torch_state() -> list[Any]:
    return [
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.random.get_rng_state(),
        random.random(),
    ]


# --- comparing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report:
    """`wrong`: what a caller could tell apart; None if nothing. `unexpected`: what differs from the author's
    expectation of breaks and regions; None if nothing."""

    wrong: str | None
    unexpected: str | None


def run(path: Path, code: types.CodeType, name: str) -> Report:
    """Run one program of a file on both sides."""
    eager, ours = (Side(path, code, name, compiled=compiled) for compiled in (False, True))
    expected = eager.program
    unexpected: list[str] = []
    rounds = [("first", "inputs"), ("second", "inputs"), ("changed", "again")]
    for label, source in rounds:
        if getattr(expected, source) is None:
            continue
        want = eager.call(getattr(eager.program, source))
        got = ours.call(getattr(ours.program, source))
        for part, snapshot in want.parts.items():
            found = difference(got.parts[part], snapshot)
            if found is not None:
                return Report(f"{label} call, {part}: {found}", None)
        faults = [text for text in got.records if any(f"[{code}]" in text for code in _FAULTS)]
        if faults:
            return Report(f"{label} call: {faults[0]}", None)
        raised = want.parts["exception"].items[0][1] is not None
        unexpected += _unexpected(expected, label, got, raised=raised)
    return Report(None, "; ".join(unexpected) or None)


def _unexpected(expected: Program, label: str, call: Call, *, raised: bool) -> list[str]:
    found = [f"{label} call ran eager: {text}" for text in call.records]
    breaks, regions = int(call.counts["breaks"]), int(call.counts["regions"])
    if label == "first":
        if breaks != expected.breaks:
            found.append(f"{breaks} breaks, expected {expected.breaks}")
        wanted = expected.regions
        if wanted is None and expected.breaks == 0 and not raised:
            wanted = 1
        if wanted is not None and regions != wanted:
            found.append(f"{regions} regions, expected {wanted}")
    elif label == "second":
        if expected.stable and regions:
            found.append(f"the second call compiled {regions} regions")
    elif breaks and not expected.breaks:
        found.append(f"{breaks} breaks on the changed call")
    return found


# --- finding --------------------------------------------------------------------------------------------------------


def load(path: Path) -> tuple[types.CodeType, list[str]]:
    """The compiled source of a file of programs, and the programs' names in order."""
    code = compile(path.read_text(), str(path), "exec")
    module = load_copy(path, code)
    return code, [name for name, value in vars(module).items() if isinstance(value, Program)]


def all_files() -> list[Path]:
    return sorted([*FOLDER.glob("python_*.py"), *FOLDER.glob("torch_*.py")])
