"""`lampwork::recurrence`: all steps of a recurrent layer in one direction, with what its gradient is computed from, and
`lampwork::recurrence_backward`, that gradient. Here as they are defined, in eager PyTorch, and by their shapes.

    recurrence(x, w, h, c, bias, kind, turned) -> (out, kept, cell)

x [steps, batch, gates * units]: the product of the layer's input with its weight, and the biases; w [gates * units,
units]; h and c [batch, units]: the first state, and of an lstm the first cell; bias [units]: what a gru adds to the
last gate of the product with the state; `turned`: whether the last step comes first. out [steps, batch, units]: the
states. kept [steps, batch, KEPT[kind] * units]: of an lstm its four gates, of a gru its three gates and the sum that
the reset gate is multiplied by; then the cell or state before the step. cell [batch, units]: the last one of an lstm.

    recurrence_backward(grad, grad_cell, kept, w, kind, turned) -> (grad_x, grad_sums, grad_h, grad_c)

grad: of out; grad_cell: of cell, None for zeros; kept: out itself where the forward keeps nothing. grad_sums [steps,
batch, gates * units]: of the product with the state, for a gru only, since it is grad_x for all others.

What a kind does not have is empty, of shape [0].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from lampwork import pristine
from lampwork.graph.spec import TensorSpec, contiguous_strides
from lampwork.loops.ir.nodes import KEPT, CellKind

_library = torch.library.Library("lampwork", "FRAGMENT")
_library.define(
    "recurrence(Tensor x, Tensor w, Tensor h, Tensor? c, Tensor? bias, str kind, bool turned)"
    " -> (Tensor, Tensor, Tensor)"
)
_library.define(
    "recurrence_backward(Tensor grad, Tensor? grad_cell, Tensor kept, Tensor w, str kind, bool turned)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)

recurrence: Any = torch.ops.lampwork.recurrence.default
recurrence_backward: Any = torch.ops.lampwork.recurrence_backward.default

_FUNCTIONS: Mapping[CellKind, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"tanh": torch.tanh, "relu": torch.relu}
)


def _recurrence(
    x: Tensor, w: Tensor, h: Tensor, c: Tensor | None, bias: Tensor | None, kind: CellKind, turned: bool
) -> tuple[Tensor, Tensor, Tensor]:
    steps, batch = x.shape[:2]
    units = h.shape[1]
    out = x.new_empty(steps, batch, units)
    kept = x.new_empty(steps, batch, KEPT[kind] * units) if KEPT[kind] else x.new_empty(0)
    for t in reversed(range(steps)) if turned else range(steps):
        sums = h @ w.t()
        if kind == "lstm":
            assert c is not None
            reads, forgets, new, writes = (x[t] + sums).chunk(4, 1)
            reads, forgets, new, writes = reads.sigmoid(), forgets.sigmoid(), new.tanh(), writes.sigmoid()
            pristine.cat([reads, forgets, new, writes, c], 1, out=kept[t])
            c = forgets * c + reads * new
            h = writes * c.tanh()
        elif kind == "gru":
            (x_reset, x_update, x_new), (reset, update, last) = x[t].chunk(3, 1), sums.chunk(3, 1)
            last = last if bias is None else last + bias
            reset, update = (x_reset + reset).sigmoid(), (x_update + update).sigmoid()
            new = (x_new + reset * last).tanh()
            pristine.cat([reset, update, new, last, h], 1, out=kept[t])
            h = new + update * (h - new)
        else:
            h = _FUNCTIONS[kind](x[t] + sums)
        out[t] = h
    return out, kept, x.new_empty(0) if c is None else _in_rows(c)


def _recurrence_backward(
    grad: Tensor, grad_cell: Tensor | None, kept: Tensor, w: Tensor, kind: CellKind, turned: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    steps, batch, units = grad.shape
    grad_x = grad.new_empty(steps, batch, w.shape[0])
    grad_sums = pristine.empty_like(grad_x) if kind == "gru" else grad.new_empty(0)
    carried = grad.new_zeros(batch, units)
    cell = pristine.zeros_like(carried) if grad_cell is None else grad_cell
    for t in range(steps) if turned else reversed(range(steps)):
        state = grad[t] + carried
        if kind == "lstm":
            reads, forgets, new, writes, before = kept[t].chunk(5, 1)
            after = (forgets * before + reads * new).tanh()
            cell = cell + state * writes * (1 - after * after)
            parts = [
                cell * new * reads * (1 - reads),
                cell * before * forgets * (1 - forgets),
                cell * reads * (1 - new * new),
                state * after * writes * (1 - writes),
            ]
            cell = cell * forgets
            pristine.cat(parts, 1, out=grad_x[t])
            carried = grad_x[t] @ w
        elif kind == "gru":
            reset, update, new, last, before = kept[t].chunk(5, 1)
            of_new = state * (1 - update) * (1 - new * new)
            of_reset = of_new * last * reset * (1 - reset)
            of_update = state * (before - new) * update * (1 - update)
            pristine.cat([of_reset, of_update, of_new], 1, out=grad_x[t])
            pristine.cat([of_reset, of_update, of_new * reset], 1, out=grad_sums[t])
            carried = grad_sums[t] @ w + state * update
        else:
            result = kept[t]
            grad_x[t] = state * (1 - result * result) if kind == "tanh" else state.where(~(result <= 0), 0)
            carried = grad_x[t] @ w
    return grad_x, grad_sums, _in_rows(carried), _in_rows(cell) if kind == "lstm" else grad.new_empty(0)


def _in_rows(tensor: Tensor) -> Tensor:
    """A copy in memory of its own."""
    return tensor.clone(memory_format=torch.contiguous_format)


_library.impl("recurrence", _recurrence, "CompositeExplicitAutograd")
_library.impl("recurrence_backward", _recurrence_backward, "CompositeExplicitAutograd")


def _spec(like: TensorSpec, *shape: int) -> TensorSpec:
    return TensorSpec(shape, contiguous_strides(shape), like.dtype, like.device)


def _shapes(
    x: TensorSpec, w: TensorSpec, h: TensorSpec, c: Any, bias: Any, kind: CellKind, turned: bool
) -> tuple[TensorSpec, ...]:
    steps, batch, _ = x.shape
    units = h.shape[1]
    kept = _spec(x, steps, batch, KEPT[kind] * units) if KEPT[kind] else _spec(x, 0)
    return _spec(x, steps, batch, units), kept, _spec(x, batch, units) if kind == "lstm" else _spec(x, 0)


def _backward_shapes(
    grad: TensorSpec, grad_cell: Any, kept: TensorSpec, w: TensorSpec, kind: CellKind, turned: bool
) -> tuple[TensorSpec, ...]:
    steps, batch, units = grad.shape
    grad_x, state, nothing = _spec(grad, steps, batch, w.shape[0]), _spec(grad, batch, units), _spec(grad, 0)
    return grad_x, grad_x if kind == "gru" else nothing, state, state if kind == "lstm" else nothing


RULES: Mapping[Any, Callable[..., tuple[TensorSpec, ...]]] = MappingProxyType(
    {recurrence: _shapes, recurrence_backward: _backward_shapes}
)
