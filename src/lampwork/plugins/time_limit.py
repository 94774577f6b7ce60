"""An end to code that does not come to one."""

from __future__ import annotations

import contextlib
import ctypes
import threading
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
            # It may not have arrived yet, and must not arrive later.
            _raise_in(watch.thread, None)


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Have a thread raise `kind` at its next instruction; None takes that back."""
    value = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), value)
