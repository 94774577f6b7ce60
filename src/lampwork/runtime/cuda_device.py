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
        """Whether somebody records the current stream of the current device."""
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
        self, memory: Any, prepare: Callable[[], T], run: Callable[[T], Sequence[Tensor]]
    ) -> tuple[Replayable, T, Sequence[Tensor]]:
        """Record `run(prepare())`, which computes nothing yet and allocates in `memory`: the work, what `prepare` gave,
        and what `run` gave.

        Raises:
            Exception: what either raised, and that the device cannot record what it was given.
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
        return self._torch._C._cuda_isCurrentStreamCapturing()

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
        self, memory: Any, prepare: Callable[[], T], run: Callable[[T], Sequence[Tensor]]
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
            # Other threads go on allocating and synchronizing meanwhile.
            graph.capture_begin(pool=memory.id, capture_error_mode="thread_local")
            try:
                prepared = prepare()
                results = run(prepared)
            except BaseException:
                self._abandon(graph, memory)
                raise
            self._end(graph, memory)
        before.wait_stream(self._side)
        self._torch._C._cuda_clearCublasWorkspaces()
        return graph, prepared, results

    def _end(self, graph: Any, memory: Any) -> None:
        try:
            graph.capture_end()
        except RuntimeError:
            self._recover(memory)
            raise

    def _recover(self, memory: Any) -> None:
        """After a capture that torch could not end, its allocator and its generator are in the midst of it. No other
        capture is begun to end theirs: the first one's errors may end that one too."""
        with contextlib.suppress(RuntimeError):
            self._torch._C._cuda_endAllocateToPool(self._index, memory.id)
        with contextlib.suppress(RuntimeError):
            self._torch._C._cuda_releasePool(self._index, memory.id)
        self._free_generator()

    def _free_generator(self) -> None:
        """Have the device's generator draw again, if it waits for the end of a capture: it gets a state of its own, as
        it stands. Graphs of before would draw from the former one, so they are not replayed any more."""
        generator = self._torch.cuda.default_generators[self._index]
        offset = generator.get_offset()
        # Whoever launches next meets the errors of the capture that nobody has asked for: these pass.
        if not any(self._draws(generator) for _ in range(SETTLES)):
            generator.graphsafe_set_state(generator.clone_state())
            self.epoch += 1
        generator.set_offset(offset)

    def _draws(self, generator: Any) -> bool:
        try:
            pristine.empty(1, device=f"cuda:{self._index}").uniform_(generator=generator)
        except RuntimeError:
            return False
        return True

    def _abandon(self, graph: Any, memory: Any) -> None:
        with contextlib.suppress(RuntimeError):
            self._end(graph, memory)
