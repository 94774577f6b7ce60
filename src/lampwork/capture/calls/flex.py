"""torch.nn.attention.flex_attention in the region: its arithmetic on whole tensors of scores.

Eager batches the user's functions of one score over batch, head, query and key by torch.vmap. Here they are called
once, with indices that broadcast: the same for arithmetic on single numbers, which is what they are held to. A score
or an index of theirs meets other tensors only where it chooses a single element of them.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import fx

from lampwork.capture.model.errors import Break
from lampwork.capture.semantics.attributes import load_attr
from lampwork.graph.spec import TensorSpec
from lampwork.graph.tracetensor import TraceTensor
from lampwork.standard import math

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

_MODULE = "torch.nn.attention.flex_attention"
_NAMES = (
    "query",
    "key",
    "value",
    "score_mod",
    "block_mask",
    "scale",
    "enable_gqa",
    "return_lse",
    "kernel_options",
)
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_CONSTANTS = frozenset({torch.ops.aten.full.default, torch.ops.aten.scalar_tensor.default})
_POINTWISE = frozenset(
    {
        torch.ops.aten._to_copy.default,
        torch.ops.aten.where.Scalar,
        torch.ops.aten.where.ScalarSelf,
        torch.ops.aten.where.ScalarOther,
    }
)
"""Without the tag."""

_ANY_LENGTH = 1 << 30
"""The size of the one block of a mask that does not say for which lengths it is."""


def is_flex_attention(function: types.FunctionType) -> bool:
    return (
        function.__code__.co_qualname == "flex_attention" and function.__globals__.get("__name__") == _MODULE
    )


def call_flex(interp: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """flex_attention(query, key, value, score_mod, block_mask, scale, enable_gqa).

    Raises:
        Break: LW105: arguments that eager refuses, results beside the attention, or functions that do more than
            arithmetic on single numbers.
    """
    given: dict[str, Any] = dict.fromkeys(_NAMES[3:]) | {"return_aux": None}
    given |= {
        name: interp.force(value) for name, value in (*zip(_NAMES, args, strict=False), *kwargs.items())
    }
    query, key, value = cast("tuple[Any, Any, Any]", tuple(given.get(name) for name in _NAMES[:3]))
    _check(query, key, value, given)
    batch, heads, rows, size = query.spec.shape
    groups, columns = key.spec.shape[1], key.spec.shape[2]
    mask_mod = None if given["block_mask"] is None else _mask_mod(interp, given["block_mask"], query, key)
    scale: float = 1.0 / math.sqrt(size) if given["scale"] is None else given["scale"]
    working = torch.float64 if query.dtype is torch.float64 else torch.float32

    def call(function: Any, *operands: Any, **options: Any) -> Any:
        return interp.call(function, list(operands), options)

    def by_groups(tensor: Any) -> Any:
        per = 1 if tensor is not query else heads // groups
        return call(torch.reshape, tensor, (batch, groups, per, *tensor.spec.shape[2:]))

    lengths = (batch, heads, rows, columns)
    places = [
        call(torch.reshape, call(torch.arange, length), (-1, *[1] * (3 - dim)))
        for dim, length in enumerate(lengths)
    ]
    # A mask selects scores: added to them, as the operator adds it, it would be read for what it leaves open.
    if given["score_mod"] is None and mask_mod is None and query.dtype is working:
        attention = torch.nn.functional.scaled_dot_product_attention
        out = call(attention, query, key, value, scale=scale, enable_gqa=heads != groups)
        return _in_order(call, call(torch.Tensor.contiguous, out), query)
    wide = [call(torch.Tensor.to, tensor, working) for tensor in (query, key)]
    q, v = query, value
    if heads != groups:
        query = wide[0]
        wide = [by_groups(wide[0]), by_groups(wide[1])]
        v = by_groups(v)
    scores = call(torch.matmul, wide[0], call(torch.transpose, wide[1], -2, -1))
    scores = call(torch.mul, call(torch.reshape, scores, (batch, heads, rows, columns)), scale)
    scope = _Scope([scores, *places], working)
    score = scores if given["score_mod"] is None else call(given["score_mod"], scores, *places)
    scope.check(score, working)
    if mask_mod is not None:
        mask = call(mask_mod, *places)
        scope.check(mask, torch.bool)
        closed = call(torch.full, (), -math.inf, dtype=working)
        score = call(torch.where, mask, score, closed)
    score = call(torch.Tensor.expand, score, lengths)
    weights = call(torch.Tensor.to, call(torch.ops.aten._safe_softmax.default, score, -1), q.dtype)
    if heads != groups:
        weights = call(torch.reshape, weights, (batch, groups, heads // groups, rows, columns))
    out = call(torch.matmul, weights, v)
    out = call(torch.reshape, out, (batch, heads, rows, value.spec.shape[3]))
    return _in_order(call, out, q)


def _check(query: Any, key: Any, value: Any, given: dict[str, Any]) -> None:
    refused = Break("LW105", "flex_attention() of what eager refuses, or with more results than one")
    tensors = (query, key, value)
    if not all(type(t) is TraceTensor and len(t.spec.shape) == 4 for t in tensors):
        raise refused
    if len({t.dtype for t in tensors}) != 1 or query.dtype not in _FLOATS:
        raise refused
    if any(t.device.type != "cpu" or t.spec.requires_grad for t in tensors):
        raise refused
    options = ("return_lse", "kernel_options", "return_aux")
    if given.keys() - {*_NAMES, "return_aux"} or any(given[name] for name in options):
        raise refused
    if given["scale"] is not None and type(given["scale"]) not in (int, float):
        raise refused
    q, k, v = (t.spec.shape for t in tensors)
    if q[0] != k[0] or k[:3] != v[:3] or q[3] != k[3] or 0 in (*q, *k, *v):
        raise refused
    if q[1] != k[1] and (not given["enable_gqa"] or q[1] % k[1]):
        raise refused


def _mask_mod(interp: Interpreter, block_mask: Any, query: Any, key: Any) -> Any:
    """What a mask says of a single score. The blocks only tell what need not be looked at."""
    if type(block_mask).__module__ != _MODULE or type(block_mask).__name__ != "BlockMask":
        raise Break("LW105", "flex_attention() with a block_mask that is no BlockMask")
    sizes = interp.force(load_attr(interp, block_mask, "BLOCK_SIZE"))
    lengths = interp.force(load_attr(interp, block_mask, "seq_lengths"))
    mask_mod = load_attr(interp, block_mask, "mask_mod")
    if tuple(sizes) != (_ANY_LENGTH, _ANY_LENGTH) and tuple(lengths) != (
        query.spec.shape[2],
        key.spec.shape[2],
    ):
        raise Break("LW105", "flex_attention() with a block_mask for other lengths")
    if getattr(mask_mod, "__name__", "") == "_sliced_mask_mod_error":
        raise Break("LW105", "flex_attention() with a part of a block_mask")
    return mask_mod


class _Scope:
    """What the user's functions may do: the nodes that are recorded from now on are arithmetic on single numbers."""

    def __init__(self, tensors: list[Any], working: torch.dtype) -> None:
        self.working = working
        self.numbers: set[fx.Node] = {cast(TraceTensor, tensor).node for tensor in tensors}
        self.last: fx.Node = self._end(tensors[0].node.graph)

    def check(self, result: Any, dtype: torch.dtype) -> None:
        """Look at the nodes since the last look, and at a result.

        Raises:
            Break: it may be another one for a batch than for each of its rows.
        """
        refused = Break("LW105", "flex_attention() with a function that does more than arithmetic on numbers")
        graph = self.last.graph
        node, end = self.last, self._end(graph)
        alone: list[torch.dtype] = []
        while node is not end:
            node = node.next
            if not self._is_number(node, alone):
                raise refused
            self.numbers.add(node)
        self.last = end
        if type(result) is not TraceTensor or result.node not in self.numbers or result.dtype is not dtype:
            raise refused
        # A tensor without dimensions takes part in the choice of a dtype where another has some: not so for numbers.
        dtypes = {cast(TensorSpec, each.meta["val"]).dtype for each in self.numbers}
        if alone and not {*alone, *dtypes} <= {self.working, torch.int64, torch.bool}:
            raise refused

    @staticmethod
    def _end(graph: fx.Graph) -> fx.Node:
        return next(iter(reversed(graph.nodes)))

    def _is_number(self, node: fx.Node, alone: list[torch.dtype]) -> bool:
        if node.op == "placeholder":
            return True
        target: Any = node.target
        spec = node.meta.get("val")
        if node.op != "call_function" or not isinstance(spec, TensorSpec) or node.meta.get("overwrites"):
            return False
        if target in _CONSTANTS:
            alone.append(spec.dtype)
            return not spec.shape
        operands = list(node.all_input_nodes)
        if target is torch.ops.aten.index.Tensor:
            table, indices = cast("tuple[fx.Node, list[fx.Node | None]]", node.args)
            whole = len(indices) == len(cast(TensorSpec, table.meta["val"]).shape) and None not in indices
            if not whole or table in self.numbers:
                return False
            operands = [index for index in indices if index is not None]
        elif torch.Tag.pointwise not in target.tags and target not in _POINTWISE:
            return False
        if torch.Tag.nondeterministic_seeded in target.tags:
            return False
        for operand in operands:
            if operand in self.numbers and operand.op != "placeholder":
                continue
            other = operand.meta["val"]
            if not isinstance(other, TensorSpec) or other.shape:
                return False
            alone.append(other.dtype)
        return True


def _in_order(call: Any, out: Any, query: Any) -> Any:
    """The result with its dimensions in memory in the query's order, the last one innermost.

    Raises:
        Break: two of the query's dimensions have one stride.
    """
    strides = query.spec.strides
    order = sorted(range(4), key=lambda dim: strides[dim], reverse=True)
    if order == [0, 1, 2, 3]:
        return out
    if len({strides[dim] for dim in range(4)}) != 4:
        raise Break("LW105", "flex_attention() of a query with several dimensions of one stride")
    order = [*(dim for dim in order if dim != 3), 3]
    back = [order.index(dim) for dim in range(4)]
    moved = call(torch.Tensor.contiguous, call(torch.permute, out, order))
    return call(torch.permute, moved, back)
