"""What CUDA graphs need of torch.cuda, in one place, so that tests can put a device of their own there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor

from lampwork import pristine
from lampwork.garbage import without_collections

T = TypeVar("T")

SETTLES = 4
"""How many errors a failed capture may leave to whoever launches next."""

_failed: list[Any] = []
"""Graphs whose captures failed, for good."""

FAR = 1 << 40
"""From where the device's generator stands to where one stands that a capture has without drawing: what another thread
draws in the moment in which it is the device's is none of the numbers that are drawn otherwise."""


class Replayable(Protocol):
    """Work of a device, recorded. Its destruction gives its memory back to its pool."""

    def replay(self) -> None:
        """Put the work into the current stream. Random numbers are drawn as eager would draw them now."""
        ...


class Device(Protocol):
    """A device that records what it is given to do.

    epoch: graphs that were captured in another one are not to be replayed.
    """

    epoch: int

    def is_capturing(self) -> bool:
        """Whether somebody records the current stream of the device, or of the current device."""
        ...

    def stream(self) -> int:
        """The address of the device's current stream."""
        ...

    def current(self) -> Any:
        """The device's current stream, as `wait` takes it."""
        ...

    def wait(self, earlier: Any) -> None:
        """Have the current stream wait for all that is in another one."""
        ...

    def new_memory(self) -> Any:
        """Memory that graphs can share; given back when the object and its graphs are gone."""
        ...

    def capture(
        self, memory: Any, prepare: Callable[[], T], run: Callable[[T], Sequence[Tensor]], draws: bool
    ) -> tuple[Replayable, T, Sequence[Tensor]]:
        """Record `run(prepare())`, which computes nothing yet and allocates in `memory`: the work, what `prepare` gave,
        and what `run` gave. draws: whether `run` may draw random numbers.

        Raises:
            Exception: what either raised, and that the device cannot record what it was given. The memory is not to be
                recorded into again.
        """
        ...


class Cuda:
    """A CUDA device."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._side: Any = None  # capture needs a stream that is not the default one
        self.epoch = 0

    @property
    def _torch(self) -> Any:
        return cast(Any, torch)

    def is_capturing(self) -> bool:
        of_torch = self._torch._C
        if of_torch._cuda_isCurrentStreamCapturing():
            return True
        if of_torch._cuda_getDevice() == self._index:
            return False
        with self._torch.cuda.device(self._index):
            return of_torch._cuda_isCurrentStreamCapturing()

    def stream(self) -> int:
        return self._torch._C._cuda_getCurrentRawStream(self._index)

    def current(self) -> Any:
        return self._torch.cuda.current_stream(self._index)

    def wait(self, earlier: Any) -> None:
        self.current().wait_stream(earlier)

    def new_memory(self) -> Any:
        with self._torch.cuda.device(self._index):
            return self._torch.cuda.MemPool()

    def capture(
        self, memory: Any, prepare: Callable[[], T], run: Callable[[T], Sequence[Tensor]], draws: bool
    ) -> tuple[Replayable, T, Sequence[Tensor]]:
        cuda = self._torch.cuda
        if self._side is None:
            self._side = cuda.Stream(self._index)
        before = self.current()
        self._side.wait_stream(before)
        # A collection might free other graphs or events, which is not allowed meanwhile. Work space that cuBLAS took
        # for a stream would be kept for good: outside of the graph's memory, or there, where other graphs use it again.
        with without_collections(), cuda.stream(self._side):
            self._torch._C._cuda_clearCublasWorkspaces()
            graph = cuda.CUDAGraph()
            try:
                self._begin(graph, memory, draws)
                prepared = prepare()
                results = run(prepared)
            except BaseException:
                with contextlib.suppress(RuntimeError):
                    graph.capture_end()
                self._recover(graph, memory, draws)
                raise
            try:
                graph.capture_end()
            except RuntimeError:
                self._recover(graph, memory, draws)
                raise
        before.wait_stream(self._side)
        self._torch._C._cuda_clearCublasWorkspaces()
        return graph, prepared, results

    def _begin(self, graph: Any, memory: Any, draws: bool) -> None:
        """Torch has a capture take the device's generator, which until its end refuses to draw for anybody else. A
        capture that draws nothing takes another one's state: nobody notices it, nor whether it fails."""
        generator = self._torch.cuda.default_generators[self._index]
        with contextlib.ExitStack() as stack:
            if not draws:
                stack.callback(generator.graphsafe_set_state, generator.graphsafe_get_state())
                apart = generator.clone_state()
                apart.set_offset(apart.get_offset() + FAR)
                generator.graphsafe_set_state(apart)
            # Other threads go on allocating and synchronizing meanwhile.
            graph.capture_begin(pool=memory.id, capture_error_mode="thread_local")

    def _recover(self, graph: Any, memory: Any, draws: bool) -> None:
        """After a capture that torch could not end, its allocators and its generator are in the midst of it, and
        whoever launches next meets the errors that nobody has asked for. The allocator of pinned memory stays in the
        midst, and asks the graph on each allocation: so the graph is kept, and the memory takes no other capture."""
        _failed.append(graph)
        self._torch._C._cuda_clearCublasWorkspaces()
        with contextlib.suppress(RuntimeError):
            graph.reset()  # newer generators know of the capture until then
        with contextlib.suppress(RuntimeError):  # it is not in the midst
            self._torch._C._cuda_endAllocateToPool(self._index, memory.id)
            self._torch._C._cuda_releasePool(self._index, memory.id)
        if draws:
            # The generator gets a state of its own, as it stands. Graphs of before would draw from the former one, so
            # they are not replayed any more.
            generator = self._torch.cuda.default_generators[self._index]
            generator.graphsafe_set_state(generator.clone_state())
            self.epoch += 1
        any(self._launches() for _ in range(SETTLES))

    def _launches(self) -> bool:
        try:
            pristine.zeros(1, device=f"cuda:{self._index}")
        except RuntimeError:
            return False
        return True
