"""How far the tuner is: a bar where somebody looks at a terminal, else lines of the log's topic "tuning"."""

from __future__ import annotations

import sys

from lampwork import logs
from lampwork.display import is_terminal

_WIDTH = 24


class Progress:
    """Of `total` products. Draws nothing before the first `step`."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._drawn = False

    def step(self, title: str) -> None:
        """The next product is being measured."""
        if is_terminal(sys.stderr) and not logs.enabled("tuning"):
            filled = _WIDTH * self._done // self._total
            bar = "#" * filled + "." * (_WIDTH - filled)
            text = f"lampwork: tuning [{bar}] {self._done + 1}/{self._total} {title}"
            sys.stderr.write(f"\r\x1b[K{text[:110]}")
            sys.stderr.flush()
            self._drawn = True
        self._done += 1

    def finish(self) -> None:
        """Nothing remains on the screen."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False
