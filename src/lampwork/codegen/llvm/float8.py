"""float8 from and to float32, in integer arithmetic that every target has.

Both formats are a sign, an exponent and a mantissa, as float32 is: normal numbers are float32's bits shifted, with
another bias. All is bit for bit what PyTorch's conversions of float8_e4m3fn and float8_e5m2 give, but for what is too
large for the first: in the loop language it is nan, whatever the PyTorch at hand makes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.loops.ir.nodes import DType
from lampwork.records import record

_NAN = 0x7F
_INFINITY_OF_F32 = 0x7F800000


@record
class _Format:
    """mantissa: its bits. bias: of the exponent. special: the first code that is no finite number. too_large: the bits
    of the float32 from which no number is finite; those below may still be rounded to `special`."""

    mantissa: int
    bias: int
    special: int
    too_large: int

    @property
    def lost(self) -> int:
        """The bits of float32's mantissa that it lacks."""
        return 23 - self.mantissa

    @property
    def least(self) -> int:
        """The exponent of its least number as a power of two."""
        return 1 - self.bias - self.mantissa


_FORMATS: Mapping[DType, _Format] = MappingProxyType(
    {"f8e4m3": _Format(3, 7, 0x7F, 0x43F00000), "f8e5m2": _Format(2, 15, 0x7C, 0x47800000)}
)


def widen_float8(b: Builder, value: Value) -> Value:
    """float8 as f32, exactly."""
    has = _FORMATS[value.dtype]
    code = b.convert("zext", value, "i32")
    magnitude = b.and_(code, 0x7F)
    normal = b.add(b.shl(magnitude, has.lost), (127 - has.bias) << 23)
    # Not by a product of a subnormal float32, which a processor may be told to take for zero.
    subnormal = b.bitcast(b.mul(b.convert("sitofp", magnitude, "f32"), 2.0**has.least), "i32")
    number = b.select(b.cmp("lt", magnitude, 1 << has.mantissa), subnormal, normal)
    quiet = b.or_(b.shl(magnitude, has.lost), _INFINITY_OF_F32 | 1 << 22)
    if has.special < _NAN:
        number = b.select(b.cmp("eq", magnitude, has.special), _INFINITY_OF_F32, number)
        number = b.select(b.cmp("gt", magnitude, has.special), quiet, number)
    else:
        number = b.select(b.cmp("eq", magnitude, _NAN), quiet, number)
    return b.bitcast(b.or_(number, b.shl(b.and_(code, 0x80), 24)), "f32")


def narrow_float8(b: Builder, value: Value, dtype: DType) -> Value:
    """f32 rounded to a float8, nearest even."""
    has = _FORMATS[dtype]
    bits = b.bitcast(value, "i32")
    sign = b.and_(b.lshr(bits, 24), 0x80)
    magnitude = b.and_(bits, 0x7FFFFFFF)
    # Normal results: a carry into the exponent is right, also that from the last number on.
    odd = b.and_(b.lshr(magnitude, has.lost), 1)
    moved = b.sub(magnitude, ((127 - has.bias) << 23) - ((1 << (has.lost - 1)) - 1))
    normal = b.lshr(b.add(moved, odd), has.lost)
    # Subnormal results: the sum has the least number as the unit of its last bit, and the adder rounds.
    power = has.least + 23
    shifted = b.add(b.bitcast(magnitude, "f32"), 2.0**power)
    subnormal = b.sub(b.bitcast(shifted, "i32"), (127 + power) << 23)
    number = b.select(b.cmp("lt", magnitude, (128 - has.bias) << 23), subnormal, normal)
    number = b.select(b.cmp("ge", magnitude, has.too_large), has.special, number)
    number = b.select(b.cmp("gt", magnitude, _INFINITY_OF_F32), _NAN, number)
    return b.convert("trunc", b.or_(number, sign), dtype)
