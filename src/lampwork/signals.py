"""Exceptions of signal handlers, which Python raises wherever it happens to be: a time limit, for one."""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports]
import inspect
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, cast

from lampwork.standard import functools

__all__ = ["handler_codes", "raise_signalled"]


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
    handlers = frozenset(handler_codes())
    within = _raised_within(chain, trace.tb_frame)
    found = next((e for e in reversed(within) if any(f.f_code in handlers for f in _frames(e))), None)
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


def handler_codes() -> Iterator[CodeType]:
    """The code of the Python functions that handle signals."""
    # Not through the functions of `signal`, which make enumerations: the program may have changed how those are made.
    for number in range(1, _signal.NSIG):
        handler: Any = _signal.getsignal(number)
        if not callable(handler) or handler is _signal.default_int_handler:
            continue
        while isinstance(handler, functools.partial):
            handler = cast(Any, handler).func
        function = getattr(handler, "__func__", handler)
        if not hasattr(function, "__code__"):
            function = inspect.getattr_static(type(handler), "__call__", None)
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            yield code


def _raised_within(chain: list[BaseException], caught: FrameType) -> list[BaseException]:
    """The exceptions of a chain that were raised in the frame `caught` or in what it called.

    One that was handled, when the next was raised, by a frame that the next has left is such a one: the first frame of
    its traceback is the one that handled it. Who called a frame does not always tell: a generator forgets it in the
    end.
    """
    left: set[int] = {id(caught)}
    found: list[BaseException] = []
    for error in chain:
        frames = list(_frames(error))
        if frames and (id(frames[0]) in left or _is_within(frames[-1], caught)):
            found.append(error)
            left.update(map(id, frames))
    return found


def _frames(error: BaseException) -> Iterator[FrameType]:
    """The frames that an exception left, the last one first."""
    at = error.__traceback__
    while at is not None:
        yield at.tb_frame
        at = at.tb_next


def _is_within(frame: FrameType | None, outer: FrameType) -> bool:
    while frame is not None and frame is not outer:
        frame = frame.f_back
    return frame is not None
