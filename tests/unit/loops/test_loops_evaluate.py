"""The numpy interpreter against numpy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from loops_build import ACC, I, at, axes, buffer, linear, op, pointwise, random_inputs, reduce

from lampwork.errors import InvalidLoopsError
from lampwork.loops.fusion.invert import invert
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import (
    Axis,
    Buffer,
    Extern,
    Gemm,
    Kernel,
    Load,
    Loop,
    PackB,
    Panels,
    Scan,
    Store,
    View,
)
from lampwork.loops.reference.evaluate import convert, evaluate_definitions, round_bf16
from lampwork.loops.reference.evaluate_kernel import from_memory, run_kernel, to_memory


def test_bf16_rounds_as_torch():
    x = np.concatenate(
        [np.random.default_rng(0).standard_normal(1000) * 1e3, [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40]]
    ).astype(np.float32)
    expected = torch.from_numpy(x).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(round_bf16(x), expected)


@pytest.mark.parametrize("target", ["f16", "i64", "i32", "i16", "i8", "u8", "bool", "f64"])
def test_conversions_as_torch(target):
    dtypes = {
        "f16": torch.float16,
        "f64": torch.float64,
        "i64": torch.int64,
        "i32": torch.int32,
        "i16": torch.int16,
        "i8": torch.int8,
        "u8": torch.uint8,
        "bool": torch.bool,
    }
    x = np.array([0.0, 0.4, 1.5, -1.5, 100.7, -3.0], dtype=np.float32)
    expected = torch.from_numpy(x).to(dtypes[target]).numpy()
    np.testing.assert_array_equal(convert(x, target), expected)
    whole = np.array([0, 1, -1, 300, 70000, -70000], dtype=np.int64)
    np.testing.assert_array_equal(convert(whole, target), torch.from_numpy(whole).to(dtypes[target]).numpy())


def test_matrix_product_with_batch_and_views():
    x, w, y = buffer("x", 2, 5, 6), buffer("w", 2, 7, 6), buffer("y", 5, 2, 7)
    b, m, n, k = (Axis(name, as_index(size)) for name, size in zip("bmnk", (2, 5, 7, 6), strict=True))
    vb, vm, vn, vk = map(Index.var, "bmnk")
    gemm = Gemm(y, (b,), m, n, k, at(x, vb, vm, vk), at(w, vb, vn, vk), (vm, vb, vn), op("mul", ACC, 2.0))
    inputs = random_inputs(0, x, w)
    expected = 2 * np.einsum("bmk,bnk->mbn", inputs["x"], inputs["w"])
    np.testing.assert_allclose(evaluate_definitions([gemm], inputs)["y"], expected, rtol=1e-5)


@pytest.mark.parametrize("columns", [8, 10])
def test_packing_changes_nothing(columns):
    x, w, y = buffer("x", 5, 6), buffer("w", columns, 6), buffer("y", 5, columns)
    dense = buffer("p", -(-columns // 4), 6, 4)
    packed = Panels(dense.name, dense.dtype, dense.shape, dense.strides, 4)
    plain = linear(y, x, w, 5, columns, 6)
    pack = PackB(packed, (), plain.n, plain.k, plain.b)
    from dataclasses import replace

    inputs = random_inputs(0, x, w)
    fast = replace(plain, b=Load(packed, plain.b.index))
    got = evaluate_definitions([pack, fast], inputs)
    np.testing.assert_allclose(got["y"], inputs["x"] @ inputs["w"].T, rtol=1e-4, atol=1e-5)
    assert got["p"].shape == (-(-columns // 4), 6, 4)


def test_scan():
    x, y = buffer("x", 4, 6), buffer("y", 4, 6)
    inputs = random_inputs(0, x)
    scan = Scan(y, axes(4), axes(6, first=1)[0], (I[0], I[1]), "sum", at(x))
    expected = torch.from_numpy(inputs["x"]).cumsum(1).numpy()
    np.testing.assert_allclose(evaluate_definitions([scan], inputs)["y"], expected, rtol=1e-5)


def test_extern_runs_what_it_is_given():
    x, y = buffer("x", 4), buffer("y", 4)
    call = Extern((y,), "aten::relu.default", (View(x, x.shape, x.strides, as_index(0)),))
    inputs = random_inputs(0, x)
    got = evaluate_definitions([call], inputs, externs=lambda e, arrays: {"y": np.maximum(arrays["x"], 0)})
    np.testing.assert_array_equal(got["y"], np.maximum(inputs["x"], 0))
    with pytest.raises(InvalidLoopsError, match="aten::relu"):
        evaluate_definitions([call], inputs)


def test_reads_outside_are_errors():
    x, y = buffer("x", 4), buffer("y", 4)
    with pytest.raises(InvalidLoopsError, match="outside"):
        evaluate_definitions([pointwise(y, at(x, I[0] + 1))], random_inputs(0, x))
    with pytest.raises(InvalidLoopsError, match="before it is made"):
        evaluate_definitions([pointwise(y, at(x))], {})
    ids = buffer("ids", 4, dtype="i64")
    gather = pointwise(y, at(x, Index.indirect(at(ids), 4)))
    with pytest.raises(IndexError):
        evaluate_definitions([gather], {**random_inputs(0, x), "ids": np.array([0, 1, 4, 0])})


def test_memory_of_strided_buffers():
    x = buffer("x", 3, 4, strides=(1, 5))
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    memory = to_memory(x, array)
    assert memory.size == 18
    np.testing.assert_array_equal(from_memory(x, memory), array)


def test_a_kernel_runs_in_parts():
    x, y = (
        Buffer("x", "f32", (as_index(8),), (as_index(1),)),
        Buffer("y", "f32", (as_index(8),), (as_index(1),)),
    )
    body = (Store(y, (I[0],), op("add", Load(x, (I[0],)), 1.0)),)
    kernel = Kernel("k", (x, y), (), (), (Loop(Axis("i0", as_index(8)), "parallel-vector", body),))
    memory = {"x": np.arange(8, dtype=np.float32), "y": np.zeros(8, np.float32)}
    run_kernel(kernel, memory, begin=2, end=5)
    np.testing.assert_array_equal(memory["y"], [0, 0, 3, 4, 5, 0, 0, 0])


def test_empty_reductions_give_the_neutral_element():
    x, y = buffer("x", 3, 0), buffer("y", 3)
    inputs = {"x": np.zeros((3, 0), np.float32)}
    for how, neutral in (("sum", 0), ("prod", 1), ("max", -np.inf), ("min", np.inf)):
        got = evaluate_definitions([reduce(y, (0,), how, at(x))], inputs)["y"]
        np.testing.assert_array_equal(got, np.full(3, neutral))


@pytest.mark.parametrize(
    ("stored", "place", "solution"),
    [
        ("i0, i1", "a, b", {"i0": "a", "i1": "b"}),
        ("i1, i0", "a, b", {"i0": "b", "i1": "a"}),
        ("8*i0 + i1, 0", "a, b", {"i0": "a//8", "i1": "a%8"}),
        ("i0//8, i0%8", None, None),
        ("i0 + 1, i1", "a, b", None),
        ("2*i0, i1", "a, b", None),
        ("i0, i0", "a, b", None),
    ],
)
def test_invert(stored, place, solution):
    i0, i1, a, b = map(Index.var, ("i0", "i1", "a", "b"))
    sizes = (as_index(4), as_index(8))
    names = {"i0": i0, "i1": i1}
    written = tuple(as_index(eval(part, {}, names)) for part in stored.split(","))
    extents = {"a": as_index(4), "b": as_index(8)}
    shape = (as_index(32), as_index(1)) if "8*i0" in stored else sizes
    if "8*i0" in stored:
        extents["a"] = as_index(32)
    if place is None:
        got = invert(written, (a, b), (Axis("i0", as_index(32)),), sizes, extents)
        assert got == {"i0": a * 8 + b}
        return
    got = invert(written, (a, b), axes(4, 8), shape, extents)
    if solution is None:
        assert got is None
    else:
        assert got is not None and {name: str(index) for name, index in got.items()} == solution
