"""The text `passes="-algebra,+mine"`: which passes and rewrites it names, and how."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from lampwork.errors import OptionError
from lampwork.records import record
from lampwork.standard import functools

# A rewrite's name may hold commas and signs itself, in brackets: "sub(x, -1) -> add(x, 1)".
_BETWEEN = re.compile(r",(?=\s*[+-]\S)")
_BRACKETS = {**dict.fromkeys("([{", 1), **dict.fromkeys(")]}", -1)}


@record
class Switches:
    """`states`: what is switched, by name; of two for one name the later counts."""

    states: Mapping[str, bool]

    @staticmethod
    def of(text: str) -> Switches:
        """The switches in a text.

        Raises:
            OptionError: one has no sign.
        """
        return _parsed(text)

    @staticmethod
    def can_name(name: str) -> bool:
        """Whether a text can switch what is called `name`, alone and among others."""
        switch = f"-{name}"
        return all(
            Switches.of(text).states == {name: False} for text in (switch, f"{switch},{switch}, {switch}")
        )

    def on(self, name: str, default: bool = True) -> bool:
        """Whether what is called `name` runs."""
        return self.states.get(name, default)


def _parts(text: str) -> Iterator[str]:
    begin, depth = 0, 0
    for place, letter in enumerate(text):
        depth = max(depth + _BRACKETS.get(letter, 0), 0)
        if not depth and _BETWEEN.match(text, place):
            yield text[begin:place].strip()
            begin = place + 1
    yield text[begin:].strip()


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> Switches:
    states: dict[str, bool] = {}
    for switch in _parts(text.strip().strip(",")):
        if not switch:
            continue
        sign, name = switch[0], switch[1:].strip()
        if sign not in "+-":
            raise OptionError(f"passes={text!r}: {switch!r} has no sign", fix="write +name or -name")
        states[name] = sign == "+"
    return Switches(MappingProxyType(states))
