"""What long work is at: one line on stderr that rewrites itself, on a terminal; lines of the log's topic `progress`
elsewhere, if that is on; otherwise nothing."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType

from lampwork import logs
from lampwork.display import cut, is_terminal

_EVERY = 0.1  # seconds between two changes of the line


class Progress:
    """`with Progress("approximate") as progress: progress.at("gelu-to-relu: 3 of 12")`. The line goes at the end."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._start = time.monotonic()
        self._last = 0.0
        self._width = 0

    def at(self, text: str) -> None:
        """Say what is being done now."""
        if logs.enabled("progress"):
            logs.emit("progress", f"{self.title}: {text}")
        elif is_terminal(sys.stderr):
            now = time.monotonic()
            if self._width and now - self._last < _EVERY:
                return
            self._last = now
            self._write(f"{self.title}, {now - self._start:.0f} s: {text}")

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._width:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)

    def _write(self, text: str) -> None:
        line = cut(text, shutil.get_terminal_size().columns - 1)
        print(f"\r{line.ljust(self._width)}", end="", file=sys.stderr, flush=True)
        self._width = len(line)
