"""Shapes of pointwise operators: broadcasting, type promotion, and TensorIterator's strides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from lampwork import pristine
from lampwork.graph.shapes_common import (
    ShapeError,
    broadcast,
    is_floating,
    iterator_strides,
    like,
    preserved_strides,
    result_type,
)
from lampwork.graph.spec import TensorSpec
from lampwork.standard import math

aten = torch.ops.aten
Rule = Callable[..., TensorSpec]


def combined(operands: Sequence[Any], dtype: torch.dtype, common: torch.dtype | None) -> TensorSpec:
    """The pointwise result of dtype over the broadcast of all tensors among `operands`, which are cast to `common`
    first; None: they are read as they are."""
    if common is not None:
        operands = promoted(operands, common)
    tensors = [operand for operand in operands if type(operand) is TensorSpec]
    first = tensors[0]
    if len(tensors) == 1:
        return TensorSpec(first.shape, _strides(first.shape, tensors, operands), dtype, first.device)
    shape = broadcast([spec.shape for spec in tensors])
    return TensorSpec(shape, _strides(shape, tensors, operands), dtype, _common_device(tensors))


def _common_device(tensors: Sequence[TensorSpec]) -> torch.device:
    """The first of a tensor with dimensions; numbers on the CPU go where the others are."""
    numbers = [spec.device for spec in tensors if not spec.shape]
    if len(numbers) == 0 or len(numbers) < len(tensors):
        return next(spec.device for spec in tensors if spec.shape)
    return next((device for device in numbers if device.type != "cpu"), numbers[0])


def _strides(
    shape: tuple[int, ...], tensors: Sequence[TensorSpec], operands: Sequence[Any]
) -> tuple[int, ...]:
    """A number takes part as a tensor without dimensions: it switches TensorIterator's fast ways off."""
    numbers = any(type(operand) is not TensorSpec and operand is not None for operand in operands)
    if not numbers:
        return iterator_strides(shape, tensors)
    zero = TensorSpec((), (), torch.float64, tensors[0].device)
    return iterator_strides(shape, (*tensors, zero))


def promoted(operands: Sequence[Any], common: torch.dtype) -> tuple[Any, ...]:
    """The operands as TensorIterator has them: on a CPU what is of another dtype than the common one is replaced by
    its cast before strides are looked at, and a cast of an expanded tensor is dense.

        before: f32[3, 4] with strides (1, 0), f64[3, 4] with strides (1, 3)
        after:  f64[3, 4] with strides (4, 1), f64[3, 4] with strides (1, 3)
    """
    return tuple(
        TensorSpec(operand.shape, preserved_strides(operand), common, operand.device)
        if type(operand) is TensorSpec and operand.dtype != common and operand.device.type == "cpu"
        else operand
        for operand in operands
    )


def _numeric(dtype: torch.dtype) -> torch.dtype:
    """Integer and bool arguments give the default float dtype (sqrt, exp, true division, ...)."""
    return dtype if is_floating(dtype) else pristine.get_default_dtype()


def unary(spec: TensorSpec, *args: Any, **kwargs: Any) -> TensorSpec:
    """Same dtype out as in (neg, abs, relu, clamp by literals that do not promote, ...)."""
    del args, kwargs
    return combined((spec,), spec.dtype, None)


def unary_like(spec: TensorSpec, *args: Any, **kwargs: Any) -> TensorSpec:
    """What writes to an `empty_like` of its argument."""
    del args, kwargs
    return TensorSpec(spec.shape, preserved_strides(spec), spec.dtype, spec.device)


def infinite(spec: TensorSpec) -> TensorSpec:
    """isinf: of integers a `zeros_like`, of floats a comparison of `abs(x)` with a number, of complex numbers that of
    the real parts, to which the other is added in place."""
    if spec.dtype.is_complex:
        return infinite(_real(spec))
    if is_floating(spec.dtype):
        return combined((absolute(spec), math.inf), torch.bool, None)
    return TensorSpec(spec.shape, preserved_strides(spec), torch.bool, spec.device)


def _real(spec: TensorSpec) -> TensorSpec:
    """`x.real`: every other number of the memory."""
    strides = tuple(2 * step for step in spec.strides)
    return TensorSpec(spec.shape, strides, spec.dtype.to_real(), spec.device)


def finite(spec: TensorSpec) -> TensorSpec:
    """isfinite: `(x == x) * (abs(x) != inf)`."""
    found = infinite(spec)
    return (
        combined((combined((spec, spec), torch.bool, None), found), torch.bool, None)
        if is_floating(spec.dtype)
        else found
    )


def unary_float(spec: TensorSpec, *args: Any, **kwargs: Any) -> TensorSpec:
    del args, kwargs
    dtype = _numeric(spec.dtype)
    return combined((spec,), dtype, dtype)


def unary_bool(spec: TensorSpec) -> TensorSpec:
    return combined((spec,), torch.bool, None)


def absolute(spec: TensorSpec) -> TensorSpec:
    dtype = pristine.empty((), dtype=spec.dtype).real.dtype if spec.dtype.is_complex else spec.dtype
    if spec.dtype.is_complex:
        return TensorSpec(spec.shape, preserved_strides(spec), dtype, spec.device)
    return combined((spec,), dtype, None)


def row_major(spec: TensorSpec) -> TensorSpec:
    """What reads a contiguous copy of its argument."""
    return like(spec, spec.shape)


def square(spec: TensorSpec) -> TensorSpec:
    """x ** 2"""
    return power_scalar_exponent(spec, 2)


def binary(a: Any, b: Any, *args: Any, **kwargs: Any) -> TensorSpec:
    del args, kwargs
    dtype = result_type((a, b))
    return combined((a, b), dtype, dtype)


def subtract(a: Any, b: Any, *args: Any, **kwargs: Any) -> TensorSpec:
    """`binary`, which torch refuses for bools."""
    if any(x.dtype is torch.bool if type(x) is TensorSpec else isinstance(x, bool) for x in (a, b)):
        raise ShapeError("a difference of bools")
    return binary(a, b, *args, **kwargs)


def subtract_from(a: Any, b: Any, *args: Any, **kwargs: Any) -> TensorSpec:
    """rsub: `b - a`."""
    return subtract(b, a, *args, **kwargs)


def negative(spec: TensorSpec) -> TensorSpec:
    """`unary`, which torch refuses for bools."""
    if spec.dtype is torch.bool:
        raise ShapeError("the negative of a bool")
    return unary(spec)


def binary_float(a: Any, b: Any) -> TensorSpec:
    dtype = _numeric(result_type((a, b)))
    return combined((a, b), dtype, dtype)


def divide_mode(a: Any, b: Any, *, rounding_mode: str | None) -> TensorSpec:
    dtype = result_type((a, b))
    dtype = _numeric(dtype) if rounding_mode is None else dtype
    return combined((a, b), dtype, dtype)


def compare(a: Any, b: Any) -> TensorSpec:
    return combined((a, b), torch.bool, result_type((a, b)))


def where(condition: TensorSpec, a: Any, b: Any) -> TensorSpec:
    dtype = result_type((a, b))
    return combined((condition, *promoted((a, b), dtype)), dtype, None)


def clamp(spec: TensorSpec, low: Any = None, high: Any = None) -> TensorSpec:
    if low is None and high is None:
        raise ShapeError("clamp needs a bound")
    dtype = result_type((spec, low, high))
    # Literal bounds are scalars of the kernel, not operands of the iterator.
    operands = tuple(o for o in (spec, low, high) if isinstance(o, TensorSpec))
    return combined(operands, dtype, dtype)


def ternary(a: TensorSpec, b: TensorSpec, c: TensorSpec, **kwargs: Any) -> TensorSpec:
    """addcmul, addcdiv."""
    del kwargs
    dtype = result_type((a, b, c))
    return combined((a, b, c), dtype, dtype)


def lerp(start: TensorSpec, end: TensorSpec, weight: Any) -> TensorSpec:
    operands = (start, end, weight) if isinstance(weight, TensorSpec) else (start, end)
    dtype = result_type(operands)
    return combined(operands, dtype, dtype)


def power_scalar_base(base: Any, exponent: TensorSpec) -> TensorSpec:
    return like(exponent, exponent.shape, result_type((base, exponent)))


def power_scalar_exponent(base: TensorSpec, exponent: Any) -> TensorSpec:
    dtype = result_type((base, exponent))
    return combined((base,), dtype, dtype)


def masked_fill(spec: TensorSpec, mask: TensorSpec, value: Any) -> TensorSpec:
    """A row-major copy of self, expanded to the mask."""
    return like(spec, broadcast((spec.shape, mask.shape)))


_SAME = (
    aten.neg, aten.relu, aten.sign, aten.sgn, aten.ceil, aten.floor, aten.trunc, aten.round,
    aten.frac, aten.hardswish, aten.hardsigmoid, aten.leaky_relu, aten.elu, aten.celu,
    aten.selu, aten.silu, aten.mish, aten.softplus, aten.gelu, aten.threshold, aten.bitwise_not,
    aten.hardshrink, aten.softshrink,
)  # fmt: skip
_LIKE = (aten.hardtanh, aten.relu6, aten.nan_to_num)
_FLOAT = (
    aten.exp, aten.exp2, aten.expm1, aten.log, aten.log2, aten.log10, aten.log1p, aten.sqrt, aten.rsqrt,
    aten.reciprocal, aten.sin, aten.cos, aten.tan, aten.asin, aten.acos, aten.atan, aten.sinh, aten.cosh, aten.tanh,
    aten.asinh, aten.acosh, aten.atanh, aten.sigmoid, aten.erf, aten.erfc, aten.erfinv, aten.lgamma, aten.digamma,
    aten.sinc, aten.i0, aten.logit,
)  # fmt: skip
_BOOL = (aten.isnan, aten.isinf, aten.isfinite, aten.logical_not, aten.signbit, aten.isposinf, aten.isneginf)
_BINARY = (
    aten.add, aten.sub, aten.mul, aten.rsub, aten.maximum, aten.minimum, aten.fmax, aten.fmin, aten.remainder,
    aten.fmod, aten.floor_divide, aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor, aten.bitwise_left_shift,
    aten.bitwise_right_shift, aten.hypot, aten.gcd, aten.lcm, aten.copysign, aten.nextafter,
)  # fmt: skip
_BINARY_FLOAT = (aten.div, aten.true_divide, aten.atan2, aten.xlogy, aten.logaddexp, aten.logaddexp2)
_COMPARE = (
    aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge, aten.logical_and, aten.logical_or, aten.logical_xor,
)  # fmt: skip


def _table() -> dict[Any, Rule]:
    rules: dict[Any, Rule] = {}

    def add(packets: Sequence[Any], rule: Rule, overloads: Sequence[str]) -> None:
        for packet in packets:
            for overload in overloads:
                if overload in packet.overloads():
                    rules[getattr(packet, overload)] = rule

    add(_SAME, unary, ("default",))
    add(_LIKE, unary_like, ("default",))
    add(_FLOAT, unary_float, ("default",))
    add(_BOOL, unary_bool, ("default",))
    add((aten.isinf,), infinite, ("default",))
    add((aten.isfinite,), finite, ("default",))
    add(_BINARY, binary, ("default", "Tensor", "Scalar"))
    add((aten.log_sigmoid,), row_major, ("default",))
    add((aten.square,), square, ("default",))
    add((aten.neg,), negative, ("default",))
    add((aten.sub,), subtract, ("Tensor", "Scalar"))
    add((aten.rsub,), subtract_from, ("Tensor", "Scalar"))
    add(_BINARY_FLOAT, binary_float, ("default", "Tensor", "Scalar"))
    add(_COMPARE, compare, ("default", "Tensor", "Scalar"))
    add((aten.div,), divide_mode, ("Tensor_mode", "Scalar_mode"))
    add((aten.copysign,), binary_float, ("Tensor", "Scalar"))
    add((aten.where,), where, ("self", "ScalarSelf", "ScalarOther", "Scalar"))
    add((aten.clamp,), clamp, ("default", "Tensor"))
    add((aten.clamp_min, aten.clamp_max), clamp, ("default", "Tensor"))
    add((aten.addcmul, aten.addcdiv), ternary, ("default",))
    add((aten.lerp,), lerp, ("Scalar", "Tensor"))
    add((aten.pow,), binary, ("Tensor_Tensor",))
    add((aten.pow,), power_scalar_exponent, ("Tensor_Scalar",))
    add((aten.pow,), power_scalar_base, ("Scalar",))
    add((aten.masked_fill,), masked_fill, ("Scalar", "Tensor"))
    add((aten.abs,), absolute, ("default",))
    return rules


RULES: Mapping[Any, Rule] = _table()
