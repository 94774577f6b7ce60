"""The garbage collector while something is compiled, or read from a file."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Generator[None]:
    """No automatic collection inside of the block.

    The compiler makes hundreds of thousands of objects, most of which die without the collector. They set off a full
    collection all the same, which visits every object of the program: 0.2 s after `import transformers`.
    """
    global _paused
    if not gc.isenabled():
        yield
        return
    gc.disable()
    _paused = True
    try:
        yield
    finally:
        _paused = False
        gc.enable()


_paused = False


def _resume() -> None:
    """In a child that another thread forked meanwhile, nobody is at the end of the block."""
    if _paused:
        gc.enable()


os.register_at_fork(after_in_child=_resume)
