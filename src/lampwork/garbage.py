"""The garbage collector while something is compiled, or read from a file."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

from lampwork.locks import in_child, new_lock


@contextmanager
def without_collections() -> Generator[None]:
    """No automatic collection inside of the block, in any thread. The last of several threads that are inside of one
    restores the setting.

    The compiler makes hundreds of thousands of objects, most of which die without the collector. They set off a full
    collection all the same, which visits every object of the program: 0.2 s after `import transformers`.
    """
    paused = _pause()
    try:
        yield
    finally:
        if paused:
            _go_on()


_lock = new_lock()
_blocks = 0
"""How many blocks are entered that found the collector on, or paused by another one."""


def _pause() -> bool:
    global _blocks
    with _lock:
        if not _blocks and not gc.isenabled():
            return False
        _blocks += 1
        gc.disable()
    return True


def _go_on() -> None:
    global _blocks
    with _lock:
        if _blocks == 1:
            gc.enable()
        _blocks = max(_blocks - 1, 0)


def _resume() -> None:
    """In a forked child nobody is at the end of the blocks of the other threads."""
    global _blocks
    if _blocks:
        gc.enable()
    _blocks = 0


in_child(_resume)
