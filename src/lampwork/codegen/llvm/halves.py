"""Arithmetic of half types in their own registers, on targets that have instructions of two numbers each.

A sum, a difference or a product that is rounded to float32 and then to a half type is the one that is rounded once:
float32 has 24 digits, twice those of float16 and two, and what is lost below its subnormal numbers decides about none
of bfloat16's. So such an operation needs no float32 at all where its operands are numbers of the half type, and nothing
is unpacked between two of them.

before: %s = fadd <8 x float> %a, %b        of %x and %y as float32
        %z = fptrunc <8 x float> %s to <8 x bfloat>
after:  %z = fadd <8 x bfloat> %x, %y       and LLVM drops the sum that nobody reads
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.types import is_number_of, vector_type
from lampwork.loops.ir.nodes import DType
from lampwork.standard import struct

ELEMENT: Mapping[DType, str] = MappingProxyType({"f16": "half", "bf16": "bfloat"})
_ARITHMETIC: Mapping[str, str] = MappingProxyType(
    {"add": "fadd", "sub": "fsub", "mul": "fmul", "product": "fmul"}
)
_LARGEST: Mapping[str, str] = MappingProxyType({"maximum": "maximum", "minimum": "minimum"})


def note_half(b: Builder, value: Value, half: Value) -> None:
    """From here on `half` is what the float32 `value` is as a number of its type, rounded if need be."""
    if half.dtype in b.target.halves and not value.const:
        b.remember(f"rounded {half.dtype} {value.text}", half)


def note_exact(b: Builder, value: Value, half: Value) -> None:
    """As `note_half`, of a value that is that number."""
    if half.dtype in b.target.halves and not value.const:
        b.remember(f"exactly {half.dtype} {value.text}", half)
        note_half(b, value, half)


def as_half(b: Builder, value: Value, dtype: DType) -> Value | None:
    """A float32 rounded to a half type, if that is at hand."""
    return b.recall(f"rounded {dtype} {value.text}") if dtype in b.target.halves else None


def note_operation(b: Builder, name: str, operands: Sequence[Value], result: Value) -> None:
    """What the float32 `result` of an operation is as a half type, if its operands are numbers of it."""
    known = name in _ARITHMETIC or name in ("neg", "abs") or (name in _LARGEST and b.target.has_maximum)
    if not known or result.dtype != "f32" or all(each.const for each in operands):
        return
    for dtype in ("bf16", "f16"):
        if dtype not in b.target.halves:
            continue
        halves = [_exactly(b, each, dtype) for each in operands]
        if all(each is not None for each in halves):
            found = _emitted(b, name, [each for each in halves if each is not None], dtype)
            note = note_half if name in _ARITHMETIC else note_exact
            note(b, result, found)


def _exactly(b: Builder, value: Value, dtype: DType) -> Value | None:
    if not value.const or value.dtype != "f32":
        return b.recall(f"exactly {dtype} {value.text}")
    number = struct.unpack("<d", int(value.text, 16).to_bytes(8, "little"))[0]
    return b.const(number, dtype) if is_number_of(number, dtype) else None


def _emitted(b: Builder, name: str, operands: Sequence[Value], dtype: DType) -> Value:
    lanes = max(each.lanes for each in operands)
    type_ = vector_type(ELEMENT[dtype], lanes)
    given = [_as_float(b, b.widen(each, lanes), type_) for each in operands]
    if name in _ARITHMETIC:
        text = f"{_ARITHMETIC[name]} {type_} {given[0]}, {given[1]}"
    elif name == "neg":
        text = f"fneg {type_} {given[0]}"
    else:
        suffix = dtype if lanes == 1 else f"v{lanes}{dtype}"
        intrinsic = "fabs" if name == "abs" else _LARGEST[name]
        text = f"call {type_} @llvm.{intrinsic}.{suffix}({', '.join(f'{type_} {each}' for each in given)})"
    found = b.emit(text, dtype, lanes)
    return b.emit(f"bitcast {type_} {found.text} to {found.type}", dtype, lanes)


def _as_float(b: Builder, value: Value, type_: str) -> str:
    return b.emit(f"bitcast {value.type} {value.text} to {type_}", value.dtype, value.lanes).text


def unpacked(b: Builder, value: Value) -> Value | None:
    """bfloat16 as float32, of two neighbours that lie in one register: the lower one moves up, the other's place is
    cleared."""
    if "bf16" not in b.target.halves or value.lanes % 2:
        return None
    pairs = value.lanes // 2
    words = b.emit(f"bitcast {value.type} {value.text} to {vector_type('i32', pairs)}", "i32", pairs)
    low, high = b.shl(words, 16), b.and_(words, -1 << 16)
    if pairs == 1:
        type_ = vector_type("i32", 2)
        first = b.emit(f"insertelement {type_} poison, i32 {low.text}, i64 0", "i32", 2)
        both = b.emit(f"insertelement {type_} {first.text}, i32 {high.text}, i64 1", "i32", 2)
    else:
        order = ", ".join(f"i32 {pair + side * pairs}" for pair in range(pairs) for side in (0, 1))
        both = b.emit(
            f"shufflevector {low.type} {low.text}, {high.type} {high.text}, <{value.lanes} x i32> <{order}>",
            "i32",
            value.lanes,
        )
    return b.bitcast(both, "f32")
