"""Processes for tests of the cache, forked, so that they need not import anything."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable, Sequence

NOBODY = 65534


def start(task: Callable[[], object], user: int | None = None) -> int:
    """Run `task` in a child, as another user if it is given; gives the child's id."""
    child = os.fork()
    if child:
        return child
    status = 1
    gc.disable()  # a child need not copy what it does not look at
    try:
        if user is not None and os.getuid() == 0:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        task()
        status = 0
    except BaseException:  # noqa: BLE001  (which ends this process)
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def finish(children: Sequence[int]) -> list[int]:
    """Wait for children; gives their exit statuses, negative for signals."""
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def run(task: Callable[[], object], user: int | None = None) -> None:
    """Run `task` in a child, which has to succeed."""
    assert finish([start(task, user)]) == [0]
