"""Elementwise operators in ONNX."""

from __future__ import annotations

from typing import Any

import torch

from lampwork import pristine
from lampwork.backends.onnx.builder import Builder, NotConvertible, Value
from lampwork.backends.onnx.call import Call
from lampwork.backends.onnx.registry import Rules
from lampwork.standard import math

rules = Rules()

_SAME = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "neg": "Neg",
    "abs": "Abs",
    "erf": "Erf",
    "sin": "Sin",
    "cos": "Cos",
    "reciprocal": "Reciprocal",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
    "sign": "Sign",
    "logical_not": "Not",
}


def operand(g: Builder, x: Any, dtype: torch.dtype) -> str:
    """The name of a tensor or number as `dtype`."""
    if isinstance(x, Value):
        return x.as_type(dtype)
    if not isinstance(x, (int, float, bool)):
        raise NotConvertible(f"an operand of type {type(x).__name__}")
    return g.scalar(x, dtype)


def common_dtype(*operands: Any) -> torch.dtype:
    """The dtype in which torch computes with these tensors and numbers."""
    probes = [
        pristine.empty((1,) * (1 if x.rank else 0), dtype=x.dtype) if isinstance(x, Value) else x
        for x in operands
    ]
    return pristine.result_type(*probes) if len(probes) == 2 else probes[0].dtype


def need_float(x: Value) -> None:
    if not x.dtype.is_floating_point:
        raise NotConvertible(f"it is for floats here, not {str(x.dtype).removeprefix('torch.')}")


def _unary(kind: str) -> Any:
    def rule(g: Builder, call: Call, x: Value, *rest: Any, **options: Any) -> str:
        if kind in ("Abs", "Neg", "Sign", "Relu") and x.dtype in (torch.int64, torch.int32):
            return g.op(kind, x.name)
        if kind == "Not":
            return g.op(kind, x.as_type(torch.bool) if x.dtype is torch.bool else _nonzero(g, x))
        need_float(x)
        return g.op(kind, x.name)

    return rule


def _nonzero(g: Builder, x: Value) -> str:
    return g.op("Not", g.op("Equal", x.name, g.scalar(0, x.dtype)))


for _name, _kind in _SAME.items():
    rules.converts(_name)(_unary(_kind))


@rules.converts("rsqrt")
def rsqrt(g: Builder, call: Call, x: Value) -> str:
    need_float(x)
    return g.op("Reciprocal", g.op("Sqrt", x.name))


@rules.converts("silu")
def silu(g: Builder, call: Call, x: Value) -> str:
    need_float(x)
    return g.op("Mul", x.name, g.op("Sigmoid", x.name))


@rules.converts("gelu")
def gelu(g: Builder, call: Call, x: Value, approximate: str = "none") -> str:
    need_float(x)
    return g.op("Gelu", x.name, approximate=approximate)


@rules.converts("leaky_relu")
def leaky_relu(g: Builder, call: Call, x: Value, slope: Any = 0.01) -> str:
    need_float(x)
    return g.op("LeakyRelu", x.name, alpha=float(slope))


@rules.converts("elu")
def elu(g: Builder, call: Call, x: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> str:
    need_float(x)
    if scale != 1 or input_scale != 1:
        raise NotConvertible("an elu with scales")
    return g.op("Elu", x.name, alpha=float(alpha))


@rules.converts("hardtanh", "clamp")
def clamp(g: Builder, call: Call, x: Value, low: Any = None, high: Any = None) -> str:
    low_name = "" if low is None else operand(g, low, call.dtype)
    high_name = "" if high is None else operand(g, high, call.dtype)
    if low is not None and high is not None and low > high:
        raise NotConvertible("bounds in the wrong order")
    return g.op("Clip", x.as_type(call.dtype), low_name, high_name)


@rules.converts("clamp_min")
def clamp_min(g: Builder, call: Call, x: Value, low: Any) -> str:
    return clamp(g, call, x, low, None)


@rules.converts("clamp_max")
def clamp_max(g: Builder, call: Call, x: Value, high: Any) -> str:
    return clamp(g, call, x, None, high)


@rules.converts("hardsigmoid")
def hardsigmoid(g: Builder, call: Call, x: Value) -> str:
    need_float(x)
    return g.op("HardSigmoid", x.name, alpha=1 / 6, beta=0.5)


@rules.converts("hardswish")
def hardswish(g: Builder, call: Call, x: Value) -> str:
    need_float(x)
    return g.op("HardSwish", x.name)


@rules.converts("mish")
def mish(g: Builder, call: Call, x: Value) -> str:
    need_float(x)
    return g.op("Mul", x.name, g.op("Tanh", g.op("Softplus", x.name)))


@rules.converts("isnan")
def isnan(g: Builder, call: Call, x: Value) -> str:
    need_float(x)
    return g.op("IsNaN", x.name)


@rules.converts("isinf")
def isinf(g: Builder, call: Call, x: Value) -> str:
    need_float(x)
    return g.op("IsInf", x.name)


# --- two operands -----------------------------------------------------------------------------------------------------


@rules.converts("add.Tensor", "add.Scalar")
def add(g: Builder, call: Call, x: Any, y: Any, alpha: Any = 1) -> str:
    return _sum(g, call, "Add", x, y, alpha)


@rules.converts("sub.Tensor", "sub.Scalar")
def sub(g: Builder, call: Call, x: Any, y: Any, alpha: Any = 1) -> str:
    return _sum(g, call, "Sub", x, y, alpha)


@rules.converts("rsub.Tensor", "rsub.Scalar")
def rsub(g: Builder, call: Call, x: Any, y: Any, alpha: Any = 1) -> str:
    if alpha != 1:
        raise NotConvertible("an rsub with alpha")
    return _sum(g, call, "Sub", y, x, 1)


def _sum(g: Builder, call: Call, kind: str, x: Any, y: Any, alpha: Any) -> str:
    dtype = call.dtype
    if dtype is torch.bool:
        raise NotConvertible("a sum of bools")
    right = operand(g, y, dtype)
    if alpha != 1:
        right = g.op("Mul", right, g.scalar(alpha, dtype))
    return g.op(kind, operand(g, x, dtype), right)


@rules.converts("mul.Tensor", "mul.Scalar")
def mul(g: Builder, call: Call, x: Any, y: Any) -> str:
    if call.dtype is torch.bool:
        return g.op("And", operand(g, x, torch.bool), operand(g, y, torch.bool))
    return g.op("Mul", operand(g, x, call.dtype), operand(g, y, call.dtype))


@rules.converts("div.Tensor", "div.Scalar")
def div(g: Builder, call: Call, x: Any, y: Any) -> str:
    return g.op("Div", operand(g, x, call.dtype), operand(g, y, call.dtype))


@rules.converts("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def pow_(g: Builder, call: Call, x: Any, y: Any) -> str:
    if not call.dtype.is_floating_point:
        raise NotConvertible("an integer power")
    base = operand(g, x, call.dtype)
    if y == 2 and not isinstance(y, Value):
        return g.op("Mul", base, base)
    return g.op("Pow", base, operand(g, y, call.dtype))


@rules.converts("maximum")
def maximum(g: Builder, call: Call, x: Any, y: Any) -> str:
    return g.op("Max", operand(g, x, call.dtype), operand(g, y, call.dtype))


@rules.converts("minimum")
def minimum(g: Builder, call: Call, x: Any, y: Any) -> str:
    return g.op("Min", operand(g, x, call.dtype), operand(g, y, call.dtype))


def _comparison(kind: str, negated: bool = False) -> Any:
    def rule(g: Builder, call: Call, x: Any, y: Any) -> str:
        dtype = common_dtype(x, y)
        found = g.op(kind, operand(g, x, dtype), operand(g, y, dtype))
        return g.op("Not", found) if negated else found

    return rule


for _stem, _kind, _negated in (
    ("eq", "Equal", False),
    ("ne", "Equal", True),
    ("lt", "Less", False),
    ("le", "LessOrEqual", False),
    ("gt", "Greater", False),
    ("ge", "GreaterOrEqual", False),
):
    rules.converts(f"{_stem}.Tensor", f"{_stem}.Scalar")(_comparison(_kind, _negated))


def _logical(kind: str) -> Any:
    def rule(g: Builder, call: Call, x: Any, y: Any) -> str:
        if any(isinstance(v, Value) and v.dtype is not torch.bool for v in (x, y)):
            raise NotConvertible("bits of integers")
        return g.op(kind, operand(g, x, torch.bool), operand(g, y, torch.bool))

    return rule


for _stem, _kind in (("and", "And"), ("or", "Or"), ("xor", "Xor")):
    rules.converts(f"logical_{_stem}", f"bitwise_{_stem}.Tensor")(_logical(_kind))


@rules.converts("bitwise_not")
def bitwise_not(g: Builder, call: Call, x: Value) -> str:
    if x.dtype is not torch.bool:
        raise NotConvertible("bits of integers")
    return g.op("Not", x.name)


@rules.converts("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(g: Builder, call: Call, condition: Value, x: Any, y: Any) -> str:
    if condition.dtype is not torch.bool:
        raise NotConvertible("a condition that is not bool")
    return g.op("Where", condition.name, operand(g, x, call.dtype), operand(g, y, call.dtype))


@rules.converts("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(g: Builder, call: Call, x: Value, mask: Value, value: Any) -> str:
    if x.shape != call.shape:
        raise NotConvertible("a mask that widens the tensor")
    return g.op("Where", mask.name, operand(g, value, call.dtype), x.name)


@rules.converts("_to_copy", "to.dtype")
def to_copy(g: Builder, call: Call, x: Value, *rest: Any) -> str:
    if x.dtype.is_floating_point and not call.dtype.is_floating_point and call.dtype is not torch.bool:
        raise NotConvertible("a cast from float to integer, whose result differs out of range")
    return x.as_type(call.dtype) if x.dtype != call.dtype else g.op("Identity", x.name)


@rules.converts("clone", "alias", "detach", "contiguous", "lift_fresh_copy")
def identity(g: Builder, call: Call, x: Value, *rest: Any) -> str:
    return g.op("Identity", x.name)


@rules.converts("dropout", "native_dropout")
def dropout(g: Builder, call: Call, x: Value, p: float, train: bool) -> str:
    if train and not math.isclose(p, 0.0):
        raise NotConvertible("dropout that draws random numbers")
    return g.op("Identity", x.name)
