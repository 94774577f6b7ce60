"""`lampwork::embedding_sparse_backward`, the sparse gradient of the weight of an embedding, and `lampwork::sparse_sum`,
that of one that was looked up in twice.

    embedding_sparse_backward(grad, indices, rows, padding_idx) -> sparse [rows, dim]
    sparse_sum(a, b) -> sparse [rows, dim]

grad [*, dim]: of what was looked up; indices [*]: of the rows; those equal to `padding_idx` have no gradient (-1: there
are none). The result is eager's: uncoalesced, one row of it for each index, strides of 0.

In a graph its spec is that of a dense tensor with strides of 0, so no other operator may take it: see `seal`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, fx

from lampwork.errors import UnsupportedOpError
from lampwork.graph.spec import TensorSpec

_library = torch.library.Library("lampwork", "FRAGMENT")
_library.define("embedding_sparse_backward(Tensor grad, Tensor indices, int rows, int padding_idx) -> Tensor")
_library.define("sparse_sum(Tensor a, Tensor b) -> Tensor")

embedding_sparse_backward: Any = torch.ops.lampwork.embedding_sparse_backward.default
sparse_sum: Any = torch.ops.lampwork.sparse_sum.default


def _gradient(grad: Tensor, indices: Tensor, rows: int, padding_idx: int) -> Tensor:
    return torch.ops.aten.embedding_sparse_backward.default(grad, indices, rows, padding_idx, False)


def _sum(a: Tensor, b: Tensor) -> Tensor:
    return torch.ops.aten.add.Tensor(a, b)


_library.impl("embedding_sparse_backward", _gradient, "CompositeExplicitAutograd")
_library.impl("sparse_sum", _sum, "CompositeExplicitAutograd")


def _shape(grad: TensorSpec, indices: TensorSpec, rows: int, padding_idx: int) -> TensorSpec:
    return TensorSpec((rows, grad.shape[-1]), (0, 0), grad.dtype, grad.device)


def _shape_of_sum(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    return a


RULES: Mapping[Any, Callable[..., TensorSpec]] = MappingProxyType(
    {embedding_sparse_backward: _shape, sparse_sum: _shape_of_sum}
)


def seal(graph: fx.Graph) -> None:
    """Mark sparse gradients as what torch alone can read, and their sums.

    Raises:
        UnsupportedOpError: another operator takes one, as the sum with a dense gradient of the same weight.
    """
    sealed: set[fx.Node] = set()
    for node in graph.nodes:
        taken = sealed.intersection(node.all_input_nodes)
        if node.target is embedding_sparse_backward:
            sealed.add(node)
        elif node.target is torch.ops.aten.add.Tensor and len(taken) == len(node.args) and not node.kwargs:
            node.target, node.meta["val"] = sparse_sum, taken.pop().meta["val"]
            sealed.add(node)
        elif taken and node.op != "output":
            raise UnsupportedOpError("a sparse gradient is an operand of backward")
    for node in sealed:
        node.meta["opaque"] = True
