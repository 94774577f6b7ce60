"""An end to code that does not come to one."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field

from lampwork.locks import new_lock


class TimeIsUp(BaseException):
    """Raised inside of the code that took too long. No Exception, so that the code does not catch it."""


@dataclass(slots=True)
class _Watch:
    thread: int
    over: bool = False
    fired: bool = False
    lock: threading.RLock = field(default_factory=new_lock)

    def fire(self) -> None:
        with self.lock:
            if not self.over:
                self.fired = True
                _raise_in(self.thread, TimeIsUp)


@contextlib.contextmanager
def time_limit(seconds: float) -> Generator[None]:
    """Interrupt Python code in the block that runs longer; 0 is no limit. A call into C is waited for.

    Raises:
        TimeIsUp: it did.
    """
    if seconds <= 0:
        yield
        return
    watch = _Watch(threading.get_ident())
    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), watch.fire)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with watch.lock:
            watch.over = True
        timer.cancel()
        if watch.fired:
            _let_arrive(watch.thread)


def _let_arrive(thread: int) -> None:
    """What was to be raised in this thread may not have arrived yet, and must not arrive later. It is not taken back:
    CPython 3.11 goes on to believe that something is to be raised until something is, and a thread that is traced then
    waits for it for ever."""
    with contextlib.suppress(TimeIsUp):
        _raise_in(thread, TimeIsUp)  # in place of the one that has not arrived
        while True:
            time.sleep(0)


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    """Have a thread raise `kind` at its next instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
