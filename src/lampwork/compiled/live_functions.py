"""The compiled functions that are alive, so that all of them follow when rewrites and passes are switched."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from lampwork.locks import new_lock
from lampwork.plugins.registry import registry


class Following(Protocol):
    """An object whose versions were compiled with one set of plug-ins."""

    def follow(self) -> None:
        """Serve the versions made under the plug-ins that are on now."""
        ...

    def reset(self) -> None:
        """Forget what was compiled."""
        ...

    def forked(self) -> None:
        """Make good, in a forked child, what other threads of the parent were in the middle of."""
        ...


Notice = Callable[[Following], object]


@dataclass(slots=True)
class LiveFunctions:
    """All objects that follow and are alive, held weakly. `noticing`: who is told of each that comes."""

    found: weakref.WeakSet[Following] = field(default_factory=weakref.WeakSet[Following])
    noticing: list[Notice] = field(default_factory=list[Notice])
    lock: threading.RLock = field(default_factory=new_lock)

    def watch(self, one: Following) -> None:
        """Have `one` follow from now on."""
        with self.lock:
            self.found.add(one)
            for notice in self.noticing:
                notice(one)

    def all(self) -> list[Following]:
        with self.lock:
            return list(self.found)

    def follow(self) -> None:
        for one in self.all():
            one.follow()


# Plug-ins are switched for the whole process, so this is of the whole process too.
_live = LiveFunctions()
registry().listeners.append(_live.follow)


def watch(one: Following) -> None:
    """Call `one.follow()` after each change of what is registered, or switched on, as long as it lives."""
    _live.watch(one)


def alive() -> list[Following]:
    """All that follow."""
    return _live.all()


@contextmanager
def noticing(notice: Notice) -> Generator[None]:
    """Call `notice` with all that follow from now on, before they are used, as long as the context lasts."""
    with _live.lock:
        _live.noticing.append(notice)
    try:
        yield
    finally:
        with _live.lock:
            _live.noticing.remove(notice)


@contextmanager
def kept() -> Generator[list[Following]]:
    """All that follow from now on, kept alive: the list grows while the context lasts."""
    made: list[Following] = []
    with noticing(made.append):
        yield made
