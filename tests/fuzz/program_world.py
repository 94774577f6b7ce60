"""What random programs find defined: state, exceptions, managers, generators, coroutines, and what breaks a graph.

Executed anew for each side of each program. `s` is always a `State`, which carries the log of what was done with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import inspect
import os
import pickle
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

import lampwork

LOCAL = threading.local()
VAR: contextvars.ContextVar[int] = contextvars.ContextVar("VAR", default=0)
LOCK = threading.RLock()
TABLE = {"k": 2, "t": torch.full((2, 2), 3.0)}
LEVEL = 1
ORDERED = False
"""Whether threads run one after the other, since they write to what they share."""


class Odd(Exception):
    """An exception with state of its own."""

    def __init__(self, k: int, extra: Any = None) -> None:
        super().__init__(k)
        self.k, self.extra = k, extra

    def __str__(self) -> str:
        return f"odd {self.k}"


class Deep(ValueError):
    pass


class Halt(BaseException):
    pass


class State:
    def __init__(self, n: int = 1) -> None:
        self.log: list[Any] = []
        self.n = n
        self.t = torch.full((2, 2), 2.0)
        self.items = [n, 3]
        self.table: dict[Any, Any] = {"a": 1}
        self.gen: Any = None
        self.error: Any = None
        self.kept: Any = None

    @property
    def read(self) -> int:
        self.log.append("read")
        return self.n

    def raising(self, k: int) -> int:
        self.log.append(("raising", k))
        if k % 3 == 0:
            raise KeyError(k)
        if k % 3 == 1:
            raise Odd(k)
        return k

    def __call__(self, x: torch.Tensor, n: int) -> torch.Tensor:
        self.n = (self.n + n) % 5
        return x + self.n


class Dies:
    """Says when it is gone."""

    def __init__(self, s: State, k: int) -> None:
        self.s, self.k = s, k

    def __del__(self) -> None:
        self.s.log.append(("gone", self.k))


class Guard:
    """A manager that logs; it suppresses what it is given."""

    def __init__(self, s: State, *swallows: type[BaseException]) -> None:
        self.s, self.swallows = s, swallows

    def __enter__(self) -> Guard:
        self.s.log.append("enter")
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.s.log.append(("exit", kind and kind.__name__, str(error), lines_of(trace)))
        return kind is not None and issubclass(kind, self.swallows)

    async def __aenter__(self) -> Guard:
        await asyncio.sleep(0)
        return self.__enter__()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> bool:
        await asyncio.sleep(0)
        return self.__exit__(kind, error, trace)


class FailsOnExit:
    def __init__(self, s: State) -> None:
        self.s = s

    def __enter__(self) -> State:
        return self.s

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        raise Deep("on exit")


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2, 2), 0.5), requires_grad=False)
        self.calls = 0

    def forward(self, x: torch.Tensor, n: int = 1) -> torch.Tensor:
        return x * self.weight + n + self.calls


LAYER = Layer()


def lines_of(trace: Any) -> list[tuple[str, int]]:
    """The functions and lines of a traceback."""
    return [(frame.name, frame.lineno or 0) for frame in traceback.extract_tb(trace)]


def helper(x: torch.Tensor, n: int, s: State) -> torch.Tensor:
    s.n = (s.n + 1) % 7
    return x * n + 1


@lampwork.disable
def apart(x: torch.Tensor, n: int, s: State) -> torch.Tensor:
    s.log.append(("apart", n))
    if n > 4:
        raise Odd(n)
    return x + n


def loud(x: torch.Tensor, n: int, s: State) -> torch.Tensor:
    print("loud", n)
    return torch.relu(x - n)


def steps(x: torch.Tensor, n: int, s: State) -> Iterator[Any]:
    try:
        for i in range(n % 4):
            got = yield x + i
            if got is not None:
                s.log.append(("got", got))
    except KeyError as error:
        s.log.append(("steps", str(error)))
        yield x * 10
    finally:
        s.log.append("end of steps")
    return n


@contextlib.contextmanager
def scope(n: int, s: State) -> Iterator[int]:
    s.log.append(("in", n))
    try:
        yield n + 1
    except ValueError as error:
        s.log.append(("scope", str(error)))
    finally:
        s.log.append("out")


async def waits(x: torch.Tensor, n: int, s: State) -> torch.Tensor:
    await asyncio.sleep(0)
    if n > 4:
        raise Odd(n)
    return x * 2 + n


async def streams(x: torch.Tensor, n: int, s: State) -> AsyncIterator[Any]:
    try:
        for i in range(n % 4):
            await asyncio.sleep(0)
            yield x * i
    finally:
        s.log.append("end of streams")


@contextlib.asynccontextmanager
async def ascope(n: int, s: State) -> AsyncIterator[int]:
    s.log.append(("ain", n))
    try:
        yield n + 1
    except KeyError:
        s.log.append("ascope")
    finally:
        await asyncio.sleep(0)
        s.log.append("aout")


def endless(k: int) -> int:
    return endless(k + 1)


def down(x: torch.Tensor, k: int, s: State) -> torch.Tensor:
    if k <= 0:
        if s.n % 2:
            raise Odd(k)
        return x
    try:
        return down(x, k - 1, s) + 1
    finally:
        s.n += 1


def outcome(thunk: Callable[[], Any]) -> Any:
    """What a call gives or raises."""
    try:
        return thunk()
    except BaseException as error:  # noqa: BLE001  (told to the caller)
        return error


def in_threads(*thunks: Callable[[], Any]) -> list[Any]:
    """The outcome of each, called in a thread of its own."""
    found: list[Any] = [None] * len(thunks)

    def work(i: int) -> None:
        found[i] = outcome(thunks[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(thunks))]
    for thread in threads:
        thread.start()
        if ORDERED:
            thread.join()
    for thread in threads:
        thread.join()
    return found


def in_pool(*thunks: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(1 if ORDERED else 2) as pool:
        futures = [pool.submit(outcome, thunk) for thunk in thunks]
    return [future.result() for future in futures]


def in_child(thunk: Callable[[], Any]) -> Any:
    """The outcome of a call in a forked process."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        os.close(read)
        with os.fdopen(write, "wb") as pipe:
            found = outcome(thunk)
            pipe.write(pickle.dumps(_portable(found)))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(pid, 0)
    return (status, pickle.loads(data) if data else "nothing")


def _portable(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, BaseException):
        return (type(value).__name__, str(value))
    if isinstance(value, (list, tuple)):
        return [_portable(item) for item in value]
    return repr(value) if isinstance(value, (int, float, str, type(None))) else type(value).__name__


def beside(thunk: Callable[[], Any], other: Callable[[], Any]) -> list[Any]:
    """The outcome of `other`, called while a thread runs `thunk`; then that one's."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(outcome(thunk)))
    thread.start()
    if ORDERED:
        thread.join()
    mine = outcome(other)
    thread.join()
    return [mine, *found]


def stepped(generator: Any, s: State, *moves: tuple[str, Any]) -> Any:
    """Drive a generator by hand: `("send", value)`, `("throw", error)`, `("close", None)`."""
    for name, value in moves:
        found = outcome(lambda: generator.close() if name == "close" else getattr(generator, name)(value))
        s.log.append((name, found))
        if inspect.isgenerator(generator):
            s.log.append(inspect.getgeneratorstate(generator))
    return generator


async def astepped(generator: Any, s: State, *moves: tuple[str, Any]) -> Any:
    for name, value in moves:
        try:
            found = await (generator.aclose() if name == "aclose" else getattr(generator, name)(value))
        except BaseException as error:  # noqa: BLE001  (told to the caller)
            found = error
        s.log.append((name, found))
    return generator


@contextlib.contextmanager
def hooked(setter: Callable[[Any], None]) -> Iterator[None]:
    """A trace or profile function that looks on."""

    def hook(frame: Any, event: str, arg: Any) -> Any:
        return hook

    setter(hook)
    try:
        yield
    finally:
        setter(None)


@contextlib.contextmanager
def on_signal(handler: Callable[..., None]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextlib.contextmanager
def recursion_limit(more: int) -> Iterator[None]:
    """As many frames as are active now, and some more."""
    before, depth, frame = sys.getrecursionlimit(), 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    sys.setrecursionlimit(depth + more)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


__all__ = ["functools", "gc", "weakref"]
