"""Arithmetic, comparisons, logic and mathematical functions, element by element.

Each rule computes in the type eager computes in (f32 for half types) and rounds to the node's dtype at its end. Its
operands come rounded to the node's dtype too, as eager's iterator brings them to one: `operand` sees to it. Within a
rule `exprs.fma` stands where eager's vectorized kernels round once.
"""

from __future__ import annotations

from collections.abc import Callable

from lampwork.graph.devices import CPU
from lampwork.graph.symbols import SymbolicFloat
from lampwork.loops.ir.nodes import DType, Expr
from lampwork.lower import exprs as e
from lampwork.lower.arrays import Array, read
from lampwork.lower.context import Context
from lampwork.lower.dtypes import (
    FLOATS,
    HALVES,
    LOOP_DTYPES,
    compute_dtype,
    fits,
    number_dtype,
    promote,
)
from lampwork.lower.registry import NotExpressible, Registry, Rule
from lampwork.standard import math

rules = Registry()

Number = float | int | bool
Operand = Array | float | int | bool


def operand(ctx: Context, value: Operand, dtype: DType) -> Expr:
    """A tensor broadcast to the node's shape, or a Python number, in `dtype`.

    Where `dtype` is what a half type computes in, the operand is first rounded to that half type.
    """
    own = LOOP_DTYPES.get(ctx.spec.dtype)
    if own in HALVES and dtype == "f32":
        return e.widened(unrounded(ctx, value, own), dtype)
    return unrounded(ctx, value, dtype)


def unrounded(ctx: Context, value: Operand, dtype: DType) -> Expr:
    """`operand` for the few places where eager takes a number in the type it computes in, though the node's is half."""
    if isinstance(value, Array):
        return e.cast(read(value, ctx.spec.shape), dtype)
    if isinstance(value, complex):
        raise NotExpressible("a complex number")
    if not fits(value, dtype):
        raise NotExpressible(f"{value} does not fit {dtype}")
    return e.const(value, dtype)


def _second(ctx: Context, value: Operand, dtype: DType) -> Expr:
    """The second operand of a product or quotient: eager reads one that is a single element in the type it computes
    in, unlike all others."""
    if isinstance(value, Array) and (ctx.dtype not in HALVES or value.dtype == ctx.dtype):
        return operand(ctx, value, dtype)
    return unrounded(ctx, value, dtype) if _is_single(value) else operand(ctx, value, dtype)


def _is_single(value: Operand) -> bool:
    return not isinstance(value, Array) or all(size == 1 for size in value.shape)


def _is_number(ctx: Context, value: Operand) -> bool:
    """Whether kernels of a device are given the operand itself, not its place in memory."""
    return not isinstance(value, Array) or value.buffer.name in ctx.moved


def common_dtype(*values: Operand) -> DType:
    """The type that the operands of a comparison (or any operation) are brought to."""
    return promote(
        (value.dtype, "dimensioned" if value.shape else "zero_dim")
        if isinstance(value, Array)
        else (number_dtype(value), "number")
        for value in values
    )


def half_step(ctx: Context, value: Expr) -> Expr:
    """A step of a formula that eager writes in the half type itself, where each operation rounds."""
    return e.cast(e.cast(value, ctx.dtype), value.dtype)


def compute(ctx: Context) -> DType:
    """The type that the node computes in, from the type of its result."""
    return compute_dtype(ctx.dtype)


# --- one operand ------------------------------------------------------------------------------------------------------


def _unary(name: str) -> Rule:
    def rule(ctx: Context, x: Array) -> Array:
        return ctx.result(e.op(name, operand(ctx, x, compute(ctx))))

    return rule


for _name in (
    *(
        "neg",
        "abs",
        "sign",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
    ),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *("sigmoid", "erf", "erfc"),
):
    rules.add(_name, _unary(_name))
rules.add("sgn", _unary("sign"))

rules.add("special_expm1", _unary("expm1"))
rules.add("special_erf", _unary("erf"))
rules.add("special_expit", _unary("sigmoid"))


def _rounding(name: str) -> Rule:
    def rule(ctx: Context, x: Array) -> Array:
        value = operand(ctx, x, compute(ctx))
        return ctx.result(e.op(name, value) if ctx.dtype in FLOATS else value)

    return rule


for _name in ("ceil", "floor", "round", "trunc"):
    rules.add(_name, _rounding(_name))


def _predicate(name: str) -> Rule:
    def rule(ctx: Context, x: Array) -> Array:
        return ctx.result(e.test(name, operand(ctx, x, compute_dtype(x.dtype))))

    return rule


for _name in ("isnan", "isinf", "isfinite", "signbit"):
    rules.add(_name, _predicate(_name))


@rules.lowers("isposinf")
def isposinf(ctx: Context, x: Array) -> Array:
    if x.dtype not in FLOATS:
        return ctx.result(e.const(False, "bool"))
    value = operand(ctx, x, compute_dtype(x.dtype))
    return ctx.result(e.test("eq", value, e.like(math.inf, value)))


@rules.lowers("isneginf")
def isneginf(ctx: Context, x: Array) -> Array:
    if x.dtype not in FLOATS:
        return ctx.result(e.const(False, "bool"))
    value = operand(ctx, x, compute_dtype(x.dtype))
    return ctx.result(e.test("eq", value, e.like(-math.inf, value)))


def _angle(factor: float) -> Rule:
    def rule(ctx: Context, x: Array) -> Array:
        value = operand(ctx, x, compute(ctx))
        return ctx.result(e.mul(value, e.like(factor, value)))

    return rule


rules.add("deg2rad", _angle(math.pi / 180))
rules.add("rad2deg", _angle(180 / math.pi))


@rules.lowers("frac")
def frac(ctx: Context, x: Array) -> Array:
    value = operand(ctx, x, compute(ctx))
    return ctx.result(e.sub(value, e.op("trunc", value)))


@rules.lowers("sinc", "special_sinc")
def sinc(ctx: Context, x: Array) -> Array:
    value = operand(ctx, x, compute(ctx))
    angle = e.mul(value, e.like(math.pi, value))
    wave = e.div(e.op("sin", angle), angle)
    return ctx.result(e.where(e.test("eq", value, e.like(0, value)), e.like(1, value), wave))


@rules.lowers("square")
def square(ctx: Context, x: Array) -> Array:
    value = operand(ctx, x, compute(ctx))
    return ctx.result(e.mul(value, value))


@rules.lowers("nan_to_num")
def nan_to_num(
    ctx: Context, x: Array, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Array:
    dtype = compute(ctx)
    value = operand(ctx, x, dtype)
    if dtype not in FLOATS:
        return ctx.result(value)
    largest = {
        "f64": 1.7976931348623157e308,
        "f32": 3.4028234663852886e38,
        "f16": 65504.0,
        "bf16": 3.3895313892515355e38,
    }[ctx.dtype]
    over = e.const(largest if posinf is None else posinf, dtype)
    under = e.const(-largest if neginf is None else neginf, dtype)
    result = e.where(e.test("eq", value, e.const(-math.inf, dtype)), under, value)
    result = e.where(e.test("eq", value, e.const(math.inf, dtype)), over, result)
    return ctx.result(e.where(e.test("isnan", value), e.const(nan or 0.0, dtype), result))


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _scaled(value: Expr, alpha: Number) -> Expr:
    return value if alpha == 1 else e.mul(value, e.like(alpha, value))


def _plus_scaled(ctx: Context, value: Expr, other: Expr, alpha: Number, *, minus: bool = False) -> Expr:
    """value + alpha * other, or value - alpha * other, rounded once as eager's vectors are."""
    if alpha == 1:
        return e.sub(value, other) if minus else e.add(value, other)
    if minus and type(alpha) is int and alpha == -(1 << 63):
        raise NotExpressible("a difference whose factor eager negates, which int64 cannot")
    if minus and value.dtype in FLOATS:
        other = e.op("neg", other)
    elif minus:
        return e.sub(value, e.mul(other, operand(ctx, alpha, other.dtype)))
    return e.fma(other, operand(ctx, alpha, other.dtype), value)


@rules.lowers("add.Tensor", "add.Scalar")
def add(ctx: Context, x: Operand, other: Operand, alpha: Number = 1) -> Array:
    dtype = compute(ctx)
    return ctx.result(_plus_scaled(ctx, operand(ctx, x, dtype), operand(ctx, other, dtype), alpha))


@rules.lowers("sub.Tensor", "sub.Scalar")
def sub(ctx: Context, x: Operand, other: Operand, alpha: Number = 1) -> Array:
    dtype = compute(ctx)
    return ctx.result(
        _plus_scaled(ctx, operand(ctx, x, dtype), operand(ctx, other, dtype), alpha, minus=True)
    )


@rules.lowers("rsub.Tensor", "rsub.Scalar")
def rsub(ctx: Context, x: Operand, other: Operand, alpha: Number = 1) -> Array:
    return sub(ctx, other, x, alpha)


def _arithmetic(name: str) -> Rule:
    def rule(ctx: Context, x: Operand, other: Operand) -> Array:
        dtype = compute(ctx)
        return ctx.result(e.op(name, operand(ctx, x, dtype), operand(ctx, other, dtype)))

    return rule


@rules.lowers("mul.Tensor", "mul.Scalar")
def mul(ctx: Context, x: Operand, other: Operand) -> Array:
    dtype = compute(ctx)
    return ctx.result(e.mul(operand(ctx, x, dtype), _second(ctx, other, dtype)))


for _name in ("atan2", "hypot", "copysign.Tensor", "copysign.Scalar"):
    rules.add(_name, _arithmetic(_name.partition(".")[0]))


def _number_wins(name: str) -> Rule:
    """fmin or fmax. Of 0.0 and -0.0 eager takes the first, but in bfloat16 the second."""

    def rule(ctx: Context, x: Operand, other: Operand) -> Array:
        first, second = operand(ctx, x, compute(ctx)), operand(ctx, other, compute(ctx))
        if ctx.dtype == "bf16":
            first, second = second, first
        return ctx.result(e.op(name, first, second))

    return rule


rules.add("fmin", _number_wins("fmin"))
rules.add("fmax", _number_wins("fmax"))


def _extremum(name: str, for_bool: str) -> Rule:
    def rule(ctx: Context, x: Operand, other: Operand) -> Array:
        dtype = compute(ctx)
        return ctx.result(
            e.op(for_bool if dtype == "bool" else name, operand(ctx, x, dtype), operand(ctx, other, dtype))
        )

    return rule


rules.lowers("maximum", "max.other")(_extremum("maximum", "or"))
rules.lowers("minimum", "min.other")(_extremum("minimum", "and"))


def _divide(ctx: Context, name: str, x: Operand, other: Operand) -> Array:
    """A division that stays in the common type. Of integers by 0 it is an error of eager's."""
    dtype = compute(ctx)
    if dtype not in FLOATS and (dtype == "bool" or (not isinstance(other, Array) and other == 0)):
        raise NotExpressible("a division that eager refuses")
    left, right = operand(ctx, x, dtype), (operand if name in ("rem", "fmod") else _second)(ctx, other, dtype)
    if name == "truncdiv" and ctx.device != CPU and dtype in FLOATS and _is_number(ctx, other):
        # Kernels of a device multiply by the inverse, so that 49 divided by 49 is 0.
        return ctx.result(e.op("trunc", e.mul(left, e.div(e.like(1, right), right))))
    if name == "div" and ctx.device != CPU and dtype == "f32" and (inverse := _inverse(other)) is not None:
        return ctx.result(e.mul(left, e.const(inverse, dtype)))
    if dtype not in FLOATS and isinstance(other, Array):
        right = e.require(right, e.test("ne", right, e.const(0, dtype)))
    if ctx.dtype in HALVES and not _is_single(other):
        if name == "truncdiv":
            return ctx.result(e.op("trunc", half_step(ctx, e.div(left, right))))
        if name == "floordiv":
            return ctx.result(_half_floor_divide(ctx, left, right))
    return ctx.result(e.op(name, left, right))


def _inverse(divisor: Operand) -> float | None:
    """What kernels of a device multiply by where eager divides by a number: its inverse, of double precision, which
    float32 holds among its normal numbers; None for what is no number, and for others."""
    if not isinstance(divisor, int | float) or not 2.0**-126 <= abs(divisor) <= 2.0**126:
        return None
    return 1 / divisor


def _half_floor_divide(ctx: Context, a: Expr, b: Expr) -> Expr:
    """Division rounded down as eager does it for half types, whose every step is rounded to them."""
    zero, one = e.like(0, a), e.like(1, a)
    quotient = half_step(ctx, e.div(a, b))
    remainder = half_step(ctx, e.op("fmod", a, b))
    endless = e.test("and", e.test("isinf", quotient), e.test("not", e.test("isinf", a)))
    multiple = e.where(endless, a, half_step(ctx, e.sub(a, remainder)))
    whole = half_step(ctx, e.div(multiple, b))
    differ = e.test("xor", e.test("lt", b, zero), e.test("lt", remainder, zero))
    above = e.test("and", e.test("ne", remainder, zero), differ)
    whole = e.where(above, half_step(ctx, e.sub(whole, one)), whole)
    down = e.op("floor", whole)
    short = e.test("gt", half_step(ctx, e.sub(whole, down)), e.like(0.5, a))
    down = e.where(short, half_step(ctx, e.add(down, one)), down)
    down = e.where(e.test("eq", whole, zero), e.op("copysign", zero, quotient), down)
    return e.where(e.test("eq", b, zero), quotient, down)


@rules.lowers("div.Tensor", "div.Scalar", "true_divide.Tensor", "true_divide.Scalar")
def div(ctx: Context, x: Operand, other: Operand) -> Array:
    return _divide(ctx, "div", x, other)


@rules.lowers("div.Tensor_mode", "div.Scalar_mode")
def div_mode(ctx: Context, x: Operand, other: Operand, rounding_mode: str | None = None) -> Array:
    names = {None: "div", "trunc": "truncdiv", "floor": "floordiv"}
    return _divide(ctx, names[rounding_mode], x, other)


@rules.lowers("floor_divide", "floor_divide.Scalar")
def floor_divide(ctx: Context, x: Operand, other: Operand) -> Array:
    return _divide(ctx, "floordiv", x, other)


@rules.lowers("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(ctx: Context, x: Operand, other: Operand) -> Array:
    return _divide(ctx, "rem", x, other)


@rules.lowers("fmod.Tensor", "fmod.Scalar")
def fmod(ctx: Context, x: Operand, other: Operand) -> Array:
    return _divide(ctx, "fmod", x, other)


# --- powers -----------------------------------------------------------------------------------------------------------


@rules.lowers("pow.Tensor_Scalar")
def pow_number(ctx: Context, x: Array, exponent: Number) -> Array:
    """The exponents that eager treats apart, as it does; others by pow, of floats."""
    dtype = compute(ctx)
    value = operand(ctx, x, dtype)
    if exponent == 0:
        return ctx.result(e.const(1, dtype))
    if exponent == 1:
        return ctx.result(value)
    # float16 takes another way on the CPU, with one rounding at its end.
    apart = ctx.dtype == "f16" and ctx.device == CPU
    squared = e.mul(value, value) if apart else half_step(ctx, e.mul(value, value))
    if exponent == 2:
        return ctx.result(squared)
    if exponent == 3:
        return ctx.result(e.mul(squared, value))
    if dtype not in FLOATS:
        return ctx.result(_integer_power(value, exponent))
    if exponent in (0.5, -0.5, -2) and apart:
        return ctx.result(e.op("pow", value, e.const(exponent, dtype)))
    if exponent == 0.5:
        return ctx.result(e.op("sqrt", value))
    if exponent == -0.5:
        return ctx.result(e.op("rsqrt", value))
    if exponent == -1:
        return ctx.result(e.div(e.const(1, dtype), value))
    if exponent == -2:
        return ctx.result(e.div(e.const(1, dtype), squared))
    return ctx.result(e.op("pow", value, operand(ctx, exponent, dtype)))


# Every squaring doubles what a walk over the expression visits.
_LARGEST_POWER = 64


def _integer_power(value: Expr, exponent: Number) -> Expr:
    """By repeated squaring; wrapping multiplication is associative."""
    if not isinstance(exponent, int) or not 0 <= exponent <= _LARGEST_POWER or value.dtype == "bool":
        raise NotExpressible(f"an integer to the power of {exponent}")
    result: Expr | None = None
    while True:
        if exponent & 1:
            result = value if result is None else e.mul(result, value)
        exponent >>= 1
        if not exponent:
            break
        value = e.mul(value, value)
    return result if result is not None else e.like(1, value)


@rules.lowers("pow.Tensor_Tensor")
def pow_tensor(ctx: Context, x: Array, exponent: Array) -> Array:
    if ctx.dtype not in FLOATS:
        raise NotExpressible("an integer power by a tensor")
    dtype = compute(ctx)
    value, power = operand(ctx, x, dtype), operand(ctx, exponent, dtype)
    if exponent.buffer.name not in ctx.moved:
        return ctx.result(e.op("pow", value, power))
    if (number := ctx.numbers.get(exponent.buffer.name)) is not None:
        return pow_number(ctx, x, number)
    # Kernels of a device are given a number of the CPU itself, and take roots of some.
    inverse = e.where(
        e.test("eq", power, e.like(-0.5, power)), e.op("rsqrt", value), e.op("pow", value, power)
    )
    return ctx.result(e.where(e.test("eq", power, e.like(0.5, power)), e.op("sqrt", value), inverse))


@rules.lowers("pow.Scalar")
def pow_scalar(ctx: Context, base: Number, exponent: Array) -> Array:
    if ctx.dtype not in FLOATS:
        raise NotExpressible("an integer power by a tensor")
    dtype = compute(ctx)
    if base == 1:
        return ctx.result(e.const(1, dtype))
    power = operand(ctx, exponent, dtype)
    if base == 2:
        return ctx.result(e.op("exp2", power))
    return ctx.result(e.op("pow", operand(ctx, base, dtype), power))


# --- comparisons and logic --------------------------------------------------------------------------------------------


def _comparison(name: str) -> Rule:
    def rule(ctx: Context, x: Operand, other: Operand) -> Array:
        common = common_dtype(x, other)
        wide = compute_dtype(common)
        # A number is rounded to the common type before a half type is widened: bf16(0.1) == 0.1 holds.
        left = e.widened(operand(ctx, x, common), wide)
        right = e.widened(operand(ctx, other, common), wide)
        return ctx.result(e.test(name, left, right))

    return rule


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    rules.lowers(f"{_name}.Tensor", f"{_name}.Scalar")(_comparison(_name))


def _logical(name: str) -> Rule:
    def rule(ctx: Context, x: Array, other: Array) -> Array:
        return ctx.result(e.test(name, operand(ctx, x, "bool"), operand(ctx, other, "bool")))

    return rule


for _name in ("and", "or", "xor"):
    rules.add(f"logical_{_name}", _logical(_name))


@rules.lowers("logical_not")
def logical_not(ctx: Context, x: Array) -> Array:
    return ctx.result(e.test("not", operand(ctx, x, "bool")))


for _name in ("and", "or", "xor"):
    rules.lowers(
        *(f"bitwise_{_name}.{overload}" for overload in ("Tensor", "Scalar", "Scalar_Tensor")),
        *(f"__{_name}__.{overload}" for overload in ("Tensor", "Scalar")),
    )(_arithmetic(_name))


@rules.lowers("bitwise_not")
def bitwise_not(ctx: Context, x: Array) -> Array:
    value = operand(ctx, x, ctx.dtype)
    return ctx.result(e.test("not", value) if ctx.dtype == "bool" else e.op("bitnot", value))


for _name, _shift in (("left", "shl"), ("right", "shr")):
    rules.lowers(*(f"__{_name[0]}shift__.{o}" for o in ("Tensor", "Scalar")))(_arithmetic(_shift))
    rules.lowers(*(f"bitwise_{_name}_shift.{o}" for o in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")))(
        _arithmetic(_shift)
    )


# --- choices ----------------------------------------------------------------------------------------------------------


@rules.lowers("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(ctx: Context, condition: Array, x: Operand, other: Operand) -> Array:
    dtype = ctx.dtype
    return ctx.result(
        e.where(operand(ctx, condition, "bool"), operand(ctx, x, dtype), operand(ctx, other, dtype))
    )


@rules.lowers("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(ctx: Context, x: Array, mask: Array, value: Operand) -> Array:
    return where(ctx, mask, value, x)


@rules.lowers("clamp", "clamp.Tensor", "clip", "clip.Tensor")
def clamp(ctx: Context, x: Array, min: Operand | None = None, max: Operand | None = None) -> Array:
    """NaN in the tensor or in a bound gives NaN; where min > max the result is max."""
    dtype = compute(ctx)
    value = operand(ctx, x, dtype)
    if min is not None:
        value = e.op("maximum", value, operand(ctx, min, dtype))
    if max is not None:
        value = e.op("minimum", value, operand(ctx, max, dtype))
    return ctx.result(value)


@rules.lowers("clamp_min", "clamp_min.Tensor")
def clamp_min(ctx: Context, x: Array, min: Operand) -> Array:
    return clamp(ctx, x, min=min)


@rules.lowers("clamp_max", "clamp_max.Tensor")
def clamp_max(ctx: Context, x: Array, max: Operand) -> Array:
    return clamp(ctx, x, max=max)


# --- three operands and more ------------------------------------------------------------------------------------------


@rules.lowers("addcmul")
def addcmul(ctx: Context, x: Array, tensor1: Array, tensor2: Array, *, value: Number = 1) -> Array:
    dtype = compute(ctx)
    factor = _scaled(operand(ctx, tensor1, dtype), value)
    return ctx.result(e.fma(factor, operand(ctx, tensor2, dtype), operand(ctx, x, dtype)))


@rules.lowers("addcdiv")
def addcdiv(ctx: Context, x: Array, tensor1: Array, tensor2: Array, *, value: Number = 1) -> Array:
    dtype = compute(ctx)
    if dtype not in FLOATS:
        raise NotExpressible("addcdiv of integers")
    quotient = e.div(_scaled(operand(ctx, tensor1, dtype), value), operand(ctx, tensor2, dtype))
    return ctx.result(e.add(operand(ctx, x, dtype), quotient))


@rules.lowers("lerp.Scalar", "lerp.Tensor")
def lerp(ctx: Context, x: Array, end: Array, weight: Operand) -> Array:
    """From the nearer end, as eager does: x + w*(end - x) for |w| < 0.5, else end - (end - x)*(1 - w)."""
    dtype = compute(ctx)
    start, last = operand(ctx, x, dtype), operand(ctx, end, dtype)
    share = operand(ctx, weight, dtype) if isinstance(weight, Array) else unrounded(ctx, weight, dtype)
    distance = e.sub(last, start)
    near = e.fma(share, distance, start)
    far = e.fma(e.op("neg", distance), e.sub(e.const(1, dtype), share), last)
    if not isinstance(weight, (Array, SymbolicFloat)):
        return ctx.result(near if abs(weight) < 0.5 else far)
    return ctx.result(e.where(e.test("lt", e.op("abs", share), e.const(0.5, dtype)), near, far))


@rules.lowers("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other")
def xlogy(ctx: Context, x: Operand, other: Operand) -> Array:
    dtype = compute(ctx)
    factor, value = operand(ctx, x, dtype), operand(ctx, other, dtype)
    product = e.where(
        e.test("eq", factor, e.const(0, dtype)),
        e.const(0, dtype),
        e.mul(factor, half_step(ctx, e.op("log", value))),
    )
    return ctx.result(e.where(e.test("isnan", value), e.const(math.nan, dtype), product))


@rules.lowers("logaddexp")
def logaddexp(ctx: Context, x: Array, other: Array) -> Array:
    dtype = compute(ctx)
    a, b = operand(ctx, x, dtype), operand(ctx, other, dtype)
    infinite = e.test("and", e.test("isinf", a), e.test("eq", a, b))
    larger = e.op("maximum", a, b)
    rest = e.op("softplus", e.op("neg", e.op("abs", e.sub(a, b))))
    return ctx.result(e.where(infinite, a, e.add(larger, rest)))


@rules.lowers("heaviside")
def heaviside(ctx: Context, x: Array, values: Array) -> Array:
    dtype = compute(ctx)
    if dtype == "bool":
        raise NotExpressible("heaviside of bool")
    value = operand(ctx, x, dtype)
    zero = e.const(0, dtype)
    step = e.cast(e.test("gt", value, zero), dtype)
    return ctx.result(e.where(e.test("eq", value, zero), operand(ctx, values, dtype), step))


PointwiseFunction = Callable[[Expr], Expr]


def elementwise(ctx: Context, x: Array, function: PointwiseFunction) -> Array:
    """The node as a function of one tensor, computed in the node's compute type."""
    return ctx.result(function(operand(ctx, x, compute(ctx))))
