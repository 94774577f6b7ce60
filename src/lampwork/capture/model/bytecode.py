"""The instructions of a code object, read off its bytes.

`dis` says the same and ten things more about each, for people: decoding by it was an eighth of a first call's capture.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

_dis: Any = dis

Raw = tuple[int, int, int | None, Any, int]
"""Offset in bytes, opcode, argument (None where the instruction has none), what the argument stands for, line."""

_PAIRS = frozenset(
    {
        "LOAD_FAST_LOAD_FAST",
        "STORE_FAST_LOAD_FAST",
        "STORE_FAST_STORE_FAST",
        "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
    }
)


def instructions(code: types.CodeType) -> Iterator[Raw]:
    """Each instruction, those of EXTENDED_ARG too, without inline caches. Names, constants and the offsets of jumps are
    looked up; comparisons, flags and counts stay numbers."""
    content, at, extended = code.co_code, 0, 0
    lines = code.co_lines()
    line, end = code.co_firstlineno, 0
    while at < len(content):
        while at >= end:
            _, end, found = next(lines)
            line = line if found is None else found
        opcode = content[at]
        if opcode not in _WITH_ARGUMENT:
            arg = value = None
            extended = 0
        else:
            arg = value = content[at + 1] | extended
            extended = arg << 8 if opcode == dis.EXTENDED_ARG else 0
            meaning = _MEANINGS.get(opcode)
            if meaning is not None:
                value = meaning(code, arg, at)
        yield at, opcode, arg, value, line
        at += 2 + _CACHES[opcode]


Meaning = Callable[[Any, int, int], Any]


def _constant(code: types.CodeType, arg: int, _: int) -> Any:
    return code.co_consts[arg]


def _variable(code: Any, arg: int, _: int) -> Any:
    return code._varname_from_oparg(arg)


def _pair(code: Any, arg: int, _: int) -> Any:
    return code._varname_from_oparg(arg >> 4), code._varname_from_oparg(arg & 15)


def _name(shift: int) -> Meaning:
    return lambda code, arg, _: code.co_names[arg >> shift]


def _forward(caches: int) -> Meaning:
    return lambda _, arg, at: at + 2 + caches + 2 * arg


def _backward(caches: int) -> Meaning:
    return lambda _, arg, at: at + 2 + caches - 2 * arg


def _caches() -> tuple[int, ...]:
    """By opcode: the bytes of the inline caches that follow."""
    entries: Any = _dis._inline_cache_entries
    if isinstance(entries, Mapping):
        by_name = cast("Mapping[str, int]", entries)
        return tuple(2 * by_name.get(name, 0) for name in dis.opname)
    return tuple(2 * count for count in entries)


def _name_shift(name: str) -> int:
    """Whether the lowest bits of the argument are flags."""
    if name == "LOAD_GLOBAL":
        return 1
    if sys.version_info >= (3, 12):
        return {"LOAD_ATTR": 1, "LOAD_SUPER_ATTR": 2}.get(name, 0)
    return 0


def _meanings() -> dict[int, Meaning]:
    found: dict[int, Meaning] = {}
    for opcode, name in enumerate(dis.opname[:256]):  # without pseudo-instructions
        if name == "LOAD_SMALL_INT":
            continue  # the number itself, which Python 3.14 lists with the constants
        if opcode in dis.hasconst:
            found[opcode] = _constant
        elif opcode in dis.hasname:
            found[opcode] = _name(_name_shift(name))
        elif opcode in dis.hasjrel:
            found[opcode] = (_backward if "JUMP_BACKWARD" in name else _forward)(_CACHES[opcode])
        elif name in _PAIRS:
            found[opcode] = _pair
        elif opcode in dis.haslocal or opcode in dis.hasfree:
            found[opcode] = _variable
    return found


_CACHES = _caches()
_WITH_ARGUMENT = frozenset(getattr(dis, "hasarg", range(dis.HAVE_ARGUMENT, 256)))
_MEANINGS = _meanings()
