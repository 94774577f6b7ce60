"""Writes become values: the new content of a view is carried back through its chain into the memory it is a view of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import fx

from lampwork.errors import UnsupportedOpError
from lampwork.graph.dims import slice_bounds
from lampwork.graph.shapes_common import (
    iteration_order,
    preserved_strides,
    strides_in_order,
    wrap_dim,
)
from lampwork.graph.shapes_views import view_strides
from lampwork.graph.spec import TensorSpec
from lampwork.graph.tracetensor import ViewStep

aten = torch.ops.aten


class Emitter(Protocol):
    """What this module needs of the recorder: append a node, its spec inferred."""

    def emit(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> fx.Node: ...


def spec_of(node: fx.Node) -> TensorSpec:
    return node.meta["val"]


def replay(rec: Emitter, node: fx.Node, chain: Sequence[ViewStep]) -> fx.Node:
    """`node` (a storage's content) seen through the chain."""
    for step in chain:
        node = apply_step(rec, node, step)
    return node


def apply_step(rec: Emitter, node: fx.Node, step: ViewStep) -> fx.Node:
    if step.op is aten.view.default and view_strides(spec_of(node), step.spec.shape) is None:
        # The content was rebuilt in another layout than the memory has; its values are what counts here.
        node = rec.emit(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    return rec.emit(step.op, (node, *step.args), step.kwargs)


def scatter_back(rec: Emitter, content: fx.Node, chain: Sequence[ViewStep], value: fx.Node) -> fx.Node:
    """The storage's new content after `value` was written to its view by `chain`.

    before: content = [[0, 0], [0, 0]], chain = select(0, 1), value = [5, 5]
    after:  [[0, 0], [5, 5]]
    """
    seen = [content]
    for step in chain[:-1]:
        seen.append(apply_step(rec, seen[-1], step))
    for under, step in zip(reversed(seen), reversed(chain), strict=True):
        inverse = INVERSES.get(step.op)
        if inverse is None:
            raise UnsupportedOpError(f"a write through a view made by {step.op} cannot be recorded")
        value = inverse(rec, under, value, step)
    return value


def reshaped(rec: Emitter, node: fx.Node, shape: Sequence[int]) -> fx.Node:
    """`node` with another shape: a view, of a copy if need be."""
    spec = spec_of(node)
    if spec.shape == tuple(shape):
        return node
    if view_strides(spec, shape) is None:
        node = rec.emit(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    return rec.emit(aten.view.default, (node, list(shape)))


def in_layout(rec: Emitter, node: fx.Node, spec: TensorSpec) -> fx.Node:
    """The content `node` in the dense layout nearest to `spec`, which is the layout of its memory. A write leaves the
    strides as they are, also where they make no difference: of dimensions of size 1, and of what is empty."""
    wanted = preserved_strides(spec)
    have = spec_of(node)
    if have.strides == wanted:
        return node
    if (
        all(size == 1 or a == b for size, a, b in zip(spec.shape, have.strides, wanted, strict=True))
        or have.numel == 0
    ):
        return rec.emit(aten.as_strided.default, (node, list(spec.shape), list(wanted)))
    order = list(
        reversed(iteration_order(spec.shape, (TensorSpec(spec.shape, wanted, spec.dtype, spec.device),)))
    )
    if strides_in_order(spec.shape, tuple(reversed(order))) != wanted:
        order = list(range(len(spec.shape)))
    if order == list(range(len(spec.shape))):
        return rec.emit(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    back = [order.index(i) for i in range(len(order))]
    node = rec.emit(aten.permute.default, (node, order))
    node = rec.emit(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    return rec.emit(aten.permute.default, (node, back))


def memory_span(spec: TensorSpec) -> int:
    """Elements from the first to past the last of memory of layout `spec`."""
    if any(size == 0 for size in spec.shape):
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(spec.shape, spec.strides, strict=True))


def offset_of(spec: TensorSpec, chain: Sequence[ViewStep]) -> int:
    """Elements between the start of memory of layout `spec` and the first element of its view by `chain`."""
    offset = 0
    for step in chain:
        offset += step_offset(spec, step)
        spec = step.spec
    return offset


def step_offset(spec: TensorSpec, step: ViewStep) -> int:
    """Elements from the first of a tensor of layout `spec` to the first of its view."""
    if step.op is aten.as_strided.default:
        raise UnsupportedOpError("as_strided of a view made by as_strided")
    if step.op is aten.select.int:
        dim, index = step.args
        dim = wrap_dim(dim, len(spec.shape))
        return (index + spec.shape[dim] if index < 0 else index) * spec.strides[dim]
    if step.op is aten.slice.Tensor:
        dim = wrap_dim(step.args[0] if step.args else step.kwargs.get("dim", 0), len(spec.shape))
        start = step.args[1] if len(step.args) > 1 else step.kwargs.get("start")
        return slice_bounds(spec.shape[dim], start, None)[0] * spec.strides[dim]
    if step.op is aten.diagonal.default:
        given = dict(zip(("offset", "dim1", "dim2"), step.args, strict=False)) | step.kwargs
        shift = given.get("offset", 0)
        dim = given.get("dim2", 1) if shift >= 0 else given.get("dim1", 0)
        return abs(shift) * spec.strides[wrap_dim(dim, len(spec.shape))]
    return 0


# --- the inverse of each view ----------------------------------------------------------------------------------------

Inverse = Callable[[Emitter, fx.Node, fx.Node, ViewStep], fx.Node]


def _same_shape(rec: Emitter, under: fx.Node, value: fx.Node, step: ViewStep) -> fx.Node:
    del under, step, rec
    return value


def _reshape(rec: Emitter, under: fx.Node, value: fx.Node, step: ViewStep) -> fx.Node:
    del step
    return reshaped(rec, value, spec_of(under).shape)


def _permute(rec: Emitter, under: fx.Node, value: fx.Node, step: ViewStep) -> fx.Node:
    rank = len(spec_of(under).shape)
    order = [wrap_dim(dim, rank) for dim in step.args[0]]
    return rec.emit(aten.permute.default, (value, [order.index(i) for i in range(rank)]))


def _again(rec: Emitter, under: fx.Node, value: fx.Node, step: ViewStep) -> fx.Node:
    """transpose and t undo themselves."""
    del under
    return rec.emit(step.op, (value, *step.args), step.kwargs)


def _select(rec: Emitter, under: fx.Node, value: fx.Node, step: ViewStep) -> fx.Node:
    return _scatter(rec, aten.select_scatter.default, under, value, step)


def _slice(rec: Emitter, under: fx.Node, value: fx.Node, step: ViewStep) -> fx.Node:
    if spec_of(under).shape == spec_of(value).shape:
        return value
    return _scatter(rec, aten.slice_scatter.default, under, value, step)


def _diagonal(rec: Emitter, under: fx.Node, value: fx.Node, step: ViewStep) -> fx.Node:
    return _scatter(rec, aten.diagonal_scatter.default, under, value, step)


def _scatter(rec: Emitter, op: Any, under: fx.Node, value: fx.Node, step: ViewStep) -> fx.Node:
    """torch differentiates these operators of real numbers only: complex ones are written as pairs."""
    spec = spec_of(under)
    if not spec.dtype.is_complex:
        return rec.emit(op, (under, value, *step.args), step.kwargs)
    rank, given = len(spec.shape), iter(step.args)
    args: list[Any] = []
    for parameter in op._schema.arguments[2:]:
        number = next(given, step.kwargs.get(parameter.name, parameter.default_value))
        args.append(wrap_dim(number, rank) if parameter.name.startswith("dim") else number)
    pairs = [rec.emit(aten.view_as_real.default, (each,)) for each in (under, value)]
    if op is aten.diagonal_scatter.default:
        pairs[1] = rec.emit(aten.transpose.int, (pairs[1], -1, -2))  # a diagonal is the last dimension
    return rec.emit(aten.view_as_complex.default, (rec.emit(op, (*pairs, *args)),))


def _as_strided(rec: Emitter, under: fx.Node, value: fx.Node, step: ViewStep) -> fx.Node:
    if spec_of(under).requires_grad or spec_of(value).requires_grad:
        return _as_strided_by_index(rec, under, value, step)
    return rec.emit(aten.as_strided_scatter.default, (under, value, *step.args), step.kwargs)


def _as_strided_by_index(rec: Emitter, under: fx.Node, value: fx.Node, step: ViewStep) -> fx.Node:
    """torch's derivative of as_strided_scatter gives `under` the gradient of what was overwritten, and knows contiguous
    tensors only; index_put into flat memory has the right one."""
    memory, spec = spec_of(under), spec_of(value)
    span = memory_span(memory)
    where = rec.emit(aten.arange.default, (span,), {"dtype": torch.int64, "device": memory.device})
    where = reshaped(rec, rec.emit(aten.as_strided.default, (where, *step.args), step.kwargs), (spec.numel,))
    flat = rec.emit(aten.as_strided.default, (under, [span], [1], 0))
    flat = rec.emit(aten.index_put.default, (flat, [where], reshaped(rec, value, (spec.numel,))))
    return rec.emit(aten.as_strided.default, (flat, list(memory.shape), list(memory.strides), 0))


def _undone_by_itself(rec: Emitter, under: fx.Node, value: fx.Node, step: ViewStep) -> fx.Node:
    """Conjugates and negatives."""
    del under
    return rec.emit(step.op, (value,))


def _other_dtype(rec: Emitter, under: fx.Node, value: fx.Node, step: ViewStep) -> fx.Node:
    if torch.bool in (spec_of(under).dtype, step.spec.dtype):
        # Memory of bools may hold any bytes, but the values that stand for it in the graph are 0 and 1.
        raise UnsupportedOpError("a write to the bytes of bools, or of bools to bytes")
    return rec.emit(aten.view.dtype, (value, spec_of(under).dtype))


def _as_complex(rec: Emitter, under: fx.Node, value: fx.Node, step: ViewStep) -> fx.Node:
    """What was written to the real view, as complex numbers again."""
    value = rec.emit(aten.clone.default, (value,), {"memory_format": torch.contiguous_format})
    return rec.emit(aten.view_as_complex.default, (value,))


def _as_real(rec: Emitter, under: fx.Node, value: fx.Node, step: ViewStep) -> fx.Node:
    return rec.emit(aten.view_as_real.default, (value,))


def _expand(rec: Emitter, under: fx.Node, value: fx.Node, step: ViewStep) -> fx.Node:
    if step.spec.numel != spec_of(under).numel:
        raise UnsupportedOpError("a write to an expanded tensor, where one element stands for several")
    return reshaped(rec, value, spec_of(under).shape)


INVERSES: dict[Any, Inverse] = {
    aten.view.default: _reshape,
    aten.unsqueeze.default: _reshape,
    aten.squeeze.default: _reshape,
    aten.squeeze.dim: _reshape,
    aten.squeeze.dims: _reshape,
    aten.permute.default: _permute,
    aten.transpose.int: _again,
    aten.t.default: _again,
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.diagonal.default: _diagonal,
    aten.as_strided.default: _as_strided,
    aten.expand.default: _expand,
    aten.view.dtype: _other_dtype,
    aten._conj_physical.default: _undone_by_itself,
    aten.neg.default: _undone_by_itself,
    aten.view_as_real.default: _as_complex,
    aten.view_as_complex.default: _as_real,
    aten.alias.default: _same_shape,
    aten.detach.default: _same_shape,
}
