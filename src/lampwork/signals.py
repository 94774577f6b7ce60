"""Exceptions of signal handlers, which Python raises wherever it happens to be: a time limit, for one."""

from __future__ import annotations

import functools
import inspect
import signal
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, cast

__all__ = ["raise_signalled"]


def raise_signalled(error: BaseException) -> None:
    """Raise the exception that a handler set by `signal.signal` raised in the frame that has caught `error`, or in what
    it called, if `error` is such a one or was made of one.

    It is no failure of what it interrupted, so whoever takes an exception for a failure asks this first. One that a
    handler raised earlier, and that the program was about to handle, is the program's.
    """
    chain = list(_chain(error))
    trace = next((e.__traceback__ for e in chain if e.__traceback__ is not None), None)
    if trace is None:
        return
    handlers = frozenset(_handler_codes())
    found = next((e for e in reversed(chain) if _came_of(e, handlers, trace.tb_frame)), None)
    if found is None:
        return
    context = found.__context__
    try:
        raise found
    finally:
        found.__context__ = context


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, and those that it was raised from, the last one first."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _handler_codes() -> Iterator[CodeType]:
    """The code of the Python functions that handle signals."""
    for number in signal.valid_signals():
        handler = cast(Any, signal.getsignal(number))
        if not callable(handler) or handler in (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler):
            continue
        while isinstance(handler, functools.partial):
            handler = cast(Any, handler).func
        function = getattr(handler, "__func__", handler)
        if not hasattr(function, "__code__"):
            function = inspect.getattr_static(type(handler), "__call__", None)
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            yield code


def _came_of(error: BaseException, codes: frozenset[CodeType], caught: FrameType) -> bool:
    """Whether one of the frames that the exception left runs one of these codes, called within the frame `caught`."""
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code in codes and _is_within(at.tb_frame, caught):
            return True
        at = at.tb_next
    return False


def _is_within(frame: FrameType | None, outer: FrameType) -> bool:
    while frame is not None and frame is not outer:
        frame = frame.f_back
    return frame is not None
