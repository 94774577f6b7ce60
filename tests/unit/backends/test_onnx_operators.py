"""Each operator that is converted to ONNX, in both runtimes."""

from __future__ import annotations

from typing import Any

import pytest
from onnx_parts import assert_same, compiled_part, recorded, refusals
from onnx_samples import REFUSED, SAMPLES

from lampwork.backends.registry import get_backend

pytest.importorskip("onnx")


@pytest.fixture(params=["onnxruntime", "openvino"])
def backend(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip(request.param)
    return get_backend(request.param)


@pytest.mark.parametrize("name", SAMPLES)
def test_operator(backend: Any, name: str) -> None:
    fn, inputs = SAMPLES[name]
    assert_same(fn, compiled_part(backend, fn, inputs)(*inputs), *inputs)


@pytest.mark.parametrize("name", [n for n in SAMPLES if len(SAMPLES[n][1]) > 1])
def test_operator_with_constant_operands(backend: Any, name: str) -> None:
    fn, (x, *rest) = SAMPLES[name]
    assert_same(fn, compiled_part(backend, fn, [x], rest)(x), x, *rest)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(backend: Any, name: str) -> None:
    fn, inputs, reason = REFUSED[name]
    graph, _ = recorded(fn, inputs)
    found = refusals(backend, graph)
    assert found and reason in found[0]
