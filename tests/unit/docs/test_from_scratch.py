"""docs/from_scratch.py, the compiler in one file: it runs as a reader would run it, and its answers are eager's."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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
    for stage in (
        "BINARY_OP",
        "v5: 128 x 64 = sigmoid(v4)",
        "root.__globals__['softmax'] is pinned[3]",
        "v11: 128 x 64 = truediv(v4, v8)",
        "for i < 128: for j < 1: v16[i, j] = sum(64, exp(sub(",
        "define void @compute_v18(ptr %v0,",
        "A guard that fails after SCALE = 2.0: type(root.__globals__['SCALE']) is float and",
        "2 entries, and the results equal eager's",
    ):
        assert stage in done.stdout


def test_it_can_be_read_in_an_evening():
    assert len(SCRIPT.read_text().splitlines()) <= 435


def test_it_names_folders_that_exist():
    named = re.findall(r"^# The folders?: (.*?)\.", SCRIPT.read_text(), re.M)
    folders = re.findall(r"\b(\w+)/", " ".join(named))
    assert len(folders) >= 10
    for folder in folders:
        assert (SCRIPT.parents[1] / "src" / "lampwork" / folder).is_dir() or folder == "csrc"


SCALE = 2.0


def pointwise(x, y):
    return torch.exp(x * SCALE) - y / 3


def norm(x, y):
    centered = x - torch.sum(x, -1, True) / 6
    return centered / torch.sum(centered * centered, -1, True) + y


def softmax(x):
    powers = torch.exp(x - torch.amax(x, -1, True))
    return powers / torch.sum(powers, -1, True)


def attention(x, y):
    scores = x @ y
    return softmax(scores * torch.sigmoid(scores)) @ y


def expected(fn, *tensors):
    """What eager computes in float64."""
    return fn(*[tensor.double() for tensor in tensors])


def kernels(entry):
    return [node for node, value in entry.program.items() if value is not None]


@pytest.mark.parametrize(("fn", "fused"), [(pointwise, 1), (norm, 3), (attention, 3)])
def test_values_and_fused_kernels(mini, fn, fused):
    x, y = torch.randn(6, 6), torch.randn(6, 6)
    compiled = mini.Compiled(fn)
    torch.testing.assert_close(compiled(x, y).double(), expected(fn, x, y), rtol=2e-6, atol=2e-6)
    assert compiled.refusal is None
    (entry,) = compiled.entries
    assert len(kernels(entry)) == fused


@pytest.mark.parametrize("fn", [pointwise, norm, attention])
def test_nan_and_inf(mini, fn):
    x, y = torch.randn(6, 6), torch.randn(6, 6)
    x[0, 0], x[1, 1], x[2, 2] = float("nan"), float("inf"), -float("inf")
    torch.testing.assert_close(mini.Compiled(fn)(x, y), fn(x, y), equal_nan=True)


def test_broadcast_and_empty(mini):
    for shapes in (((4, 5), (1, 5)), ((4, 5), (4, 1)), ((1, 1), (3, 2)), ((0, 5), (1, 5))):
        x, y = (torch.randn(shape) for shape in shapes)
        torch.testing.assert_close(mini.Compiled(pointwise)(x, y).double(), expected(pointwise, x, y))


def test_rewrites(mini):
    compiled = mini.Compiled(lambda x: x * torch.sigmoid(x))
    compiled(torch.randn(2, 2))
    (entry,) = compiled.entries
    assert [node.target.__name__ for node in entry.capture.graph.live()[1:]] == ["sigmoid", "mul"]
    assert [node.target.__name__ for node in entry.graph.live()[1:]] == ["sub", "exp", "add", "truediv"]


def test_a_guard_fails_and_another_entry_is_made(mini, monkeypatch):
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    compiled = mini.Compiled(pointwise)
    compiled(x, y)
    assert compiled.entries[0].failing_guard((x, y)) is None
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert "['SCALE']) == '2.0'" in compiled.entries[0].failing_guard((x, y))
    torch.testing.assert_close(compiled(x, y).double(), expected(pointwise, x, y), rtol=2e-6, atol=2e-6)
    assert "args[0].shape == (4, 5)" in compiled.entries[1].failing_guard((x[:2], y[:2]))
    torch.testing.assert_close(
        compiled(x[:2], y[:2]).double(), expected(pointwise, x[:2], y[:2]), rtol=2e-6, atol=2e-6
    )
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    compiled(x, y)
    assert len(compiled.entries) == 3
    monkeypatch.delitem(globals(), "SCALE")
    assert "SCALE" in compiled.entries[0].failing_guard((x, y))


def test_a_callee_is_guarded(mini, monkeypatch):
    x = torch.randn(3, 3)
    compiled = mini.Compiled(attention)
    compiled(x, x)
    monkeypatch.setitem(globals(), "softmax", lambda x: x)
    torch.testing.assert_close(compiled(x, x).double(), expected(attention, x, x), rtol=2e-6, atol=2e-6)
    assert len(compiled.entries) == 2


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x: x if torch.sum(x, -1, True) > 0 else -x, "a call of <built-in function gt>"),
        (lambda x: x.tolist(), "the attribute tolist"),
        (lambda x: print(x), "the builtin print"),  # noqa: PLW0108 - a builtin has no bytecode
        (lambda x: torch.sum(x, 0, True), "a reduction of something other than rows"),
        (lambda x: [x], "the opcode BUILD_LIST"),
        (lambda x: 1, "a result that is not one tensor"),
    ],
)
def test_breaks(mini, fn, reason):
    compiled = mini.Compiled(fn)
    x = torch.ones(2, 1)[:1]
    assert str(compiled(x)) == str(fn(x))
    assert reason in compiled.refusal


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(3),
        torch.randn(2, 3).double(),
        torch.randn(3, 2).t(),
        torch.randn(2, 2, requires_grad=True),
    ],
    ids=["vector", "float64", "strided", "requires_grad"],
)
def test_other_tensors_are_left_to_eager(mini, x):
    compiled = mini.Compiled(lambda x: x * 2)
    result = compiled(x)
    torch.testing.assert_close(result, x * 2)
    assert result.requires_grad == x.requires_grad
    assert "a guard: " in compiled.refusal
