"""What is known of the elements of a tensor before the graph runs: their range, or, of what is made of literals only,
all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.fx.node import map_aggregate

from lampwork import pristine
from lampwork.graph.concrete import is_symbolic
from lampwork.graph.devices import CPU
from lampwork.graph.spec import TensorSpec
from lampwork.rewriting import schema
from lampwork.rewriting.matching.values import fill_value
from lampwork.standard import math

aten = torch.ops.aten

Range = tuple[float, float]
"""(least, greatest) that an element may be; nan is in every range."""

ANY: Range = (-math.inf, math.inf)

_MOST_ELEMENTS = 1 << 22
_MOST_NODES = 64

_UNCHANGED = frozenset(
    {
        "alias",
        "clone",
        "contiguous",
        "detach",
        "expand",
        "permute",
        "select",
        "slice",
        "squeeze",
        "unsqueeze",
        "view",
    }
)


def spec(node: fx.Node) -> TensorSpec:
    """The spec of a node that has one tensor result."""
    return cast(TensorSpec, node.meta["val"])


def value_range(value: Any, depth: int = 16) -> Range:
    """Between which numbers the elements of a tensor, or a plain number, lie, whatever the inputs are.

    `depth`: how far up the graph is looked at.
    """
    if isinstance(value, int | float):
        return float(value), float(value)
    if not isinstance(value, fx.Node) or not isinstance(value.meta.get("val"), TensorSpec):
        return ANY
    known = fill_value(value)
    if known is not None:
        return float(known), float(known)
    found = ANY
    if depth and value.op == "call_function" and not schema.is_pinned(value):
        found = _computed(value, depth - 1)
    return _within(found, spec(value).dtype)


def _within(found: Range, dtype: torch.dtype) -> Range:
    """Rounded to the dtype: what it cannot hold is infinite, or for integers and bools anything they can hold."""
    if dtype is torch.bool:
        return 0.0, 1.0
    if dtype.is_complex:
        return ANY
    low, high = found
    if dtype.is_floating_point:
        most = torch.finfo(dtype).max
        return (-math.inf if low < -most else low), (math.inf if high > most else high)
    bounds = torch.iinfo(dtype)
    if bounds.min <= low and high <= bounds.max:
        return found
    return float(bounds.min), float(bounds.max)


def _computed(node: fx.Node, depth: int) -> Range:
    name = schema.packet_name(node.target)
    args = schema.bound_args(node)
    if name in _UNCHANGED or name == "_to_copy":
        return value_range(args[0], depth)
    if name in ("relu", "sigmoid", "softmax"):
        return (0.0, math.inf) if name == "relu" else (0.0, 1.0)
    combine = _COMBINED.get(name)
    return ANY if combine is None else combine(args, depth)


def _either(args: tuple[Any, ...], depth: int) -> Range:
    """where(condition, a, b) and masked_fill(a, condition, b)."""
    a, b = (value_range(args[i], depth) for i in _branches(args))
    return min(a[0], b[0]), max(a[1], b[1])


def _branches(args: tuple[Any, ...]) -> tuple[int, int]:
    first = args[0]
    return (1, 2) if isinstance(first, fx.Node) and spec(first).dtype is torch.bool else (0, 2)


def _sum(args: tuple[Any, ...], depth: int) -> Range:
    return _added(value_range(args[0], depth), _scaled(value_range(args[1], depth), args[2]))


def _difference(args: tuple[Any, ...], depth: int) -> Range:
    return _added(value_range(args[0], depth), _negated(_scaled(value_range(args[1], depth), args[2])))


def _reversed_difference(args: tuple[Any, ...], depth: int) -> Range:
    return _added(value_range(args[1], depth), _negated(_scaled(value_range(args[0], depth), args[2])))


def _negative(args: tuple[Any, ...], depth: int) -> Range:
    return _negated(value_range(args[0], depth))


def _product(args: tuple[Any, ...], depth: int) -> Range:
    a, b = value_range(args[0], depth), value_range(args[1], depth)
    if not all(map(math.isfinite, (*a, *b))):
        return ANY
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)


def _bounded(args: tuple[Any, ...], depth: int) -> Range:
    low, high = value_range(args[0], depth)
    floor, ceiling = args[1], args[2]
    if isinstance(floor, int | float):
        low, high = max(low, floor), max(high, floor)
    if isinstance(ceiling, int | float):
        low, high = min(low, ceiling), min(high, ceiling)
    return low, high


_COMBINED: dict[str, Callable[[tuple[Any, ...], int], Range]] = {
    "add": _sum,
    "sub": _difference,
    "rsub": _reversed_difference,
    "neg": _negative,
    "mul": _product,
    "where": _either,
    "masked_fill": _either,
    "clamp": _bounded,
}


def _added(a: Range, b: Range) -> Range:
    low, high = a[0] + b[0], a[1] + b[1]
    return ANY if math.isnan(low) or math.isnan(high) else (low, high)


def _negated(a: Range) -> Range:
    return -a[1], -a[0]


def _scaled(a: Range, factor: Any) -> Range:
    if factor == 1:
        return a
    if not isinstance(factor, int | float) or not all(map(math.isfinite, a)):
        return ANY
    ends = (a[0] * factor, a[1] * factor)
    return min(ends), max(ends)


def literal_value(node: fx.Node, most_nodes: int = _MOST_NODES) -> Tensor | None:
    """The tensor that `node` gives on every call, on the CPU, where it is made of literals only; None where it is not,
    where sizes are symbols, or where it is large, or made by more than `most_nodes`."""
    order: list[fx.Node] = []
    seen: set[fx.Node] = set()
    work = [node]
    while work:
        current = work.pop()
        if current in seen:
            continue
        if current.op != "call_function" or not isinstance(current.target, OpOverload):
            return None
        if schema.is_pinned(current) or len(seen) >= most_nodes or is_symbolic(current):
            return None
        if not isinstance(current.meta.get("val"), TensorSpec) or spec(current).numel > _MOST_ELEMENTS:
            return None
        seen.add(current)
        order.append(current)
        work.extend(current.all_input_nodes)
    values: dict[fx.Node, Tensor] = {}
    with pristine.no_grad():
        for current in sorted(order):
            args: Any = map_aggregate(current.args, lambda each: _on_cpu(each, values))
            kwargs: Any = map_aggregate(current.kwargs, lambda each: _on_cpu(each, values))
            values[current] = cast(Any, current.target)(*args, **kwargs)
    return values[node]


def _on_cpu(argument: Any, values: dict[fx.Node, Tensor]) -> Any:
    """An argument of a call on the CPU, whatever device the call was recorded for: it may be one that is captured."""
    if isinstance(argument, fx.Node):
        return values[argument]
    return CPU if isinstance(argument, torch.device) else argument
