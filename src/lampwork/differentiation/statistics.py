"""A log softmax of a joint graph, written out so that backward may have the numbers of its rows without its result.

before: y = _log_softmax(x, dim)
after:  m = amax(x, dim); s = x - m; l = log(sum(exp(s), dim)); y = s - l

What is saved is then m and l, two numbers a row, where eager saves y; and what backward computes again is s - l, where
it would be the maximum and the exponentials.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.nodes import add_call
from lampwork.graph.origin import place_of
from lampwork.graph.spec import TensorSpec, contiguous_strides

aten = torch.ops.aten


def write_out_log_softmax(graph: fx.Graph, late: Set[fx.Node]) -> None:
    """Change a joint graph so. `late`: what depends on a tangent; log softmaxes that nothing of that reads stay."""
    for node in list(graph.nodes):
        if node.target is aten._log_softmax.default and node not in late and not late.isdisjoint(node.users):
            _write_out(graph, node)


def _write_out(graph: fx.Graph, node: fx.Node) -> None:
    x, dim = cast("tuple[fx.Node, int]", node.args[:2])
    spec: TensorSpec = x.meta["val"]
    if spec.dtype not in (torch.float32, torch.float64) or not spec.shape or not spec.is_contiguous:
        return
    shape = list(spec.shape)
    shape[dim] = 1
    row = replace(spec, shape=tuple(shape), strides=contiguous_strides(tuple(shape)))

    def call(op: Any, spec: TensorSpec, *args: Any) -> fx.Node:
        made = add_call(graph, op, args, {}, op.overloadpacket.__name__, place_of(node))
        made.meta.update(node.meta, val=spec)
        return made

    with graph.inserting_before(node):
        most = call(aten.amax.default, row, x, [dim], True)
        shifted = call(aten.sub.Tensor, spec, x, most)
        total = call(aten.sum.dim_IntList, row, call(aten.exp.default, spec, shifted), [dim], True)
        node.args = (shifted, call(aten.log.default, row, total))
    node.target = aten.sub.Tensor
