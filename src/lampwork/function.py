"""The state behind one compiled callable: its entries, its records, and what happens on a call no entry answers."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lampwork import counters, logs
from lampwork.capture import CaptureOptions, FrameRefused, ProgramRaised, capture
from lampwork.capture.contexts import surroundings, without_function_modes
from lampwork.capture.divided import divided, through
from lampwork.capture.dynamic import Dynamic
from lampwork.capture.printing import format_guard
from lampwork.capture.region import Guard, Record, Region
from lampwork.config import Config, using_config
from lampwork.entries import Entry
from lampwork.errors import CaptureError, GraphBreakError, LampworkError, Location, RecompileError
from lampwork.live import watch
from lampwork.passes.registry import registry
from lampwork.recompiles import Version, contradicted_marks, describe_miss, limit_record
from lampwork.runtime import Compiled, drive
from lampwork.runtime.opaque import opaque
from lampwork.stages import Stages, format_bytecode, keep
from lampwork.stance import current_stance
from lampwork.targets import target_of

Build = Callable[[Region, "Function", Stages], Any]


_HERE = os.path.dirname(__file__) + os.sep

_SETS_ASIDE = 4
"""Of how many other sets of plug-ins a function keeps its versions."""

# Refusals that depend on the arguments of one call: the next one may well be captured.
_OF_THIS_CALL = frozenset({"LW107", "LW111", "LW135"})


class LampworkWarning(UserWarning):
    """Something ran eager that could have been compiled; the text is the record that says why."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Function:
    """One function or module with its compiled versions.

    `name`: qualified, and different for all resume functions and callees of one root.
    `fn` is what is captured: `original`, or a Python function that calls it if it has no Python code.
    `build` turns a captured region into an entry (the pipeline of api.py). `root` is false for resume functions and
    for callees compiled around a break: their calls are parts of the root's call and are not counted.

    `_divided`: once refused, the function with its callees compiled, if it can be had.

    `plugins` names the set of registered rewrites and passes that `entries` were made with; versions of other sets are
    kept `_aside`, with whether the function was refused under them, until these are on again.

    `records` holds every graph break, refusal and recompilation in the order in which they came up; `refusals` and
    `recompiles` are those of their kind. `quiet`: refusals are not warned of, as the caller reports them.
    """

    original: Callable[..., Any]
    config: Config
    build: Build
    fullgraph: bool = False
    root: bool = True
    quiet: bool = False
    fn: Callable[..., Any] = field(init=False)
    name: str = ""
    compiled: Any = None
    entries: list[Entry] = field(default_factory=list[Entry])
    records: list[Record] = field(default_factory=list[Record])
    refusals: list[Record] = field(default_factory=list[Record])
    recompiles: list[Record] = field(default_factory=list[Record])
    children: dict[int, Function] = field(default_factory=dict[int, "Function"])
    family: dict[int, Function] = field(default_factory=dict[int, "Function"])
    refused: bool = False
    plugins: str = ""
    _aside: dict[str, tuple[list[Entry], bool]] = field(default_factory=dict[str, tuple[list[Entry], bool]])
    _busy: bool = False  # compiling, in the thread that holds the lock
    _divided: Callable[..., Any] | None = None
    _is_divided: bool = False
    _names: set[str] = field(default_factory=set[str])  # of all functions of one tree
    _options: CaptureOptions = field(default_factory=CaptureOptions)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _raising: threading.local = field(default_factory=threading.local)  # what a plug-in's fault is to raise

    def __post_init__(self) -> None:
        target = target_of(self.original)
        self.fn = self.original if target.python else _calling(self.original)
        # Two breaks of one line have resume functions of one name.
        number = next(n for n in itertools.count(1) if _numbered(target.name, n) not in self._names)
        self.name = _numbered(target.name, number)
        self._names.add(self.name)

    @staticmethod
    def of(
        fn: Callable[..., Any],
        config: Config,
        build: Build,
        *,
        fullgraph: bool,
        root: bool = True,
        quiet: bool = False,
        dynamic: bool | None = None,
        names: set[str] | None = None,
    ) -> Function:
        function = Function(
            fn, config, build, fullgraph, root, quiet, _names=set() if names is None else names
        )
        function.compiled = Compiled(function.on_miss)
        function.compiled.stages = Stages(f"{function.name}, not called yet")
        function.compiled.entries = ()
        function._options = CaptureOptions(function.child, function.child, Dynamic(dynamic), drive=drive)
        watch(function)
        function.follow()
        return function

    @property
    def versions(self) -> int:
        return len(self.entries)

    @opaque
    def on_miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """No entry matched: give the entry made for this call, which the runtime then runs, or run eager."""
        if self.refused:
            return self.run_eager(args, kwargs)
        stance = current_stance()
        if stance == "force_eager":
            return self.run_eager(args, kwargs)
        around = surroundings()
        if around == "foreign":
            return self.run_eager(args, kwargs)
        if around == "cpu device":
            with without_function_modes():
                return self.compiled(*args, **kwargs)
        if stance == "fail_on_recompile":
            raise self._forbidden(args, kwargs)
        if stance == "eager_on_recompile":
            return self.run_eager(args, kwargs)
        seen = self.versions
        raised: ProgramRaised | None = None
        with self._lock, self._under_one_set() as moved:
            # If another thread compiled something while we waited, that may be what this call needs.
            entry = self.compiled.match(args, kwargs) if moved or self.versions != seen else None
            if entry is None and not self.refused:
                try:
                    if self._compile(args, kwargs):
                        entry = self._made_for(args, kwargs)
                except ProgramRaised as error:
                    raised = error
        if entry is not None:
            return entry
        result = self.run_eager(args, kwargs)
        if raised is not None:
            # Eager was to raise as the captured program did. It did not, so the fault is capture's.
            self._fail(raised)
        return result

    def follow(self) -> None:
        """Serve the versions made under the plug-ins that are on now; keep the others aside."""
        with self._lock:
            if not self._busy:
                self._adopt()

    @contextmanager
    def _under_one_set(self) -> Generator[bool]:
        """Compile under the plug-ins that are on now; gives whether these are others than before. What is made while
        they change belongs to no set, so it serves the call at hand only."""
        plugins = registry()
        outer, self._busy = self._busy, True
        generation = plugins.generation
        moved, count = not outer and self._adopt(), self.versions
        try:
            yield moved
        finally:
            self._busy = outer
            if plugins.generation != generation and not outer:
                del self.entries[count:]
                self._serve()
                self._adopt()

    def _adopt(self) -> bool:
        key = registry().key(self.config.passes)
        if key == self.plugins:
            return False
        self._aside[self.plugins] = self.entries, self.refused
        self.entries, self.refused = self._aside.pop(key, ([], False))
        self.plugins = key
        while len(self._aside) > _SETS_ASIDE:
            del self._aside[next(iter(self._aside))]
        self._serve()
        return True

    def _serve(self) -> None:
        """Have the runtime serve `entries` and no others."""
        self.compiled.clear()
        for entry in self.entries:
            self.compiled.add_entry(entry.served)
        self.compiled.entries = tuple(self.entries)
        last = self.entries[-1].stages if self.entries else Stages(f"{self.name}, not called yet")
        self.compiled.stages = last

    def _made_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The entry just made for this call; None, with a record, if it does not accept it after all."""
        entry = self.compiled.match(args, kwargs)
        if entry is None:
            guard = self.compiled.raw_entries[-1].explain(args, kwargs)
            text = format_guard(guard) if isinstance(guard, Guard) else guard
            self._fail(CaptureError(f"a new version does not accept the call it was made for: {text}"))
        return entry

    def _fail(self, error: Exception) -> None:
        """A fault of ours: raised under `strict`, else a record and eager runs from now on."""
        if self.config.strict:
            raise error
        self._refuse(self._record_of(error))

    def note_failure(self, error: Exception) -> None:
        """A fault of ours that one call's sizes brought out: raised under `strict`, else a record."""
        if self.config.strict:
            raise error
        self._note(self._record_of(error))

    def note_fault(self, error: LampworkError, instead: str, *, calling: bool = False) -> None:
        """A fault of a plug-in, whose work is done by `instead`: a record. Raised under `strict`, and if `instead` is
        empty, as there is nobody. `calling`: it came up in a call, not while compiling."""
        if self.config.strict or not instead:
            if calling:
                self._raising.error = error
            raise error
        record = self._record_of(error)
        self._note(replace(record, cause=f"{record.cause}; {instead} takes over"), "goes on without it")

    def on_failure(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A compiled version failed in the middle, before anything outside changed: eager raises what is due, unless
        the failure is a plug-in's and to be seen."""
        error, self._raising.error = getattr(self._raising, "error", None), None
        if error is not None:
            raise error
        return self.run_eager(args, kwargs)

    def run_eager(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.root:
            counters.add("eager_calls")
        if self.refused and not self._is_divided:
            self._divide()
        return (self._divided or self.original)(*args, **kwargs)

    def _divide(self) -> None:
        """What the refused function calls is compiled from now on."""
        self._is_divided = True
        try:
            self._divided = divided(self.original, partial(through, self.child))
        except Exception as error:  # noqa: BLE001  (as in _compile: a failure of ours is no failure of the program)
            self.note_failure(error)

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether an entry for this call was made and added; if not, it is to run eager."""
        if self.versions >= self.config.recompile_limit:
            self._refuse(limit_record(self.fn, self.name, self.versions))
            return False
        start = time.perf_counter()
        try:
            with using_config(self.config):
                self._compile_version(args, kwargs)
            return True
        except (ProgramRaised, GraphBreakError):
            raise
        except CaptureError as error:
            if self.fullgraph:
                raise _break_error(self._record_of(error)) from error
            if isinstance(error, FrameRefused) and error.code in _OF_THIS_CALL and not self.config.strict:
                self._note(self._record_of(error))
            else:
                self._fail(error)
        except Exception as error:  # noqa: BLE001  (the one boundary where a failure of ours becomes an eager run)
            self._fail(error)
        finally:
            counters.add("compile_seconds", time.perf_counter() - start)
        return False

    def _compile_version(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        recompile = self._miss(args, kwargs)
        region = capture(self.fn, args, kwargs, self._options)
        if region.breaks and self.fullgraph:
            raise _break_error(region.breaks[0])
        if recompile is not None:
            counters.add("recompiles")
            self.recompiles.append(recompile)
            self.records.append(recompile)
            logs.emit("recompiles", str(recompile))
        for record in region.breaks:
            self.records.append(record)
            logs.emit("breaks", str(record))
        counters.add("regions")
        counters.add("breaks", len(region.breaks))
        stages = Stages(f"{self.name}#{self.versions}")
        keep(stages, "bytecode", "bytecode", lambda: format_bytecode(self.fn))
        served = self.build(region, self, stages)
        self.entries.append(Entry(stages.name, region.breaks, stages, region, served))
        self.compiled.stages = stages
        self.compiled.entries = tuple(self.entries)
        self.compiled.add_entry(served)
        for record in contradicted_marks(self.fn, self.name, region):
            self.records.append(record)
            logs.emit("recompiles", str(record))
            if not self.quiet:
                _warn(f"{self.name}: {record}")

    def tree(self) -> Iterator[Function]:
        """This function, then the resume functions and callees compiled for it, each once."""
        found: dict[int, Function] = {}
        work: list[Function] = [self]
        while work:
            function = work.pop()
            if id(function) not in found:
                found[id(function)] = function
                yield function
                work.extend(reversed(list(function.children.values())))

    def child(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """A compiled version of a resume function, or of a callee that could not be inlined. One per function
        in the whole family: in a loop that breaks, or a function that calls itself, all come to the same."""
        key = id(fn)
        found = self.family.get(key)
        if found is None:
            dynamic = self._options.dynamic
            made = Function.of(
                fn,
                self.config,
                self.build,
                fullgraph=False,
                root=False,
                quiet=self.quiet,
                dynamic=dynamic.mode if dynamic is not None else None,
                names=self._names,
            )
            made.family = self.family
            found = self.family.setdefault(key, made)  # holds `fn`, so its id stays taken
        self.children[key] = found
        return found.compiled

    def _record_of(self, error: Exception) -> Record:
        file, line = target_of(self.fn).place
        if isinstance(error, LampworkError):
            if error.location is not None:
                file, line = error.location.file, error.location.line
            return Record(error.code, error.cause, error.fix, file, line, self.name)
        return Record(
            "LW500",
            f"the compiler failed: {type(error).__name__}: {error}",
            "it runs eager; compile with options={'strict': True} for the traceback, and please report it",
            file,
            line,
            self.name,
        )

    def _refuse(self, record: Record) -> None:
        """From now on this function runs eager for calls that no version serves; say so once."""
        self.refused = True
        self._note(record)

    def _note(self, record: Record, outcome: str = "runs eager") -> None:
        """Keep a record, and warn unless the same was said before."""
        if record in self.records:
            return
        self.records.append(record)
        self.refusals.append(record)
        logs.emit("breaks", str(record))
        if not self.quiet:
            _warn(f"{self.name} {outcome}: {record}")

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Record | None:
        versions = [Version(i, entry.region, entry.served) for i, entry in enumerate(self.entries)]
        return describe_miss(self.fn, self.name, versions, args, kwargs)

    def _forbidden(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecompileError:
        """The error of a call that would compile where a stance forbids it."""
        record = self._miss(args, kwargs)
        if record is None:
            file, line = target_of(self.fn).place
            cause = "it has no compiled version yet"
        else:
            file, line, cause = record.file, record.line, record.cause
        return RecompileError(
            f"{self.name} would be compiled for this call, which the stance fail_on_recompile forbids: {cause}",
            fix="call it like this once before the stance is set, or set the stance eager_on_recompile",
            location=Location(file, line, self.name),
        )


def _warn(text: str) -> None:
    """Warn at the user's line: that of the call that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, LampworkWarning, stacklevel=level)


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}.{number}"


def _break_error(record: Record) -> GraphBreakError:
    """What `fullgraph` raises for a graph break or a refusal."""
    location = Location(record.file, record.line, record.function)
    return GraphBreakError(record.cause, fix=record.fix, location=location, code=record.code)


def _calling(native: Callable[..., Any]) -> Callable[..., Any]:
    """A Python function that calls one without Python code, to be captured in its place."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return native(*args, **kwargs)

    call.__name__ = call.__qualname__ = target_of(native).name
    return call
