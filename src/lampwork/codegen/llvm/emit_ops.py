"""Pointwise operations: one function an operation of `loops.ops.OPS`, over values of the dtype they compute in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from lampwork.codegen.llvm import division, vecmath, vecmath_remainder
from lampwork.codegen.llvm.builder import Builder, Comparison, Value
from lampwork.codegen.llvm.convert import convert, keep_exact
from lampwork.codegen.llvm.halves import note_operation
from lampwork.codegen.llvm.types import BITS, compute_dtype, is_float, is_unsigned
from lampwork.errors import CodegenError
from lampwork.loops.ir.nodes import DType

Rule = Callable[..., Value]

_PICKS = frozenset(("maximum", "minimum", "fmax", "fmin", "neg", "abs", "where"))
"""Operations that give one of their operands, or its negative: of half types there is nothing to round."""


def emit_op(b: Builder, name: str, args: tuple[Value, ...], dtype: DType) -> Value:
    """The operation `name` over `args`, as `dtype`. f16 and bf16 are computed in f32 and rounded at the end.

    Raises CodegenError for a name without a rule.
    """
    if name == "cast":
        return convert(b, args[0], dtype)
    rule = RULES.get(name)
    if rule is None:
        raise CodegenError(f"there is no code for the operation {name!r}")
    key = f"{name} {dtype} " + " ".join(f"{arg.dtype} {arg.lanes} {arg.text}" for arg in args)
    known = b.recall(key)
    if known is not None:
        return known
    operands = tuple(convert(b, arg, compute_dtype(arg.dtype)) for arg in args)
    found = rule(b, *operands)
    if name in _PICKS:
        found = keep_exact(b, found, operands if name != "where" else operands[1:])
    note_operation(b, name, operands, found)
    return b.remember(key, convert(b, found, dtype))


def maximum(b: Builder, x: Value, y: Value) -> Value:
    """The larger; NaN if either is."""
    return _extremum(b, x, y, "gt")


def minimum(b: Builder, x: Value, y: Value) -> Value:
    """The smaller; NaN if either is."""
    return _extremum(b, x, y, "lt")


def _extremum(b: Builder, x: Value, y: Value, how: Comparison) -> Value:
    if x.dtype == "bool":
        return b.or_(x, y) if how == "gt" else b.and_(x, y)
    pick = b.larger if how == "gt" else b.smaller
    if not is_float(x.dtype):
        return pick(x, y)
    if b.target.has_maximum and x.dtype == "f32":
        return b.intrinsic("maximum" if how == "gt" else "minimum", x, y)
    # The instruction gives its second operand where either is NaN: enough if the first one cannot be.
    if x.const:
        return pick(x, y) if not _is_nan(x) else x
    if y.const:
        return pick(y, x) if not _is_nan(y) else y
    return b.select(b.cmp("uno", x, x), x, pick(x, y))


def _is_nan(value: Value) -> bool:
    bits = int(value.text, 16)
    return bits & 0x7FF0000000000000 == 0x7FF0000000000000 and bits & 0x000FFFFFFFFFFFFF != 0


def _fmax(b: Builder, x: Value, y: Value) -> Value:
    # Of equal operands (0.0 and -0.0) the first, as C's fmax.
    return b.select(b.cmp("uno", x, x), y, b.larger(y, x)) if is_float(x.dtype) else maximum(b, x, y)


def _fmin(b: Builder, x: Value, y: Value) -> Value:
    return b.select(b.cmp("uno", x, x), y, b.smaller(y, x)) if is_float(x.dtype) else minimum(b, x, y)


def _add(b: Builder, x: Value, y: Value) -> Value:
    return b.or_(x, y) if x.dtype == "bool" else b.add(x, y)


def _mul(b: Builder, x: Value, y: Value) -> Value:
    return b.and_(x, y) if x.dtype == "bool" else b.mul(x, y)


def _neg(b: Builder, x: Value) -> Value:
    return b.neg(x)


def _abs(b: Builder, x: Value) -> Value:
    if is_float(x.dtype):
        return b.fabs(x)
    return x if is_unsigned(x.dtype) else b.select(b.cmp("lt", x, 0), b.sub(0, x), x)


def _sign(b: Builder, x: Value) -> Value:
    if is_float(x.dtype):
        negative = b.select(b.cmp("lt", x, 0.0), b.const(-1.0, x.dtype), b.const(0.0, x.dtype))
        return b.select(b.cmp("gt", x, 0.0), b.const(1.0, x.dtype), negative)
    if is_unsigned(x.dtype):
        return x if x.dtype == "bool" else b.select(b.cmp("eq", x, 0), x, b.const(1, x.dtype))
    negative = b.select(b.cmp("lt", x, 0), b.const(-1, x.dtype), b.const(0, x.dtype))
    return b.select(b.cmp("gt", x, 0), b.const(1, x.dtype), negative)


def _rounding(intrinsic: str) -> Rule:
    def rule(b: Builder, x: Value) -> Value:
        return b.intrinsic(intrinsic, x) if is_float(x.dtype) else x

    return rule


def _sqrt(b: Builder, x: Value) -> Value:
    return b.sqrt(x)


def _rsqrt(b: Builder, x: Value) -> Value:
    return b.div(1.0, b.sqrt(x))


def _reciprocal(b: Builder, x: Value) -> Value:
    return b.div(1.0, x)


def _not(b: Builder, x: Value) -> Value:
    return b.not_(x) if x.dtype == "bool" else b.cmp("eq", x, 0.0 if is_float(x.dtype) else 0)


def _bitnot(b: Builder, x: Value) -> Value:
    return b.not_(x)


def _isnan(b: Builder, x: Value) -> Value:
    return b.cmp("uno", x, x) if is_float(x.dtype) else b.const(False, "bool")


def _isinf(b: Builder, x: Value) -> Value:
    return b.cmp("eq", b.fabs(x), float("inf")) if is_float(x.dtype) else b.const(False, "bool")


def _isfinite(b: Builder, x: Value) -> Value:
    return b.cmp("lt", b.fabs(x), float("inf")) if is_float(x.dtype) else b.const(True, "bool")


def _signbit(b: Builder, x: Value) -> Value:
    if is_float(x.dtype):
        return b.cmp("lt", b.bitcast(x, "i64" if x.dtype == "f64" else "i32"), 0)
    return b.const(False, "bool") if is_unsigned(x.dtype) else b.cmp("lt", x, 0)


def _unsigned_divisor(b: Builder, y: Value) -> Value:
    """y, or 1 for 0: lanes past the end of a loop hold zeros, and a division in one lane traps for all."""
    return y if y.const else b.select(b.cmp("eq", y, 0), 1, y)


def _div(b: Builder, x: Value, y: Value) -> Value:
    return b.div(x, y)


def _fmod(b: Builder, x: Value, y: Value) -> Value:
    if is_float(x.dtype):
        return vecmath_remainder.fmod(b, x, y)
    if is_unsigned(x.dtype):
        return b.rem(x, _unsigned_divisor(b, y))
    return division.remainder(b, x, y, "trunc")


def _rem(b: Builder, x: Value, y: Value) -> Value:
    """fmod, moved by the divisor where the signs differ."""
    if is_unsigned(x.dtype):
        return _fmod(b, x, y)
    if not is_float(x.dtype):
        return division.remainder(b, x, y, "floor")
    remainder = vecmath_remainder.fmod(b, x, y)
    differ = b.xor(b.cmp("lt", y, 0.0), b.cmp("lt", remainder, 0.0))
    wrong = b.and_(b.cmp("ne", remainder, 0.0), differ)
    return b.select(wrong, b.add(remainder, y), remainder)


def _truncdiv(b: Builder, x: Value, y: Value) -> Value:
    if is_float(x.dtype):
        return b.intrinsic("trunc", b.div(x, y))
    if is_unsigned(x.dtype):
        return b.div(x, _unsigned_divisor(b, y))
    return division.divide(b, x, y, "trunc")


def _floordiv(b: Builder, x: Value, y: Value) -> Value:
    """From the remainder, so that floats round down exactly."""
    if is_unsigned(x.dtype):
        return _truncdiv(b, x, y)
    if not is_float(x.dtype):
        return division.divide(b, x, y, "floor")
    remainder = vecmath_remainder.fmod(b, x, y)
    quotient = b.div(b.sub(x, remainder), y)
    differ = b.xor(b.cmp("lt", y, 0.0), b.cmp("lt", remainder, 0.0))
    wrong = b.and_(b.cmp("ne", remainder, 0.0), differ)
    quotient = b.select(wrong, b.sub(quotient, 1.0), quotient)
    floor = b.intrinsic("floor", quotient)
    floor = b.select(b.cmp("gt", b.sub(quotient, floor), 0.5), b.add(floor, 1.0), floor)
    exact = b.div(x, y)
    floor = b.select(b.cmp("eq", quotient, 0.0), b.copysign(b.const(0.0, x.dtype), exact), floor)
    return b.select(b.cmp("eq", y, 0.0), exact, floor)


def _copysign(b: Builder, x: Value, y: Value) -> Value:
    return b.copysign(x, y)


def _and(b: Builder, x: Value, y: Value) -> Value:
    return b.and_(x, y)


def _or(b: Builder, x: Value, y: Value) -> Value:
    return b.or_(x, y)


def _xor(b: Builder, x: Value, y: Value) -> Value:
    return b.xor(x, y)


def _shl(b: Builder, x: Value, count: Value) -> Value:
    outside = _count_outside(b, x, count)
    return b.select(outside, 0, b.shl(x, b.select(outside, 0, count)))


def _shr(b: Builder, x: Value, count: Value) -> Value:
    outside = _count_outside(b, x, count)
    if is_unsigned(x.dtype):
        return b.select(outside, 0, b.lshr(x, b.select(outside, 0, count)))
    return b.ashr(x, b.select(outside, BITS[x.dtype] - 1, count))


def _count_outside(b: Builder, x: Value, count: Value) -> Value:
    return b.or_(b.cmp("lt", count, 0), b.cmp("ge", count, BITS[x.dtype]))


def _compare(how: Comparison) -> Rule:
    def rule(b: Builder, x: Value, y: Value) -> Value:
        return b.cmp(how, x, y)

    return rule


def _where(b: Builder, condition: Value, x: Value, y: Value) -> Value:
    return b.select(condition, x, y)


def _fma(b: Builder, x: Value, y: Value, z: Value) -> Value:
    return b.fma(x, y, z) if is_float(x.dtype) else b.add(b.mul(x, y), z)


def _pow(b: Builder, x: Value, y: Value) -> Value:
    if is_float(x.dtype):
        return vecmath.pow_(b, x, y)
    return _integer_pow(b, x, y)


def _integer_pow(b: Builder, x: Value, y: Value) -> Value:
    """Square and multiply over the bits of the exponent; a negative one gives 0 unless the base is 1 or -1."""
    one, zero = b.const(1, x.dtype), b.const(0, x.dtype)
    if x.dtype == "bool":
        return b.or_(x, b.not_(y))
    lanes = max(x.lanes, y.lanes)
    start = [b.widen(v, lanes) for v in (one, x, y)]
    with b.loop(b.const(0, "i64"), b.const(BITS[y.dtype], "i64"), 1, start, runs=True) as loop:
        result, base, rest = loop.carried
        taken = b.cmp("ne", b.and_(rest, 1), 0)
        loop.next = [b.select(taken, b.mul(result, base), result), b.mul(base, base), b.lshr(rest, 1)]
    result = loop.results[0]
    if is_unsigned(y.dtype):
        return result
    odd = b.cmp("ne", b.and_(y, 1), 0)
    sign = b.select(b.cmp("eq", x, -1), b.select(odd, b.const(-1, x.dtype), one), zero)
    return b.select(b.cmp("lt", y, 0), b.select(b.cmp("eq", x, 1), one, sign), result)


_COMPARISONS: tuple[Comparison, ...] = ("eq", "ne", "lt", "le", "gt", "ge")

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "neg": _neg,
        "unrounded": lambda b, x: x,
        "from_bits": lambda b, x: b.bitcast(x, "f64"),
        "abs": _abs,
        "sign": _sign,
        "ceil": _rounding("ceil"),
        "floor": _rounding("floor"),
        "round": _rounding("roundeven"),
        "trunc": _rounding("trunc"),
        "sqrt": _sqrt,
        "rsqrt": _rsqrt,
        "reciprocal": _reciprocal,
        "not": _not,
        "bitnot": _bitnot,
        "isnan": _isnan,
        "isinf": _isinf,
        "isfinite": _isfinite,
        "signbit": _signbit,
        "add": _add,
        "sub": lambda b, x, y: b.sub(x, y),
        "mul": _mul,
        "product": _mul,
        "div": _div,
        "floordiv": _floordiv,
        "truncdiv": _truncdiv,
        "rem": _rem,
        "fmod": _fmod,
        "pow": _pow,
        "copysign": _copysign,
        "minimum": minimum,
        "maximum": maximum,
        "fmin": _fmin,
        "fmax": _fmax,
        "and": _and,
        "or": _or,
        "xor": _xor,
        "shl": _shl,
        "shr": _shr,
        "where": _where,
        "fma": _fma,
        **{how: _compare(how) for how in _COMPARISONS},
        **vecmath.FUNCTIONS,
    }
)
