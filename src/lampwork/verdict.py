"""`Yes` or `No(reason)`: the answer of every question whose refusal a user may want explained."""

from __future__ import annotations

from typing import Any, Literal

from lampwork.records import record


class _Accepts(type):
    """The class itself is as true as its objects: `return Yes` means `return Yes()`."""

    def __bool__(cls) -> Literal[True]:
        return True


class _Refuses(type):
    """The class itself is as false as its objects: `return No` refuses, for no reason."""

    def __bool__(cls) -> Literal[False]:
        return False


@record
class Yes(metaclass=_Accepts):
    """Truthy."""

    def __bool__(self) -> Literal[True]:
        return True


@record
class No(metaclass=_Refuses):
    """Falsy. `reason` is one short clause that names what was seen: "mask is float64, expected bool"."""

    reason: str

    def __bool__(self) -> Literal[False]:
        return False

    def __str__(self) -> str:
        return f"no: {self.reason}"


Verdict = Yes | No


def as_verdict(answer: Any, reason: str) -> Verdict | None:
    """What somebody else's code answered as a verdict; None if it is none.

    Bools count, and so do `Yes` and `No` without parentheses; a refusal without a reason gets this one.
    """
    if isinstance(answer, Yes | No):
        return answer
    if answer is True or answer is Yes:
        return Yes()
    if answer is False or answer is No:
        return No(reason)
    return None
