"""`Yes` or `No(reason)`: the answer of every question whose refusal a user may want explained."""

from __future__ import annotations

from typing import Literal

from lampwork.records import record


@record
class Yes:
    """Truthy."""

    def __bool__(self) -> Literal[True]:
        return True


@record
class No:
    """Falsy. `reason` is one short clause that names what was seen: "mask is float64, expected bool"."""

    reason: str

    def __bool__(self) -> Literal[False]:
        return False

    def __str__(self) -> str:
        return f"no: {self.reason}"


Verdict = Yes | No
