"""Warnings that come up while a call is captured: the region ends before what gives them, so that eager gives them, on
each call, at its line, under the filters of that call.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, cast

from lampwork import pristine
from lampwork.capture.model.errors import Break
from lampwork.locks import new_lock


@dataclass(slots=True)
class _Capturing:
    """The threads that capture, with how often each is nested, and what showed warnings before."""

    threads: dict[int, int] = field(default_factory=dict[int, int])
    lock: threading.RLock = field(default_factory=new_lock)
    show: Callable[[Any], None] | None = None
    filters: list[Any] = field(default_factory=list[Any])
    always: bool = False
    heard: dict[int, list[Break]] = field(default_factory=dict[int, list[Break]])


_capturing = _Capturing()


class _InCapture(type):
    """A class that has all warnings for subclasses in a thread that captures, and none elsewhere."""

    def __subclasscheck__(cls, other: type) -> bool:
        return threading.get_ident() in _capturing.threads


class _Heard(metaclass=_InCapture):
    pass


# What the text of a warning of C++ ends in.
_FROM_NATIVE = "(Triggered internally at "
# A filter: whatever the user's say, each warning is shown, to `_show`.
_FILTER = ("always", None, _Heard, None, 0)


def _show(message: Any) -> None:
    """
    Raises:
        Break: LW120, where this thread captures; through torch's Python code, to the interpreter.
    """
    mine, text = threading.get_ident(), str(message.message)
    if mine not in _capturing.threads:
        cast(Any, _capturing.show)(message)
        return
    stop = Break("LW120", f"{message.category.__name__}: {text}")
    if _FROM_NATIVE not in text:
        raise stop
    # C++ may warn while an exception is on its way, and cannot hold another.
    _capturing.heard[mine].append(stop)


def heard() -> list[Break]:
    """What this thread is to raise at the end of the instruction; the list is the same throughout a capture."""
    return _capturing.heard.setdefault(threading.get_ident(), [])


@contextlib.contextmanager
def breaks_at_warnings() -> Generator[None]:
    """In this thread, what warns raises Break. Warnings that torch gives once a process are not used up."""
    mine, machinery = threading.get_ident(), cast(Any, warnings)
    with _capturing.lock:
        if not _capturing.threads:
            _capturing.show, machinery._showwarnmsg = machinery._showwarnmsg, _show
            _capturing.filters = machinery.filters
            _capturing.filters.insert(0, _FILTER)
            _capturing.always = pristine.is_warn_always_enabled()
            pristine.set_warn_always(True)
        _capturing.threads[mine] = _capturing.threads.get(mine, 0) + 1
        heard().clear()
    try:
        yield
    finally:
        with _capturing.lock:
            _capturing.threads[mine] -= 1
            if not _capturing.threads[mine]:
                del _capturing.threads[mine], _capturing.heard[mine]
            if not _capturing.threads:
                pristine.set_warn_always(_capturing.always)
                _capturing.filters.remove(_FILTER)
                machinery._showwarnmsg = _capturing.show
