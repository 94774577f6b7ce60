"""A name for what a graph computes, whatever its nodes are called and wherever they came from."""

from __future__ import annotations

import hashlib
from typing import Any, cast

from torch import fx

from lampwork.graph.compiled_masks import COMPILED_ONLY
from lampwork.graph.printing import format_value, target_name
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import SymbolicInt
from lampwork.literals import literal_text

_FLAGS = ("bound", "random", "effect", "constant", "opaque", COMPILED_ONLY)


def structural_hash(graph: fx.Graph) -> str:
    """Equal for graphs with the same operators, literals, specs and wiring in the same order; 64 hex digits.

    Node names and locations do not count.
    """
    numbers: dict[fx.Node, int] = {}
    digest = hashlib.sha256()
    for number, node in enumerate(graph.nodes):
        numbers[node] = number
        kind = node.op if node.op != "call_function" else target_name(node.target)
        flags = [name for name in _FLAGS if node.meta.get(name)]
        arguments = () if node.op == "placeholder" else (node.args, sorted(node.kwargs.items()))
        line = (kind, _value(arguments, numbers), _spec(node.meta.get("val")), flags)
        digest.update(repr(line).encode())
    return digest.hexdigest()


def _value(value: Any, numbers: dict[fx.Node, int]) -> str:
    if isinstance(value, fx.Node):
        return f"%{numbers[value]}"
    if isinstance(value, (tuple, list)):
        items = ", ".join(_value(item, numbers) for item in cast("list[Any]", value))
        return f"({items})" if isinstance(value, tuple) else f"[{items}]"
    if isinstance(value, SymbolicInt):
        return f"SymbolicInt {value}"  # those that torch made of it, too
    # 1, 1.0 and True are equal in Python, but different literals; nan is one literal for each of its bits.
    shown = literal_text(value) if isinstance(value, float | complex) else format_value(value)
    return f"{type(value).__name__} {shown}"


def _spec(val: Any) -> str:
    if isinstance(val, TensorSpec):
        return f"{val.dtype} {val.shape} {val.strides} {val.device} {val.requires_grad}"
    if isinstance(val, tuple):
        return "; ".join(_spec(item) for item in cast("tuple[Any, ...]", val))
    return repr(val)
