"""Compiling one part: in a thread with a time limit where the backend is from outside, and once for equal parts."""

from __future__ import annotations

import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, fx

from lampwork import counters, pristine
from lampwork.backends.native.symbolic import SymbolicProgram
from lampwork.backends.observer import Inside, Observer
from lampwork.backends.protocol import Backend, Compiled, CompileOptions, Traits
from lampwork.capture.model.region import GlobalState
from lampwork.errors import (
    BackendCompileError,
    BackendError,
    BackendTimeoutError,
    BackendWriteError,
    LampworkError,
    Location,
    text_of,
)
from lampwork.graph.concrete import scope_of
from lampwork.graph.copying import copy_graph
from lampwork.graph.hashing import structural_hash
from lampwork.graph.spec import TensorSpec
from lampwork.graph.within import devices_cast
from lampwork.lasting import lasting
from lampwork.locks import new_lock
from lampwork.partitioning.demands import Asked, Demands
from lampwork.partitioning.identity import identity, note_changes, settings
from lampwork.partitioning.kept import Saver, keeping
from lampwork.partitioning.unwritten import leaving
from lampwork.recent import Recent
from lampwork.records import record
from lampwork.rewriting.schema import packet_name
from lampwork.runtime.program import Program

T = TypeVar("T")

CACHED = 256
"""How many compiled parts are kept for parts to come."""


@dataclass(slots=True, eq=False)
class Made:
    """What a backend compiled, and what is known of it. Several equal parts share one.

    `demands`: what it is right for, where the graph has symbols.
    `checks`: how many more runs are to be checked fully. `copies`: numbers of the outputs that are to be copied, as
    their memory is not theirs. `seen`: the outputs of the run before, while there are checks. `fault`: what was wrong
    with it, after which nobody runs it. `told`: what observers of equal graphs are told as well.
    """

    compiled: Compiled
    demands: Demands | None = None
    checks: int = 2
    copies: frozenset[int] = frozenset()
    seen: tuple[Tensor, ...] = ()
    fault: BackendError | None = None
    told: tuple[Inside, ...] = ()


@dataclass(slots=True, eq=False)
class _Slot:
    lock: threading.RLock = field(default_factory=new_lock)
    made: Made | None = None
    fault: BackendError | None = None


@dataclass(slots=True)
class _Listener(Observer):
    """Hears what a backend tells of what is kept for equal graphs, and passes it on."""

    looks: ClassVar[bool] = False
    to: Observer
    told: list[Inside] = field(default_factory=list[Inside])

    @property
    def title(self) -> str:
        return self.to.title

    def built(self, inside: Inside) -> None:
        self.told.append(inside)
        self.to.built(inside)


@record
class _Cache:
    """Compiled parts by key, those used last at the end."""

    slots: Recent[Hashable, _Slot] = field(default_factory=lambda: Recent[Hashable, _Slot](CACHED))
    lock: threading.RLock = field(default_factory=new_lock)

    def slot(self, key: Hashable) -> _Slot:
        with self.lock:
            return self.slots.get(key) or self.slots.put(key, _Slot())

    def put(self, key: Hashable, slot: _Slot) -> _Slot:
        """The slot of this key, `slot` if there is none."""
        with self.lock:
            return self.slots.get(key) or self.slots.put(key, slot)


_cache = _Cache()


def compile_graph(
    backend: Backend,
    graph: fx.Graph,
    options: CompileOptions,
    bound: Sequence[Tensor] = (),
    *,
    origin: str = "",
) -> Made:
    """What `backend` makes of `graph`, with `bound` at its bound placeholders; equal graphs are compiled once for equal
    options and of one origin, which is "" for all that this process captured.

    Nothing is kept of a backend that builds the weights in, nor where an observer wants to see it compiled.

    Raises:
        BackendError: it failed, for this graph or an equal one.
    """
    traits = Traits.of(backend)
    if traits.bakes_weights:
        return _compile(backend, traits, graph, options, bound)
    if options.observer.looks:
        return _made(backend, traits, graph, options, bound, origin)
    scope = scope_of(graph)
    state = (scope and scope.state, GlobalState.now())
    what = (structural_hash(graph), options.config, options.mutations, options.views, state, origin)
    before = settings(backend)
    slot = _cache.slot((identity(backend, before), what))
    with slot.lock:
        if slot.made is not None and slot.made.fault is None:
            if scope is not None and (demands := slot.made.demands) is not None:
                if not demands.hold_for(scope):
                    return _compile(backend, traits, graph, options, bound)
                demands.make_of(scope)
            counters.add("backend_cache_hits")
            for inside in slot.made.told:
                options.observer.built(inside)
            return slot.made
        fault = slot.fault if slot.made is None else slot.made.fault
        if fault is not None:
            raise again(fault, place_of(graph))
        try:
            listener = _Listener(options.observer)
            slot.made = _made(backend, traits, graph, replace(options, observer=listener), bound, origin)
            slot.made.told = tuple(listener.told)
        except BackendError as error:
            slot.fault = error
            raise
        finally:
            note_changes(backend, before)
            _cache.put((identity(backend, before), what), slot)
        return slot.made


def _made(
    backend: Backend,
    traits: Traits,
    graph: fx.Graph,
    options: CompileOptions,
    bound: Sequence[Tensor],
    origin: str,
) -> Made:
    """What another process kept, or else what is compiled now, and kept; with what it asks of the graph's symbols."""
    kept = keeping(backend, traits, graph, options, origin)
    if kept is None:
        return _compile(backend, traits, graph, options, bound)
    found = kept.restored(kept.subject.store.get(kept.key))
    if found is not None:
        return Made(*found)
    if options.waits:
        # In this thread: with others, the runtime looks closer at what may write to weights, which takes longer.
        with kept.subject.store.making(kept.key) as content:
            found = kept.restored(content)
            if found is not None:
                return Made(*found)
            made = _compile(backend, traits, graph, options, bound)
            kept.keep(made.compiled, made.demands)
            return made
    saver = Saver(kept)
    try:
        found = kept.restored(saver.begin())
        if found is not None:
            return Made(*found)
        made = _compile(backend, traits, graph, options, bound)
        saver.keep(made.compiled, made.demands)
        return made
    finally:
        saver.end()


def _compile(
    backend: Backend, traits: Traits, graph: fx.Graph, options: CompileOptions, bound: Sequence[Tensor]
) -> Made:
    counters.add("backend_compiles")
    scope = scope_of(graph)
    asked = None if scope is None else Asked.of(scope)
    made = Made(_compiled(backend, traits, graph, options, bound))
    if scope is not None and asked is not None:
        made.demands = Demands.since(asked, scope)
    return made


def _compiled(
    backend: Backend, traits: Traits, graph: fx.Graph, options: CompileOptions, bound: Sequence[Tensor]
) -> Compiled:
    try:
        if traits.trusted:
            return backend.compile(graph, (), options)
        if traits.bakes_weights:
            options = replace(options, bound=tuple(tensor.detach() for tensor in bound))
        examples = example_inputs(graph, weights=not traits.bakes_weights)

        def work() -> Any:
            return backend.compile(copy_graph(graph), examples, options)

        seconds = options.config.backend_timeout
        compiled: Any = in_thread(lambda: leaving(options.bound, work, backend.name), seconds)
    except BackendError as error:
        if traits.trusted or error.location is not None:
            raise
        if isinstance(error, BackendWriteError):
            cause = f"{error.cause}, compiling {described(graph)}"
            raise BackendWriteError(cause, fix=error.fix, location=place_of(graph)) from error
        cause = f"backend {backend.name} failed: {error.cause}, compiling {described(graph)}"
        placed = BackendCompileError(cause, fix=error.fix, location=place_of(graph), code=error.code)
        raise placed from error
    except TimeoutError as error:
        if error.args != (_EXPIRED,):
            raise _failed(backend, graph, error) from error
        raise BackendTimeoutError(
            f"backend {backend.name} did not finish compiling {described(graph)} in "
            f"{options.config.backend_timeout} seconds",
            fix=f"set the option backend_timeout higher, or leave {backend.name} out of the backends",
            location=place_of(graph),
        ) from None
    except Exception as error:
        if traits.trusted and isinstance(error, LampworkError):
            raise
        raise _failed(backend, graph, error) from error
    if not isinstance(compiled, (Program, SymbolicProgram)) and not callable(compiled):
        raise BackendCompileError(
            f"backend {backend.name} returned {type(compiled).__name__}, which is not callable, for "
            f"{described(graph)}",
            fix="return a function of the graph's placeholders, such as gm.forward",
            location=place_of(graph),
        )
    return cast(Compiled, compiled)


def _failed(backend: Backend, graph: fx.Graph, error: Exception) -> BackendCompileError:
    return BackendCompileError(
        f"backend {backend.name} failed: {text_of(error)}, compiling {described(graph)}",
        fix=f"leave {backend.name} out of the backends, or report this to its author",
        location=place_of(graph),
    )


def again(fault: BackendError, location: Location | None) -> BackendError:
    """The same fault, met at another place."""
    return type(fault)(fault.cause, fix=fault.fix, location=location or fault.location, code=fault.code)


def place_of(graph: fx.Graph) -> Location | None:
    """The user's line of the first operator that has one."""
    return next((n.meta["location"] for n in graph.nodes if n.meta.get("location") is not None), None)


def described(graph: fx.Graph) -> str:
    """The operators of a graph in a few words: "linear, add x2 and 3 more (node linear_1 first)"."""
    calls = [n for n in graph.nodes if n.op == "call_function"]
    counts = Counter(packet_name(n.target) for n in calls)
    named = [name if count == 1 else f"{name} x{count}" for name, count in list(counts.items())[:3]]
    more = f" and {len(counts) - 3} other operators" if len(counts) > 3 else ""
    where = (
        f" (from node {calls[0].name} on)" if len(calls) > 1 else f" (node {calls[0].name})" if calls else ""
    )
    return (", ".join(named) or "a graph without operators") + more + where


def example_inputs(graph: fx.Graph, weights: bool = True) -> list[Tensor]:
    """Tensors made up for the inputs of a graph, then for its bound placeholders if `weights` are asked for; they
    require grad where the graph's do.

    They are never the weights themselves: what is compiled serves equal graphs with other weights, and a backend that
    writes to its examples must destroy nothing.
    """
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    made: list[Tensor] = []
    with lasting():
        for node in nodes:
            spec = cast(TensorSpec, node.meta["val"])
            if not node.meta.get("bound"):
                made.append(_example(spec))
            elif weights:
                made.append(_unwritten(spec))
            else:
                continue
            if spec.requires_grad:
                made[-1].requires_grad_()
    return made


def _example(spec: TensorSpec) -> Tensor:
    """Ones, or zeros where they may be indices, with this shape, layout and dtype."""
    fill = 0 if spec.dtype in (torch.int32, torch.int64) else 1
    memory = pristine.full((_extent(spec),), fill, dtype=spec.dtype, device=spec.device)
    return memory.as_strided(_numbers(spec.shape), _numbers(spec.strides))


def _unwritten(spec: TensorSpec) -> Tensor:
    """Zeros with this shape, layout and dtype. Weights are large: on the CPU no memory is taken until it is written."""
    if spec.device.type == "cpu":
        pages: Any = np.zeros(_extent(spec) * spec.dtype.itemsize, np.uint8)
        memory = pristine.from_dlpack(pages).view(spec.dtype)
    else:
        memory = pristine.zeros((_extent(spec),), dtype=spec.dtype, device=spec.device)
    return memory.as_strided(_numbers(spec.shape), _numbers(spec.strides))


def _extent(spec: TensorSpec) -> int:
    """How many elements the memory of a tensor has."""
    sizes, strides = _numbers(spec.shape), _numbers(spec.strides)
    return 0 if 0 in sizes else 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))


def _numbers(indices: Sequence[Any]) -> list[int]:
    return [int(index) for index in indices]


_EXPIRED = "the time is up"


def in_thread(work: Callable[[], T], seconds: float) -> T:
    """`work()` in a thread of its own, with the options and modes of this one, without autograd and inference mode.

    Raises:
        TimeoutError: it was not done after `seconds` (0: no limit); the thread goes on, as nothing can end it.
        Exception: what `work` raised.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    dtypes = {kind: pristine.get_autocast_dtype(kind) for kind in devices_cast()}

    def run() -> None:
        try:
            with lasting(), ExitStack() as stack:
                for kind, dtype in dtypes.items():
                    stack.enter_context(pristine.autocast(kind, dtype))
                results.append(work())
        except BaseException as error:  # noqa: BLE001  (raised again in the thread that waits)
            errors.append(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(run,), name="lampwork-backend", daemon=True)
    thread.start()
    thread.join(min(seconds, threading.TIMEOUT_MAX) or None)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(_EXPIRED)
    return results[0]
