"""All conversion rules, by operator."""

from __future__ import annotations

from collections.abc import Mapping

from torch._ops import OpOverload

from lampwork.backends.onnx import (
    rules_conv,
    rules_matmul,
    rules_pointwise,
    rules_reduce,
    rules_shape,
)
from lampwork.backends.onnx.registry import Rule
from lampwork.standard import functools

_FAMILIES = (rules_pointwise, rules_shape, rules_reduce, rules_matmul, rules_conv)


@functools.cache
def rules() -> Mapping[OpOverload, Rule]:
    """Operator -> the rule that writes it in ONNX."""
    return {target: rule for family in _FAMILIES for target, rule in family.rules.table.items()}
