"""Which nodes with tensors of float8 the loop language takes: those that move elements or convert them.

There is no arithmetic on float8 in eager but for a few operators, which differ between devices and versions. What is
not in these tables is a call of ATen, and raises as eager does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import fx

from lampwork.graph.devices import CPU, is_on
from lampwork.graph.layouts import operands
from lampwork.graph.spec import TensorSpec
from lampwork.loops.ir.nodes import FLOAT8
from lampwork.lower import views
from lampwork.lower.dtypes import LOOP_DTYPES

_COPIES = ("clone", "contiguous", "copy", "_to_copy", "to.dtype", "to.dtype_layout", "to.other", "type_as")
_NUMBERS = (
    "full",
    "new_full",
    "full_like",
    "zeros",
    "zeros_like",
    "new_zeros",
    "ones",
    "ones_like",
    "new_ones",
)
_EMPTY = ("empty.memory_format", "empty_strided", "empty_like", "new_empty", "new_empty_strided")
_PIECES = ("cat", "concat", "concatenate", "stack")
_CHOICES = ("index_select", "index.Tensor", "embedding", "where.self")

_EVERYWHERE = frozenset(
    {*views.rules.rules, *(f"aten::{name}" for name in (*_COPIES, *_NUMBERS, *_EMPTY, *_PIECES))}
)
_ON_CPU = _EVERYWHERE | {f"aten::{name}" for name in _CHOICES}


def is_plain(node: fx.Node, made: Sequence[TensorSpec | None]) -> bool:
    """Whether no tensor that the node reads or makes is of float8, or it only moves or converts them."""
    read = (operand.meta.get("val") for operand in operands(node))
    if not any(
        isinstance(spec, TensorSpec) and LOOP_DTYPES.get(spec.dtype) in FLOAT8 for spec in (*made, *read)
    ):
        return True
    table = _ON_CPU if is_on(node.meta.get("val"), CPU) else _EVERYWHERE
    return cast(Any, node.target).name() in table
