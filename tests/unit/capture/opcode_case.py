"""What a program of the opcode tests is. Programs are text: some use syntax that older versions do not have."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """A module that defines `f`, and the arguments of calls of it.

    `breaks`: codes of the breaks and refusals that the calls lead to; None: there are some. `skipped`: the code
    contains the opcode, but plain Python too jumps over it. `mode` is that of compile(); a case without calls is
    compiled only.
    """

    source: str
    calls: tuple[tuple[Any, ...], ...]
    breaks: tuple[str, ...] | None = ()
    skipped: bool = False
    mode: str = "exec"


def case(
    source: str, *calls: tuple[Any, ...], breaks: tuple[str, ...] | None = (), skipped: bool = False
) -> Case:
    return Case(textwrap.dedent(source), calls, breaks, skipped)


def only_compiled(source: str, mode: str = "exec") -> Case:
    """Code that stands outside of functions."""
    return Case(textwrap.dedent(source), (), mode=mode)


Cases = dict[str, tuple[Case, ...]]
