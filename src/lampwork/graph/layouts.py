"""Operators whose values depend on how their operands lie in memory.

Random numbers are drawn in the order of memory, `as_strided` looks at memory, and an operator from outside torch may do
either. ATen's `sort` and medians do otherwise for rows of stride 0 (`of_rows`). Everything else takes any strides for
the same values. So strides inside a graph are the compiler's choice, except those that such an operator reads:
`meta["operands"]` says what they were when it was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.nested import leaves
from lampwork.graph.shapes_common import preserved_strides
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import same_size, same_sizes

aten = torch.ops.aten

_LOOKS_AT_MEMORY = frozenset(
    {aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default}
)
_OF_ROWS = frozenset({aten.sort.default, aten.sort.stable, aten.median.dim, aten.nanmedian.dim})


def reads_layout(node: fx.Node) -> bool:
    """Whether the values that the node computes depend on the strides of its operands."""
    if node.op != "call_function":
        return False
    return bool(node.meta.get("random")) or _minds_strides(node.target) or of_rows(node)


def of_rows(node: fx.Node) -> bool:
    """Whether ATen takes rows of stride 0, which hold one value, for special in this operator: a sort that need not be
    stable leaves them in order, and the medians read past the value."""
    return node.target in _OF_ROWS and not node.kwargs.get("stable")


def repeats_rows(node: fx.Node, operand: TensorSpec) -> bool:
    """Whether rows of stride 0 are what the node, which is `of_rows`, finds in an operand of that spec."""
    if not operand.shape:
        return False
    dim = cast(int, node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else -1))
    size, stride = operand.shape[dim], operand.strides[dim]
    return type(stride) is int and stride == 0 and not (type(size) is int and size <= 1)


@cache
def _minds_strides(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return target in _LOOKS_AT_MEMORY or target.namespace not in ("aten", "prims", "mkldnn", "lampwork")


def note_layouts(graph: fx.Graph) -> None:
    """Note the layouts that eager's operators are given, of a graph as it was recorded."""
    for node in graph.nodes:
        if reads_layout(node):
            node.meta["operands"] = tuple(operand.meta["val"] for operand in operands(node))


def operands(node: fx.Node) -> Iterator[fx.Node]:
    """The tensors that a node reads, in the order of its operator's parameters, each as often as it is read."""
    given = dict(node.kwargs)
    schema = cast(Any, node.target)._schema
    named = [given[p.name] for p in schema.arguments if p.name in given]
    return leaves((*node.args, *named), fx.Node)


def recorded_layout(user: fx.Node, operand: fx.Node) -> TensorSpec | None:
    """The spec that `operand` had when `user` was recorded; None if that is not known."""
    recorded: tuple[Any, ...] = user.meta.get("operands", ())
    found = (was for node, was in zip(operands(user), recorded, strict=False) if node is operand)
    return next(found, None)


def packed(spec: TensorSpec) -> TensorSpec:
    """`spec` without gaps and overlaps, its elements in the same order: the memory that eager draws for it."""
    return replace(spec, strides=preserved_strides(spec))


def reads_alike(node: fx.Node, now: TensorSpec, recorded: TensorSpec) -> bool:
    """Whether a node that `reads_layout` computes of an operand of the spec `now` what it does of the recorded one."""
    if of_rows(node):
        return not repeats_rows(node, now) or repeats_rows(node, recorded)
    return same_layout(now, recorded)


def same_layout(now: TensorSpec, recorded: TensorSpec) -> bool:
    """Whether nobody who reads memory in its order can tell the two apart."""
    return same_strides(now, recorded) or same_strides(now, packed(recorded))


def same_strides(a: TensorSpec, b: TensorSpec) -> bool:
    """Equal strides wherever they matter: dimensions of more than one element of tensors with elements."""
    if not same_sizes(a.shape, b.shape):
        return False
    if same_sizes(a.strides, b.strides) or a.numel <= 1:
        return True
    return all(size == 1 or same_size(x, y) for size, x, y in zip(a.shape, a.strides, b.strides, strict=True))
