"""Output into pipes, whose readers may go away before all is written: `lampwork inspect model.lamp | head`."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from typing import TextIO

UNREAD = 128 + signal.SIGPIPE
"""The exit status that a shell gives for a program that SIGPIPE ended."""


def run_for_reader(run: Callable[[], int]) -> int:
    """Run a command to its exit status, its output written out. If nobody reads that any more, the command ends quietly
    with `UNREAD`, as SIGPIPE would end it. The signal itself stays ignored: it would also end a program whose socket
    the other side has closed."""
    try:
        try:
            status = run()
        except SystemExit:  # argparse's, after its help
            _flush()
            raise
        _flush()
        return status
    except BrokenPipeError:
        unread = [stream for stream in (sys.stdout, sys.stderr) if _is_unread(stream)]
        if not unread:
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in unread:
            # What is still buffered is written when Python ends, and must not fail there again.
            os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        return UNREAD


def _flush() -> None:
    if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]  (None if it was closed from the start)
        sys.stdout.flush()


def _is_unread(stream: TextIO | None) -> bool:
    """Whether a stream is a pipe or socket without a reader."""
    if stream is None:
        return False
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # it is no file
        return False
    poll = select.poll()
    poll.register(number, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
