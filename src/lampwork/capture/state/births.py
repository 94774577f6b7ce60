"""Tells the objects that a capture made from those that were there before it.

An object that reached the interpreter without a source is either the region's own, or one from outside that some
native code handed over unseen: then nothing guards what is read of it. The garbage collector knows which: what was
there when the capture began lies in its permanent generation (`gc.freeze`, which takes no time), what came since does
not. Where the program keeps that generation for itself, as servers do that freeze what they loaded before they fork,
what was there is listed instead, which takes milliseconds, and kept alive, so that nothing new takes its place.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass, field
from typing import Any

from lampwork.locks import in_child, new_lock


@dataclass(slots=True)
class _Telling:
    """The one capture that tells, of all threads: a second `gc.freeze` would count what the first has made since as
    old. `froze`: whether the permanent generation is its, set before there is one and until there is none."""

    lock: Any = field(default_factory=new_lock)
    froze: bool = False

    def begin(self) -> bool:
        """Whether this capture tells: not one within another, nor one that another thread's keeps waiting."""
        return not self.lock._is_owned() and self.lock.acquire(timeout=_PATIENCE)

    def freeze(self) -> None:
        self.froze = True
        gc.freeze()

    def end(self) -> None:
        self.thaw()
        self.lock.release()

    def thaw(self) -> None:
        if self.froze:
            gc.unfreeze()
        self.froze = False

    def forked(self) -> None:
        """In a forked child: a capture of another thread will never end."""
        if not self.lock._is_owned():
            self.thaw()


_PATIENCE = 10.0  # seconds
# The full collections of CPython 3.12 freeze immortal objects, a few hundred; those may thaw, and freeze again with the
# next. A program that freezes its objects has hundreds of thousands.
_FROZEN_BY_ITSELF = 1000 if sys.version_info[:2] == (3, 12) else 0
_telling = _Telling()
in_child(_telling.forked)


def anything_frozen() -> bool:
    """Whether objects are frozen (`gc.freeze`) that the interpreter did not freeze by itself."""
    return gc.get_freeze_count() > _FROZEN_BY_ITSELF


class Births:
    """A context manager around one capture. Within another capture of its thread nothing can be told, and every object
    counts as born inside."""

    def __init__(self) -> None:
        self._tells = False
        self._before: set[int] | None = None  # the ids of what was there, where nothing could be frozen
        self._held: list[Any] = []  # what has these ids, so that nothing new takes its place
        self._inside: set[int] = set()
        self._outside: set[int] = set()  # the ids of some of the others
        self._asked: list[Any] = []  # keeps the objects alive, so that their ids stay theirs

    def __enter__(self) -> Births:
        self._tells = _telling.begin()
        if self._tells and not anything_frozen():
            _telling.freeze()
        elif self._tells:
            self._held = gc.get_objects()
            self._before = set(map(id, self._held))
        return self

    def __exit__(self, *error: object) -> None:
        if self._tells:
            _telling.end()
        self._before = None
        self._held = []
        self._inside.clear()
        self._outside.clear()
        self._asked.clear()

    def add(self, obj: Any) -> None:
        """Note an object that the interpreter made."""
        self._inside.add(id(obj))
        self._asked.append(obj)

    def is_inside(self, obj: Any) -> bool:
        """Whether the object came into being since the capture began. Objects without state always count as such."""
        if not self._tells or id(obj) in self._inside or not gc.is_tracked(obj):
            return True
        if self._before is not None and id(obj) in self._before:
            return False
        # The young ones first: it was mostly made a moment ago.
        if id(obj) in map(id, reversed(gc.get_objects(0))) or id(obj) in map(id, gc.get_objects()):
            self.add(obj)
            return True
        return False

    def made(self, obj: Any) -> bool:
        """As `is_inside`, for an object that counts as one from outside where nothing can be told: a function, class or
        module, most of which are."""
        if id(obj) in self._inside:
            return True
        if not self._tells or id(obj) in self._outside or not gc.is_tracked(obj):
            return False
        inside = self.is_inside(obj)
        if not inside:
            self._outside.add(id(obj))
            self._asked.append(obj)
        return inside
