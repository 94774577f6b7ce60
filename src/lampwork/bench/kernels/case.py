"""One shape of one operator, and those who compute it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lampwork
from lampwork.records import record

Call = Callable[[], Any]


@record
class Case:
    """flops: operations of a call, of int8 where `int8`; where it is 0, `reads` and `writes`, bytes of a call, are what
    counts.

    make: who computes it, by name: "lampwork" and the peers, each with its own function on the same numbers.
    """

    family: str
    name: str
    make: Callable[[], dict[str, Call]]
    flops: int = 0
    reads: int = 0
    writes: int = 0
    int8: bool = False


def ours(fn: Callable[..., Any], *inputs: Any) -> Call:
    """What a user of `lampwork.compile` calls."""
    compiled = lampwork.compile(fn, options={"strict": True})
    return lambda: compiled(*inputs)
