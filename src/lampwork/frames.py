"""Which Python functions begin in a thread, as the runtime sees it (csrc/frames.cpp).

Classes, not `contextlib.contextmanager`: that ends a block by way of `next`, which a program may have replaced by a
function of its own, and whether the watch ends must not hang on what it watches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lampwork import _C

has_stack = _C.has_stack


class Watched:
    """In this thread, each function that begins and whose code `is_program` raises what `refusal` says.

    Args:
        is_program: of a code object and its globals.
        refusal: of a code object and its first two arguments: an exception; `(value,)`, where the call returns a value
            without running; or None, where it runs unwatched.
    """

    def __init__(
        self,
        is_program: Callable[[Any, dict[str, Any]], bool],
        refusal: Callable[[Any, Any, Any], BaseException | tuple[Any] | None],
    ) -> None:
        self._is_program = is_program
        self._refusal = refusal

    def __enter__(self) -> None:
        _C.watch_frames(self._is_program, self._refusal)

    def __exit__(self, *error: object) -> None:
        _C.unwatch_frames()


class Unwatched:
    """The program's code runs here on the compiler's behalf."""

    def __init__(self) -> None:
        self._before = False

    def __enter__(self) -> None:
        self._before = _C.pause_watch(True)

    def __exit__(self, *error: object) -> None:
        _C.pause_watch(self._before)
