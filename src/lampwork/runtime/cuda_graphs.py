"""mode="reduce-overhead" and "max-autotune" on a CUDA device: programs that are replayed as CUDA graphs.

A `Graphed` takes the place of a program's `_C.Executable`. What a call of that costs the host is one launch for each
kernel and one trip through the dispatcher for each ATen call; a replay costs one launch for all, one copy of all inputs
and one of all results:

    before: kernel, kernel, aten::mm, kernel, ...            after: copy inputs, replay, copy results

The graph is torch's (`torch.cuda.CUDAGraph`), not one that the extension captures with the driver: torch's random
generators, its allocator and cuBLAS all have to know of a capture, and the classes that tell them are C++ of torch's
CUDA libraries, which the extension is not linked to. So a call runs one Python function, this module's.

What holds:

* A call is captured when an earlier one was like it: the same numbers, and the same memory under the weights and under
  the inputs that are taken where they lie. So the first call of all runs as it would otherwise, which loads kernels and
  has libraries choose their algorithms, and sizes that come once are never captured.
* Weights (bound tensors, and constants made of them) are taken where they lie. `Executable.generation` tells when they
  moved, or when constants were computed again: then graphs are made again.
* Inputs are taken where they lie until one call gives another address; from then on they are copied, to memory of the
  graph. Inputs that the program writes are always taken where they lie, so that what shares their memory sees the
  write; there is a graph for each address, of the last `KEPT`.
* Results are copied out of the graph's memory: what a caller holds never changes. A result that is an argument, a
  weight, or a view of one is that again, and results that share memory share it.
* Graphs of one device share a pool of memory: what one needs in its midst another one uses too. Replays therefore come
  one after another, in whatever thread and stream they are asked for.
* Random numbers are eager's: torch moves its generators on with each replay. While a program that draws is captured,
  torch's generator of the device refuses to draw for other threads; a program that draws nothing does not touch it.
* What cannot be captured runs as it would otherwise, and the log's topic `program` says so once: programs with a part
  on the CPU, operators that wait for the device or whose results' sizes depend on data, collectives, generators that
  are arguments; whatever fails while it is captured. So does a call while somebody else captures the current stream,
  which is then part of that graph.
* Programs of training steps, forward and backward, are not captured: what forward saves would have to be copied.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from lampwork import _C, config, logs, pristine
from lampwork.errors import GraphCaptureError, text_of
from lampwork.graph.nested import leaves
from lampwork.graph.opinfo import is_seeded
from lampwork.lasting import lasting
from lampwork.locks import new_lock
from lampwork.recent import Recent
from lampwork.records import record
from lampwork.runtime import nodes
from lampwork.runtime.cuda_device import Cuda, Device, Replayable
from lampwork.runtime.graph_results import Result, follow, overlaps_itself, plan_results
from lampwork.runtime.opaque import opaque
from lampwork.runtime.program import CallAten, CallKernel, Program, used_by

KEPT = 8
"""How many graphs a program has at most, each for other numbers or other addresses."""

LAUNCHES = 4
"""How many kernels and calls of ATen a program has at least: beside an H200 a replay with its copies took 14 us,
a kernel that is launched 5 us, and a call of ATen more."""

FREE_CAPTURES = 16
"""How many captures a program may have before they must have paid."""

REPLAYS_THAT_PAY = 16
"""How many replays are worth another capture."""

_memory = cast(Any, torch)._C._data_address  # for reading: whoever watches for writes does not notice
_BelowAutograd = cast(Any, torch)._C._AutoDispatchBelowAutograd
_BelowViews = cast(Any, torch)._C._AutoDispatchBelowADInplaceOrView  # and what counts versions


class Pool:
    """The memory that all graphs of one device share, and the order of their replays."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.lock = new_lock()
        self._memory: Any = None
        self._spoilt: list[Any] = []
        self._stream: int | None = None
        self._last: Any = None

    @property
    def memory(self) -> Any:
        if self._memory is None:
            self._memory = self.device.new_memory()
        return self._memory

    def renew_memory(self) -> None:
        """After a capture that failed: later graphs share other memory, that of earlier ones stays while these do."""
        self._spoilt.append(self._memory)
        self._memory = None

    def follow_replays(self) -> None:
        """Have the current stream wait for the replays so far, which used the same memory."""
        stream = self.device.stream()
        if stream != self._stream:
            if self._stream is not None:
                self.device.wait(self._last)
            self._stream, self._last = stream, self.device.current()


_pools: weakref.WeakValueDictionary[int, Pool] = weakref.WeakValueDictionary()
_pools_lock = new_lock()


def _pool_of(index: int) -> Pool:
    """The pool of a CUDA device, which lives while programs do that have it."""
    with _pools_lock:
        found = _pools.get(index)
        if found is None:
            found = _pools[index] = Pool(Cuda(index))
        return found


class Served(Protocol):
    """What is asked of a region."""

    @property
    def bound(self) -> Sequence[Tensor]: ...
    @property
    def mutations(self) -> Sequence[tuple[int, int]]: ...
    @property
    def apart(self) -> Sequence[int]: ...
    @property
    def fresh_versions(self) -> Sequence[tuple[int, int]]: ...
    @property
    def state(self) -> Any: ...
    @property
    def recipe(self) -> Any: ...


def graphed(executable: _C.Executable, program: Program, region: Served) -> _C.Executable | Graphed:
    """What runs a region's program: replays of graphs, if the options in force ask for them and it can be captured."""
    device = program.device
    if device is None or device.type != "cuda" or not config.current().captures_graphs:
        return executable
    if sum(isinstance(step, CallKernel | CallAten) for step in program.instructions) < LAUNCHES:
        return executable
    reason = why_not(program, device)
    if reason is not None:
        _tell(GraphCaptureError(f"no CUDA graph for a program: {reason}", fix=_FIX))
        return executable
    return Graphed(executable, program, region, _pool_of(device.index))


_FIX = 'keep what needs the host out of the function, or leave mode="reduce-overhead" out; it runs without a graph'


def _tell(error: GraphCaptureError) -> None:
    if logs.enabled("program"):
        logs.emit("program", str(error))


def why_not(program: Program, device: torch.device) -> str | None:
    """Why a program that runs on `device` cannot be captured; None if nothing is known against it."""
    if any(program.values[number].device != device for number in _roots_read(program)):
        return "a part of it is on the CPU"
    for step in program.instructions:
        if isinstance(step, CallAten) and (reason := _why_not_called(step)) is not None:
            return f"{step.op} {reason}"
    return None


def draws(program: Program) -> bool:
    """Whether a program may draw random numbers: some call of it does, or is of an operator that may not say so."""
    for step in program.instructions:
        if isinstance(step, CallAten) and (not step.op.startswith("aten::") or is_seeded(_overload(step))):
            return True
    return False


def _overload(call: CallAten) -> Any:
    namespace, _, rest = call.op.partition("::")
    name, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")


def _roots_read(program: Program) -> set[int]:
    """The values in whose memory a program reads, writes or returns something."""
    found = {number for step in program.instructions for number in used_by(step)}.union(program.outputs)
    roots: set[int] = set()
    for number in found:
        while program.values[number].kind == "view":
            number = program.values[number].base
        roots.add(number)
    return roots


def _why_not_called(call: CallAten) -> str | None:
    if any(True for _ in leaves((call.args, call.kwargs), torch.Generator)):
        return "draws from a generator that is an argument"
    if "c10d" in call.op.partition("::")[0] or call.op.startswith("lampwork::wait"):
        return "communicates with other processes"
    tags = {tag.name for tag in _overload(call).tags}
    if tags & {"data_dependent_output", "dynamic_output_shape"}:
        return "waits for the device"
    return "says that it cannot be captured" if "cudagraph_unsafe" in tags else None


@record
class Captured:
    """A program, recorded.

    `copied`: input numbers, each with the shape and strides of what is copied, None: as the input is. `places`: where
    to. `sources`: what results are copies of; `are_copies`: results are the copies, in order. `written`: numbers of
    tensors, inputs then bound ones, that it writes, with how far it moves their versions.
    """

    graph: Replayable
    copied: tuple[tuple[int, tuple[tuple[int, ...], tuple[int, ...]] | None], ...]
    places: list[Tensor]
    sources: list[Tensor]
    results: tuple[Result, ...]
    are_copies: bool
    written: tuple[tuple[int, int], ...]


Key = tuple[Any, ...]
"""((generation of what is bound, epoch of the device), scalars, addresses of the inputs that are taken where they
lie)."""


class Graphed:
    """A program of one device whose calls are replays, as soon as they are alike. Safe to use from several threads.

    Called with the list of input tensors (bound ones may follow) and scalars, as an `_C.Executable` is.
    """

    def __init__(self, executable: _C.Executable, program: Program, region: Served, pool: Pool) -> None:
        self.executable = executable
        self.failure: GraphCaptureError | None = None
        """Why the program is not captured any more."""
        self.captures = 0
        self.replays = 0
        self._pool, self._device = pool, pool.device
        self._n_inputs = program.n_inputs
        self._written = tuple(dict.fromkeys(number for number, _ in region.mutations))
        self._apart = tuple(region.apart)
        self._fresh_versions = tuple(region.fresh_versions)
        self._unused = _unused(region)
        self._draws = draws(program)
        read = (program.values[number] for number in _roots_read(program))
        used = {value.position for value in read if value.kind == "input"}.union(self._written)
        self._fixed = tuple(sorted(number for number in used if number < program.n_inputs))
        self._used = self._fixed
        self._graphs: dict[Key, Captured] = {}
        self._seen: Recent[Key, Key] = Recent(KEPT)
        self._last: Key | None = None
        self._thread = threading.local()

    def __del__(self) -> None:
        self._graphs.clear()  # before the memory that they lie in

    @opaque
    def __call__(
        self, tensors: Sequence[Tensor], scalars: tuple[int, ...] = (), numbers: object = None
    ) -> Sequence[Any]:
        """The program's outputs; None for those that only the program itself needs.

        Args:
            numbers: the values of a region's symbols, which are not needed.
        """
        if self.failure is None and not self._device.is_capturing():
            with self._pool.lock:
                places = [_address(tensors[number]) for number in self._fixed]
                key = ((self.executable.generation(), self._device.epoch), scalars, *places)
                captured = self._graphs.get(key) or self._captured(key, tensors, scalars)
                if captured is not None:
                    return self._replayed(captured, tensors)
        results = self.executable.run(tensors, scalars)
        self._thread.has_run = True
        return self._settled(results)

    @property
    def stats(self) -> Mapping[str, int]:
        return {**self.executable.stats, "captures": self.captures, "replays": self.replays}

    # --- which graph --------------------------------------------------------------------------------------------

    def _captured(self, key: Key, tensors: Sequence[Tensor], scalars: tuple[int, ...]) -> Captured | None:
        """A new graph for a call; None if no call was like it, or captures do not pay."""
        last = self._last
        if last is None or last[0] != key[0]:
            self._forget()
        else:
            moved = {number for number, a, b in zip(self._fixed, last[2:], key[2:], strict=True) if a != b}
            if moved.difference(self._written):
                key = self._copy_from_now_on(moved.difference(self._written), last, key)
        self._last = key
        if self._seen.get(key) is None:
            self._seen.put(key, key)
            return None
        # Libraries prepare themselves for each thread, which they cannot in a capture.
        if not hasattr(self._thread, "has_run"):
            return None
        if self.captures >= FREE_CAPTURES + self.replays // REPLAYS_THAT_PAY:
            return None
        while len(self._graphs) >= KEPT:
            del self._graphs[next(iter(self._graphs))]
        captured = self._capture(tensors, scalars)
        if captured is not None:
            self._graphs[key] = captured
        return captured

    def _forget(self) -> None:
        self._graphs, self._seen, self._last = {}, Recent(KEPT), None

    def _copy_from_now_on(self, moved: set[int], last: Key, key: Key) -> Key:
        """The key without the inputs that have moved. What is known holds for the calls that are like the last one."""
        stays = [place for place, number in enumerate(self._fixed) if number not in moved]
        self._fixed = tuple(self._fixed[place] for place in stays)
        self._forget()
        before, now = ((*each[:2], *(each[2 + place] for place in stays)) for each in (last, key))
        self._seen.put(before, before)
        return now

    # --- capture ------------------------------------------------------------------------------------------------

    def _capture(self, tensors: Sequence[Tensor], scalars: tuple[int, ...]) -> Captured | None:
        self.captures += 1
        written = [self._tensor(number, tensors) for number in self._written]
        before = [_version(tensor) for tensor in written]
        moved = tuple(number for number in self._used if number not in self._fixed)
        given = list(tensors[: self._n_inputs])
        copied = tuple((number, _span(given[number])) for number in moved)

        def prepare() -> list[Tensor]:
            with lasting():
                return [_place_for(given[number], span) for number, span in copied]

        def run(places: list[Tensor]) -> Sequence[Tensor]:
            for (number, span), place in zip(copied, places, strict=True):
                like = given[number]
                given[number] = place if span is None else place.as_strided(like.shape, like.stride())
            return self.executable.run(given, scalars)

        # Torch frees where a graph that went reads its seed, and writes there again as this one begins.
        self._pool.follow_replays()
        try:
            graph, places, results = self._device.capture(self._pool.memory, prepare, run, self._draws)
            sources, plan = plan_results(results, (*given, *self.executable.bound), self._unused)
        except BaseException as error:
            self._pool.renew_memory()
            if not isinstance(error, Exception):
                raise
            # The call itself goes on without.
            self.failure = GraphCaptureError(f"a program cannot be captured: {text_of(error)}", fix=_FIX)
            self._forget()
            _tell(self.failure)
            return None
        finally:
            moved_on = [_version(tensor) - version for tensor, version in zip(written, before, strict=True)]
            for tensor, version in zip(written, before, strict=True):
                nodes.set_version(tensor, version)  # nothing has been written yet
        are_copies = not self._fresh_versions and plan == tuple(
            Result("copy", i) for i in range(len(sources))
        )
        versions = tuple(zip(self._written, moved_on, strict=True))
        return Captured(graph, copied, places, sources, plan, are_copies, versions)

    def _tensor(self, number: int, tensors: Sequence[Tensor]) -> Tensor:
        """An input, or a bound tensor: these are counted after the inputs."""
        if number < self._n_inputs:
            return tensors[number]
        return self.executable.bound[number - self._n_inputs]

    # --- replay -------------------------------------------------------------------------------------------------

    def _replayed(self, captured: Captured, tensors: Sequence[Tensor]) -> list[Any]:
        self.replays += 1
        self._pool.follow_replays()
        written = [(self._tensor(number, tensors), moved_on) for number, moved_on in captured.written]
        for tensor, _ in written:
            tensor.data_ptr()  # asked for as one does to write, which whoever watches it notices
        with _BelowViews():
            if captured.copied:
                _copy_all(captured.places, [_part(tensors[number], span) for number, span in captured.copied])
            captured.graph.replay()
            for tensor, moved_on in written:  # whether or not there is memory for the results
                nodes.set_version(tensor, _version(tensor) + moved_on)
            results: list[Any] = _copies(captured.sources)
        if captured.are_copies:
            return results
        with _BelowAutograd():  # views of what was written are of its new version
            results = [follow(result, results, self._tensor, tensors) for result in captured.results]
        return self._settled(results)

    def _settled(self, results: list[Any]) -> list[Any]:
        """The results, to autograd what eager's are."""
        for number in self._apart:
            if results[number] is not None and results[number]._is_view():
                results[number] = results[number].detach()
        for number, version in self._fresh_versions:
            nodes.set_version(results[number], version)
        return results


def _unused(region: Served) -> frozenset[int]:
    """Numbers of the results that nobody but the program needs, which writes them to the caller's tensors."""
    if region.state is None or region.state.grad_enabled:
        return frozenset()
    returned = {step.payload for step in region.recipe.steps if step.kind == "output"}
    return frozenset(result for _, result in region.mutations if result not in returned)


def _address(tensor: Tensor) -> tuple[int, int]:
    """Of a tensor's memory, and of its first element in there."""
    return _memory(tensor), int(tensor.storage_offset())


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _span(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """As what a tensor is copied if elements of it share memory: all that lies between its first and last one."""
    if not overlaps_itself(tensor.shape, tensor.stride()):
        return None
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1,), (1,)


def _part(tensor: Tensor, span: tuple[tuple[int, ...], tuple[int, ...]] | None) -> Tensor:
    return tensor if span is None else tensor.as_strided(*span)


def _place_for(tensor: Tensor, span: tuple[tuple[int, ...], tuple[int, ...]] | None) -> Tensor:
    shape, strides = span or (tuple(tensor.shape), tensor.stride())
    return pristine.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)


def _copy_all(places: list[Tensor], sources: list[Tensor]) -> None:
    if len(places) == 1:
        places[0].copy_(sources[0])
    else:
        pristine.foreach_copy_(places, sources)


def _copies(sources: list[Tensor]) -> list[Tensor]:
    """Each in memory of its own, as dense as it is."""
    if len(sources) < 2:
        return [source.clone() for source in sources]
    copies = [pristine.empty_like(source) for source in sources]
    pristine.foreach_copy_(copies, sources)
    return copies
