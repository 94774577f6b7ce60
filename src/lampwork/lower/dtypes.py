"""Data types: torch's names and the loop language's, type promotion, and the type an operation computes in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

import torch

from lampwork import pristine
from lampwork.graph.symbols import SymbolicFloat, SymbolicInt, is_integer
from lampwork.loops.ir.nodes import FLOAT8, DType
from lampwork.standard import functools

LOOP_DTYPES: Mapping[torch.dtype, DType] = MappingProxyType(
    {
        torch.float64: "f64",
        torch.float32: "f32",
        torch.float16: "f16",
        torch.bfloat16: "bf16",
        torch.float8_e4m3fn: "f8e4m3",
        torch.float8_e5m2: "f8e5m2",
        torch.int64: "i64",
        torch.int32: "i32",
        torch.int16: "i16",
        torch.int8: "i8",
        torch.uint8: "u8",
        torch.bool: "bool",
    }
)

"""What the loop language can compute with, and float8, which it can read and write; tensors of other types stay opaque
to it."""

TORCH_DTYPES: Mapping[DType, torch.dtype] = MappingProxyType({v: k for k, v in LOOP_DTYPES.items()})

FLOATS: frozenset[DType] = frozenset({"f64", "f32", "f16", "bf16"})
HALVES: frozenset[DType] = frozenset({"f16", "bf16"})
LARGEST_FLOAT8: Mapping[DType, float] = MappingProxyType({"f8e4m3": 448.0, "f8e5m2": 57344.0})


@functools.cache
def saturates() -> bool:
    """Whether numbers too large for float8_e4m3fn become its largest: in torch 2.13 they do, in 2.11 they become nan.
    torch is asked when it first matters, whatever mode is on."""
    with torch._C._DisableTorchDispatch():  # pyright: ignore
        large = pristine.tensor([1e4], dtype=torch.float32, device="cpu")
        return large.to(torch.float8_e4m3fn).float().item() == LARGEST_FLOAT8["f8e4m3"]


_INTEGER_RANGES: Mapping[DType, tuple[int, int]] = MappingProxyType(
    {
        "i64": (-(2**63), 2**63 - 1),
        "i32": (-(2**31), 2**31 - 1),
        "i16": (-(2**15), 2**15 - 1),
        "i8": (-(2**7), 2**7 - 1),
        "u8": (0, 255),
        "bool": (0, 1),
    }
)

Category = Literal["dimensioned", "zero_dim", "number"]


def compute_dtype(dtype: DType) -> DType:
    """The type an operation on `dtype` computes in: half types are widened to f32, as eager does."""
    return "f32" if dtype in HALVES else dtype


def sum_dtype(dtype: DType) -> DType:
    """The accumulation type of a sum or product: f32 for halves and f32, f64, i64 for integers and bool."""
    return compute_dtype(dtype) if dtype in FLOATS else "i64"


def default_float() -> DType:
    return LOOP_DTYPES[pristine.get_default_dtype()]


def lowest(dtype: DType) -> float | int | bool:
    """The value that leaves every maximum unchanged."""
    if dtype in FLOATS:
        return float("-inf")
    return False if dtype == "bool" else _INTEGER_RANGES[dtype][0]


def highest(dtype: DType) -> float | int | bool:
    """The value that leaves every minimum unchanged."""
    if dtype in FLOATS:
        return float("inf")
    return True if dtype == "bool" else _INTEGER_RANGES[dtype][1]


def fits(value: float | int | bool, dtype: DType) -> bool:
    """Whether a Python number converts to `dtype` without wrapping, to float8 without being too large."""
    if dtype in FLOATS:
        return True
    if dtype in FLOAT8:
        is_known = not isinstance(value, SymbolicFloat | SymbolicInt)
        return is_known and abs(value) <= LARGEST_FLOAT8[dtype]
    low, high = _INTEGER_RANGES[dtype]
    return low <= value <= high


def promote(operands: Iterable[tuple[DType, Category]]) -> DType:
    """torch.result_type of operands given as (dtype, category): a tensor with dimensions beats one without, and
    that beats a Python number, unless its kind (bool < integer < float) is lower."""
    found: dict[Category, torch.dtype] = {}
    for dtype, category in operands:
        own = TORCH_DTYPES[dtype]
        before = found.get(category)
        found[category] = own if before is None else pristine.promote_types(before, own)
    low = _combine(found.get("zero_dim"), found.get("number"))
    result = _combine(found.get("dimensioned"), low)
    if result is None:
        raise ValueError("promote() of no operands")
    return LOOP_DTYPES[result]


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_floating_point:
        return higher
    if higher is torch.bool or lower.is_floating_point:
        return pristine.promote_types(higher, lower)
    return higher


def number_dtype(value: float | int | bool) -> DType:
    """The type a Python number brings to promotion."""
    if isinstance(value, bool):
        return "bool"
    return "i64" if is_integer(value) else default_float()
