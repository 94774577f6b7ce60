"""How much arithmetic a node does, and how many bytes it moves."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.nested import leaves
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import hint_of
from lampwork.rewriting.apply.aliasing import view_base
from lampwork.rewriting.schema import packet_name
from lampwork.standard import operator

_PRODUCTS = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "matmul": (0, 1),
    "linear": (0, 1),
    "addmm": (1, 2),
    "baddbmm": (1, 2),
}
_ATTENTION = "scaled_dot_product_attention"
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
_GATHERS = frozenset({"embedding", "index_select", "gather", "index", "index_copy", "take_along_dim"})
_BAGS = frozenset({"embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"})


def flops(node: fx.Node) -> int | None:
    """Floating point operations of one call: two for a multiplication with an addition in products, convolutions and
    recurrent layers, one for each element that any other operator reads or makes, whichever are more; none for views.
    Of a table whose rows are looked up, the rows count.

    Sizes that are open count as on the call at hand. None where something is no tensor.
    """
    made = _sizes(node.meta.get("val"))
    if made is None:
        return None
    if view_base(node) is not None:
        return 0
    name = packet_name(node.target)
    if name in _PRODUCTS:
        left = _sizes(_spec(node, _PRODUCTS[name][0]))
        return None if not left or not left[0] else 2 * _numel(made[0]) * left[0][-1]
    if "convolution" in name or name in ("conv1d", "conv2d", "conv3d"):
        weight = _sizes(_spec(node, 1))
        transposed = "transpose" in name or (name == "convolution" and node.args[6] is True)
        if weight is None:
            return None
        if transposed:
            read = _sizes(_spec(node, 0))
            return None if read is None else 2 * _numel(read[0]) * _numel(weight[0][1:])
        return 2 * _numel(made[0]) * _numel(weight[0][1:])
    if _ATTENTION in name:
        query, key = _sizes(_spec(node, 0)), _sizes(_spec(node, 1))
        if query is None or key is None:
            return None
        return 2 * _numel(query[0]) * key[0][-2] + 2 * _numel(made[0]) * key[0][-2]
    if name in _RECURRENT:
        given = _sizes(_spec(node, 0))
        if not given or not given[0]:
            return None
        # Each step multiplies by every matrix once.
        steps = _numel(given[0][:-1])
        return 2 * steps * sum(_numel(size) for size in _matrices(node))
    if name in _GATHERS:
        return sum(_numel(sizes) for sizes in made)
    if name in _BAGS:
        ids = _sizes(_spec(node, 1))
        return None if not ids or not made[0] else _numel(ids[0]) * made[0][-1]
    read = [_sizes(operand.meta.get("val")) for operand in node.all_input_nodes]
    counts = [_numel(sizes) for each in read if each is not None for sizes in each]
    return max([*counts, sum(_numel(sizes) for sizes in made)], default=0)


def _matrices(node: fx.Node) -> list[tuple[int, ...]]:
    """The sizes of the weights of a recurrent layer that are matrices."""
    overload = str(getattr(node.target, "_overloadname", ""))
    weights = node.args[3 if overload == "data" else 2]
    found = [_sizes(each.meta.get("val")) for each in leaves(weights, fx.Node)]
    return [sizes[0] for sizes in found if sizes and len(sizes[0]) == 2]


def moved_bytes(node: fx.Node) -> tuple[int, int]:
    """(read, written) bytes of one call that reads each of its operands and writes each of its results once, with
    nothing left over from the call before: distinct elements, of a table whose rows are looked up as many as the
    result has. None for views, and for the selection of a result.

    Sizes that are open count as on the call at hand.
    """
    if node.op != "call_function" or node.target is operator.getitem or view_base(node) is not None:
        return 0, 0
    written = sum(map(_distinct_bytes, leaves(node.meta.get("val"), TensorSpec)))
    read = [
        sum(map(_distinct_bytes, leaves(operand.meta.get("val"), TensorSpec)))
        for operand in node.all_input_nodes
    ]
    name = packet_name(node.target)
    if read and name in _GATHERS | _BAGS:
        looked_up = (flops(node) or 0) * _itemsize(node)
        read[0] = min(read[0], looked_up)
    return sum(read), written


def _itemsize(node: fx.Node) -> int:
    return next((spec.dtype.itemsize for spec in leaves(node.meta.get("val"), TensorSpec)), 0)


def _distinct_bytes(spec: TensorSpec) -> int:
    strides = tuple(map(hint_of, spec.strides))
    sizes = (
        size
        for size, stride in zip(map(hint_of, spec.shape), strides, strict=True)
        if stride != 0 or size == 0
    )
    return _numel(tuple(sizes)) * spec.dtype.itemsize


def _spec(node: fx.Node, position: int) -> Any:
    operand = node.args[position] if position < len(node.args) else None
    return operand.meta.get("val") if isinstance(operand, fx.Node) else None


def _sizes(val: Any) -> list[tuple[int, ...]] | None:
    """The shapes of one or several results, as numbers."""
    specs = cast("tuple[Any, ...]", val) if isinstance(val, tuple) else (val,)
    found: list[tuple[int, ...]] = []
    for spec in specs:
        if not isinstance(spec, TensorSpec):
            return None
        found.append(tuple(map(hint_of, spec.shape)))
    return found


def _numel(sizes: tuple[int, ...]) -> int:
    return torch.Size(sizes).numel()
