"""A device on the CPU that records programs as CUDA does: what is recorded changes nothing until it is replayed, each
replay writes to the same memory, and until the first one there is nonsense in it."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class Memory:
    """What graphs share."""


class FakeGraph:
    """`run` computes the results again, elsewhere; `results` is where they belong. `outside`: what it may write to."""

    def __init__(
        self, device: FakeDevice, run: Any, results: Sequence[Tensor], outside: Sequence[Tensor]
    ) -> None:
        self.device, self.run, self.results, self.outside = device, run, results, outside
        device.graphs.add(self)

    def replay(self) -> None:
        self.device.log.append(("replay", self.device.stream()))
        with uncounted(self.outside):
            for place, result in zip(self.results, self.run(), strict=True):
                if not share_memory(place, result):
                    whole(place).copy_(whole(result))


class FakeDevice:
    """`log`: what it was asked for. `fails`: raised at the end of captures; `spoilt`: the memory of those, which
    torch records into no more."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.epoch = 0
        self.graphs: weakref.WeakSet[FakeGraph] = weakref.WeakSet()
        self.memories: weakref.WeakSet[Memory] = weakref.WeakSet()
        self.fails: BaseException | None = None
        self.spoilt: list[Memory] = []
        self._streams = threading.local()

    def count(self, what: str) -> int:
        return sum(entry[0] == what for entry in self.log)

    @property
    def capturing(self) -> bool:
        """Whether the current stream is recorded. Each thread has one of its own here."""
        return getattr(self._streams, "capturing", False)

    @capturing.setter
    def capturing(self, whether: bool) -> None:
        self._streams.capturing = whether

    def is_capturing(self) -> bool:
        return self.capturing

    def stream(self) -> int:
        return getattr(self._streams, "now", 0)

    @contextmanager
    def on_stream(self, number: int) -> Iterator[None]:
        before, self._streams.now = self.stream(), number
        yield
        self._streams.now = before

    def current(self) -> int:
        return self.stream()

    def wait(self, earlier: int) -> None:
        self.log.append(("wait", self.stream(), earlier))

    def new_memory(self) -> Memory:
        made = Memory()
        self.memories.add(made)
        return made

    def capture(
        self, memory: Memory, prepare: Callable[[], Any], run: Callable[[Any], Any], draws: bool
    ) -> Any:
        self.log.append(("capture", self.stream()))
        assert memory not in self.spoilt
        free = inspect.getclosurevars(run).nonlocals
        outside = [*free["given"], *free["self"].executable.bound]
        before = [tensor.detach().clone() for tensor in outside]
        state = torch.get_rng_state()
        self.capturing = True
        try:
            prepared = prepare()
            for tensor in prepared:
                tensor.zero_()
            results = run(prepared)
            assert draws or torch.equal(torch.get_rng_state(), state)
            if self.fails is not None:
                raise self.fails
        except BaseException:
            self.spoilt.append(memory)
            raise
        finally:
            self.capturing = False
            torch.set_rng_state(state)
            with uncounted(outside):
                for tensor, content in zip(outside, before, strict=True):
                    if not torch.equal(tensor, content):
                        tensor.detach().copy_(content)
        for result in results:
            if not any(share_memory(result, other) for other in (*outside, *prepared)):
                whole(result).fill_(0x7F)
        return FakeGraph(self, lambda: run(prepared), results, outside), prepared, results


@contextmanager
def uncounted(tensors: Sequence[Tensor]) -> Iterator[None]:
    """What is written here is no write that the tensors' versions tell of."""
    counted = [tensor for tensor in tensors if not tensor.is_inference()]
    versions = [tensor._version for tensor in counted]
    with torch.inference_mode(len(counted) < len(tensors)), torch.no_grad():
        yield
    torch._C._autograd._unsafe_set_version_counter(tuple(counted), tuple(versions))


def share_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


def whole(tensor: Tensor) -> Tensor:
    """The bytes of a tensor's memory."""
    with torch.inference_mode(False):
        storage = tensor.untyped_storage()
        return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))
