"""`OPS`: every pointwise operation of the loop language, with its arity, dtype rule and exact meaning.

The meaning is a numpy function over arrays of the operands' dtypes (f16 and bf16 operands come as float32: they are
computed in float32 and rounded where an `Op` of a narrow dtype ends). Integer arithmetic wraps around. Shifts by a
negative count or by the width or more give 0 (shr of a negative number: -1). Integer division by zero has no meaning
here: lowering keeps integer divisions out unless the divisor is a nonzero constant.

dtype rules, as `Op.dtype` must hold them:

    same    the dtype of the operands (of operands 1, 2 for where, of operand 0 for require), which all agree
    float   as same, and the operands are floating
    bool    bool, whatever the operands' dtype, which agree
    cast    any: Op.dtype is the target
    bits    f64, of an i64
    word    i32, of i64s
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lampwork.loops.ir.philox import philox
from lampwork.records import record
from lampwork.standard import math

Array = NDArray[Any]
Reference = Callable[..., Array]
Result = Literal["same", "float", "bool", "cast", "bits", "word"]


@record
class OpInfo:
    """One operation. `cost` counts roughly in additions: what fusion weighs before it computes something twice."""

    arity: int
    result: Result
    cost: int
    doc: str
    reference: Reference


def _elementwise(function: Callable[[float], float]) -> Reference:
    """A float64 scalar function of the standard library over an array."""
    over = np.vectorize(function, otypes=[np.float64])

    def reference(x: Array) -> Array:
        return np.asarray(over(x.astype(np.float64))).astype(x.dtype)

    return reference


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype)


def _ndtr(x: Array) -> Array:
    return (_elementwise(math.erfc)(-x.astype(np.float64) * math.sqrt(0.5)) / 2).astype(x.dtype)


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, 0).astype(x.dtype)


def _rsqrt(x: Array) -> Array:
    return (1 / np.sqrt(x)).astype(x.dtype)


def _sign(x: Array) -> Array:
    """-1, 0 or 1; 0 for NaN, as torch.sign."""
    if x.dtype == np.bool_:
        return x
    return ((x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)).astype(x.dtype)


def _div(a: Array, b: Array) -> Array:
    return np.true_divide(a, b).astype(a.dtype)


def _floordiv(a: Array, b: Array) -> Array:
    """torch.div(rounding_mode="floor"): from the remainder for floats, so that a / 0 is an infinity."""
    if not np.issubdtype(a.dtype, np.floating):
        return np.asarray(np.floor_divide(a, b))
    remainder = np.fmod(a, b)
    quotient = (a - remainder) / b
    quotient = np.where((remainder != 0) & ((b < 0) != (remainder < 0)), quotient - 1, quotient)
    floor = np.floor(quotient)
    floor = np.where(quotient - floor > 0.5, floor + 1, floor)
    floor = np.where(quotient == 0, np.copysign(np.zeros_like(a), a / b), floor)
    return np.where(b == 0, a / b, floor).astype(a.dtype)


def _truncdiv(a: Array, b: Array) -> Array:
    if np.issubdtype(a.dtype, np.floating):
        return np.trunc(a / b)
    quotient = np.floor_divide(a, b)
    exact = quotient * b == a
    return np.where(exact | ((a < 0) == (b < 0)), quotient, quotient + 1).astype(a.dtype)


def _rem(a: Array, b: Array) -> Array:
    """torch.remainder: the sign of the divisor; for floats fmod, corrected where the signs differ."""
    remainder = np.fmod(a, b)
    return np.where((remainder != 0) & ((b < 0) != (remainder < 0)), remainder + b, remainder).astype(a.dtype)


def _fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c; whether it is rounded once or twice is left to the machine, so the reference rounds once."""
    if a.dtype == np.float32:
        return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)
    return a * b + c


def _shl(a: Array, count: Array) -> Array:
    outside = (count < 0) | (count >= a.dtype.itemsize * 8)
    return np.where(outside, 0, np.left_shift(a, np.where(outside, 0, count))).astype(a.dtype)


def _shr(a: Array, count: Array) -> Array:
    width = a.dtype.itemsize * 8
    outside = (count < 0) | (count >= width)
    return (
        np.right_shift(a, np.where(outside, width - 1, count)).astype(a.dtype)
        if a.dtype.kind == "i"
        else (np.where(outside, 0, np.right_shift(a, np.where(outside, 0, count))).astype(a.dtype))
    )


def _pow(a: Array, b: Array) -> Array:
    """Floats as C's pow. Integers wrap; a negative exponent gives 0 unless the base is 1 or -1, as torch."""
    if np.issubdtype(a.dtype, np.floating):
        return np.power(a, b)
    positive = np.power(a, np.where(b < 0, 0, b).astype(b.dtype))
    alternating = np.where(b % 2 == 0, 1, -1)
    negative = np.where(a == 1, 1, np.where(a == -1, alternating, 0))
    return np.where(b < 0, negative, positive).astype(a.dtype)


def _require(value: Array, condition: Array) -> Array:
    if not np.all(condition):
        raise ArithmeticError("a value is not what the kernel requires")
    return value


def _cast(x: Array) -> Array:
    """The conversion itself is the evaluator's: it knows the target dtype."""
    return x


def _signbit(x: Array) -> Array:
    return np.signbit(x) if np.issubdtype(x.dtype, np.floating) else x < 0


def _float_test(test: Callable[[Array], Array], otherwise: bool) -> Reference:
    def reference(x: Array) -> Array:
        return test(x) if np.issubdtype(x.dtype, np.floating) else np.full(x.shape, otherwise)

    return reference


def _rounding(function: Callable[[Array], Array]) -> Reference:
    def reference(x: Array) -> Array:
        return function(x) if np.issubdtype(x.dtype, np.floating) else x

    return reference


def _table() -> dict[str, OpInfo]:
    table: dict[str, OpInfo] = {}

    def op(name: str, arity: int, result: Result, cost: int, doc: str, reference: Reference) -> None:
        table[name] = OpInfo(arity, result, cost, doc, reference)

    op("neg", 1, "same", 1, "-x", np.negative)
    op("abs", 1, "same", 1, "|x|; the smallest integer stays", np.abs)
    op("sign", 1, "same", 2, "-1, 0 or 1; 0 for NaN", _sign)
    op("ceil", 1, "same", 1, "round up", _rounding(np.ceil))
    op("floor", 1, "same", 1, "round down", _rounding(np.floor))
    op("round", 1, "same", 1, "round to nearest, half to even", _rounding(np.rint))
    op("trunc", 1, "same", 1, "round towards zero", _rounding(np.trunc))
    op("sqrt", 1, "float", 6, "square root", np.sqrt)
    op("rsqrt", 1, "float", 8, "1 / sqrt(x)", _rsqrt)
    op("reciprocal", 1, "float", 4, "1 / x", np.reciprocal)
    op("exp", 1, "float", 14, "e ** x", np.exp)
    op("exp2", 1, "float", 12, "2 ** x", np.exp2)
    op("expm1", 1, "float", 18, "e ** x - 1, exact near 0", np.expm1)
    op("log", 1, "float", 16, "natural logarithm", np.log)
    op("log2", 1, "float", 16, "logarithm to base 2", np.log2)
    op("log10", 1, "float", 16, "logarithm to base 10", np.log10)
    op("log1p", 1, "float", 18, "log(1 + x), exact near 0", np.log1p)
    op("ndtr", 1, "float", 24, "the normal distribution function; float32: to 2^-22, not to ulps", _ndtr)
    op("softplus", 1, "float", 28, "log(1 + e ** x), without overflow", _softplus)
    op("sin", 1, "float", 20, "sine", np.sin)
    op("cos", 1, "float", 20, "cosine", np.cos)
    op("tan", 1, "float", 26, "tangent", np.tan)
    op("asin", 1, "float", 20, "inverse sine", np.arcsin)
    op("acos", 1, "float", 20, "inverse cosine", np.arccos)
    op("atan", 1, "float", 20, "inverse tangent", np.arctan)
    op("sinh", 1, "float", 22, "hyperbolic sine", np.sinh)
    op("cosh", 1, "float", 22, "hyperbolic cosine", np.cosh)
    op("tanh", 1, "float", 20, "hyperbolic tangent", np.tanh)
    op("asinh", 1, "float", 26, "inverse hyperbolic sine", np.arcsinh)
    op("acosh", 1, "float", 26, "inverse hyperbolic cosine", np.arccosh)
    op("atanh", 1, "float", 24, "inverse hyperbolic tangent", np.arctanh)
    op("sigmoid", 1, "float", 20, "1 / (1 + e ** -x)", _sigmoid)
    op("erf", 1, "float", 20, "error function", _elementwise(math.erf))
    op("erfc", 1, "float", 24, "1 - erf(x), exact for large x", _elementwise(math.erfc))
    op("not", 1, "bool", 1, "logical negation: x == 0", np.logical_not)
    op("bitnot", 1, "same", 1, "bitwise negation; logical for bool", np.invert)
    op("isnan", 1, "bool", 1, "x is NaN", _float_test(np.isnan, False))
    op("isinf", 1, "bool", 1, "x is an infinity", _float_test(np.isinf, False))
    op("isfinite", 1, "bool", 1, "x is neither NaN nor an infinity", _float_test(np.isfinite, True))
    op("signbit", 1, "bool", 1, "the sign bit: true for -0.0", _signbit)

    op("add", 2, "same", 1, "a + b; or for bool", np.add)
    op("sub", 2, "same", 1, "a - b", np.subtract)
    op("mul", 2, "same", 1, "a * b; and for bool", np.multiply)
    op(
        "product",
        2,
        "float",
        1,
        "a * b, of the operator that sums it up: a sum that takes it may add it unrounded",
        np.multiply,
    )
    op("div", 2, "float", 4, "a / b", _div)
    op("floordiv", 2, "same", 8, "rounded down, as torch.div(rounding_mode='floor')", _floordiv)
    op("truncdiv", 2, "same", 6, "rounded towards zero, as torch.div(rounding_mode='trunc')", _truncdiv)
    op("rem", 2, "same", 10, "remainder with the sign of b, as torch.remainder", _rem)
    op("fmod", 2, "same", 10, "remainder with the sign of a", np.fmod)
    op("pow", 2, "same", 36, "a ** b", _pow)
    op("atan2", 2, "float", 26, "angle of (b, a)", np.arctan2)
    op("hypot", 2, "float", 10, "sqrt(a*a + b*b) without overflow", np.hypot)
    op("copysign", 2, "float", 2, "|a| with the sign of b", np.copysign)
    op("minimum", 2, "same", 2, "the smaller; NaN if either is", np.minimum)
    op("maximum", 2, "same", 2, "the larger; NaN if either is", np.maximum)
    op("fmin", 2, "same", 1, "the smaller; the other one if one is NaN", np.fmin)
    op("fmax", 2, "same", 1, "the larger; the other one if one is NaN", np.fmax)
    op("and", 2, "same", 1, "bitwise and, of integers or bool", np.bitwise_and)
    op("or", 2, "same", 1, "bitwise or, of integers or bool", np.bitwise_or)
    op("xor", 2, "same", 1, "bitwise exclusive or, of integers or bool", np.bitwise_xor)
    op("shl", 2, "same", 1, "shift left", _shl)
    op("shr", 2, "same", 1, "shift right, arithmetic for signed integers", _shr)
    op("eq", 2, "bool", 1, "a == b", np.equal)
    op("ne", 2, "bool", 1, "a != b", np.not_equal)
    op("lt", 2, "bool", 1, "a < b", np.less)
    op("le", 2, "bool", 1, "a <= b", np.less_equal)
    op("gt", 2, "bool", 1, "a > b", np.greater)
    op("ge", 2, "bool", 1, "a >= b", np.greater_equal)

    op("where", 3, "same", 1, "operand 1 where operand 0 (bool) is true, else operand 2", np.where)
    op("fma", 3, "float", 1, "a * b + c, rounded once or twice", _fma)
    op("require", 2, "same", 1, "operand 0; the kernel fails where operand 1 (bool) is false", _require)
    op(
        "cast",
        1,
        "cast",
        1,
        "conversion as torch's .to(dtype): floats truncate to integers, bool is x != 0",
        _cast,
    )
    op(
        "unrounded",
        1,
        "float",
        0,
        "x; of an operator that may take the sum of a product as it was before it was rounded to a half type",
        _cast,
    )
    op("philox", 3, "word", 12, "the random i32 of element b under the key a, c of its numbers", philox)
    op("from_bits", 1, "bits", 1, "the f64 whose bits are an i64", lambda x: x.view(np.float64))
    return table


OPS: Mapping[str, OpInfo] = MappingProxyType(_table())
