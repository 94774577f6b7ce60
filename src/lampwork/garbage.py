"""The garbage collector while something is compiled."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Generator[None]:
    """No automatic collection inside of the block.

    The compiler makes hundreds of thousands of objects, most of which die without the collector. They set off a full
    collection all the same, which visits every object of the program: 0.2 s after `import transformers`.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
