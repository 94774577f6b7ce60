"""The locks of the package, which a forked child can use whatever the other threads of its parent were doing.

A thread that holds a lock while another one forks does not exist in the child, so nobody would ever release it there.
All locks are therefore made here, and the child gives back those that its only thread does not hold itself. What they
protect must be whole at any time; where it is not, `repair` in the child.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class _All:
    """What the hooks of fork() see to. `across`: locks of others that are taken before a fork, so that no thread is
    in the middle of what they protect."""

    locks: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet[Any])
    across: list[Any] = field(default_factory=list[Any])
    repairs: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])


class _Held(threading.local):
    """What a thread that forks has taken, and gives back itself: others may be about to fork too."""

    def __init__(self) -> None:
        self.locks: list[Any] = []


_all = _All()
_held = _Held()


def new_lock() -> threading.RLock:
    """A reentrant lock."""
    made = threading.RLock()
    _all.locks.add(made)
    return made


def hold_across_forks(lock: Any) -> None:
    """Have forks wait for `lock`, which must never be held for long, nor by one who waits for a forking thread."""
    if lock not in _all.across:
        _all.across.append(lock)


importing = new_lock()
"""Held while modules of the package are imported late, in the middle of some call: a fork waits for it, since in the
child nobody would finish the import."""
hold_across_forks(importing)


def in_child(repair: Callable[[], None]) -> None:
    """Call `repair` in each forked child, when the locks can be taken."""
    _all.repairs.append(repair)


def _before() -> None:
    for lock in list(_all.across):
        lock.acquire()
        _held.locks.append(lock)


def _release() -> None:
    while _held.locks:
        _held.locks.pop().release()


def _in_child() -> None:
    _release()
    for lock in list(_all.locks):
        # The forking thread goes on in the child as the owner of what it holds.
        if not lock._is_owned():
            lock._at_fork_reinit()
    for repair in _all.repairs:
        repair()


os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)
