"""The elementary functions of the loop language, for float32 and float64 vectors of any width.

float32: our own, within 2 ulp, in float32 (vecmath_single.py, vecmath_log.py, vecmath_angle.py) or in double arithmetic
(vecmath_wide.py). Angles of magnitude beyond 2^17 take a branch to double arithmetic, and those beyond 2^40 (2^20
without fused multiplication) one to the C library.

float64: exp, expm1, log, log1p, sigmoid, tanh and erf are our own, and with fused multiplication sinh, cosh, atanh,
erfc and ndtr; the others call the C library for each lane: right to an ulp, but slow.

Targets without a C library compute everything by code of our own: angles beyond those limits in integers
(vecmath_payne_hanek.py), and float64 in vecmath_double_angles.py and vecmath_double_powers.py, within 2 ulp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from lampwork.codegen.llvm import (
    vecmath_angle,
    vecmath_double_angles,
    vecmath_double_powers,
    vecmath_log,
    vecmath_single,
    vecmath_wide,
)
from lampwork.codegen.llvm.branches import lane_by_lane, unless_any
from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.types import REGISTER
from lampwork.errors import CodegenError
from lampwork.standard import math, struct

Function = Callable[..., Value]


def libm(b: Builder, name: str, *args: Value) -> Value:
    """The C library's function, called for each lane (`name` is the double's; the float's has an f at its end).

    Raises CodegenError on a target without one.
    """
    if not b.target.has_libm:
        raise CodegenError(
            f"{name} of {args[0].dtype} is the C library's, which {b.target.name} does not have"
        )
    dtype = args[0].dtype
    element = REGISTER[dtype]
    symbol = name + ("f" if dtype == "f32" else "")
    b.module.declare(symbol, f"declare {element} @{symbol}({', '.join([element] * len(args))}) #1")

    def call(b: Builder, *items: Value) -> tuple[Value]:
        operands = ", ".join(b.typed(item) for item in items)
        return (
            b.emit(f"call {element} @{symbol}({operands})", dtype, 1, pure=max(a.lanes for a in args) == 1),
        )

    return lane_by_lane(b, call, *args)[0]


def _angle(name: str, narrow: Function | None, wide: Function, double: Function) -> Function:
    """`narrow` (if any) for ordinary angles, where the target has fused multiplication, `wide` where a lane holds a
    larger one, and the C library, if the target has it, where that is beyond the limit of `wide` too. `double` as in
    `_or_libm`."""

    def beyond(b: Builder, x: Value) -> Value:
        return libm(b, name, x)

    def larger(b: Builder, x: Value) -> Value:
        if not b.target.has_libm:
            return wide(b, x)
        return _up_to(b, vecmath_wide.angle_limit(b), x, wide, beyond)

    def single(b: Builder, x: Value) -> Value:
        if narrow is None or not b.target.has_fma:
            return larger(b, x)
        return _up_to(b, vecmath_angle.LIMIT, x, narrow, larger)

    return _or_libm(name, single, double)


def _up_to(b: Builder, limit: float, x: Value, usual: Function, rare: Function) -> Value:
    """`usual` of x, or `rare`, by a branch, if a lane is larger than `limit`."""
    return unless_any(b, b.cmp("gt", b.fabs(x), limit), usual(b, x), lambda: rare(b, x))


def _by_dtype(single: Function, double: Function) -> Function:
    """`single` for float32, `double` for float64."""

    def rule(b: Builder, *args: Value) -> Value:
        return single(b, *args) if args[0].dtype == "f32" else double(b, *args)

    return rule


def _or_libm(name: str, single: Function, double: Function) -> Function:
    """`single` for float32; for float64 the C library, or `double` on targets without one."""

    def of_double(b: Builder, *args: Value) -> Value:
        return double(b, *args) if uses_double(b) else libm(b, name, *args)

    return _by_dtype(single, of_double)


def _fused(name: str, single: Function, double: Function) -> Function:
    """`single` for float32; for float64 `double`, which is more exact and faster than the C library's, but needs fused
    multiplication."""

    def of_double(b: Builder, *args: Value) -> Value:
        return double(b, *args) if b.target.has_fma else libm(b, name, *args)

    return _by_dtype(single, of_double)


def uses_double(b: Builder) -> bool:
    """Whether functions of float64 that the C library has are code of our own."""
    return b.target.has_fma and not b.target.has_libm


def _ndtr(b: Builder, x: Value) -> Value:
    if b.target.has_fma:
        return vecmath_double_powers.ndtr(b, x)
    return b.mul(libm(b, "erfc", b.mul(x, -math.sqrt(0.5))), 0.5)


def _softplus(b: Builder, x: Value) -> Value:
    e = vecmath_wide.exp_f64(b, b.neg(b.fabs(x)))
    return b.add(b.larger(0.0, x), vecmath_wide.log1p_f64(b, e))


LARGEST_POWER = 16  # of a product in double arithmetic: beyond it a power is as fast


def pow_(b: Builder, x: Value, y: Value) -> Value:
    """x ** y; common constant exponents by multiplication, as PyTorch does."""
    exponent = _constant(y)
    if exponent == 1.0:
        return x
    if exponent == 2.0:
        return b.mul(x, x)
    if exponent == 3.0:
        return b.mul(b.mul(x, x), x)
    if exponent in (0.5, -0.5):
        # Unlike a root, the power of -0.0 is 0.0, and that of negative infinity is infinity.
        root = b.select(b.cmp("eq", x, float("-inf")), float("inf"), b.add(b.sqrt(x), 0.0))
        return root if exponent == 0.5 else b.div(1.0, root)
    if exponent == -1.0:
        return b.div(1.0, x)
    if exponent == -2.0 and x.dtype == "f64":
        return b.div(1.0, b.mul(x, x))
    if x.dtype != "f32":
        return vecmath_double_powers.pow_(b, x, y) if uses_double(b) else libm(b, "pow", x, y)
    if exponent in (1.5, 2.5):
        # The root of -0.0 is -0.0, times which it is 0.0.
        power = b.mul(x if exponent == 1.5 else b.mul(x, x), b.sqrt(x))
        power = power if exponent == 1.5 else b.add(power, 0.0)
        return b.select(b.cmp("eq", x, float("-inf")), float("inf"), power)
    if exponent is not None and exponent == int(exponent) and 0 < abs(exponent) <= LARGEST_POWER:
        return vecmath_wide.whole_power(b, x, int(exponent))
    return vecmath_wide.pow_(b, x, y)


def _constant(value: Value) -> float | None:
    """The number of a float literal (written as the bits of a double)."""
    if not value.const:
        return None
    return struct.unpack("<d", struct.pack("<Q", int(value.text, 16)))[0]


FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "exp": _by_dtype(vecmath_single.exp, vecmath_wide.exp_f64),
        "exp2": _or_libm("exp2", vecmath_single.exp2, vecmath_double_powers.exp2),
        "expm1": _by_dtype(vecmath_single.expm1, vecmath_wide.expm1_f64),
        "log": _by_dtype(vecmath_log.log, vecmath_wide.log_f64),
        "log2": _or_libm("log2", vecmath_log.log2, vecmath_double_powers.log2),
        "log10": _or_libm("log10", vecmath_log.log10, vecmath_double_powers.log10),
        "log1p": _by_dtype(vecmath_log.log1p, vecmath_wide.log1p_f64),
        "ndtr": _by_dtype(vecmath_single.ndtr, _ndtr),
        "softplus": _by_dtype(vecmath_log.softplus, _softplus),
        "sin": _angle("sin", vecmath_angle.sin, vecmath_wide.sin, vecmath_double_angles.sin),
        "cos": _angle("cos", vecmath_angle.cos, vecmath_wide.cos, vecmath_double_angles.cos),
        "tan": _angle("tan", None, vecmath_wide.tan, vecmath_double_angles.tan),
        "asin": _or_libm("asin", vecmath_wide.asin, vecmath_double_angles.asin),
        "acos": _or_libm("acos", vecmath_wide.acos, vecmath_double_angles.acos),
        "atan": _or_libm("atan", vecmath_wide.atan, vecmath_double_angles.atan),
        "sinh": _fused("sinh", vecmath_wide.sinh, vecmath_double_powers.sinh),
        "cosh": _fused("cosh", vecmath_wide.cosh, vecmath_double_powers.cosh),
        "tanh": _by_dtype(vecmath_single.tanh, vecmath_wide.tanh_f64),
        "asinh": _or_libm("asinh", vecmath_wide.asinh, vecmath_double_powers.asinh),
        "acosh": _or_libm("acosh", vecmath_wide.acosh, vecmath_double_powers.acosh),
        "atanh": _fused("atanh", vecmath_wide.atanh, vecmath_double_powers.atanh),
        "sigmoid": _by_dtype(vecmath_single.sigmoid, vecmath_wide.sigmoid_f64),
        "erf": _by_dtype(vecmath_single.erf, vecmath_wide.erf_f64),
        "erfc": _fused("erfc", vecmath_wide.erfc, vecmath_double_powers.erfc),
        "atan2": _or_libm("atan2", vecmath_wide.atan2, vecmath_double_angles.atan2),
        "hypot": _or_libm("hypot", vecmath_wide.hypot, vecmath_double_powers.hypot),
    }
)
