"""How much arithmetic a node does."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import hint_of
from lampwork.rewriting.apply.aliasing import view_base
from lampwork.rewriting.schema import packet_name

_PRODUCTS = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "matmul": (0, 1),
    "linear": (0, 1),
    "addmm": (1, 2),
    "baddbmm": (1, 2),
}
_ATTENTION = "scaled_dot_product_attention"


def flops(node: fx.Node) -> int | None:
    """Floating point operations of one call: two for a multiplication with an addition in products and convolutions,
    one for each element that any other operator reads or makes, whichever are more; none for views.

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
    read = [_sizes(operand.meta.get("val")) for operand in node.all_input_nodes]
    counts = [_numel(sizes) for each in read if each is not None for sizes in each]
    return max([*counts, sum(_numel(sizes) for sizes in made)], default=0)


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
