"""Graphs on a CUDA device: what becomes loops on it, and what stays a call of ATen."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from devices import compile_on, record_on, run_on_cpu
from torch.nn import functional as F

from lampwork.lower.lowering import lower_graph
from lampwork.runtime.program import CallAten, CallKernel

aten = torch.ops.aten
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
PLACES = torch.tensor([2, 0, 3])
NUMBER = torch.tensor(0.75)


def shape_of(fn: Callable[..., Any], *inputs: torch.Tensor, devices: tuple[str, ...] = ()) -> list[str]:
    """The steps of the program: "kernel", or the operator that is called."""
    program = compile_on(record_on(fn, inputs, devices).graph)
    names: list[str] = []
    for part in (program.constants, program):
        for step in () if part is None else part.instructions:
            if isinstance(step, CallKernel):
                names.append("kernel")
            elif isinstance(step, CallAten):
                names.append(step.op.removeprefix("aten::").removesuffix(".default"))
    return names


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], tuple[str, ...], list[str]]] = {
    "loops": (lambda x, y: torch.relu(x) + y.sum(0), (X, Y), (), ["kernel"]),
    "a literal": (lambda x: x.sum(0) * torch.tensor(3.0), (X,), (), ["kernel"]),
    "a number": (lambda x, n: x.sum(0) * n, (X, NUMBER), ("cuda:0", "cpu"), ["_to_copy", "kernel"]),
    "a number twice": (
        lambda x, n: ((x * n).cumsum(0) + n, (x / n).mean()),
        (X, NUMBER),
        ("cuda:0", "cpu"),
        ["_to_copy", "kernel", "kernel", "kernel"],
    ),
    "places on the CPU": (
        lambda x, i: aten.index.Tensor(x, [i]) + 1,
        (X, PLACES),
        ("cuda:0", "cpu"),
        ["index.Tensor", "kernel"],
    ),
    "places": (lambda x, i: aten.index.Tensor(x, [i]) + 1, (X, PLACES), (), ["kernel"]),
    "made there": (lambda x: torch.arange(6, device=x.device) + x, (X,), (), ["kernel"]),
    "moved": (lambda x, y: y.to(x.device) + x, (X, Y), ("cuda:0", "cpu"), ["_to_copy", "kernel"]),
    "moved and cast": (
        lambda x, y: y.to(x.device, torch.float64) + x,
        (X, Y),
        ("cuda:0", "cpu"),
        ["_to_copy", "kernel"],
    ),
    "from the device": (lambda x: (x * 2).cpu() + 1, (X,), (), ["kernel", "_to_copy", "add.Tensor"]),
    "views of the CPU": (
        lambda x, y: (x + 1, y.t()[1:].reshape(-1), y[1]),
        (X, Y),
        ("cuda:0", "cpu"),
        ["kernel", "clone"],
    ),
    "two devices": (
        lambda x, y, z: (x + 1, z - 1, (y * 2).to(x.device) + z),
        (X, Y, X),
        ("cuda:0", "cuda:1", "cuda:0"),
        ["mul.Tensor", "_to_copy", "kernel", "kernel"],
    ),
    "nothing": (lambda x: x.narrow(0, 0, 0) * 2, (X,), (), ["kernel"]),
    "a product": (lambda x, y: torch.relu(x) @ y.t() + 1, (X, Y), (), ["kernel", "matmul", "kernel"]),
    "a layer": (lambda x, w: F.relu(F.linear(x, w)), (X, Y), (), ["linear", "kernel"]),
    "attention": (
        lambda x, y: (
            F.scaled_dot_product_attention(x.view(1, 1, 4, 6), y.view(1, 1, 4, 6), y.view(1, 1, 4, 6)) * 2
        ),
        (X, Y),
        (),
        ["scaled_dot_product_attention", "kernel"],
    ),
    "sorted": (lambda x: x.sort()[0] + 1, (X,), (), ["sort", "kernel"]),
    "scattered": (
        lambda x, i: x.index_add(0, i, x.narrow(0, 0, 3)) + 1,
        (X, PLACES),
        (),
        ["index_add", "kernel"],
    ),
    "searched": (
        lambda x: torch.bucketize(x, x.select(0, 0).sort()[0]) + 1,
        (X,),
        (),
        ["sort", "bucketize.Tensor", "kernel"],
    ),
    "refused data": (lambda i: F.one_hot(i, 4) * 2, (PLACES,), (), ["one_hot", "kernel"]),
    "pieces": (lambda x, y: torch.cat([x * 2, y + 1], 1), (X, Y), (), ["kernel"]),
    "pieces of the CPU": (
        lambda x, y: (x + 1, torch.cat([y, y], 1)),
        (X, Y),
        ("cuda:0", "cpu"),
        ["cat", "kernel"],
    ),
    "layer norm": (lambda x: F.layer_norm(x, [6]), (X,), (), ["kernel"]),
    "softmax": (lambda x: F.softmax(x, -1), (X,), (), ["kernel"]),
    "complex": (lambda x: torch.fft.rfft(x).abs() + 1, (X,), (), ["_fft_r2c", "abs", "kernel"]),
    "pairs": (
        lambda x: torch.view_as_complex(x.view(4, 3, 2) * 2).abs(),
        (X,),
        (),
        ["kernel", "view_as_complex_copy", "abs"],
    ),
    "another accelerator": (lambda x: torch.relu(x) + 1, (X,), ("xpu:0",), ["relu", "add.Tensor"]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_runs_where(name: str) -> None:
    fn, inputs, devices, steps = CASES[name]
    assert sorted(shape_of(fn, *inputs, devices=devices)) == sorted(steps)


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_eager(name: str) -> None:
    fn, inputs, devices, _ = CASES[name]
    recorded = record_on(fn, inputs, devices)
    expected = fn(*inputs)
    expected = list(expected) if isinstance(expected, tuple) else [expected]
    for mine, other in zip(run_on_cpu(recorded, inputs), expected, strict=True):
        torch.testing.assert_close(mine, other)
        assert mine.shape == other.shape and mine.dtype == other.dtype


ODD = torch.tensor([-0.0, 0.0, -math.inf, math.inf, math.nan, -3.0, 2.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("exponent", [0.5, -0.5, 1.5, 2.0, 3.0, -1.0, -2.0, 0.0])
def test_powers_by_numbers_are_roots(dtype: torch.dtype, exponent: float) -> None:
    """As in ATen's kernels for CUDA, where numbers of the CPU are numbers to the kernel."""
    x, n = ODD.to(dtype), torch.tensor(exponent)
    expected = {0.5: torch.sqrt, -0.5: torch.rsqrt}.get(exponent, lambda x: torch.pow(x, n))(x)
    for fn, inputs, devices in (
        (lambda x: x**exponent, (x,), ()),
        (lambda x: x ** torch.tensor(exponent), (x,), ()),
        (lambda x, n: x**n, (x, n), ("cuda:0", "cpu")),
    ):
        (made,) = run_on_cpu(record_on(fn, inputs, devices), inputs)
        torch.testing.assert_close(made, expected, equal_nan=True, rtol=1e-2, atol=0.0)
        assert torch.equal(made.signbit() & ~made.isnan(), expected.signbit() & ~expected.isnan())


def test_powers_by_tensors_of_the_device_are_none() -> None:
    (made,) = run_on_cpu(record_on(torch.pow, (ODD, torch.tensor(0.5))), (ODD, torch.tensor(0.5)))
    assert not made[0].signbit() and made[2] == math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_quotients_cut_off_are_products(dtype: torch.dtype) -> None:
    """49 * (1 / 49) is less than 1 in float32: ATen's kernels for CUDA give 0 for it."""
    x = torch.arange(1, 400).to(dtype)
    for divisor in (49.0, 3.0, 0.0):
        wide = x.float() if dtype is torch.float16 else x
        expected = (wide * (1 / torch.tensor(divisor, dtype=wide.dtype))).trunc().to(dtype)
        for fn, inputs, devices in (
            (lambda x: torch.div(x, divisor, rounding_mode="trunc"), (x,), ()),
            (
                lambda x, n: torch.div(x, n, rounding_mode="trunc"),
                (x, torch.tensor(divisor)),
                ("cuda:0", "cpu"),
            ),
        ):
            (made,) = run_on_cpu(record_on(fn, inputs, devices), inputs)
            assert torch.equal(made, expected)
    by_tensor = record_on(lambda x, y: torch.div(x, y, rounding_mode="trunc"), (x, torch.full_like(x, 49)))
    (made,) = run_on_cpu(by_tensor, (x, torch.full_like(x, 49)))
    assert torch.equal(made, (x / 49).trunc())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_bytes_are_those_of_int64(dtype: torch.dtype) -> None:
    """Beyond int32 too, at whose ends the conversions of a device stop."""
    x = torch.tensor([3.0, -1.0, 300.0, 3e9, -3e9]).to(dtype)
    for place, by_int64 in (("cuda:0", True), ("cpu", False)):
        recorded = record_on(lambda x: x.to(torch.uint8), (x,), (place,))
        lowered = lower_graph(recorded.graph)
        assert ("i64(" in str(lowered.definitions[-1].value)) is by_int64
    (made,) = run_on_cpu(record_on(lambda x: x.to(torch.uint8), (x,)), (x,))
    assert torch.equal(made, x.long().to(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_numbers_divide_as_kernels_of_cuda_do(dtype: torch.dtype) -> None:
    """Which multiply by the inverse, of double precision: seen on a card, 1 / 0.85 is 0x1.2d2d2e0000000p+0."""
    x = torch.randn(1000).to(dtype)
    inverse = torch.tensor(1 / 0.85)
    assert inverse.item().hex() == "0x1.2d2d2e0000000p+0" and inverse != torch.tensor(1.0) / 0.85
    expected = (x.float() * inverse).to(dtype) if dtype is not torch.float64 else x / 0.85
    (made,) = run_on_cpu(record_on(lambda x: x / 0.85, (x,)), (x,))
    assert torch.equal(made, expected)
    for divisor in (0.0, -0.0, math.inf, math.nan, 1e-40, 1e39, 5e-324):
        (made,) = run_on_cpu(record_on(lambda x, by=divisor: x / by, (x,)), (x,))
        torch.testing.assert_close(made, x / divisor, rtol=0, atol=0, equal_nan=True)
