"""The backend `openvino`: what it refuses, nan, integers too wide for it (operators: test_onnx_operators.py)."""

from __future__ import annotations

import pytest
import torch
from onnx_parts import compiled_part, recorded, refusals
from onnx_samples import SAMPLES, SPECIAL

pytest.importorskip("onnx")
pytest.importorskip("openvino")

from lampwork.backends.openvino import OpenVinoBackend

BACKEND = OpenVinoBackend()


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int32])
def test_types_that_it_would_narrow_are_refused(dtype: torch.dtype) -> None:
    graph, _ = recorded(lambda x: x + x, [torch.arange(4).to(dtype)])
    assert "OpenVINO" in refusals(BACKEND, graph)[0]


@pytest.mark.parametrize("name", ["tanh", "gelu", "sigmoid", "silu", "leaky_relu", "elu"])
def test_nan_and_infinities(name: str) -> None:
    fn = SAMPLES[name][0]
    torch.testing.assert_close(compiled_part(BACKEND, fn, [SPECIAL])(SPECIAL), fn(SPECIAL), equal_nan=True)


@pytest.mark.parametrize("name", ["relu", "hardtanh"])
def test_nan_is_lost_in_activations_that_cut_off(name: str) -> None:
    """What the plugin does, and the docs say: it compares, and a comparison with nan is false."""
    fn = SAMPLES[name][0]
    got, want = compiled_part(BACKEND, fn, [SPECIAL])(SPECIAL), fn(SPECIAL)
    torch.testing.assert_close(got[1:], want[1:])
    assert want[0].isnan() and not got[0].isnan()


def test_integers_beyond_32_bits_are_run_by_eager() -> None:
    x = torch.tensor([1.0, 2.0])
    wide = torch.tensor([2**32 + 1, 0])

    def fn(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return torch.where(n > 1, x, 0.0)

    run = compiled_part(BACKEND, fn, [x, torch.tensor([5, 0])])
    assert run(x, torch.tensor([5, 0])).tolist() == [1.0, 0.0]
    assert run(x, wide).tolist() == [1.0, 0.0]
