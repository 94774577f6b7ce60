"""Whether rewritten bytecode is sound: what it keeps of the original, and what the interpreter takes on trust."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_JUMPS_ALWAYS = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})
_KEPT = ("co_flags", "co_freevars", "co_cellvars", "co_varnames", "co_argcount", "co_kwonlyargcount")
# How a callee is replaced by what is asked for it, and how a bound method is loaded in its place.
if sys.version_info >= (3, 13):
    _ASKING, _LOADING = ("LOAD_CONST", "SWAP", "PUSH_NULL", "SWAP", "CALL"), ("LOAD_ATTR", "PUSH_NULL")
else:
    calls = ("PRECALL", "CALL") if sys.version_info < (3, 12) else ("CALL",)
    _ASKING = ("PUSH_NULL", "SWAP", "LOAD_CONST", "SWAP", *calls)
    _LOADING = ("PUSH_NULL", "SWAP", "LOAD_ATTR")
_WITH_METHODS = ("LOAD_ATTR", "LOAD_SUPER_ATTR") if sys.version_info >= (3, 12) else ()
_KEPT_TOO = ("co_posonlyargcount", "co_name", "co_qualname", "co_filename", "co_firstlineno")


@dataclass(frozen=True)
class Row:
    """An instruction. `arg`: its value; of jumps the target's number. `handler`: number, depth and lasti."""

    name: str
    arg: Any
    oparg: int
    handler: tuple[int, int, bool] | None
    positions: Any


def rows(code: types.CodeType) -> list[Row]:
    """The instructions without caches and extensions."""
    numbers: dict[int, int] = {}
    kept, extensions = [], []
    for instruction in dis.get_instructions(code):
        if instruction.opname == "EXTENDED_ARG":
            extensions.append(instruction.offset)
            continue
        numbers.update(dict.fromkeys([*extensions, instruction.offset], len(kept)))
        extensions.clear()
        kept.append(instruction)
    table = dis._parse_exception_table(code)
    found = []
    for i in kept:
        entry = next((e for e in table if e.start <= i.offset < e.end), None)
        handler = None if entry is None else (numbers[entry.target], entry.depth, entry.lasti)
        jumps = i.opcode in dis.hasjrel or i.opcode in dis.hasjabs
        arg = numbers[i.argval] if jumps else i.argval
        found.append(Row(i.opname, arg, i.arg or 0, handler, i.positions))
    return found


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and all that are made in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def deepest(code: types.CodeType) -> int:
    """How many values lie on the stack at most.

    Raises:
        AssertionError: two ways come together with different depths, or there is more or less than there may be.
    """
    most = flow(code)[1]
    assert most <= code.co_stacksize, f"{code.co_qualname}: {most} values on a stack for {code.co_stacksize}"
    return most


def flow(code: types.CodeType) -> tuple[dict[int, int], int]:
    """How many values lie on the stack before each instruction that can be reached, and at most."""
    found = rows(code)
    depths: dict[int, int] = {0: 0}
    work, most = [0], 0

    def reach(number: int, depth: int) -> None:
        assert depth >= 0, f"{code.co_qualname}: {depth} values before instruction {number}"
        known = depths.get(number)
        if known is None:
            depths[number] = depth
            work.append(number)
        else:
            assert known == depth, (
                f"{code.co_qualname}: {known} or {depth} values before instruction {number}"
            )

    while work:
        number = work.pop()
        row, depth = found[number], depths[number]
        if row.handler is not None:
            target, below, lasti = row.handler
            assert depth >= below, (
                f"{code.co_qualname}: a handler of {number} wants {below} values of {depth}"
            )
            reach(target, below + 1 + lasti)
        opcode = dis.opmap[row.name]
        arg = row.oparg if opcode >= dis.HAVE_ARGUMENT else None
        most = max(most, depth + max(dis.stack_effect(opcode, arg, jump=j) for j in (True, False)), depth)
        jumps = opcode in dis.hasjrel or opcode in dis.hasjabs
        if jumps:
            reach(row.arg, depth + dis.stack_effect(opcode, arg, jump=True))
        if row.name not in _ENDS and row.name not in _JUMPS_ALWAYS:
            # A generator goes on with what is sent to it, which Python 3.13 counts.
            sent = row.name == "RETURN_GENERATOR" and sys.version_info < (3, 13)
            reach(number + 1, depth + dis.stack_effect(opcode, arg, jump=False) + sent)
    return depths, most


def check_same_header(made: types.CodeType, original: types.CodeType) -> None:
    for name in (*_KEPT, *_KEPT_TOO):
        assert getattr(made, name) == getattr(original, name), name


def check_asks(made: types.CodeType, original: types.CodeType, ask: Any) -> None:
    """`made` is `original` with calls of `ask` put in, and LOAD_METHOD spelled out: all that was there is there in
    order, with its place in the source, under its handler, and jumps lead to its start."""
    check_same_header(made, original)
    before, after = rows(original), rows(made)
    inside = _asking(after, ask)
    place, kept, number = [], [], 0
    for row in before:
        place.append(number)
        while number in inside:
            assert after[number].positions == row.positions or row.name == "KW_NAMES"
            number += 1
        if _loads_method(row):
            loading = [name if name != "LOAD_ATTR" else _plain(row.name) for name in _LOADING]
            if row.name == "LOAD_SUPER_ATTR":
                loading = [loading[-1], *loading[:-1]] if loading[-1] == row.name else loading
            assert [r.name for r in after[number : number + len(loading)]] == loading
            kept.append(after[number + loading.index(_plain(row.name))])
            number += len(loading)
            continue
        kept.append(after[number])
        number += 1
    assert number == len(after)
    for row, got, start in zip(before, kept, place, strict=True):
        assert got.positions == row.positions
        wanted = None if row.handler is None else (place[row.handler[0]], *row.handler[1:])
        assert got.handler == wanted, f"{original.co_qualname}: {got} under {wanted}"
        assert after[start].handler == wanted
        if _loads_method(row):
            assert (got.name, got.arg) == (_plain(row.name), row.arg)
            continue
        assert got.name == row.name
        assert got.arg == (place[row.arg] if _jumps(row) else row.arg)
    deepest(made)


def _loads_method(row: Row) -> bool:
    return row.name == "LOAD_METHOD" or (row.name in _WITH_METHODS and row.oparg & 1 == 1)


def _plain(name: str) -> str:
    return "LOAD_ATTR" if name == "LOAD_METHOD" else name


def _jumps(row: Row) -> bool:
    return dis.opmap[row.name] in dis.hasjrel or dis.opmap[row.name] in dis.hasjabs


def _asking(found: list[Row], ask: Any) -> set[int]:
    """The numbers of the instructions that ask."""
    inside: set[int] = set()
    for number, row in enumerate(found):
        if row.name == "LOAD_CONST" and row.arg is ask:
            start = number - _ASKING.index("LOAD_CONST")
            end = start + len(_ASKING)
            assert tuple(r.name for r in found[start:end]) == _ASKING
            inside.update(range(start, end))
            around = [found[start - 1], found[end]]
            if [r.name for r in around] == ["SWAP", "SWAP"] and around[0].oparg == around[1].oparg:
                inside.update((start - 1, end))
    return inside
