"""What runs the parts of a placed model: where its tensors lie, how a part is compiled for it, what a call takes."""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx

from lampwork import pristine
from lampwork.api import compile
from lampwork.display import Shown
from lampwork.errors import OptionError, text_of
from lampwork.records import record
from lampwork.standard import functools, math

WARM_UP = 3
ROUNDS = 5
SAMPLE_SECONDS = 0.005
"""A sample is as many calls as fill this."""

_WITH_THREADS = re.compile(r"cpu:(\d+) threads?")


class Device:
    """A device by its torch.device. Override methods for others: a simulated device, a remote one.

    Args:
        name: how reports name it.
        where: where its tensors lie.
        options: those of `lampwork.compile` for its parts.
    """

    def __init__(self, name: str, where: torch.device, options: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.where = where
        self.options = dict(options or {})

    @property
    def memory(self) -> str:
        """Devices of one memory hand tensors to each other without copies."""
        return str(self.where)

    def to(self, tensor: Tensor) -> Tensor:
        """The tensor in this device's memory: itself if it is there, else a copy that is complete for its user."""
        return tensor.to(self.where)

    def synchronise(self) -> None:
        """Wait for all work of this device."""
        if self.where.type != "cpu":
            torch.get_device_module(self.where).synchronize(self.where)

    def compile(self, module: fx.GraphModule) -> Callable[..., Sequence[Tensor]]:
        """What runs the graph of a part, whose weights and arguments are in this device's memory."""
        return compile(module.forward, dynamic=False, options=self.options)

    def compile_whole(self, model: Callable[..., Any]) -> Callable[..., Any] | None:
        """What runs a model whose tensors are all in this device's memory; None: it is to be compiled as one part."""
        return compile(model, options=self.options)

    def free_bytes(self) -> float:
        """How much more its memory can hold; infinite if nobody knows."""
        if self.where.type == "cuda":
            return torch.cuda.mem_get_info(self.where)[0]
        if self.where.type == "cpu" and "SC_AVPHYS_PAGES" in os.sysconf_names:
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return math.inf

    def seconds(self, call: Callable[[], object]) -> float:
        """The time of one of many calls in a row: their median over rounds, warm, all work of the device done."""
        for _ in range(WARM_UP):
            call()
        self.synchronise()
        count = max(1, math.ceil(SAMPLE_SECONDS / max(self.sample(call, 1), 1e-7)))
        return statistics.median(self.sample(call, count) for _ in range(ROUNDS))

    def sample(self, call: Callable[[], object], count: int) -> float:
        """Seconds a call, over `count` of them."""
        start = self.now()
        for _ in range(count):
            call()
        self.synchronise()
        return (self.now() - start) / count

    def now(self) -> float:
        """Seconds since some moment."""
        return time.perf_counter()

    def __repr__(self) -> str:
        return f"Device({self.name!r})"


class ThreadedCpu(Device):
    """The CPU with a number of threads of its own."""

    def __init__(self, threads: int, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"cpu:{threads} thread{'s' if threads > 1 else ''}", torch.device("cpu"), options)
        self.threads = threads

    def compile(self, module: fx.GraphModule) -> Callable[..., Sequence[Tensor]]:
        return functools.partial(_with_threads, self.threads, super().compile(module))

    def compile_whole(self, model: Callable[..., Any]) -> Callable[..., Any] | None:
        return functools.partial(_with_threads, self.threads, compile(model, options=self.options))


def _with_threads(threads: int, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    before = pristine.get_num_threads()
    if before == threads:
        return call(*args, **kwargs)
    pristine.set_num_threads(threads)
    try:
        return call(*args, **kwargs)
    finally:
        pristine.set_num_threads(before)


@record
class Absent(Shown):
    """A device that was asked for and that this machine lacks."""

    name: str
    reason: str


def resolve_devices(
    given: object, options: Mapping[str, Any] | None = None
) -> tuple[list[Device], list[Absent]]:
    """The devices of a call of `place`, and those that are not there.

    Raises:
        OptionError: an unknown name, the same one twice, or none of them is there.
    """
    if isinstance(given, (str, torch.device, Device)) or not isinstance(given, Sequence) or not given:
        raise OptionError(
            f"devices is {given!r}, expected a list of names", fix='pass for example devices=["cpu", "cuda"]'
        )
    found: list[Device] = []
    absent: list[Absent] = []
    for each in cast("Sequence[object]", given):
        made = _tried(_resolve(each, options))
        (found if isinstance(made, Device) else absent).append(cast(Any, made))
    names = [device.name for device in found]
    if len(set(names)) < len(names):
        raise OptionError(f"devices has one twice: {', '.join(names)}", fix="name each device once")
    if not found:
        raise OptionError(
            "none of the devices is there: " + "; ".join(f"{no.name}: {no.reason}" for no in absent),
            fix='add "cpu" to devices',
        )
    return found, absent


def _tried(made: Device | Absent) -> Device | Absent:
    """A device that takes a tensor, or why it does not."""
    if isinstance(made, Absent):
        return made
    try:
        made.to(pristine.zeros(1))
        made.synchronise()
    except Exception as error:  # noqa: BLE001  (whatever it is, nothing can be placed there)
        return Absent(made.name, f"it takes no tensor: {text_of(error).splitlines()[0]}")
    return made


MOST_THREADS = 1024
"""Of a CPU. torch starts as many as it is asked for, and a process that gets no more of them ends."""

_NAMES = 'name "cpu", "cuda", "cuda:1" or "cpu:4 threads"'


def _resolve(given: object, options: Mapping[str, Any] | None) -> Device | Absent:
    if isinstance(given, Device):
        return given
    if isinstance(given, str) and (matched := _WITH_THREADS.fullmatch(given)) and int(matched[1]) > 0:
        if int(matched[1]) > MOST_THREADS:
            return Absent(given, f"no more than {MOST_THREADS} threads are started")
        return ThreadedCpu(int(matched[1]), options)
    try:
        where = torch.device(cast(Any, given))
    except (RuntimeError, TypeError):
        raise OptionError(f"{given!r} is no device", fix=_NAMES) from None
    if where.type == "cpu" and where.index:
        raise OptionError(f"there is one CPU, and no {given}", fix=_NAMES)
    if where.type == "cpu":
        return Device("cpu", torch.device("cpu"), options)
    reason = _why_absent(where)
    if reason:
        return Absent(str(given), reason)
    module: Any = torch.get_device_module(where)
    index = cast("int | None", where.index)
    index = module.current_device() if index is None else index
    return Device(str(given), torch.device(where.type, index), options)


def _why_absent(where: torch.device) -> str:
    """Why this machine has no such device; "" if it has."""
    kind = where.type
    try:
        module: Any = torch.get_device_module(kind)
    except RuntimeError:
        return f"this torch knows no way to ask for devices of type {kind}"
    if not hasattr(module, "current_device"):
        return f"devices of type {kind} have no memory to place tensors in"
    if not module.is_available():
        if kind == "cuda" and torch.version.cuda is None and torch.version.hip is None:
            return "this torch was built without CUDA"
        return f"torch.{kind}.is_available() is False: no device, or its driver cannot be used"
    if (cast("int | None", where.index) or 0) >= module.device_count():
        return f"there are {module.device_count()} devices of type {kind}"
    return ""
