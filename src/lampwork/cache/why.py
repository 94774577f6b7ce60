"""Why a key was missed: in which part it differs from the nearest entry of its kind, and how."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from lampwork.cache.index import Row
from lampwork.cache.key import Key, read_key
from lampwork.display.shown import cut
from lampwork.records import record

_WORDS = re.compile(r"[^\s,;|]+")
_MOST = 60
"""How many characters of a value are shown."""


@record
class Difference:
    """A part of two keys; None: a key has no such part."""

    name: str
    missed: str | None
    there: str | None

    def __str__(self) -> str:
        if self.there is None:
            return f"{self.name}: only the missed key has it: {cut(self.missed or '', _MOST)!r}"
        if self.missed is None:
            return f"{self.name}: only the entry has it: {cut(self.there, _MOST)!r}"
        here, there = _apart(self.missed, self.there)
        return f"{self.name}: {here!r} was missed, {there!r} is there"


@record
class Nearest:
    """The entry that has most parts of a missed key: what differs, and the names of the parts that do not."""

    row: Row
    differences: tuple[Difference, ...]
    same: tuple[str, ...]


def nearest(key: Key, rows: Sequence[Row]) -> Nearest | None:
    """Of entries of the kind of `key`, those used last first; None if there is none but its own."""
    found: Nearest | None = None
    for row in rows:
        other = read_key(row.text)
        if other is None or other == key or other.kind != key.kind:
            continue
        names = sorted({*key.parts, *other.parts})
        same = tuple(name for name in names if key.parts.get(name) == other.parts.get(name))
        if found is None or len(same) > len(found.same):
            apart = (Difference(n, key.parts.get(n), other.parts.get(n)) for n in names if n not in same)
            found = Nearest(row, tuple(apart), same)
    return found


def _apart(one: str, other: str) -> tuple[str, str]:
    """What to show of two values: the words that only one of them has, or the places where they begin to differ."""
    words = Counter(_WORDS.findall(one)), Counter(_WORDS.findall(other))
    only = words[0] - words[1], words[1] - words[0]
    if (words[0] & words[1]).total() and only[0] and only[1]:
        return cut(" ".join(only[0].elements()), _MOST), cut(" ".join(only[1].elements()), _MOST)
    start = next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(map(len, (one, other)))
    )
    if max(len(one), len(other)) <= _MOST or start < _MOST // 2:
        return cut(one, _MOST), cut(other, _MOST)
    return f"…{cut(one[start - 10 :], _MOST)}", f"…{cut(other[start - 10 :], _MOST)}"
