"""How the loop language's dtypes appear in LLVM: in memory, in registers, and where they are computed."""

from __future__ import annotations

from lampwork.loops.ir.nodes import DType
from lampwork.standard import struct

# In registers a bool is one bit; f16 and bf16 stay as their 16 bits and are computed in float, float8 as its 8 bits.
REGISTER: dict[DType, str] = {
    "f64": "double",
    "f32": "float",
    "f16": "i16",
    "bf16": "i16",
    "f8e4m3": "i8",
    "f8e5m2": "i8",
    "i64": "i64",
    "i32": "i32",
    "i16": "i16",
    "i8": "i8",
    "u8": "i8",
    "bool": "i1",
}
BITS: dict[DType, int] = {
    "f64": 64,
    "f32": 32,
    "f16": 16,
    "bf16": 16,
    "f8e4m3": 8,
    "f8e5m2": 8,
    "i64": 64,
    "i32": 32,
    "i16": 16,
    "i8": 8,
    "u8": 8,
    "bool": 8,
}


def is_float(dtype: DType) -> bool:
    """Whether there is arithmetic of floats on it, which float8 has none of."""
    return dtype in ("f64", "f32", "f16", "bf16")


def is_unsigned(dtype: DType) -> bool:
    return dtype in ("u8", "bool")


def compute_dtype(dtype: DType) -> DType:
    """The dtype that arithmetic on `dtype` is done in."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def product_dtype(dtype: DType) -> DType:
    """The dtype of the sums of a matrix product of `dtype`."""
    return "i32" if dtype == "i8" else compute_dtype(dtype)


def compute_bits(dtype: DType) -> int:
    return BITS[compute_dtype(dtype)]


def itemsize(dtype: DType) -> int:
    """Bytes of one element in memory."""
    return BITS[dtype] // 8


def memory_type(dtype: DType) -> str:
    """LLVM's type of one element in memory."""
    return "i8" if dtype == "bool" else REGISTER[dtype]


def vector_type(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"<{lanes} x {element}>"


def mangled(element: str, lanes: int) -> str:
    """The suffix of an overloaded intrinsic: v16f32, i64."""
    name = {"double": "f64", "float": "f32", "half": "f16"}.get(element, element)
    return name if lanes == 1 else f"v{lanes}{name}"


def literal(value: float | int | bool, dtype: DType) -> str:
    """A constant as LLVM writes it. Floats are given by their bits, so nothing is lost; integers wrap."""
    if dtype == "bool":
        return "true" if value else "false"
    if dtype == "f64":
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"
    if dtype == "f32":
        return f"0x{struct.unpack('<Q', struct.pack('<d', round_to_f32(float(value))))[0]:016X}"
    if dtype == "f16":
        return str(f16_bits(float(value)))
    if dtype == "bf16":
        return str(bf16_bits(float(value)))
    bits = BITS[dtype]
    wrapped = int(value) & ((1 << bits) - 1)
    return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)


def is_number_of(value: float | int | bool, dtype: DType) -> bool:
    """Whether a half type has this very number (finite, and none of its subnormal ones)."""
    number = float(value)
    if number == 0:
        return True
    if dtype not in ("f16", "bf16") or not 2.0**-14 <= abs(number) <= 65504:
        return False
    bits = struct.unpack("<I", struct.pack("<f", round_to_f32(number)))[0]
    return round_to_f32(number) == number and bits & (0x1FFF if dtype == "f16" else 0xFFFF) == 0


def round_to_f32(value: float) -> float:
    """The nearest float32, as a double; what is too large becomes an infinity."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def f16_bits(value: float) -> int:
    """The nearest IEEE half, as its 16 bits."""
    try:
        return struct.unpack("<H", struct.pack("<e", value))[0]
    except OverflowError:
        return 0x7C00 if value > 0 else 0xFC00


def bf16_bits(value: float) -> int:
    """The nearest bfloat16 (ties to even), as its 16 bits."""
    bits = struct.unpack("<I", struct.pack("<f", round_to_f32(value)))[0]
    if value != value:
        return (bits >> 16) | 0x40
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF
