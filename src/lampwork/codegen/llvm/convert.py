"""Conversions between dtypes, with PyTorch's meaning on this CPU.

Floats truncate to integers; what does not fit gives what the x86 instruction gives (the smallest i32 or i64, whose low
bits the narrower integers keep). f16, bf16 and float8 round to nearest even. bool is x != 0, so NaN is true.
"""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.codegen.llvm.branches import unless_any
from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.float8 import narrow_float8, widen_float8
from lampwork.codegen.llvm.halves import as_half, note_exact, unpacked
from lampwork.codegen.llvm.shuffles import by_register
from lampwork.codegen.llvm.types import BITS, is_float, is_unsigned, vector_type
from lampwork.loops.ir.nodes import FLOAT8, DType
from lampwork.standard import struct


def convert(b: Builder, value: Value, dtype: DType) -> Value:
    """`value` as `dtype`."""
    if value.dtype == dtype:
        return value
    if value.dtype in ("f16", "bf16"):
        return convert(b, widen_half(b, value), dtype)
    if value.dtype in FLOAT8:
        return convert(b, widen_float8(b, value), dtype)
    if dtype == "bool":
        return b.cmp("ne", value, 0.0 if is_float(value.dtype) else 0)
    if dtype in ("f16", "bf16"):
        return narrow_half(b, convert(b, value, "f32"), dtype)
    if dtype in FLOAT8:
        return narrow_float8(b, convert(b, value, "f32"), dtype)
    if is_float(value.dtype):
        return _from_float(b, value, dtype)
    return _from_integer(b, value, dtype)


def _from_float(b: Builder, value: Value, dtype: DType) -> Value:
    if is_float(dtype):
        return b.convert("fpext" if dtype == "f64" else "fptrunc", value, dtype)
    if dtype in ("i32", "i64"):
        return _truncated(b, value, dtype)
    # Eager takes a byte from the i64; of an f32 (a multiple of 256 where the i32 overflows) both give the same.
    by_way_of: DType = "i64" if dtype == "u8" and value.dtype == "f64" else "i32"
    return b.convert("trunc", _truncated(b, value, by_way_of), dtype)


def _truncated(b: Builder, value: Value, dtype: DType) -> Value:
    # Frozen, since LLVM takes numbers that do not fit for impossible, and would fold a conversion there and back.
    found = b.convert("fptosi", value, dtype)
    return b.emit(f"freeze {found.type} {found.text}", dtype, found.lanes)


def _from_integer(b: Builder, value: Value, dtype: DType) -> Value:
    if value.dtype == "bool":
        return b.select(value, b.const(1, dtype), b.const(0, dtype))
    if is_float(dtype):
        return b.convert("uitofp" if is_unsigned(value.dtype) else "sitofp", value, dtype)
    if BITS[dtype] < BITS[value.dtype]:
        return b.convert("trunc", value, dtype)
    if BITS[dtype] > BITS[value.dtype]:
        return b.convert("zext" if is_unsigned(value.dtype) else "sext", value, dtype)
    return Value(value.text, dtype, value.lanes, value.const)


def keep_exact(b: Builder, value: Value, operands: Sequence[Value]) -> Value:
    """`value`, one of `operands` or of their negatives in each lane: of a half type exactly if all of them are."""
    if value.dtype == "f32" and not value.const and all(is_exact(b, each, "bf16") for each in operands):
        b.remember(_exact(value), value)
    return value


def is_exact(b: Builder, value: Value, dtype: DType) -> bool:
    """Whether a float32 is known to be a number of bf16."""
    if dtype != "bf16" or value.dtype != "f32":
        return False
    if value.const:
        bits = struct.pack("<f", struct.unpack("<d", int(value.text, 16).to_bytes(8, "little"))[0])
        return bits[:2] == b"\0\0"
    return b.recall(_exact(value)) is not None


def _exact(value: Value) -> str:
    return f"exact {value.text}"


def widen_half(b: Builder, value: Value) -> Value:
    """f16 or bf16 as f32, exactly."""
    found = _widen_bf16(b, value) if value.dtype == "bf16" else _widen_f16(b, value)
    note_exact(b, found, value)
    if value.dtype == "bf16" and not found.const:
        b.remember(_exact(found), found)
    return found


def _widen_bf16(b: Builder, value: Value) -> Value:
    if (found := unpacked(b, value)) is not None:
        return found
    bits = _integer(b, "zext", value, "i32")
    return b.bitcast(b.shl(bits, 16), "f32")


def _widen_f16(b: Builder, value: Value) -> Value:
    if b.target.has_f16c:
        half = vector_type("half", value.lanes)
        text = b.emit(f"bitcast {value.type} {value.text} to {half}", "f16", value.lanes).text
        return b.emit(f"fpext {half} {text} to {vector_type('float', value.lanes)}", "f32", value.lanes)
    # The exponent and mantissa, read as a float32, are the value times 2^-112: also where it is subnormal.
    bits = _integer(b, "zext", value, "i32")
    magnitude = b.shl(b.and_(bits, 0x7FFF), 13)
    scaled = b.mul(b.bitcast(magnitude, "f32"), 2.0**112)
    special = b.cmp("ge", b.and_(bits, 0x7FFF), 0x7C00)
    number = b.select(special, b.or_(magnitude, 0x7F800000), b.bitcast(scaled, "i32"))
    return b.bitcast(b.or_(number, b.shl(b.and_(bits, 0x8000), 16)), "f32")


def narrow_half(b: Builder, value: Value, dtype: DType) -> Value:
    """f32 rounded to f16 or bf16, nearest even."""
    if (half := as_half(b, value, dtype)) is not None:
        return half
    if dtype == "bf16":
        return _narrow_bf16(b, value)
    if b.target.has_f16c:
        half = vector_type("half", value.lanes)
        text = b.emit(f"fptrunc {value.type} {value.text} to {half}", "f16", value.lanes).text
        return b.emit(f"bitcast {half} {text} to {vector_type('i16', value.lanes)}", "f16", value.lanes)
    return _narrow_f16(b, value)


def _narrow_bf16(b: Builder, value: Value) -> Value:
    if is_exact(b, value, "bf16"):
        return _integer(b, "trunc", b.lshr(b.bitcast(value, "i32"), 16), "bf16")
    if b.target.has_bf16c:
        halves, integers = vector_type("bfloat", value.lanes), vector_type("i16", value.lanes)
        text = b.emit(f"fptrunc {value.type} {value.text} to {halves}", "bf16", value.lanes).text
        return b.emit(f"bitcast {halves} {text} to {integers}", "bf16", value.lanes)
    narrow = next((dot.narrow for dot in b.target.dots if dot.dtype == "bf16"), None)
    if narrow is None or b.target.is_subnormal is None:
        return _rounded_bf16(b, value)
    usual, rare = by_register(b, narrow, value), by_register(b, b.target.is_subnormal, value)
    if usual is None or rare is None:
        return _rounded_bf16(b, value)
    # The processor's own conversion flushes subnormal numbers to zero.
    return unless_any(b, rare, usual, lambda: _rounded_bf16(b, value))


def _rounded_bf16(b: Builder, value: Value) -> Value:
    """By integer arithmetic."""
    bits = b.bitcast(value, "i32")
    odd = b.and_(b.lshr(bits, 16), 1)
    rounded = b.lshr(b.add(b.add(bits, 0x7FFF), odd), 16)
    quiet = b.or_(b.lshr(bits, 16), 0x40)
    return _integer(b, "trunc", b.select(b.cmp("uno", value, value), quiet, rounded), "bf16")


def _narrow_f16(b: Builder, value: Value) -> Value:
    bits = b.bitcast(value, "i32")
    sign = b.and_(b.lshr(bits, 16), 0x8000)
    magnitude = b.and_(bits, 0x7FFFFFFF)
    # Normal results: move the exponent, round the 13 lost bits to even; a carry into the exponent is right.
    odd = b.and_(b.lshr(magnitude, 13), 1)
    normal = b.lshr(b.add(b.add(b.sub(magnitude, 112 << 23), 0xFFF), odd), 13)
    # Subnormal results: adding 0.5 puts the units of 2^-24 into the mantissa's last bits, rounded by the adder.
    shifted = b.add(b.bitcast(magnitude, "f32"), 0.5)
    subnormal = b.sub(b.bitcast(shifted, "i32"), 126 << 23)
    number = b.select(b.cmp("lt", magnitude, 113 << 23), subnormal, normal)
    number = b.select(b.cmp("ge", magnitude, 0x477FF000), 0x7C00, number)
    number = b.select(b.cmp("gt", magnitude, 0x7F800000), 0x7E00, number)
    return _integer(b, "trunc", b.or_(number, sign), "f16")


def _integer(b: Builder, opcode: str, value: Value, dtype: DType) -> Value:
    """A conversion between integer registers; f16 and bf16 count as their 16 bits."""
    element = "i16" if dtype in ("f16", "bf16") else f"i{BITS[dtype]}"
    return b.emit(
        f"{opcode} {value.type} {value.text} to {vector_type(element, value.lanes)}", dtype, value.lanes
    )
