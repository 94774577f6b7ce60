"""Large gradients of weights, which nothing waits for, computed last: when the activations are gone.

before: g = relu'(h) * (gg @ v); w_grad = g.T @ x (150 MB); x_grad = g @ w; …   all activations and w_grad at once
after:  g = relu'(h) * (gg @ v); x_grad = g @ w; …; w_grad = g.T @ x            the few rows of g and x stay instead
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from operator import getitem

from torch import fx

from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import hint_of
from lampwork.rewriting.apply.aliasing import storage_root, view_base
from lampwork.rewriting.schema import is_pinned

_TIMES = 4
"""So many times as large as what it is computed from a gradient is postponed: later that lies in no cache."""


def postponed(
    nodes: Iterable[fx.Node], wanted: Collection[fx.Node], ends: Collection[fx.Node]
) -> set[fx.Node]:
    """Those of the nodes of a backward that give nothing but gradients, from less than these. `wanted`: what gradients
    need. `ends`: the gradients."""
    return {
        node
        for node in nodes
        if node.op == "call_function"
        and node.target is not getitem
        and not is_pinned(node)
        and _TIMES * sum(map(_nbytes, {storage_root(used) for used in node.all_input_nodes})) <= _nbytes(node)
        and _only_given_back(node, wanted, ends)
    }


def _nbytes(node: fx.Node) -> int:
    """Bytes that a node makes; parameters are there anyway."""
    spec = node.meta.get("val")
    if node.op == "placeholder" or not isinstance(spec, TensorSpec) or view_base(node) is not None:
        return 0
    return hint_of(spec.nbytes)


def _only_given_back(node: fx.Node, wanted: Collection[fx.Node], ends: Collection[fx.Node]) -> bool:
    """Whether nothing but views that are gradients reads a node."""
    if node in ends:
        return all(user in ends or user not in wanted for user in node.users)
    readers = [user for user in node.users if user in wanted]
    return bool(readers) and all(
        view_base(user) is not None and _only_given_back(user, wanted, ends) for user in readers
    )
