"""Each opcode of each version is handled, folded away, or refused with a reason; what decoding gives handlers.

What the handlers do is in test_opcodes_programs.py.
"""

from __future__ import annotations

import argparse
import asyncio.base_events
import dataclasses
import dis
import sys
import tarfile
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from capture_reference import check
from opcode_check import VERSION, opcodes_of_running
from opcode_programs import CASES

from lampwork.capture.model.bytecode import instructions
from lampwork.capture.model.frame import decode
from lampwork.capture.opcodes import VERSIONS, common, running_table

MODULES = list(VERSIONS.values())


def test_every_opcode_of_the_running_version_is_accounted_for():
    module = VERSIONS[VERSION]
    assert set(opcodes_of_running()) == {*module.OPCODES, *module.FOLDED}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_opcode_has_a_program(version):
    module = VERSIONS[version]
    never = {name for name, reason in module.REFUSED.items() if reason == common.NEVER}
    assert set(CASES[version]) == {*module.OPCODES, *module.FOLDED} - never


@pytest.mark.parametrize("module", MODULES)
def test_refused_opcodes_have_reasons_and_are_not_handled_too(module):
    for name, reason in module.REFUSED.items():
        assert reason
        assert module.OPCODES[name].__qualname__.startswith("_refuse.")
    assert not set(module.FOLDED) & set(module.OPCODES)


@pytest.mark.parametrize("module", MODULES)
def test_handlers_are_named_as_their_opcodes(module):
    aliases = {"JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
    for name, handler in module.OPCODES.items():
        if name in module.REFUSED or name in aliases or name.startswith("POP_JUMP_"):
            continue
        assert handler.__name__ == name


def test_exception_ranges_end_before_their_end():
    def f(a):
        try:
            a = a[0]
        except IndexError:
            a = 1
        return a[1]

    decoded = decode(f.__code__, running_table())
    ranges = dis._parse_exception_table(f.__code__)
    for instruction, handler in zip(decoded.instructions, decoded.excepts, strict=True):
        found = [r for r in ranges if r.start <= instruction.offset < r.end]
        assert len(found) <= 1
        assert (handler is None) == (not found)
        if found:
            assert decoded.instructions[handler.target].offset == found[0].target
            assert (handler.depth, handler.lasti) == (found[0].depth, found[0].lasti)


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


# Whose arguments dis shows as something else than what the instruction stands for.
SHOWN = {"COMPARE_OP", "FORMAT_VALUE", "CONVERT_VALUE", "IS_OP", "CONTAINS_OP", "LOAD_SMALL_INT"}


@pytest.mark.parametrize("module", [argparse, asyncio.base_events, dataclasses, tarfile, torch.nn.functional])
def test_instructions_are_those_of_dis(module):
    source = compile(Path(module.__file__).read_text(), module.__file__, "exec")
    long = compile("\n".join(f"x{i} = {i}.5" for i in range(70000)), "long", "exec")
    for code in (*codes(source), long):
        line = code.co_firstlineno
        expected = []
        for each in dis.get_instructions(code):
            line = line if each.positions.lineno is None else each.positions.lineno
            value = each.arg if each.opname in SHOWN else each.argval
            if each.opname == "KW_NAMES":
                value = code.co_consts[each.arg]
            expected.append((each.offset, each.opcode, each.arg, value, line))
        assert list(instructions(code)) == expected, code


def test_calls_are_folded():
    def f(x):
        return g(x, y=1)  # noqa: F821

    decoded = decode(f.__code__, running_table())
    names = [i.name for i in decoded.instructions]
    if sys.version_info >= (3, 13):  # the names lie on the stack, there is nothing to fold
        assert names == [
            "RESUME",
            "LOAD_GLOBAL",
            "LOAD_FAST",
            "LOAD_CONST",
            "LOAD_CONST",
            "CALL_KW",
            "RETURN_VALUE",
        ]
        return
    assert names == ["RESUME", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_CONST", "CALL", "RETURN_VALUE"]
    assert decoded.instructions[4].arg == (2, ("y",))


def test_long_jumps():
    body = "\n".join(f"    x = x + {i % 3}" for i in range(400))
    namespace: dict = {}
    exec(f"def f(x, n):\n  while n:\n{body}\n    n -= 1\n  return x", namespace)
    decoded = decode(namespace["f"].__code__, running_table())
    targets = [i.arg for i in decoded.instructions if "JUMP" in i.name]
    assert all(0 <= t < len(decoded.instructions) for t in targets)
    check(namespace["f"], (1.0, 2))


@pytest.mark.parametrize("value", [1, 2.5, "text", None, [1, 2], {"a": 1}])
def test_functions_without_tensors(value):
    reference = check(lambda v: (v, [v, v], {"k": v}), (value,))
    assert all(region.graph is None for region in reference.regions)
