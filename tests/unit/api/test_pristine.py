"""The compiler calls torch's functions through `lampwork.pristine` only, and those of the standard library's modules
through `lampwork.standard`: programs patch them."""

from __future__ import annotations

import ast
import contextlib
import math
import operator
import subprocess
import sys
import types
from pathlib import Path
from unittest import mock

import pytest
import sympy  # noqa: F401  (which keeps what it finds when it is imported, for all tests after these)
import torch

import lampwork
from lampwork import standard

SOURCES = Path(lampwork.__file__).parent
PROGRAMS = ("bench", "testing", "architectures")  # folders of what is compiled, and measured
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
CONTEXTS = (torch.no_grad, torch.enable_grad, torch.inference_mode, torch.set_grad_enabled, torch.autocast)


def _called(path: Path) -> list[str]:
    """Functions and contexts of torch that a file calls by their places in torch."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, name = node.func.value, node.func.attr
            if isinstance(owner, ast.Name) and owner.id == "torch":
                value = getattr(torch, name)
                if isinstance(value, FUNCTIONS) or value in CONTEXTS:
                    found.append(f"{path.name}:{node.lineno}: torch.{name}")
    return found


def _imported(path: Path) -> set[str]:
    """Modules that a file imports as such."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}


PATHS = [path for path in SOURCES.rglob("*.py") if not set(PROGRAMS) & set(path.parts)]
COPIED = {name for name, value in vars(standard).items() if isinstance(value, types.ModuleType)}


def test_nobody_else_calls_torch() -> None:
    assert [call for path in PATHS for call in _called(path)] == []


def test_nobody_else_imports_what_is_copied() -> None:
    assert len(COPIED) >= 7
    assert {
        path.name: names
        for path in PATHS
        if path.name != "standard.py" and (names := _imported(path) & COPIED)
    } == {}


def _other(function: types.BuiltinFunctionType) -> object:
    return lambda *args: 2 * function(*args)


def test_patched_modules_compute_for_the_program_only() -> None:
    """What the compiler makes of gelu holds the square root of 2, and is as exact as before."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.gelu(x) + torch.special.erfcx(x).tanh()
        return (y.view(2, -1) * math.sqrt(4.0)).softmax(1) + torch.arange(x.shape[0] // 2)

    x, compiled = torch.linspace(-3, 3, 64), lampwork.compile(fn)
    expected = fn(x)
    functions = {
        (module, name): value
        for module in (math, operator)
        for name, value in vars(module).items()
        if isinstance(value, types.BuiltinFunctionType) and not name.startswith("_")
    }
    with contextlib.ExitStack() as stack:
        for (module, name), value in functions.items():
            if (module, name) != (math, "sqrt"):
                stack.enter_context(mock.patch.object(module, name, _other(value)))
        torch.testing.assert_close(compiled(x), expected)


def test_a_patched_function_computes_for_the_program_only() -> None:
    """Literals, promotion and folding are the compiler's own."""
    tensor, ones = torch.tensor, torch.ones

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x ** torch.tensor(0.5) + torch.ones(3).sum() * 2

    x, patched = torch.tensor([2.0, 3.0]), lampwork.compile(fn)
    with (
        mock.patch.object(torch, "tensor", lambda *args: tensor(*args) + 0.125),
        mock.patch.object(torch, "ones", lambda *args: ones(*args) * 3),
    ):
        assert torch.equal(patched(x), fn(x))
    assert torch.equal(patched(x), fn(x))


_PATCHED_FIRST = """
import types, torch, lampwork
from torch.nn import functional as F

def gelu(x):
    return x * 0.5 * (1 + (x * 0.5**0.5).erf())

def norm(x):
    centred = x - x.mean(-1, keepdim=True)
    return centred * (centred.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()

def unexpected(*args, **kwargs):
    raise AssertionError("a function of the program's was called")

for module in (F, torch):
    for name, value in list(vars(module).items()):
        if isinstance(value, (types.BuiltinFunctionType, types.FunctionType)) and not name.startswith("_"):
            if module is F or hasattr(torch.Tensor, name):
                setattr(module, name, unexpected)
for fn in (gelu, norm):
    x = torch.Tensor([[0.5, -1.0, 2.0, 3.0]])
    compiled = lampwork.compile(fn)
    assert (compiled(x) - fn(x)).abs().max() < 1e-6
    print(compiled.stages.passes.count("gelu_by_erf"), compiled.stages.passes.count("norm"), len(compiled.entries))
"""


def test_rules_of_the_tree_are_not_made_of_what_a_program_put_in_place() -> None:
    """The patterns of the library are PyTorch code, and they are read at the first compilation."""
    found = subprocess.run([sys.executable, "-c", _PATCHED_FIRST], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    gelu, norm = (list(map(int, line.split())) for line in found.stdout.splitlines())
    assert gelu[0] and gelu[2] == 1
    assert norm[1] and norm[2] == 1


@pytest.mark.parametrize("name", ["is_inference_mode_enabled", "are_deterministic_algorithms_enabled"])
def test_what_a_program_is_told_is_not_what_is(name: str) -> None:
    x = torch.ones(2)

    def asked(x: torch.Tensor) -> torch.Tensor:
        return x * (2 if getattr(torch, name)() else 3)

    compiled = lampwork.compile(asked)
    assert compiled(x)[0] == 3
    with mock.patch.object(torch, name, lambda: True):
        assert compiled(x)[0] == 2
    assert compiled(x)[0] == 3
