"""The code of thousands of functions, rewritten as for functions that are refused and as the rest behind a break."""

from __future__ import annotations

import os
import random
import sys
import sysconfig
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from bytecode import Bytecode
from bytecode_check import check_asks, codes, deepest, flow, rows

from lampwork.capture.breaks.assemble import Point, resume_code
from lampwork.capture.breaks.compiled_callees import asking_code
from lampwork.capture.model.flow import live_at
from lampwork.capture.model.frame import decode
from lampwork.capture.opcodes import running_table

MORE = 10 if "LAMPWORK_FUZZ" in os.environ else 1
LIBRARY, TORCH = Path(sysconfig.get_path("stdlib")), Path(torch.__file__).parent
# Much try, with and async, and long functions with extended arguments.
OFTEN = (
    "contextlib.py",
    "asyncio/tasks.py",
    "asyncio/base_events.py",
    "tarfile.py",
    "typing.py",
    "dataclasses.py",
)


def sources(seed: int, count: int) -> list[Path]:
    found = [path for path in LIBRARY.rglob("*.py") if not {"site-packages", "lib2to3"} & set(path.parts)]
    for part in ("nn", "optim", "utils", "distributed", "_dynamo"):
        found += (TORCH / part).rglob("*.py")
    return [
        *(LIBRARY / name for name in OFTEN[: count // 10]),
        *random.Random(seed).sample(sorted(found), count),
    ]


def all_codes(seed: int, count: int) -> list[types.CodeType]:
    made: list[types.CodeType] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in sources(seed, count):
            try:
                made += codes(compile(path.read_text(), str(path), "exec"))
            except (SyntaxError, UnicodeDecodeError, ValueError):
                continue  # a test of the library on what cannot be compiled
    return made


def same(callee: Any) -> Any:
    return callee


def test_functions_that_ask_before_they_call():
    found = all_codes(0, 20 * MORE)
    assert len(found) > 400  # comprehensions have no code of their own from 3.12 on
    for code in found:
        deepest(code)
        check_asks(asking_code(code, same), code, same)


def test_the_package_keeps_what_it_reads():
    for code in all_codes(1, 20 * MORE):
        read = Bytecode.from_code(code, conserve_exception_block_stackdepth=True)
        made = read.to_code(stacksize=code.co_stacksize, compute_exception_stack_depths=False)
        assert [(r.name, r.handler, r.positions) for r in rows(made)] == [
            (r.name, r.handler, r.positions) for r in rows(code)
        ]


@pytest.mark.parametrize("seed", range(2))
def test_the_rest_of_functions(seed):
    rng = random.Random(seed)
    table = running_table()
    count = 0
    for code in all_codes(2 + seed, 3 * MORE):
        if code.co_flags & 0x2A0:  # generators and coroutines have no rest
            continue
        decoded = decode(code, table)
        starts = statement_starts(code)
        for index in rng.sample(starts, min(3, len(starts))):
            live = live_at(decoded, index)
            cells = tuple(sorted(name for name in live.cells if name not in code.co_freevars))
            made = resume_code(decoded, Point(index, tuple(sorted(live.locals - {*cells})), cells, ()))
            made_rows = rows(made)
            assert deepest(made) <= made.co_stacksize
            assert {r.positions for r in made_rows if r.positions.col_offset is not None} <= {
                r.positions for r in rows(code)
            }
            count += 1
    assert count > 30


def statement_starts(code: types.CodeType) -> list[int]:
    """Numbers of decoded instructions that begin a line and before which the stack is empty."""
    depths = flow(code)[0]
    found, line, number = [], None, 0
    for i, row in enumerate(rows(code)):
        if row.positions.lineno != line and row.name.startswith("LOAD_") and depths.get(i) == 0:
            found.append(number)
        line = row.positions.lineno
        number += row.name not in ("PRECALL", "KW_NAMES")
    return found


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="super() is one instruction with its operands")
def test_what_super_looks_at_lives_until_it_is_called():
    class Inner(dict[str, int]):
        def get(self, key: str, default: Any = None) -> Any:
            return super().get(key) or default

    decoded = decode(Inner.get.__code__, running_table())
    loaded = next(i for i, step in enumerate(decoded.instructions) if step.arg == ("super", True))
    called = next(i for i in range(loaded, loaded + 3) if decoded.instructions[i].name == "CALL")
    for index in range(loaded, called + 1):
        live = live_at(decoded, index)
        assert "self" in live.locals and "__class__" in live.cells
    assert "__class__" not in live_at(decoded, called + 1).cells
