"""Views, and operators that move elements without computing, in ONNX."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from lampwork import pristine
from lampwork.backends.onnx.builder import Builder, NotConvertible, Value
from lampwork.backends.onnx.call import Call
from lampwork.backends.onnx.registry import Rules
from lampwork.backends.onnx.rules_pointwise import operand

rules = Rules()


@rules.converts(
    "view",
    "reshape",
    "_unsafe_view",
    "unsqueeze",
    "squeeze",
    "squeeze.dim",
    "squeeze.dims",
    "flatten.using_ints",
    "unflatten.int",
)
def view(g: Builder, call: Call, x: Value, *rest: Any) -> str:
    return g.reshape(x.name, call.shape)


def _order(x: Value, dims: Sequence[int]) -> list[int]:
    return [d % x.rank for d in dims]


@rules.converts("permute")
def permute(g: Builder, call: Call, x: Value, dims: Sequence[int]) -> str:
    return g.op("Transpose", x.name, perm=_order(x, dims)) if x.rank else g.op("Identity", x.name)


@rules.converts("transpose.int")
def transpose(g: Builder, call: Call, x: Value, a: int, b: int) -> str:
    if x.rank == 0:
        return g.op("Identity", x.name)
    order = list(range(x.rank))
    order[a], order[b] = order[b], order[a]
    return g.op("Transpose", x.name, perm=_order(x, order))


@rules.converts("t")
def t(g: Builder, call: Call, x: Value) -> str:
    return g.op("Transpose", x.name, perm=[1, 0]) if x.rank == 2 else g.op("Identity", x.name)


@rules.converts("expand")
def expand(g: Builder, call: Call, x: Value, *rest: Any) -> str:
    return g.op("Expand", x.name, g.ints(call.shape))


@rules.converts("slice.Tensor")
def slice_(
    g: Builder,
    call: Call,
    x: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> str:
    stop = sys.maxsize if end is None else end
    return g.op("Slice", x.name, g.ints([start or 0]), g.ints([stop]), g.ints([dim % x.rank]), g.ints([step]))


@rules.converts("select.int")
def select(g: Builder, call: Call, x: Value, dim: int, index: int) -> str:
    return g.op("Gather", x.name, g.scalar(index, torch.int64), axis=dim % x.rank)


@rules.converts("narrow")
def narrow(g: Builder, call: Call, x: Value, dim: int, start: Any, length: int) -> str:
    if not isinstance(start, int):
        raise NotConvertible("a start that is a tensor")
    return slice_(g, call, x, dim, start, start + length if start + length else None)


@rules.converts("split.Tensor", "split_with_sizes", "chunk", "unbind.int", "split.sizes")
def split(g: Builder, call: Call, x: Value, *rest: Any) -> tuple[str, ...]:
    parts = [tuple(int(s) for s in spec.shape) for spec in call.node.meta["val"]]
    unbound = "unbind" in str(call.node.target)
    dim = int((rest[0] if rest else 0) if unbound else (rest[1] if len(rest) > 1 else 0)) % x.rank
    if unbound:
        return tuple(g.op("Gather", x.name, g.scalar(i, torch.int64), axis=dim) for i in range(len(parts)))
    names: list[str] = []
    start = 0
    for shape in parts:
        ends = g.ints([start + shape[dim]])
        names.append(g.op("Slice", x.name, g.ints([start]), ends, g.ints([dim])))
        start += shape[dim]
    return tuple(names)


@rules.converts("cat")
def cat(g: Builder, call: Call, tensors: Sequence[Value], dim: int = 0) -> str:
    if any(x.rank != len(call.shape) for x in tensors):
        raise NotConvertible("operands of several ranks")
    return g.op("Concat", *[x.as_type(call.dtype) for x in tensors], axis=dim % len(call.shape))


@rules.converts("stack")
def stack(g: Builder, call: Call, tensors: Sequence[Value], dim: int = 0) -> str:
    axis = dim % len(call.shape)
    wide = [g.op("Unsqueeze", x.as_type(call.dtype), g.ints([axis])) for x in tensors]
    return g.op("Concat", *wide, axis=axis)


@rules.converts("repeat")
def repeat(g: Builder, call: Call, x: Value, repeats: Sequence[int]) -> str:
    wide = g.reshape(x.name, [1] * (len(repeats) - x.rank) + list(x.shape))
    return g.op("Tile", wide, g.ints(repeats))


@rules.converts("roll")
def roll(g: Builder, call: Call, x: Value, shifts: Any, dims: Any = ()) -> str:
    shifts, dims = ([v] if isinstance(v, int) else list(v) for v in (shifts, dims))
    if not dims or 0 in x.shape:
        raise NotConvertible("rolling over all dimensions at once, or nothing")
    name = x.name
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        start, axis = g.ints([-shift % size]), g.ints([dim % x.rank])
        front = g.op("Slice", name, start, g.ints([size]), axis)
        name = g.op("Concat", front, g.op("Slice", name, g.ints([0]), start, axis), axis=dim % x.rank)
    return name


@rules.converts("constant_pad_nd")
def constant_pad_nd(g: Builder, call: Call, x: Value, pad: Sequence[int], value: Any = 0) -> str:
    if any(p < 0 for p in pad):
        raise NotConvertible("negative padding")
    before, after = [0] * x.rank, [0] * x.rank
    for i in range(len(pad) // 2):
        before[x.rank - 1 - i], after[x.rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    return g.op("Pad", x.name, g.ints([*before, *after]), operand(g, value, x.dtype))


# --- indices ----------------------------------------------------------------------------------------------------------


def checked_index(g: Builder, index: Value, size: int, lowest: int) -> str:
    """The index, with a check that all of it lies in [lowest, size): eager raises otherwise. It is clamped, so that
    the model runs to its end."""
    known = index.constant
    if known is not None:
        low, high = int(known.min()), int(known.max())
        if low < lowest or high >= size:
            raise NotConvertible("an index out of range")
        return index.name
    if index.dtype not in (torch.int64, torch.int32):
        raise NotConvertible(f"an index of {index.dtype}")
    if not g.checking:
        return index.name
    clamped = g.op("Clip", index.name, g.scalar(lowest, index.dtype), g.scalar(size - 1, index.dtype))
    same = g.op("Cast", g.op("Equal", clamped, index.name), to=6)  # int32
    g.checks.append(g.op("Cast", g.op("ReduceMin", same, keepdims=0), to=9))  # bool
    return clamped


@rules.converts("embedding")
def embedding(g: Builder, call: Call, weight: Value, index: Value, *rest: Any) -> str:
    return g.op("Gather", weight.name, checked_index(g, index, weight.shape[0], 0), axis=0)


@rules.converts("index_select")
def index_select(g: Builder, call: Call, x: Value, dim: int, index: Value) -> str:
    if x.rank == 0 or index.rank != 1:
        raise NotConvertible("an index of no dimensions")
    axis = dim % x.rank
    return g.op("Gather", x.name, checked_index(g, index, x.shape[axis], 0), axis=axis)


@rules.converts("gather")
def gather(g: Builder, call: Call, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> str:
    axis = dim % max(x.rank, 1)
    if any(i != n for d, (i, n) in enumerate(zip(index.shape, x.shape, strict=True)) if d != axis):
        raise NotConvertible("an index smaller than the tensor")
    return g.op("GatherElements", x.name, checked_index(g, index, x.shape[axis], 0), axis=axis)


@rules.converts("index.Tensor")
def index_tensor(g: Builder, call: Call, x: Value, indices: Sequence[Value | None]) -> str:
    """One index: a gather along its dimension. Several, of the first dimensions: a gather of all at once."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if not given or any(index.dtype is torch.bool for _, index in given):
        raise NotConvertible("a mask")
    if len(given) > 1:
        if [d for d, _ in given] != list(range(len(given))):
            raise NotConvertible("several indices, not of the first dimensions")
        return _gather_together(g, x, [index for _, index in given])
    axis, index = given[0]
    size = x.shape[axis]
    return g.op("Gather", x.name, checked_index(g, index, size, -size), axis=axis)


def _gather_together(g: Builder, x: Value, indices: Sequence[Value]) -> str:
    shape = pristine.broadcast_shapes(*(index.shape for index in indices))
    wide: list[str] = []
    for index, size in zip(indices, x.shape, strict=False):
        name = g.cast(checked_index(g, index, size, -size), index.dtype, torch.int64)
        wide.append(g.op("Unsqueeze", g.op("Expand", name, g.ints(shape)), g.ints([-1])))
    return g.op("GatherND", x.name, g.op("Concat", *wide, axis=-1))
