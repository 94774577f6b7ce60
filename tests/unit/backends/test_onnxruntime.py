"""The backend `onnxruntime`: each dtype, what it refuses (operators: test_onnx_operators.py)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from onnx_parts import assert_same, compiled_part, recorded, refusals
from onnx_samples import SAMPLES, SPECIAL

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from lampwork.backends.onnxruntime import OnnxRuntimeBackend

BACKEND = OnnxRuntimeBackend()


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int32])
def test_dtypes(dtype: torch.dtype) -> None:
    x, y = torch.arange(-6, 6).reshape(3, 4).to(dtype), torch.arange(4).to(dtype)

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(x > y, x * y - 3, -x)

    assert_same(fn, compiled_part(BACKEND, fn, [x, y])(x, y), x, y)


def test_mixed_dtypes() -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4).double()

    def fn(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [x + y, (x > y).float() * 2, x.double() / 3]

    assert_same(fn, compiled_part(BACKEND, fn, [x, y])(x, y), x, y)


def test_a_kernel_that_the_runtime_lacks_is_refused() -> None:
    x, w = torch.randn(1, 2, 4, 4).double(), torch.randn(3, 2, 3, 3).double()
    graph, _ = recorded(F.conv2d, [x], [w])
    assert refusals(BACKEND, graph) and "NOT_IMPLEMENTED" in refusals(BACKEND, graph)[0]


@pytest.mark.parametrize("name", ["relu", "tanh", "elu", "sigmoid", "silu", "hardtanh", "leaky_relu"])
def test_nan_and_infinities(name: str) -> None:
    fn = SAMPLES[name][0]
    torch.testing.assert_close(compiled_part(BACKEND, fn, [SPECIAL])(SPECIAL), fn(SPECIAL), equal_nan=True)
