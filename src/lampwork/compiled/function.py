"""The state behind one compiled callable: its entries, its records, and what happens on a call no entry answers."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import nn

from lampwork import counters, logs
from lampwork.backends.protocol import Backend
from lampwork.capture import CaptureOptions, FrameRefused, ProgramRaised, capture
from lampwork.capture.breaks.compiled_callees import CompiledCallees, compiled_callees, through
from lampwork.capture.breaks.resume import Resume, after_waiting
from lampwork.capture.model.errors import forget_frames
from lampwork.capture.model.printing import format_failure
from lampwork.capture.model.region import Arg, Recipe, Record, Region, Step
from lampwork.capture.model.values import StandIn
from lampwork.capture.model.within import OUTSIDE, Within
from lampwork.capture.state.contexts import beyond_function_modes, surroundings
from lampwork.capture.state.dynamic import Dynamic
from lampwork.capture.state.module_names import ModuleRoots
from lampwork.compiled.callables import target_of
from lampwork.compiled.entries import Entries, Entry
from lampwork.compiled.islands import check_islands
from lampwork.compiled.listening import listeners
from lampwork.compiled.live_functions import alive, watch
from lampwork.compiled.recompiles import Version, contradicted_marks, describe_miss, limit_record
from lampwork.compiled.stages import Stages
from lampwork.compiled.stance import current_stance
from lampwork.compiled.versions import Versions, owner_of, replaced
from lampwork.config import Config, using_config
from lampwork.display import Shown
from lampwork.errors import (
    CaptureError,
    GraphBreakError,
    LampworkError,
    Location,
    RecompileError,
    text_of,
    warn,
)
from lampwork.garbage import without_collections
from lampwork.locks import in_child, new_lock
from lampwork.plugins.registry import registry
from lampwork.runtime import Compiled, Instead, drive, in_span, make_entry
from lampwork.runtime.opaque import opaque
from lampwork.signals import raise_signalled
from lampwork.standard import itertools

Build = Callable[[Region, "Function", Stages], Any]


_ATTEMPTS = 3
"""How often a call is captured whose objects other threads change while it is."""

_SETS_ASIDE = 4
"""Of how many other sets of plug-ins a function keeps its versions."""

# Refusals that depend on the arguments of one call: the next one may well be captured.
_OF_THIS_CALL = frozenset({"LW107", "LW111", "LW135"})


_MOST_RAISING = 4
"""For how many kinds of calls that raise a function remembers that they do."""

_MOST_OWNERS = 64
"""Of how many modules among its arguments a function has as many versions as `recompile_limit` allows."""


def _nothing() -> None:
    return None


@dataclass(slots=True, eq=False, weakref_slot=True, repr=False)
class Function(Shown):
    """One function or module with its compiled versions.

    `name`: the qualified name, or the `label` given in its place, unique among the resume functions and callees of one
    root.
    `backends`: whom its graphs are offered, in this order.
    `fn` is what is captured: `original`, or a Python function that calls it if it has no Python code.
    `build` turns a captured region into an entry (pipeline.py); `prepare` is called when one is about to be captured.
    `root` is false for resume functions and for callees compiled around a break: their calls are parts of the root's
    call and are not counted.

    `_callees`: once refused, the function with its callees compiled, where that can be had.

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
    label: str = ""
    backends: tuple[Backend, ...] = ()
    fn: Callable[..., Any] = field(init=False)
    name: str = ""
    compiled: Any = None
    entries: Versions = field(default_factory=Versions)
    records: list[Record] = field(default_factory=list[Record])
    refusals: list[Record] = field(default_factory=list[Record])
    recompiles: list[Record] = field(default_factory=list[Record])
    children: dict[int, Function] = field(default_factory=dict[int, "Function"])
    family: dict[int, Function] = field(default_factory=dict[int, "Function"])
    refused: bool = False
    plugins: str = ""
    prepare: Callable[[], None] | None = None
    _aside: dict[str, tuple[Versions, bool]] = field(default_factory=dict[str, tuple[Versions, bool]])
    _raises: list[_Raising] = field(default_factory=list["_Raising"])
    _raised: int = 0  # captures in a row that ended in an exception
    _met: dict[int, weakref.ref[Any]] = field(default_factory=dict[int, "weakref.ref[Any]"])
    _busy: bool = False  # compiling, in the thread that holds the lock
    _to_reset: bool = False  # as soon as nobody holds the lock
    _callees: CompiledCallees | None = None
    _names: set[str] = field(default_factory=set[str])  # of all functions of one tree
    _options: CaptureOptions = field(default_factory=CaptureOptions)
    _lent: list[_Lent] = field(default_factory=list["_Lent"])
    _lock: threading.RLock = field(default_factory=new_lock)
    _raising: threading.local = field(default_factory=threading.local)  # what a plug-in's fault is to raise

    def __post_init__(self) -> None:
        target = target_of(self.original)
        self.fn = self.original if target.python else _calling(self.original)
        # Two breaks of one line have resume functions of one name.
        name = self.label or target.name
        number = next(n for n in itertools.count(1) if _numbered(name, n) not in self._names)
        self.name = _numbered(name, number)
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
        label: str = "",
        dynamic: bool | None = None,
        stand_in: StandIn | None = None,
        is_native: bool = False,
        names: set[str] | None = None,
        roots: ModuleRoots | None = None,
        within: Within = OUTSIDE,
    ) -> Function:
        function = Function(
            fn, config, build, fullgraph, root, quiet, label, _names=set() if names is None else names
        )
        function.compiled = Compiled(function.on_miss)
        function.compiled.stages = function._no_stages()
        function.compiled.entries = Entries()
        function._options = CaptureOptions(
            function.child,
            function.child,
            Dynamic(dynamic),
            drive=drive,
            stand_in=stand_in,
            is_native=is_native,
            roots=ModuleRoots(fn) if roots is None else roots,
            within=within,
        )
        watch(function)
        function.follow()
        return function

    def _brief(self) -> str:
        return f"{self.name}, {self.versions} version{'' if self.versions == 1 else 's'}"

    @property
    def versions(self) -> int:
        return len(self.entries)

    @opaque
    def on_miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """No entry matched: give what the runtime is to run, the entry made for this call or an `Instead`."""
        stance = current_stance()
        # At the end of the process modules are taken apart, ours among them.
        if stance == "force_eager" or sys.is_finalizing():
            return self.instead(args)
        if (
            self.entries.owned
            and not self._to_reset
            and (entry := self.entries.match(args, kwargs)) is not None
        ):
            return entry
        if self.refused:
            return self.instead(args)
        around = surroundings()
        if around == "foreign":
            return self.instead(args)
        if isinstance(self.original, Resume) and (waited := after_waiting(self.original, args)) is not None:
            return self.compiled(*waited, **kwargs)
        if stance == "fail_on_recompile":
            raise self._forbidden(args, kwargs, "the stance fail_on_recompile")
        if stance == "eager_on_recompile":
            return self.instead(args)
        seen = self.versions
        raised: ProgramRaised | None = None
        remembered: _Raising | None = None
        with self._locked(), self._under_one_set() as moved:
            # If another thread compiled something while we waited, that may be what this call needs.
            entry = self._match(args, kwargs) if moved or self.versions != seen else None
            try:
                for attempt in range(_ATTEMPTS):
                    if entry is not None or self.refused or not self._compile(args, kwargs):
                        break
                    entry = self._made_for(args, kwargs, attempt)
            except ProgramRaised as error:
                raise_signalled(error)
                raised = error
                remembered = self._remember_raising(error)
                forget_frames(error)
        if entry is not None:
            return entry
        if raised is None:
            return self.instead(args)

        def contradicted() -> None:
            # Eager was to raise as the captured program did. It did not, so the fault is capture's.
            if remembered is not None:
                self.forget_raising(remembered)
            self._fail(raised)

        return self.instead(args, contradicted)

    def _remember_raising(self, raised: ProgramRaised) -> _Raising | None:
        """Have calls that raise as this one run eager at once."""
        region: Region | None = raised.region
        self._raised += 1
        if region is None or owner_of(region, self.original) is not None:
            return None
        while len(self._raises) >= _MOST_RAISING:
            self.forget_raising(self._raises[0])
        made = _Raising(self)
        # Only resume functions are called with other arguments than those of the call.
        count = region.n_args if isinstance(self.original, Resume) else 0
        steps = [Step("const", made), *(Step("source", Arg(i)) for i in range(count))]
        region.recipe = Recipe((*steps, Step("call", None, tuple(range(len(steps))))), len(steps))
        made.served = make_entry(region, None, counted=False)
        self._raises.append(made)
        self.compiled.add_entry(made.served)
        return made

    def forget_raising(self, made: _Raising) -> None:
        """Capture such calls again, because one did not raise or because different calls have come."""
        if made in self._raises:
            self._raises.remove(made)
            self.compiled.remove_entry(made.served)

    def _raises_mostly(self) -> bool:
        """Whether capturing is not worth its while, as one call after the other raises, each in its own way."""
        if self._raised < _MOST_RAISING * 4:
            return False
        self._raised += 1
        return self._raised % 64 != 0

    def follow(self) -> None:
        """Serve the versions made with the plug-ins that are on now; keep the other versions aside."""
        with self._locked():
            if not self._busy:
                self._adopt()

    def reset(self) -> None:
        """Forget what was compiled, here and in the functions compiled for this one. Where something is being compiled
        just now, that is done first, and by whoever compiles: nobody waits, as who compiles may wait for the caller."""
        for function in list(self.tree()):
            function._to_reset = True
            function._reset_if_free()

    def _reset_if_free(self) -> None:
        if self._to_reset and self._lock.acquire(blocking=False):
            try:
                if self._to_reset and not self._busy:
                    self._forget()
            finally:
                self._lock.release()

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Hold the lock, and reset before and after if somebody asked for it meanwhile."""
        try:
            with self._lock:
                if self._to_reset and not self._busy:
                    self._forget()
                yield
        finally:
            self._reset_if_free()

    def lend(self, build: Build) -> None:
        """Until `take_back`, `build` makes the versions, which leave no sizes open, and those of before serve nobody.
        A function may be lent again meanwhile; who lent it last takes it back first."""
        with self._locked():
            family = (dict(self.family), set(self._names)) if self.root else None
            own = {name: getattr(self, name) for name in _LENT}
            self._lent.append(_Lent(build, own, family))
            self.build = build
            self.entries, self.refused, self._callees, self._raised = Versions(), False, None, 0
            self._aside, self.children = {}, dict(self.children)
            self.records, self.refusals, self.recompiles = [], [], []
            self._options = replace(self._options, dynamic=Dynamic(False))
            self._serve()

    def take_back(self) -> None:
        """End what `lend` began: what was compiled and found out since is dropped."""
        with self._locked():
            lent = self._lent.pop()
            for entries in (self.entries, *(entries for entries, _ in self._aside.values())):
                entries.drop()
            for name, value in lent.own.items():
                setattr(self, name, value)
            if lent.family is not None:
                self._restore_family(*lent.family)
            self._serve()
            if not self._busy:
                self._adopt()

    def _restore_family(self, family: dict[int, Function], names: set[str]) -> None:
        for held, own in ((self.family, family), (self._names, names)):
            held.clear()
            held.update(own)  # pyright: ignore

    def _own_build(self) -> Build:
        """What makes the versions once nobody has lent the function: that is what its children begin with."""
        build = self.build
        for lent in reversed(self._lent):
            if build is not lent.build:
                break
            build = lent.own["build"]
        return build

    def _own_dynamic(self) -> bool | None:
        options: CaptureOptions = self._lent[0].own["_options"] if self._lent else self._options
        return None if options.dynamic is None else options.dynamic.mode

    @property
    def dynamic(self) -> bool | None:
        """What `compile` was told of sizes that are left open."""
        return None if self._options.dynamic is None else self._options.dynamic.mode

    def _forget(self) -> None:
        self._to_reset = False
        for entries, _ in (*self._aside.values(), (self.entries, self.refused)):
            entries.drop()
        self.entries, self.refused = Versions(), False
        self._aside.clear()
        for kept in (self.records, self.refusals, self.recompiles):
            kept.clear()
        if self.root:
            # The children go with these, unless a call of theirs is under way, or another root's is.
            self.family.clear()
            self._names.clear()
            self._names.add(self.name)
        self.children.clear()
        self._raised, self._callees = 0, None
        self._met = {}
        dynamic = self._options.dynamic
        fresh = Dynamic(None if dynamic is None else dynamic.mode)
        self._options = replace(self._options, dynamic=fresh, trains_dtensors=True)
        self._serve()

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
                self.entries.cut(count)
                self._serve()
                self._adopt()

    def _adopt(self) -> bool:
        key = registry().key(self.config.passes)
        if key == self.plugins:
            return False
        self._aside[self.plugins] = self.entries, self.refused
        self.entries, self.refused = self._aside.pop(key, (Versions(), False))
        self.plugins = key
        while len(self._aside) > _SETS_ASIDE:
            del self._aside[next(iter(self._aside))]
        self._serve()
        return True

    def _serve(self) -> None:
        """Have the runtime serve `entries` and no others."""
        self._raises.clear()
        self.entries.serve(self.compiled)
        self.compiled.entries = self.entries.snapshot()
        entries = list(self.entries)
        self.compiled.stages = entries[-1].stages if entries else self._no_stages()

    def _match(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The version that serves a call, or None."""
        return self.compiled.match(args, kwargs) or self.entries.match(args, kwargs)

    def _made_for(self, args: tuple[Any, ...], kwargs: dict[str, Any], attempt: int) -> Any:
        """The entry just made for this call; None if it does not accept it after all: another thread may have changed
        an object of the call meanwhile. So it is made again, and in the end the call runs eager, with a record."""
        entry = self._match(args, kwargs)
        if entry is not None:
            return entry
        guard = list(self.entries)[-1].served.explain(args, kwargs)
        text = format_failure(guard)
        self.entries.cut(self.versions - 1)
        self._serve()
        if attempt + 1 < _ATTEMPTS:
            return None
        error = CaptureError(f"a new version does not accept the call it was made for: {text}")
        if threading.active_count() == 1:
            self._fail(error)
        else:
            self._note(self._record_of(error))
        return None

    def _fail(self, error: Exception) -> None:
        """A fault of ours: raised under `strict`, else a record and eager runs from now on."""
        raise_signalled(error)
        if self.config.strict:
            raise error
        self._refuse(self._record_of(error))

    def note_failure(self, error: Exception) -> None:
        """A fault of ours that one call's sizes brought out: raised under `strict`, else a record."""
        raise_signalled(error)
        if self.config.strict:
            raise error
        self._note(self._record_of(error))

    def note_backward(self, error: Exception, instead: str = "backward runs forward again, in eager") -> None:
        """The backward of a region cannot be compiled: what is done `instead` is a record. Raised under `strict` if it
        is a fault of ours."""
        raise_signalled(error)
        if self.config.strict and not isinstance(error, CaptureError):
            raise error
        record = self._record_of(error)
        record = replace(record, cause=f"{record.cause}; {instead}")
        if record not in self.records:
            self.records.append(record)
            logs.emit("breaks", str(record))

    def note_fault(self, error: LampworkError, instead: str, *, calling: bool = False) -> None:
        """A fault of a plug-in, whose work is done by `instead`: a record. Raised under `strict`, and if `instead` is
        empty, as there is nobody. `calling`: it came up in a call, not while compiling."""
        raise_signalled(error)
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
        return self.instead(args)

    def instead(self, args: tuple[Any, ...], done: Callable[[], None] | None = None) -> Instead:
        """The call as eager runs it, with no frame of ours in it, then `done()` unless it raised. `args`: the
        positional ones, which only resume functions need."""
        if self.root:
            counters.add("eager_calls")
        if self.refused and (self._callees is None or not self._callees.follow()):
            self._divide()
        function = self.original if self._callees is None else self._callees.target()
        if isinstance(function, Resume):
            plain, given = function.plain(args)
            return Instead(plain, done, given)
        return Instead(function, done)

    def _divide(self) -> None:
        """What the refused function calls is compiled from now on."""
        try:
            ask = partial(through, self.child, stand_in=self._options.stand_in)
            self._callees = compiled_callees(self.original, ask)
        except Exception as error:  # noqa: BLE001  (as in _compile: a failure of ours is no failure of the program)
            self._callees = CompiledCallees(self.original)
            self.note_failure(error)

    def forked(self) -> None:
        """In a forked child: what another thread of the parent was compiling, nobody compiles any more."""
        self._busy = self._busy and self._lock._is_owned()  # pyright: ignore

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether an entry for this call was made and added; if not, it is to run eager."""
        if self.config.error_on_recompile and self.versions:
            raise self._forbidden(args, kwargs, "the option error_on_recompile")
        limit = self.config.recompile_limit
        if self.entries.count_for((*args, *kwargs.values())) >= limit:
            record = limit_record(self.fn, self.name, limit)
            if self.fullgraph:
                location = Location(record.file, record.line, self.name)
                raise RecompileError(record.cause, fix=record.fix, location=location, code=record.code)
            # Where versions are for modules among the arguments, each module has its own limit.
            (self._refuse if self.versions <= limit else self._note)(record)
            return False
        if self.versions >= limit * _MOST_OWNERS:
            self._refuse(limit_record(self.fn, self.name, self.versions))
            return False
        if self._raises_mostly() or self._is_passing(args, kwargs):
            return False
        start = time.perf_counter()
        try:
            with using_config(self.config):
                in_span(f"lampwork::compile {self.name}", self._compile_version, args, kwargs)
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

    def _is_passing(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether this call is the first with a module among its arguments, after many such: it may come and go."""
        if self.entries.owners < self.config.recompile_limit:
            return False
        modules = [value for value in (*args, *kwargs.values()) if isinstance(value, nn.Module)]
        fresh = [module for module in modules if self._met.get(id(module), _nothing)() is not module]
        self._met = {key: found for key, found in self._met.items() if found() is not None}
        self._met.update((id(module), weakref.ref(module)) for module in fresh)
        return bool(fresh)

    def _compile_version(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        recompile = self._miss(args, kwargs)
        self._give_back(args, kwargs)
        if self.prepare is not None:
            self.prepare()
        region = self.captured(args, kwargs)
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
        stages = Stages(f"{self.name}#{self.entries.made}")
        with without_collections(), beyond_function_modes():
            served = self.build(region, self, stages)
        entry = Entry(stages.name, region.breaks, stages, region, served)
        owner = owner_of(region, self.original)
        self.entries.add(entry, owner)
        self._raised = 0
        self.compiled.stages = stages
        self.compiled.entries = self.entries.snapshot()
        if owner is None:
            self.compiled.add_entry(served)
        for record in contradicted_marks(self.fn, self.name, region):
            self.records.append(record)
            logs.emit("recompiles", str(record))
            if not self.quiet:
                warn(f"{self.name}: {record}")
        for listener in listeners:
            listener.made(self, entry)

    def captured(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Region:
        """A call, up to its end or its first graph break, under the options in force. Nothing of it runs.

        Raises:
            CaptureError: it cannot be captured.
        """
        with beyond_function_modes():
            region = capture(self.fn, args, kwargs, self._options)
            try:
                check_islands(region)
            except CaptureError as error:
                # Modules with DTensors for weights are graph breaks then.
                self._options = replace(self._options, trains_dtensors=False)
                self.records.append(self._record_of(error))
                logs.emit("breaks", str(self.records[-1]))
                region = capture(self.fn, args, kwargs, self._options)
        return region

    def _give_back(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Versions for a module or tensor that was replaced are no longer the function's own."""
        failed = [(entry, replaced(entry.served.explain(args, kwargs))) for entry in self.entries]
        for entry, gone in failed:
            if gone is not None:
                self.entries.retire(entry, gone)
        if any(gone is not None for _, gone in failed):
            self._serve()

    def _no_stages(self) -> Stages:
        """What `compiled.stages` is where there is no version."""
        return Stages(self.name, why_none=partial(_why_none, weakref.ref(self)))

    def tree(self) -> Iterator[Function]:
        """This function, followed by the resume functions and callees compiled for it, without duplicates."""
        found: dict[int, Function] = {}
        work: list[Function] = [self]
        while work:
            function = work.pop()
            if id(function) not in found:
                found[id(function)] = function
                yield function
                work.extend(reversed(list(function.children.values())))

    def child(self, fn: Callable[..., Any], within: Within = OUTSIDE) -> Callable[..., Any]:
        """A compiled version of a resume function, or of a callee that could not be inlined. One per function
        in the whole family: in a loop that breaks, or a function that calls itself, all come to the same.

        `within`: the module whose `forward` calls it first."""
        key = id(fn)
        found = self.family.get(key)
        if found is None:
            made = Function.of(
                fn,
                self.config,
                self._own_build(),
                fullgraph=False,
                root=False,
                quiet=self.quiet,
                dynamic=self._own_dynamic(),
                stand_in=self._options.stand_in,
                is_native=self._options.is_native,
                names=self._names,
                roots=self._options.roots,
                within=within,
            )
            made.family, made.backends = self.family, self.backends
            found = self.family.setdefault(key, made)  # holds `fn`, so its id stays taken
        self.children[key] = found
        return found.compiled

    def _record_of(self, error: Exception) -> Record:
        file, line = target_of(self.fn).place
        if isinstance(error, LampworkError):
            module = ""
            if error.location is not None:
                file, line, module = error.location.file, error.location.line, error.location.module
            return Record(error.code, error.cause, error.fix, file, line, self.name, module)
        return Record(
            "LW500",
            f"the compiler failed: {text_of(error)}",
            "it runs eager; compile with options={'strict': True} for the traceback, and please report it",
            file,
            line,
            self.name,
        )

    def _refuse(self, record: Record) -> None:
        """From now on this function runs eager for calls that no version serves; say so once."""
        self.refused = True
        if record.code == "LW124":
            # Versions of its callees would need more of the stack.
            self._callees = CompiledCallees(self.original)
        self._note(record)

    def _note(self, record: Record, outcome: str = "runs eager") -> None:
        """Keep a record, and warn unless the same was said before."""
        if record in self.records:
            return
        self.records.append(record)
        self.refusals.append(record)
        logs.emit("breaks", str(record))
        for listener in listeners:
            listener.refused(self, record)
        if not self.quiet:
            warn(f"{self.name} {outcome}: {record}")

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Record | None:
        versions = [Version(i, entry.region, entry.served) for i, entry in enumerate(self.entries)]
        return describe_miss(self.fn, self.name, versions, args, kwargs)

    def _forbidden(self, args: tuple[Any, ...], kwargs: dict[str, Any], who: str) -> RecompileError:
        """The error of a call that would compile where a stance or an option, `who`, forbids it."""
        record = self._miss(args, kwargs)
        if record is None:
            location = Location(*target_of(self.fn).place, self.name)
            cause = "it has no compiled version yet"
        else:
            location, cause = record.location, record.cause
        return RecompileError(
            f"{self.name} would be compiled for this call, which {who} forbids: {cause}",
            fix=f"call it like this once before {who.rpartition(' ')[0]} is set, or set the stance eager_on_recompile",
            location=location,
        )


_LENT = (
    "build",
    "plugins",
    "entries",
    "refused",
    "children",
    "records",
    "refusals",
    "recompiles",
    "_aside",
    "_callees",
    "_raised",
    "_options",
)


@dataclass(slots=True, eq=False)
class _Lent:
    """What a function has of its own while `build` makes its versions; of a root with what its tree shares."""

    build: Build
    own: dict[str, Any]
    family: tuple[dict[int, Function], set[str]] | None


@dataclass(slots=True, eq=False)
class _Raising:
    """What serves calls of `function` that are known to raise."""

    function: Function
    served: Any = None

    @opaque
    def __call__(self, *args: Any) -> Instead:
        return self.function.instead(args, self._contradicted)

    def _contradicted(self) -> None:
        self.function.forget_raising(self)


def _repair() -> None:
    for one in alive():
        one.forked()


in_child(_repair)


def _why_none(found: weakref.ref[Function]) -> str:
    """Why a function has no compiled version, and what to do. Weakly: stages outlive their function."""
    function = found()
    if function is None:
        return "the function is gone"
    if function.refusals:
        return f"{function.name} ran eager: {function.refusals[-1]}"
    stance = current_stance()
    if stance != "default":
        return f"{function.name} has no compiled version, and set_stance({stance!r}) is on: no call makes one"
    if function._raises:
        return f"{function.name} has no compiled version: its calls so far raised"
    aside = any(len(versions) for versions, _ in function._aside.values())
    which = "with the rewrites and passes that are on now" if aside else "yet"
    return f"{function.name} has no compiled version {which}: call it once, then look again"


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}.{number}"


def _break_error(record: Record) -> GraphBreakError:
    """What `fullgraph` raises for a graph break or a refusal."""
    return GraphBreakError(record.cause, fix=record.fix, location=record.location, code=record.code)


def _calling(native: Callable[..., Any]) -> Callable[..., Any]:
    """A Python function that calls one without Python code, to be captured in its place."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return native(*args, **kwargs)

    call.__name__ = call.__qualname__ = target_of(native).name
    return call
