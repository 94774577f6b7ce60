"""Twins: a program's world built twice, one side eager, one compiled; each mutation is applied to both and both called.

A world is a conformance program: the function, its closure and globals, and arguments that stay from call to call.
"""

from __future__ import annotations

import contextlib
import io
import random
import re
import signal
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import harness
import torch
from mutate import Edit, edits_of
from places import MISSING, Place, Walk
from snapshot import Snapshot, difference
from torch.utils.hooks import RemovableHandle
from torch_state import torch_edits

import lampwork
from lampwork.errors import LampworkWarning

# Enough versions for all the mutations that one pair of twins sees: past the limit there is nothing to try.
_OPTIONS: Any = {"strict": False, "recompile_limit": 100}
FAULTS = ("LW100", "LW119", "LW400", "LW410", "LW500")


@dataclass(frozen=True, slots=True)
class Source:
    """A file of programs, loaded once and executed for each side."""

    path: Path
    code: types.CodeType
    names: tuple[str, ...]

    @staticmethod
    def of(path: Path) -> Source:
        code, names = harness.load(path)
        return Source(path, code, tuple(names))


class World(harness.Side):
    """One side. `compiled` is a backend's name, or None for eager."""

    def __init__(self, source: Source, name: str, compiled: str | None) -> None:
        RemovableHandle.next_id = 0  # the keys of hooks, counted for each side on its own
        super().__init__(source.path, source.code, name, compiled=False)
        self._enter()
        try:
            self.args = list(self.program.inputs())
            self.kwargs = self.program.kwargs()
            self.is_told = compiled is None and vars(self.module).get("COMPILING", False)
            if compiled is not None:
                self.function = lampwork.compile(self.target, backend=compiled, options=_OPTIONS)
            self.watched: list[Place] = []
            self.watched = self.places()
            self.next_hook: int = RemovableHandle.next_id
        finally:
            self._leave()

    def _enter(self) -> None:
        sys.modules[self.module.__name__] = self.module

    def _leave(self) -> None:
        del sys.modules[self.module.__name__]

    def places(self) -> list[Place]:
        deep = vars(self.module).get("DEEP", ())
        return Walk({"f": self.target, "args": self.args, "kwargs": self.kwargs}, deep=deep).places

    def _told(self) -> contextlib.AbstractContextManager[Any]:
        """Libraries that do otherwise where they are compiled, and whose worlds say so by COMPILING, do so in eager."""
        if self.is_told:
            return mock.patch.object(torch.compiler, "_is_compiling_flag", True)
        return contextlib.nullcontext()

    def _differentiate(self, result: Any) -> None:
        """Backward. One that raises leaves no gradients: which it has written by then is nobody's promise."""
        try:
            harness._differentiate(result)
        except Exception:
            values = [self.args, self.kwargs, [place.value() for place in self.watched]]
            for value in torch.utils._pytree.tree_leaves(values):
                if isinstance(value, torch.Tensor) and value.is_leaf:
                    value.grad = None
            raise

    def observe(self, private: set[str]) -> tuple[dict[str, Any], list[str], BaseException | None]:
        """Call once; all that can be seen afterwards, by name, what Lampwork warned of, and the exception itself."""
        # Not torch.manual_seed, which formats a traceback for each kind of device that is not there.
        torch.default_generator.manual_seed(0)
        random.seed(0)
        out = io.StringIO()
        result, error = None, None
        RemovableHandle.next_id = self.next_hook
        self._enter()
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                with contextlib.redirect_stdout(out):
                    try:
                        with self.program.within(), self._told():
                            result = self.function(*self.args, **self.kwargs)
                        if self.program.backward:
                            self._differentiate(result)
                    except Exception as raised:  # noqa: BLE001  (the program's own exception is a result)
                        error = raised
            seen: dict[int, Any] = {}
            world = [place.value() for place in self.watched if place.path in private]
            parts = {
                "result": _shown(result, seen),
                "exception": _shown(None if error is None else [type(error).__qualname__, _text(error)], {}),
                "arguments": _shown([self.args, self.kwargs], seen),
                "world": _shown(world, seen),
                "stdout": _shown(out.getvalue(), {}),
                "torch": _shown(harness._torch_state(), {}),
            }
        finally:
            self._leave()
        self.next_hook = RemovableHandle.next_id
        records = [str(w.message) for w in caught if issubclass(w.category, LampworkWarning)]
        return parts, records, error


class Twins:
    """Both sides of one program, and what can be mutated in them. `spent`: a call has run into the limit of recursion.
    How often a program gets to do something before that is a matter of the frames below it, so from then on the sides
    are no twins."""

    def __init__(self, source: Source, name: str, backend: str | None) -> None:
        self.spent = False
        self.eager = World(source, name, None)
        self.ours = World(source, name, backend)
        mine = {p.path: p for p in self.eager.watched}
        theirs = {p.path: p for p in self.ours.watched}
        both = [path for path in mine if path in theirs]
        # Both are read, also where the first would do: an object may count how often it is read.
        code = {path for path in both if _is_code(mine[path]) | _is_code(theirs[path])}
        self.private = {path for path in both if mine[path].owner is not theirs[path].owner} - code

    def edits(self) -> list[tuple[Edit, Edit | None]]:
        """Pairs of the same mutation for either side; None where the sides share the slot."""
        theirs = {e.name: e for e in edits_of(self.ours.places())}
        pairs: list[tuple[Edit, Edit | None]] = [(e, None) for e in torch_edits()]
        for edit in edits_of(self.eager.places()):
            twin = theirs.get(edit.name)
            if twin is not None:
                pairs.append((edit, None if twin.owner is edit.owner else twin))
        return pairs

    def call(self) -> str | None:
        """Call both; where they differ, in words.

        What is told that it is compiled may run eager in the end, where it is not told: either way is right.
        """
        got, records, error = self.ours.observe(self.private)
        found = self._differs(got, records, error)
        if found is not None and self.eager.is_told:
            self.eager.is_told = False
            if self._differs(got, [], error) is None:
                found = None
            self.eager.is_told = True
        return found

    def _differs(
        self, got: dict[str, Snapshot], records: list[str], error: BaseException | None
    ) -> str | None:
        """What a call of eager's side shows otherwise."""
        want, _, _ = self.eager.observe(self.private)
        if isinstance(error, RecursionError) and want["exception"].items == got["exception"].items:
            self.spent = True
            return None
        for part, snapshot in want.items():
            steps = vars(self.eager.module).get("STEPS", 1)
            found = difference(_comparable(got[part], steps), _comparable(snapshot, steps), steps)
            if found is not None:
                trace = "" if error is None else "".join(traceback.format_exception(error)[-4:])
                return f"{part}: {found}"[:600] + (
                    "\n" + trace[-1500:] if trace and part in ("exception", "result") else ""
                )
        for record in records:
            if any(f"[{code}]" in record for code in FAULTS):
                return f"fault: {record[:1500]}"
        return None


def _text(error: BaseException) -> str:
    """The text of an exception; if a mutation keeps it from having one, the kind of exception that asking raises."""
    try:
        return str(error)
    except Exception as raised:  # noqa: BLE001  (it must be the same on both sides)
        return f"cannot be shown: {type(raised).__name__}"


def _shown(value: Any, seen: dict[int, Any]) -> Snapshot:
    """A snapshot; of what a mutation keeps from being looked at, the kind of exception that looking raises."""
    try:
        return Snapshot.of(value, seen)
    except Exception as error:  # noqa: BLE001  (it must be the same on both sides)
        return Snapshot([("value", f"cannot be shown: {type(error).__name__}")])


_NARROW = {torch.float64: torch.float32, torch.complex128: torch.complex64}
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")
_DECIMAL = re.compile(r"\s*-?\d+\.\d*(e[-+]?\d+)?")


def _comparable(snapshot: Snapshot, steps: int) -> Snapshot:
    """Without what differs between any two worlds: where objects lie, which text shows of those that have no `repr`,
    and the digits of doubles, which may hold what was computed in single precision after a change of one dtype; and
    without the decimals in texts where numbers may be several steps of rounding apart."""
    return Snapshot([(_placeless(path), _plain(item, steps)) for path, item in snapshot.items])


def _plain(item: Any, steps: int) -> Any:
    if isinstance(item, torch.Tensor):
        return item.to(_NARROW.get(item.dtype, item.dtype))
    if type(item) is list:
        return [_plain(each, steps) for each in item]
    if type(item) is not str:
        return item
    return _placeless(item if steps == 1 else _DECIMAL.sub(" #", item))


def _placeless(text: str) -> str:
    return _ADDRESS.sub("at 0x", text)


def _is_code(place: Place) -> bool:
    value = place.value()
    return value is MISSING or isinstance(value, (types.CodeType, types.ModuleType))


class Expired(BaseException):
    """A call that took too long; no handler of a program is to catch it."""


@contextlib.contextmanager
def limit(seconds: int) -> Any:
    def expire(*_: Any) -> None:
        raise Expired

    old = signal.signal(signal.SIGALRM, expire)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


@dataclass(frozen=True, slots=True)
class Trial:
    """How one mutation is tried: calls before, after, and after it was undone."""

    warm: int
    calls: int
    after: int

    @staticmethod
    def draw(rng: random.Random) -> Trial:
        return Trial(rng.choice((1, 2, 2, 3)), rng.choice((1, 1, 2)), rng.choice((0, 1, 1, 2)))


def tried(twins: Twins, pairs: list[tuple[Edit, Edit | None]], trial: Trial) -> str | None:
    """Apply mutations to both sides, call, undo them, call; the first difference."""
    undo: list[Callable[[], None]] = []
    found = None
    refused = False
    for ours_shares, edits in ((pair[1] is None, pair) for pair in pairs):
        raised: list[str] = []
        for edit in edits:
            if edit is None:
                continue
            try:
                undo.append(edit.do())
            except Exception as error:  # noqa: BLE001  (a mutation that the world refuses, on both sides)
                raised.append(f"{type(error).__name__}: {error}")
        if len(raised) == 1 and not ours_shares:
            found = f"mutation refused on one side: {raised[0]}"
        refused = refused or bool(raised)
    try:
        if found is None and not (refused and len(pairs) == 1):
            for number in range(trial.calls):
                found = twins.call()
                if found is not None:
                    return f"call {number + 1} after the mutation: {found}"
                if twins.spent:
                    return None
    finally:
        # Shared slots must be put back whatever happens.
        for u in reversed(undo):
            with contextlib.suppress(Exception):
                u()
    if found is not None or refused:
        return found
    for number in range(trial.after):
        found = twins.call()
        if found is not None:
            return f"call {number + 1} after undoing: {found}"
    return None
