"""Each opcode of the running Python is handled, folded away, or refused with a reason."""

from __future__ import annotations

import dis
import shutil
import subprocess
import sys

import pytest
from capture_reference import check

from lampwork.capture.frame import decode
from lampwork.capture.opcodes import py311, py312, running_table


def test_every_opcode_is_accounted_for():
    module = py311 if sys.version_info[:2] == (3, 11) else py312
    table = running_table()
    known = set(table) | module.FOLDED
    names = {
        name for name, number in dis.opmap.items() if number < 256 and not name.startswith("INSTRUMENTED_")
    }
    assert names - known == set()


def test_every_opcode_of_3_12_is_accounted_for():
    python = shutil.which("python3.12")
    if python is None:
        pytest.skip("no python3.12 here")
    code = "import dis; print(*[n for n, v in dis.opmap.items() if v < 237])"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if found.returncode:
        pytest.skip("python3.12 is found but does not run")
    names = found.stdout.split()
    assert set(names) - set(py312.TABLE) - py312.FOLDED == set()


def test_refused_opcodes_have_reasons_and_are_not_handled_too():
    for module in (py311, py312):
        for name, reason in module.REFUSED.items():
            assert reason
            assert module.TABLE[name].__qualname__.startswith("refuse.")


def test_handlers_are_named_as_their_opcodes():
    aliases = {"JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
    for module in (py311, py312):
        for name, handler in module.TABLE.items():
            if name in module.REFUSED or name in aliases or name.startswith("POP_JUMP_"):
                continue
            assert handler.__name__ == name


def test_calls_are_folded():
    def f(x):
        return g(x, y=1)  # noqa: F821

    decoded = decode(f.__code__, running_table())
    names = [i.name for i in decoded.instructions]
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
