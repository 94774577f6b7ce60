"""`capture`: one call of a Python function or module, as a `Region`."""

from __future__ import annotations

import contextlib
import time
import types
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from typing import Any, cast

import torch

from lampwork import config, logs, pristine
from lampwork.capture.breaks.continuation import add_continuation, can_break
from lampwork.capture.breaks.islands import islands_of
from lampwork.capture.breaks.recipe import RecipeBuilder
from lampwork.capture.breaks.resume import Resume
from lampwork.capture.calls.default_device import guard_default
from lampwork.capture.calls.modules import calls_as_modules_do, has_hooks, hooked
from lampwork.capture.calls.torch_calls import described_mark, is_disabled
from lampwork.capture.interpreter import CaptureOptions, Interpreter
from lampwork.capture.model.errors import (
    Break,
    Earlier,
    FrameRefused,
    ProgramRaised,
    TooLong,
    Unbuildable,
    forget_frames,
)
from lampwork.capture.model.evaluate import overlap
from lampwork.capture.model.frame import Frame
from lampwork.capture.model.printing import format_guards
from lampwork.capture.model.region import Arg, GlobalState, Known, Kwarg, Recipe, Record, Region, Result
from lampwork.capture.model.values import Lazy, Signal
from lampwork.capture.opcodes import running_table
from lampwork.capture.semantics.attributes import load_attr
from lampwork.capture.semantics.symbolic import NumbersNeeded
from lampwork.capture.state.births import Births
from lampwork.capture.state.effort import Conditional
from lampwork.capture.state.module_names import ModuleRoots, module_behind
from lampwork.capture.state.unseen import BreaksAtUnseenCode
from lampwork.capture.state.warned import breaks_at_warnings
from lampwork.errors import CaptureError
from lampwork.graph.devices import CPU, current_device, main_device
from lampwork.graph.int64 import can_evaluate
from lampwork.graph.record import Recorded, Recorder
from lampwork.graph.shapes_common import ShapeError
from lampwork.loops.ir.polynomial import Index
from lampwork.standard import functools

# A region is captured once more to end before its break, and before each thing that cannot live across the break; more
# attempts than this mean that captures of one program differ from each other.
_ATTEMPTS = 10


def capture(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: CaptureOptions | None = None,
) -> Region:
    """Capture what `fn(*args, **kwargs)` does, without doing it: no effect happens, no tensor is computed.

    Args:
        fn: a Python function, bound method, functools.partial of one, or nn.Module.
        options: hooks for callees and resume functions around graph breaks.

    Raises:
        ProgramRaised: the program raised; run it in eager for the genuine exception.
        FrameRefused: the function cannot be captured at all, or breaks where its frame cannot be rebuilt.
    """
    options = options or CaptureOptions()
    if options.roots is None:
        options = replace(options, roots=ModuleRoots(fn))
    start = time.perf_counter()
    stop_at: int | None = None
    stop: Break | None = None
    tracks_births = False
    for _ in range(_ATTEMPTS):
        try:
            with _left_alone(args), breaks_at_warnings(), BreaksAtUnseenCode(), Births() as births:
                region = _attempt(fn, args, kwargs, options, stop_at, stop, tracks_births, births)
        except _Broken as broken:
            if isinstance(broken.stop, (NumbersNeeded, Conditional)):
                options = replace(options, dynamic=None)
            else:
                stop_at, stop = broken.steps, broken.stop
                forget_frames(stop)
            continue
        except Break as stop:
            # After the last instruction, where the region is put together.
            raise FrameRefused(stop.code, stop.detail) from stop
        except Unbuildable as missing:
            if missing.born is None and not tracks_births:
                tracks_births = True
            elif missing.born is None or (stop_at is not None and missing.born >= stop_at):
                raise
            else:
                stop_at, stop = missing.born, missing.stop
            continue
        region.stats["capture_seconds"] = time.perf_counter() - start
        if logs.enabled("guards"):
            logs.emit("guards", format_guards(region))
        return region
    raise FrameRefused("LW131", str(stop.location if stop is not None else fn))


@contextlib.contextmanager
def _left_alone(args: tuple[Any, ...]) -> Generator[None]:
    """Exceptions among the arguments (a handler that a graph break left takes one) are as before in the end: that they
    are raised again while capturing leaves no trace."""
    errors = [arg for arg in args if issubclass(type(arg), BaseException)]
    before = [(e.__traceback__, e.__cause__, e.__context__, e.__suppress_context__) for e in errors]
    try:
        yield
    finally:
        for error, (trace, cause, context, suppress) in zip(errors, before, strict=True):
            error.__traceback__, error.__cause__, error.__context__ = trace, cause, context
            error.__suppress_context__ = suppress


class _Broken(Exception):
    """The region has to end before the root frame's instruction number `steps`."""

    def __init__(self, stop: Break, steps: int) -> None:
        self.stop = stop
        self.steps = steps
        super().__init__(str(stop))


def _attempt(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: CaptureOptions,
    stop_at: int | None,
    stop: Break | None,
    tracks_births: bool,
    births: Births,
) -> Region:
    interp: Interpreter | None = None
    state = GlobalState.now()
    recorder = Recorder(counted=config.current().numerics == "fast", draws_on_cards=options.is_native)
    try:
        with recorder:
            interp = Interpreter(recorder, running_table(), options, births, stop_at)
            interp.tracks_births = tracks_births
            recorded, builder, result, record = _captured(interp, fn, args, kwargs, state, stop)
        return _region(interp, fn, args, kwargs, state, recorded, builder, result, record)
    finally:
        recorder.leave()
        if interp is not None:
            interp.close()


def _captured(
    interp: Interpreter,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    state: GlobalState,
    stop: Break | None,
) -> tuple[Recorded, RecipeBuilder, int, Record | None]:
    """Run the root frame to its end or to the break: the graph, the steps, that of the result, and the break's
    record."""
    recorder = interp.recorder
    try:
        guard_default(interp)
        frame = _start(interp, fn, args, kwargs)
        try:
            signal = _run(interp, frame)
            while isinstance(stop, TooLong) and signal is Signal.STOPPED and not can_break(frame):
                interp.stop_at = frame.steps + 1
                interp.frames.clear()
                signal = _run(interp, frame)
        except ProgramRaised as raised:
            raised.region = _raising(interp, args, kwargs, state)
            raised.made = id(raised.error) in interp.raising
            raise
        final_grad_mode = pristine.is_grad_enabled()
        builder = RecipeBuilder(
            interp.environment,
            interp.contexts,
            interp.inside_cells,
            interp.inside_functions,
            interp.raised,
            interp.births,
            frame if signal is Signal.STOPPED else None,
        )
        record: Record | None = None
        # What is built first is what effects and the result refer to; effects come last, in their order.
        pending = [
            (effect.function, [builder.value(a) for a in effect.args]) for effect in interp.effects.replay()
        ]
        result = builder.value(frame.value) if signal is Signal.RETURN else -1
        for function, steps in pending:
            builder.call(function, *steps)
        if signal is Signal.STOPPED:
            end = interp.paused or stop
            assert end is not None
            end.at(frame.decoded.location(frame.ip), 1)
            # A resume function may be in the middle of a loop: that it goes on is no new break.
            record = None if interp.paused is not None and interp.resumed is not None else end.record()
            result = add_continuation(interp, builder, frame, end)
        elif final_grad_mode != interp.contexts.grad_enabled:
            builder.call(torch._C._set_grad_enabled, builder.step("const", final_grad_mode))
        interp.check_generators()
    finally:
        interp.contexts.restore()
        # Symbols live on inside of C++ objects, where the garbage collector sees no cycle through this capture.
        recorder.scope.where = None
    recorded = recorder.finish(builder.outputs)
    numbers = [condition.index for condition in recorder.scope.conditions]
    numbers += [cast(Index, step.payload) for step in builder.steps if step.kind == "symbol"]
    if not _are_computable(interp, numbers):
        raise _Broken(NumbersNeeded(TypeError("a number beyond int64")), frame.steps)
    return recorded, builder, result, record


def _are_computable(interp: Interpreter, indices: Iterable[Index]) -> bool:
    """Whether the runtime, which reckons in int64, can compute these for this call."""
    hints = interp.recorder.scope.hints
    return all(can_evaluate(index, hints) for index in indices)


def _start(
    interp: Interpreter, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Frame:
    """The root frame.

    Raises:
        FrameRefused: what happens before its first instruction cannot be captured.
    """
    try:
        return _root_frame(interp, fn, args, kwargs)
    except Break as stop:
        raise FrameRefused(stop.code, stop.detail) from stop


def _run(interp: Interpreter, frame: Frame) -> Signal:
    """Run the root frame.

    Raises:
        _Broken: a graph break; capture again up to it.
        ProgramRaised: the program's own exception.
    """
    try:
        return interp.run_root(frame)
    except Break as stop:
        raise _Broken(stop, stop.step if isinstance(stop, Earlier) else frame.steps) from stop
    except ShapeError as error:
        # Eager has its own words for shapes that do not fit.
        raise ProgramRaised(error, interp.user_location()) from error
    except CaptureError:
        raise
    except Exception as error:
        location = interp.user_location()
        raise ProgramRaised(error, location) from error


def _root_frame(
    interp: Interpreter, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Frame:
    """The frame that `fn(*args, **kwargs)` starts with; its arguments are unread."""
    values: list[Any] = [Lazy(value, Arg(i), f"args[{i}]") for i, value in enumerate(args)]
    if isinstance(fn, Resume):
        interp.resumed, interp.resume_cache = None if fn.starts else fn, fn.resume_cache
        interp.whereabouts.within = fn.within
        return _started(interp, fn.frame(interp, values))
    named: dict[str, Any] = {name: Lazy(value, Kwarg(name), name) for name, value in kwargs.items()}
    target: Any = fn
    if (module := module_behind(fn)) is not None:
        interp.whereabouts.enter(module)
    while True:
        if isinstance(target, (types.FunctionType, torch.nn.Module)) and is_disabled(target):
            raise FrameRefused("LW113", described_mark(target))
        if isinstance(target, functools.partial):
            partial = cast(Any, target)
            known = interp.environment.known
            known(partial, "partial")
            # A partial can be given other parts (`__setstate__`), and nothing tells of it.
            bound, given, keywords = (load_attr(interp, partial, n) for n in ("func", "args", "keywords"))
            values, named, target = (
                [*given, *values],
                {**keywords, **named},
                interp.environment.original(bound),
            )
        elif isinstance(target, torch.nn.Module) and calls_as_modules_do(interp, type(target)):
            interp.environment.known(target, "self")
            if has_hooks(interp, target):
                target, values, named = *hooked(interp, target, values, named), {}
            else:
                target = interp.bound_forward(target)
        elif isinstance(target, types.MethodType):
            values.insert(0, interp.environment.known(target.__self__, "self"))
            target = target.__func__
        elif isinstance(target, types.FunctionType):
            break
        elif isinstance(method := interp.lookup(type(target), "__call__")[0], types.FunctionType):
            values.insert(0, interp.environment.known(target, "self"))
            target = method
        elif hasattr(target, "__wrapped__"):
            target = target.__wrapped__
        else:
            raise FrameRefused("LW132", str(getattr(fn, "__qualname__", type(fn).__qualname__)))
    interp.environment.known(target, target.__qualname__)
    try:
        frame = interp.make_frame(target, values, named)
    except TypeError as error:
        raise ProgramRaised(error) from error
    if frame.decoded.is_generator:
        raise FrameRefused("LW133", target.__qualname__)
    return _started(interp, frame)


def _started(interp: Interpreter, frame: Frame) -> Frame:
    """The root frame, whose names for the arguments those are by which modules among them are known."""
    interp.whereabouts.arguments = {
        value.source_name: name for name, value in frame.locals.items() if type(value) is Lazy
    }
    return frame


def _region(
    interp: Interpreter,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    state: GlobalState,
    recorded: Recorded,
    builder: RecipeBuilder,
    result: int,
    record: Record | None,
) -> Region:
    environment = interp.environment
    inputs = [environment.lifting.lifted[id(entry.tensor)] for entry in recorded.inputs]
    _guard_overlap(interp, recorded)
    _guard_aliases(interp)
    _guard_accelerator(interp, recorded)
    distributed = environment.distributed
    islands = islands_of(recorded.graph, distributed.events, distributed.of_stand_in)
    trained = distributed.of_local
    has_work = any(node.op == "call_function" for node in recorded.graph.nodes) or bool(builder.outputs)
    # Of another object neither attributes nor repr() are asked, which may be the program's code.
    named = isinstance(fn, (types.FunctionType, types.MethodType, types.BuiltinFunctionType))
    name = fn.__qualname__ if named else type(fn).__name__
    steps = tuple(
        step if step.kind != "output" else type(step)("output", recorded.outputs[step.payload])
        for step in builder.steps
    )
    return Region(
        graph=recorded.graph if has_work or recorded.mutations else None,
        inputs=tuple(
            trained[id(lifted.real)].source if id(lifted.real) in trained else lifted.source
            for lifted in inputs
        ),
        bound=tuple(entry.tensor for entry in recorded.bound),
        bound_names=tuple(entry.name for entry in recorded.bound),
        guards=tuple(interp.guards.fast),
        state=state,
        recipe=Recipe(steps, result),
        mutations=recorded.mutations,
        versions=recorded.versions,
        apart=recorded.apart,
        pieces=recorded.pieces,
        fresh_versions=recorded.fresh_versions,
        islands=islands,
        dtensors=tuple(
            (number, distributed.sharding(lifted.real, islands))
            for number, lifted in enumerate(inputs)
            if id(lifted.real) in trained
        ),
        n_args=len(args),
        kwarg_names=tuple(kwargs),
        slow_guards=tuple(interp.guards.slow),
        versioned=tuple(source.value for source in interp.guards.versioned.values()),
        symbols=environment.lifting.all_symbols,
        conditions=interp.recorder.scope.conditions,
        n_values=len(environment.lifting.symbols),
        derived=interp.recorder.scope.derived,
        breaks=() if record is None else (record,),
        name=name,
    )


def _raising(
    interp: Interpreter, args: tuple[Any, ...], kwargs: dict[str, Any], state: GlobalState
) -> Region | None:
    """The calls that raise as this one did: they run in eager. None if the runtime cannot tell which they are."""
    if not _are_computable(interp, (condition.index for condition in interp.recorder.scope.conditions)):
        return None
    environment = interp.environment
    return Region(
        graph=None,
        inputs=(),
        bound=(),
        bound_names=(),
        guards=tuple(interp.guards.fast),
        state=state,
        recipe=Recipe((), -1),
        mutations=(),
        n_args=len(args),
        kwarg_names=tuple(kwargs),
        slow_guards=tuple(interp.guards.slow),
        versioned=tuple(source.value for source in interp.guards.versioned.values()),
        symbols=environment.lifting.all_symbols,
        conditions=tuple(interp.recorder.scope.conditions),
        name="raising",
    )


def _guard_accelerator(interp: Interpreter, recorded: Recorded) -> None:
    """What else eager goes by where a region has tensors on a CUDA device. (`GlobalState` is the CPU's.)"""
    if (current := interp.recorder.places.current) is not None:
        _guard_answer(interp, current_device, current, "torch.cuda.current_device")
    if main_device(recorded.graph) == CPU:
        return
    enabled, dtype = interp.contexts.autocast_outside["cuda"]
    asked = functools.partial(pristine.is_autocast_enabled, "cuda")
    _guard_answer(interp, asked, enabled, "torch.is_autocast_enabled")
    if enabled:
        asked = functools.partial(pristine.get_autocast_dtype, "cuda")
        _guard_answer(interp, asked, dtype, "torch.get_autocast_dtype")


def _guard_answer(interp: Interpreter, ask: Callable[[], Any], answer: Any, name: str) -> None:
    interp.guards.add(Result(Known(ask, name)), "equals", answer)


def _guard_aliases(interp: Interpreter) -> None:
    """An object from an argument that is written to must not be another argument too on a later call."""
    entries = list(interp.environment.entries.values())
    for target in interp.effects.written():
        mine = interp.environment.entries.get(id(target))
        for other in entries:
            if mine is None or other is mine or (mine.known and other.known):
                continue
            if type(other.value) is type(target):
                interp.guards.add(mine.source, "distinct", other.source)


def _guard_overlap(interp: Interpreter, recorded: Recorded) -> None:
    """An input that is written to must not share memory with another input, now and on later calls.

    Raises:
        FrameRefused: LW135 if it does now.
    """
    tensors = [*recorded.inputs, *recorded.bound]
    lifted = [interp.environment.lifting.lifted.get(id(entry.tensor)) for entry in tensors]
    for number, _ in recorded.mutations:
        written = lifted[number]
        for other in lifted:
            if written is None or other is None or other is written or (written.bound and other.bound):
                continue
            if overlap(written.real, other.real):
                raise FrameRefused("LW135", written.name)
            interp.guards.add(written.source, "storage_distinct", other.source)
