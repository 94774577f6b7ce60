"""What a value of a graph (a node, or an argument of one) is known to be: a literal, a constant, of a kind, the same
as another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import fx

from lampwork import pristine
from lampwork.rewriting import schema
from lampwork.standard import math, operator

_FILLED = {
    torch.ops.aten.full.default: 1,
    torch.ops.aten.full_like.default: 1,
    torch.ops.aten.scalar_tensor.default: 0,
}
_ZEROS = (torch.ops.aten.zeros.default, torch.ops.aten.zeros_like.default)
_ONES = (torch.ops.aten.ones.default, torch.ops.aten.ones_like.default)

_SAME_DEPTH = 4
"""How far down two nodes are compared: what two lines of a model compute alike is a few ops."""


def fill_value(node: fx.Node) -> float | int | bool | None:
    """The number that a node made from literals fills its tensor with, None for all other nodes."""
    if node.op != "call_function":
        return None
    spec = schema.spec_of(node)
    if spec is None:
        return None
    if node.target in _ZEROS:
        return _converted(0, spec.dtype)
    if node.target in _ONES:
        return _converted(1, spec.dtype)
    position = _FILLED.get(cast(Any, node.target))
    if position is None or len(node.args) <= position:
        return None
    value = node.args[position]
    return _converted(value, spec.dtype) if isinstance(value, int | float) else None


def _converted(value: float | int | bool, dtype: torch.dtype) -> float | int | bool | None:
    if dtype is torch.bool:
        return bool(value)
    if dtype.is_complex:
        return None
    if dtype.is_floating_point:
        # Rounded to the dtype: full([], 0.1, dtype=bfloat16) is not 0.1.
        return float(pristine.tensor(value, dtype=dtype).item()) if isinstance(value, float) else float(value)
    return int(value)


def literal_matches(literal: Any, value: Any) -> bool:
    """Whether `value` (an argument of a node) is the literal of a pattern. Numbers equal across int and float, but not
    bool; 0 and -0.0 differ; a nan equals a nan; a node equals the number it is filled with."""
    if isinstance(value, fx.Node):
        filled = fill_value(value)
        return filled is not None and literal_matches(literal, filled)
    if isinstance(literal, bool) or isinstance(value, bool):
        return literal is value
    if isinstance(literal, int | float) and isinstance(value, int | float):
        if literal != literal:
            return value != value
        return literal == value and math.copysign(1.0, literal) == math.copysign(1.0, value)
    return schema.same_literal(literal, value)


def number_of(value: Any) -> float | int | None:
    """A Python number, or the one that a tensor without dimensions is filled with; None for all else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    if isinstance(value, fx.Node):
        filled = fill_value(value)
        if filled is None or isinstance(filled, bool) or value.meta["val"].shape != ():
            return None
        return filled
    return None


def is_constant(value: Any) -> bool:
    """A node that depends on bound tensors and literals only: a bound placeholder or one marked as constant."""
    if not isinstance(value, fx.Node):
        return False
    if value.op == "placeholder":
        return bool(value.meta.get("bound"))
    return bool(value.meta.get("constant"))


def kind_matches(kind: str, value: Any) -> bool:
    """Whether an argument of a node is of a variable's kind (see term.Var)."""
    if kind == "any":
        return True
    if kind == "number":
        return number_of(value) is not None
    if kind == "constant":
        return is_constant(value) or number_of(value) is not None
    spec = schema.spec_of(value)
    if spec is None:
        return False
    match kind:
        case "int":
            return not (spec.dtype.is_floating_point or spec.dtype.is_complex or spec.dtype is torch.bool)
        case "float":
            return spec.dtype.is_floating_point
        case "bool":
            return spec.dtype is torch.bool
        case "const":
            return is_constant(value)
        case _:
            return True


def same_value(a: Any, b: Any, depth: int = _SAME_DEPTH) -> bool:
    """Whether two values are the same for certain: one node, equal literals, or nodes that compute the same from the
    same, a few ops down, as the pass common-subexpressions would find."""
    if a is b:
        return True
    if not isinstance(a, fx.Node) or not isinstance(b, fx.Node):
        return schema.same_literal(a, b)
    if depth == 0 or a.target is not b.target or a.op != "call_function":
        return False
    if schema.is_pinned(a) or schema.is_pinned(b) or a.meta.get("val") != b.meta.get("val"):
        return False
    if a.target is operator.getitem:
        return _same_items(a.args, b.args, depth)
    return _same_items(schema.bound_args(a), schema.bound_args(b), depth - 1)


def _same_items(left: Sequence[Any], right: Sequence[Any], depth: int) -> bool:
    return len(left) == len(right) and all(_same_item(x, y, depth) for x, y in zip(left, right, strict=True))


def _same_item(a: Any, b: Any, depth: int) -> bool:
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return _same_items(cast("Sequence[Any]", a), cast("Sequence[Any]", b), depth)
    return same_value(a, b, depth)
