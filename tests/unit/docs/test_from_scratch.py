"""docs/from_scratch.py, the compiler in one file: it runs as a reader would run it, and its answers are eager's."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

SCRIPT = Path(__file__).parents[3] / "docs" / "from_scratch.py"


@pytest.fixture(scope="module")
def mini():
    spec = importlib.util.spec_from_file_location("from_scratch", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["from_scratch"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["from_scratch"]


def test_it_runs():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for wanted in ("The graph, as captured", "= silu(", "2 entries, and the answer is right again"):
        assert wanted in done.stdout


SCALE = 2.0


def pointwise(x, y):
    return torch.exp(x * SCALE) - y / 3 + torch.relu(x)


def norm(x, y):
    return (x - x.mean(-1, True)) * torch.rsqrt((x * x).mean(-1, True) + 1e-5) + y


def softmax(x, y):
    return F.softmax(x @ y, -1)


@pytest.mark.parametrize("fn", [pointwise, norm, softmax])
def test_values(mini, fn):
    x, y = torch.randn(6, 6), torch.randn(6, 6)
    x[0, 0], x[1, 1] = float("nan"), float("inf")
    compiled = mini.Compiled(fn)
    torch.testing.assert_close(compiled(x, y), fn(x, y), equal_nan=True)
    assert compiled.refusal is None
    assert len(compiled.entries) == 1


def test_guards(mini, monkeypatch):
    x, y = torch.randn(4, 5), torch.randn(5)
    compiled = mini.Compiled(pointwise)
    torch.testing.assert_close(compiled(x, y), pointwise(x, y))
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    torch.testing.assert_close(compiled(x, y), pointwise(x, y))
    torch.testing.assert_close(compiled(x[:2], y), pointwise(x[:2], y))
    assert len(compiled.entries) == 3
    torch.testing.assert_close(compiled(x, y), pointwise(x, y))
    assert len(compiled.entries) == 3


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x: x if x.sum(-1).sum(-1) > 0 else -x, "operator >"),
        (lambda x: x.tolist(), "attribute tolist"),
        (lambda x: print(x), "call of"),  # noqa: PLW0108 - a builtin has no bytecode
    ],
)
def test_breaks(mini, fn, reason):
    compiled = mini.Compiled(fn)
    x = torch.ones(2, 2)
    assert str(compiled(x)) == str(fn(x))
    assert reason in compiled.refusal


def test_gradients_and_hooks_are_left_to_eager(mini):
    model = nn.Linear(3, 3)
    compiled = mini.Compiled(model)
    x = torch.randn(2, 3)
    compiled(x).sum().backward()
    assert model.weight.grad is not None
    hooked = nn.Linear(3, 3)
    compiled = mini.Compiled(hooked)
    with torch.no_grad():
        compiled(x)
        hooked.register_forward_hook(lambda module, args, output: output * 2)
        torch.testing.assert_close(compiled(x), hooked(x))
