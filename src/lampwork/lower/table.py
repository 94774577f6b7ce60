"""Every rule of every op family: operator name ("aten::add.Tensor", "aten::relu") -> rule."""

from __future__ import annotations

from lampwork.lower import activations, casts, matmul, pointwise, reduce, softmax, views
from lampwork.lower.registry import merge

RULES = merge(
    pointwise.rules, activations.rules, casts.rules, views.rules, reduce.rules, softmax.rules, matmul.rules
)
