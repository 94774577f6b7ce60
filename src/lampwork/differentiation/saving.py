"""Which tensors a forward saves for its backward.

The saved set is a minimum cut: each tensor that is saved costs its bytes, each operator that backward computes again
its flops at some price (Chen et al., Training deep nets with sublinear memory cost, 2016, weigh the same; the
formulation as a cut is that of Jain et al., Checkmate, 2020). By default an operator that costs no more than reading
and writing its tensors is free, and a product, a convolution, or what draws random numbers may not be computed again.
With less memory than that takes all operators have the same price in bytes for a flop, the highest at which what is
saved is little enough; random numbers are never drawn again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import prod
from operator import getitem
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import hint_of
from lampwork.min_cut import NEVER, Network
from lampwork.records import record
from lampwork.rewriting.apply.aliasing import is_output, view_base
from lampwork.rewriting.flops import flops
from lampwork.rewriting.schema import is_pinned

aten = torch.ops.aten

_AGAIN = frozenset(
    {
        "native_layer_norm",
        "native_group_norm",
        "_fused_rms_norm",
        "_softmax",
        "_safe_softmax",
        "_log_softmax",
        "logsumexp",
        "sum",
        "mean",
        "amax",
        "amin",
        "var_mean",
        "full",
        "full_like",
        "zeros",
        "ones",
        "zeros_like",
        "ones_like",
        "empty_like",
        "scalar_tensor",
        "arange",
        "cat",
        "stack",
        "clone",
        "_to_copy",
        "copy",
        "where",
        "embedding",
        "constant_pad_nd",
        "slice_scatter",
        "select_scatter",
        "expand_copy",
        "random_words",
        "philox_words",
    }
)
"""Operators besides pointwise ones and views that take no longer than their tensors take to be read and written."""

_STATISTICS: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("sum", "mean", "amax", "amin", "logsumexp", "var_mean"), 0),
        **dict.fromkeys(("native_layer_norm", "native_group_norm", "_fused_rms_norm"), 1),
    }
)
"""Operators that give numbers of rows → the first of their results that are such. To save those costs less than to read
the rows for them again, though a choice between large tensors does not hang on it."""

_FEW = 16
"""Elements of a row, from which on its numbers are few."""

PRICES = (2.0**-40, 2.0**4)
"""Bytes for a flop: at the lower price everything is computed again that can be, at the higher one nothing is that the
default does not."""

Cost = Callable[[fx.Node], float]
"""What it costs to compute a node again."""


@record
class Choice:
    """`nodes`: what is saved, in the order of the graph. `default_bytes`: what is saved by default."""

    nodes: tuple[fx.Node, ...]
    default_bytes: int


@record
class Saving:
    """The choice for one joint graph. `nodes`: those of forward that gradients depend on, in order. `used`: those of
    them that backward itself reads."""

    nodes: tuple[fx.Node, ...]
    used: frozenset[fx.Node]

    @staticmethod
    def of(
        graph: fx.Graph, late: Collection[fx.Node], wanted: Collection[fx.Node], ends: Collection[fx.Node]
    ) -> Saving:
        """late: what depends on a tangent. wanted: what gradients are computed from. ends: the gradients."""
        nodes = tuple(node for node in graph.nodes if node in wanted and node not in late)
        used = (n for n in nodes if n in ends or any(user in late and user in wanted for user in n.users))
        return Saving(nodes, frozenset(used))

    def within(self, budget: float) -> Choice:
        """What is saved if it may have this part of the bytes that are saved by default. Where random numbers alone
        take more, they are saved."""
        default = self.cheapest(_default_cost)
        size = nbytes(default)
        return Choice(default if budget >= 1.0 else self._fitting(budget * size), size)

    def _fitting(self, limit: float) -> tuple[fx.Node, ...]:
        """What is saved if that may be so many bytes."""
        low, high = PRICES
        least = self._at(low, low, 0)
        if nbytes(least) > limit:
            return least
        while high > 1.1 * low:
            price = (low * high) ** 0.5
            found = self._at(price, price, 0)
            if nbytes(found) <= limit:
                low, least = price, found
            else:
                high = price
        # Layers that are alike change sides at one price, so it holds for the first ones alone: what they save would
        # live longest.
        first, last = 0, len(self.nodes)
        while last - first > 1:
            middle = (first + last) // 2
            found = self._at(low, high, middle)
            if nbytes(found) <= limit:
                last, least = middle, found
            else:
                first = middle
        return least

    def _at(self, low: float, high: float, count: int) -> tuple[fx.Node, ...]:
        """The cheapest choice at the price `low` for the first `count` nodes and `high` for the others."""
        first = frozenset(self.nodes[:count])
        return self.cheapest(lambda node: _cost(node, low if node in first else high))

    def cheapest(self, cost: Cost) -> tuple[fx.Node, ...]:
        """The nodes to be saved, in the order of the graph. Of several cheapest sets the one nearest to backward, from
        which least is computed again."""
        # Turned round, backward is the source: the smallest side of the source is the cut nearest to it.
        network = Network()
        before = {node: network.node() for node in self.nodes}
        behind = {node: network.node() for node in self.nodes}
        for node in self.nodes:
            network.edge(behind[node], before[node], 0.0 if node.op == "placeholder" else _price(node))
            if node.op != "placeholder":
                network.edge(before[node], network.sink, cost(node))
            for user in node.users:
                if user in behind:
                    network.edge(before[user], behind[node], NEVER)
            if node in self.used:
                network.edge(network.source, behind[node], NEVER)
        side = network.source_side()
        return tuple(
            node
            for node in self.nodes
            if node.op != "placeholder" and behind[node] in side and before[node] not in side
        )


def nbytes(nodes: Collection[fx.Node]) -> int:
    """Bytes that are saved of these nodes."""
    return sum(_size(node.meta["val"], node) for node in nodes)


def _size(spec: TensorSpec, node: fx.Node) -> int:
    return hint_of(spec.numel) * saved_dtype(node).itemsize


def _price(node: fx.Node) -> float:
    """What it costs to save a node."""
    spec = node.meta["val"]
    if not isinstance(spec, TensorSpec) or view_base(node) is not None:
        return NEVER
    size = _size(spec, node)
    # A result lives as long as the caller holds it anyway. An empty tensor is a tensor to be saved as well.
    return 1.0 + (size / 4 if is_output(node) else size)


def _default_cost(node: fx.Node) -> float:
    if is_pinned(node):
        return NEVER
    if node.target is getitem or view_base(node) is not None:
        return 0.0
    target: Any = node.target
    if (size := _statistics(node)) is not None:
        return 2.0 * (2.0 + size)
    again = torch.Tag.pointwise in target.tags or target._schema.name.partition("::")[2] in _AGAIN
    return 0.0 if again else NEVER


def _statistics(node: fx.Node) -> int | None:
    """Bytes of the numbers that a node computes of rows, where they are few beside what it reads of them."""
    target: Any = node.target
    first = _STATISTICS.get(target._schema.name.partition("::")[2])
    if first is None:
        return None
    val = node.meta["val"]
    specs = (val,) if isinstance(val, TensorSpec) else val[first:]
    size = sum(hint_of(spec.nbytes) for spec in specs if spec is not None)
    read: TensorSpec = cast(fx.Node, node.args[0]).meta["val"]
    return size if _FEW * size <= hint_of(read.nbytes) else None


def _cost(node: fx.Node, price: float) -> float:
    """The same where products have a price: bytes for a flop."""
    cost = _default_cost(node)
    if cost < NEVER or is_pinned(node):
        return cost
    work = flops(node)
    return NEVER if work is None else price * work


def saved_dtype(node: fx.Node) -> torch.dtype:
    """The dtype in which the value of a node is saved: the least that holds it, where that is known."""
    spec: TensorSpec = node.meta["val"]
    if node.target is aten.bernoulli.p:
        return torch.bool  # zeros and ones
    if is_output(node) or node.target is not getitem or node.args[1] != 1:
        return spec.dtype
    pool: Any = node.args[0]
    rank = _POOLS.get(pool.target)
    if rank is None:
        return spec.dtype
    places = prod(pool.args[0].meta["val"].shape[-rank:])
    return next(
        (dtype for dtype in (torch.int16, torch.int32) if places <= torch.iinfo(dtype).max), spec.dtype
    )


_POOLS = {aten.max_pool2d_with_indices.default: 2, aten.max_pool3d_with_indices.default: 3}
"""Dimensions of a plane; the second result are places in it."""
