"""The text `passes="-algebra,+mine"`: which passes and rewrites it names, and how."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from lampwork.errors import OptionError
from lampwork.records import record
from lampwork.standard import functools

# A rewrite's name may hold commas and signs itself: "sub(x, -1) -> add(x, 1)".
_BETWEEN = re.compile(r"\s*,\s*(?=[+-][A-Za-z_])")


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

    def on(self, name: str, default: bool = True) -> bool:
        """Whether what is called `name` runs."""
        return self.states.get(name, default)


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> Switches:
    states: dict[str, bool] = {}
    for switch in _BETWEEN.split(text.strip().strip(",").strip()):
        if not switch:
            continue
        sign, name = switch[0], switch[1:].strip()
        if sign not in "+-":
            raise OptionError(f"passes={text!r}: {switch!r} has no sign", fix="write +name or -name")
        states[name] = sign == "+"
    return Switches(MappingProxyType(states))
