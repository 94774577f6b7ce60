"""What an entry of the cache is about."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import field
from typing import Any, cast

from lampwork.records import record


@record(eq=False)
class Key:
    """A kind and named parts. Two keys are the same key if all of these are equal.

    `parts` is everything that the content depends on: what is left out must not change it. `text` is the key written
    down, in one line of ASCII, `digest` the 64 hexadecimal digits that stand for it.
    """

    kind: str
    parts: Mapping[str, str]
    text: str = field(init=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        # JSON would write other things down too, and some of them like texts: 1 and "1" as names.
        for given in (self.kind, *self.parts, *self.parts.values()):
            if type(given) is not str:
                raise TypeError(f"keys of the cache are made of texts, got {given!r}")
        parts = dict(sorted(self.parts.items()))
        text = json.dumps([self.kind, parts], separators=(",", ":"))
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "digest", hashlib.sha256(text.encode()).hexdigest())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return f"{self.kind} {self.digest[:12]}"


def read_key(text: str) -> Key | None:
    """The key that was written down as `text`; None if it is none."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not (isinstance(found, list) and len(cast("list[Any]", found)) == 2):
        return None
    kind, parts = cast("list[Any]", found)
    if not isinstance(kind, str) or not isinstance(parts, dict):
        return None
    values = cast("dict[str, Any]", parts)
    if not all(isinstance(value, str) for value in values.values()):
        return None
    key = Key(kind, values)
    # One key has one text, else two names would stand for one entry.
    return key if key.text == text else None
