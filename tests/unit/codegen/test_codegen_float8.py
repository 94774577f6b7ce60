"""float8 in generated code: both conversions bit for bit, moves, and tables that no dtype may lack."""

from __future__ import annotations

from typing import get_args

import grid_cases as cases
import numpy as np
import pytest
import torch
from codegen_support import NUMPY, const, dense, load, map_op, op, pointwise, run_kernel, var
from grids import check_grids, grids_of, memory_of
from simulated import run_simulated

from lampwork.codegen.gpu.triton_writer import POINTERS
from lampwork.codegen.llvm.types import BITS, REGISTER, itemsize, memory_type
from lampwork.errors import InvalidLoopsError
from lampwork.loops.ir.addresses import ITEM_BYTES
from lampwork.loops.ir.index import as_index
from lampwork.loops.ir.nodes import FLOAT8, Axis, DType, Expr, Map, Reduce
from lampwork.loops.ir.verify import verify_definitions
from lampwork.loops.reference.evaluate import NUMPY_DTYPES, evaluate_definitions
from lampwork.loops.reference.float8 import as_codes, from_codes
from lampwork.lower.dtypes import LARGEST_FLOAT8, LOOP_DTYPES, TORCH_DTYPES

TYPES = sorted(FLOAT8)
CODES = np.arange(256, dtype=np.uint8)


def sample(dtype: DType) -> np.ndarray:
    """Every number of the type and its neighbours, all middles between two and theirs, what is too large or too small,
    infinities, all kinds of nan, and float32 of all exponents."""
    exact = np.sort(from_codes(CODES, dtype).astype(np.float64))
    exact = exact[np.isfinite(exact)]
    middles = (exact[1:] + exact[:-1]) / 2
    largest = LARGEST_FLOAT8[dtype]
    rest = np.array(
        [
            0.0,
            -0.0,
            np.inf,
            -np.inf,
            1e9,
            -1e9,
            3e38,
            1e-45,
            -1e-45,
            1e-38,
            *np.linspace(0.9, 1.3, 999) * largest,
        ]
    )
    near = np.concatenate([exact, middles, rest, -rest]).astype(np.float32)
    nan = np.array([0x7F800001, 0xFF800001, 0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32)
    everywhere = np.arange(0, 1 << 32, 40_009, dtype=np.uint64).astype(np.uint32)
    up, down = np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))
    return np.concatenate([near, up, down, nan.view(np.float32), everywhere.view(np.float32)])


def of_torch(codes: np.ndarray, dtype: DType) -> torch.Tensor:
    return torch.from_numpy(codes).view(TORCH_DTYPES[dtype])


@pytest.mark.parametrize("dtype", TYPES)
def test_every_code_is_widened(dtype: DType, isa: str) -> None:
    got = map_op("cast", isa, CODES, dtypes=[dtype], result="f32")
    want = of_torch(CODES, dtype).float().numpy()
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("dtype", TYPES)
def test_every_code_comes_back(dtype: DType, isa: str) -> None:
    wide = map_op("cast", isa, CODES, dtypes=[dtype], result="f32")
    got = map_op("cast", isa, wide, dtypes=["f32"], result=dtype)
    is_nan = np.isnan(wide)
    np.testing.assert_array_equal(got[~is_nan], CODES[~is_nan])
    np.testing.assert_array_equal(got[is_nan], CODES[is_nan] | 0x7F)


@pytest.mark.parametrize("dtype", TYPES)
def test_float32_is_rounded(dtype: DType, isa: str) -> None:
    """Against torch where that has one meaning, and against a search for the nearest number."""
    x = sample(dtype)
    got = map_op("cast", isa, x, dtypes=["f32"], result=dtype)
    np.testing.assert_array_equal(got, as_codes(x, dtype))
    with np.errstate(invalid="ignore"):
        same = np.isnan(x) | (np.abs(x) <= 464) if dtype == "f8e4m3" else np.full(x.shape, True)
    want = torch.from_numpy(x).to(TORCH_DTYPES[dtype]).view(torch.uint8).numpy()
    assert same.sum() > 50_000
    np.testing.assert_array_equal(got[same], want[same])
    too_large = np.array(
        [464, np.nextafter(np.float32(464), np.float32(465)), 480, 1e30, np.inf, -np.inf], np.float32
    )
    if dtype == "f8e4m3":
        got = map_op("cast", isa, too_large, dtypes=["f32"], result=dtype)
        np.testing.assert_array_equal(got, [0x7E, 0x7F, 0x7F, 0x7F, 0x7F, 0xFF])


@pytest.mark.parametrize("dtype", TYPES)
def test_conversions_do_not_depend_on_how_subnormal_float32_are_taken(dtype: DType, isa: str) -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU keeps subnormal numbers")
    try:
        wide = map_op("cast", isa, CODES, dtypes=[dtype], result="f32")
        narrow = map_op("cast", isa, wide, dtypes=["f32"], result=dtype)
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(
        wide.view(np.uint32), of_torch(CODES, dtype).float().numpy().view(np.uint32)
    )
    np.testing.assert_array_equal(narrow, as_codes(wide, dtype))


@pytest.mark.parametrize("dtype", TYPES)
def test_moves_keep_the_bits_of_nan(dtype: DType, isa: str) -> None:
    x, y, z = dense("x", dtype, 256), dense("y", dtype, 256), dense("z", dtype, 256)
    i = var("i")
    first = op("lt", load(dense("n", "i32", 256), i), const(100, "i32"), dtype="bool")
    value = op("where", first, load(x, i), load(y, i))
    n, other, got = np.arange(256, dtype=np.int32), CODES[::-1].copy(), np.zeros(256, NUMPY[dtype])
    kernel = pointwise(value, z, [dense("n", "i32", 256), x, y, z], 256)
    assert run_kernel(kernel, isa, [n, CODES, other, got], end=256) == 0
    np.testing.assert_array_equal(got, np.where(n < 100, CODES, other))


@pytest.mark.parametrize("dtype", TYPES)
def test_the_interpreters_numbers_are_those_of_torch(dtype: DType) -> None:
    np.testing.assert_array_equal(from_codes(CODES, dtype), of_torch(CODES, dtype).float().numpy())


@pytest.mark.parametrize("dtype", TYPES)
def test_grids(dtype: DType) -> None:
    """Thread by thread, as code of this CPU, and by the simulated card."""
    case = cases.float8(dtype)
    check_grids(case)
    want = evaluate_definitions(case.definitions, case.inputs)
    for aligned in (True, False):
        grids = grids_of(case)
        memory = memory_of(case, grids)
        for grid in grids:
            run_simulated(grid, memory, aligned=aligned)
        for name in case.outputs:
            np.testing.assert_array_equal(memory[name], want[name])


def test_every_table_has_every_dtype() -> None:
    names = set(get_args(DType))
    assert names >= FLOAT8
    for table in (REGISTER, BITS, ITEM_BYTES, NUMPY_DTYPES, TORCH_DTYPES, set(LOOP_DTYPES.values()), NUMPY):
        assert set(table) == names
    for dtype in names:
        assert (
            itemsize(dtype)
            == ITEM_BYTES[dtype]
            == TORCH_DTYPES[dtype].itemsize
            == np.dtype(NUMPY[dtype]).itemsize
        )
        assert memory_type(dtype) in ("double", "float", "i64", "i32", "i16", "i8")
    assert names - set(POINTERS) == {"f64", *FLOAT8}


X, Y = dense("x", "f8e4m3", 8), dense("y", "f8e4m3", 8)
AT = load(X, var("i0"))
REFUSED: dict[str, Expr] = {
    "add": op("add", AT, AT),
    "neg": op("neg", AT),
    "lt": op("lt", AT, AT, dtype="bool"),
    "a cast to f16": op("cast", AT, dtype="f16"),
    "a cast to the other": op("cast", AT, dtype="f8e5m2"),
    "a cast from i32": op("cast", const(1, "i32"), dtype="f8e4m3"),
    "a constant": const(1.0, "f8e4m3"),
    "another number elsewhere": load(X, var("i0"), mask=const(True, "bool"), other=1),
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_arithmetic_is_refused(value: Expr) -> None:
    out = dense("out", value.dtype, 8)
    with pytest.raises(InvalidLoopsError):
        verify_definitions([Map(out, (Axis("i0", as_index(8)),), (var("i0"),), value)])


def test_reductions_are_refused() -> None:
    with pytest.raises(InvalidLoopsError, match="max of f8e4m3"):
        verify_definitions([Reduce(dense("m", "f8e4m3"), (), (Axis("i0", as_index(8)),), (), "max", AT)])
    verify_definitions([Map(Y, (Axis("i0", as_index(8)),), (var("i0"),), AT)])
