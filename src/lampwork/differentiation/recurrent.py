"""Recurrent layers as a joint graph has them: products, and the operators of graph/recurrence.py.

before: y, h, c = lstm(x, (h0, c0), weights, …)
after:  for each layer and direction:
            g = linear(x, w_ih, b_ih + b_hh)
            y, kept, c = recurrence(g, w_hh, h0, c0)
        and in backward:
            grad_g, _, grad_h0, grad_c0 = recurrence_backward(grad_y, grad_c, kept, w_hh)
            grad_w_hh = grad_g.T @ (the states before each step)
            grad_w_ih, grad_x, grad_b_ih, grad_b_hh: those of a linear layer

eager differentiates an lstm by oneDNN, from a workspace that only oneDNN reads, and other layers step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor

from lampwork import pristine
from lampwork.differentiation.packed import Packed
from lampwork.graph.recurrence import recurrence, recurrence_backward
from lampwork.loops.ir.nodes import KEPT, CellKind
from lampwork.records import record

aten = torch.ops.aten


class _Recurrence(torch.autograd.Function):
    """(states, the last cell of an lstm) of one direction."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        h: Tensor,
        c: Tensor | None,
        bias: Tensor | None,
        kind: CellKind,
        turned: bool,
    ) -> Any:
        out, kept, cell = recurrence(x, w, h, c, bias, kind, turned)
        ctx.save_for_backward(w, h, out, kept)
        ctx.kind, ctx.turned = kind, turned
        ctx.set_materialize_grads(False)
        return (out, cell) if kind == "lstm" else (out, None)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        w, h, out, kept = ctx.saved_tensors
        grad, grad_cell = grads
        if grad is None and grad_cell is None:
            return (None,) * 7
        if grad is None:
            grad = pristine.zeros_like(out)
        saved = kept if KEPT[ctx.kind] else out
        grad_x, grad_sums, grad_h, grad_c = recurrence_backward(
            grad, grad_cell, saved, w, ctx.kind, ctx.turned
        )
        if ctx.kind != "gru":
            grad_sums = grad_x
        first = h.unsqueeze(0)
        before = pristine.cat([out[1:], first] if ctx.turned else [first, out[:-1]])
        needs = ctx.needs_input_grad
        grad_w = grad_sums.flatten(0, 1).t().mm(before.flatten(0, 1)) if needs[1] else None
        units = h.shape[1]
        grad_bias = grad_sums[:, :, 2 * units :].sum((0, 1)) if needs[4] else None
        return grad_x, grad_w, grad_h, grad_c if needs[3] else None, grad_bias, None, None


@record
class _Network:
    """The arguments that all layers share. `per`: how many parameters a layer of one direction has."""

    kind: CellKind
    params: Sequence[Tensor]
    has_biases: bool
    layers: int
    dropout: float
    train: bool
    directions: int

    @property
    def per(self) -> int:
        return 4 if self.has_biases else 2

    def weights(self, number: int) -> Iterator[Tensor | None]:
        """w_ih, w_hh, b_ih, b_hh of a layer's direction."""
        own = self.params[number * self.per : (number + 1) * self.per]
        return iter(own if self.has_biases else (*own, None, None))


def _is_ours(given: Sequence[Tensor | None], network: _Network) -> bool:
    """Whether the operators know it: no projection, numbers of one type that products are computed in."""
    tensors = [tensor for tensor in given if tensor is not None]
    dtypes = {tensor.dtype for tensor in tensors}
    return (
        len(network.params) == network.layers * network.directions * network.per
        and len(dtypes) == 1
        and dtypes <= {torch.float32, torch.float64}
        and all(0 not in tensor.shape for tensor in tensors)
        and all(tensor.device.type == "cpu" for tensor in tensors)
    )


def _layer(
    network: _Network, number: int, x: Tensor, h: Tensor, c: Tensor | None, packed: Sequence[Packed] | None
) -> tuple[Tensor, Tensor, Any]:
    """(the states, the last state, the last cell) of one direction of a layer; x has steps first, or is packed."""
    w_ih, w_hh, b_ih, b_hh = network.weights(number)
    assert w_ih is not None and w_hh is not None
    late = None
    bias = b_ih
    if b_ih is not None and b_hh is not None:
        if network.kind == "gru":
            early = 2 * h.shape[1]
            bias = pristine.cat([b_ih[:early] + b_hh[:early], b_ih[early:]])
            late = b_hh[early:]
        else:
            bias = b_ih + b_hh
    product = torch.nn.functional.linear(x, w_ih, bias)
    turned = network.directions == 2 and number % 2 == 1
    recur = cast(Any, _Recurrence).apply
    if packed is None:
        out, cell = recur(product, w_hh, h, c, late, network.kind, turned)
        return out, out[0 if turned else -1], cell
    sequences = packed[turned]
    out, cell = recur(sequences.spread(product, network.kind), w_hh, h, c, late, network.kind, False)
    return (*sequences.gather(out), cell)


def _network(
    network: _Network,
    x: Tensor,
    hx: Tensor,
    cx: Tensor | None,
    batch_first: bool,
    packed: Sequence[Packed] | None = None,
) -> Any:
    """What the operator gives. `packed`: for each direction where the elements of a packed sequence lie."""
    if batch_first:
        x = x.transpose(0, 1)
    states: list[Tensor] = []
    cells: list[Tensor] = []
    for layer in range(network.layers):
        outs: list[Tensor] = []
        for direction in range(network.directions):
            number = layer * network.directions + direction
            c = None if cx is None else cx[number]
            out, state, cell = _layer(network, number, x, hx[number], c, packed)
            outs.append(out)
            states.append(state)
            cells.append(cell)
        x = outs[0] if len(outs) == 1 else pristine.cat(outs, -1)
        if network.dropout and network.train and layer < network.layers - 1:
            x = pristine.dropout(x, network.dropout, train=True)
    if batch_first:
        x = x.transpose(0, 1)
    last = pristine.stack(states)
    return (x, last) if cx is None else (x, last, pristine.stack(cells))


def _states(kind: CellKind, hx: Any) -> tuple[Tensor, Tensor | None]:
    """The states that a layer starts from, and those of its cells."""
    return hx if kind == "lstm" else (hx, None)


def _form(
    kind: CellKind,
    x: Tensor,
    hx: Any,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    network = _Network(kind, params, has_biases, num_layers, dropout, train, 1 + bidirectional)
    h, c = _states(kind, hx)
    return (
        _network(network, x, h, c, batch_first) if _is_ours([x, h, c, *params], network) else NotImplemented
    )


def _packed_form(
    kind: CellKind,
    x: Tensor,
    batch_sizes: Tensor,
    hx: Any,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> Any:
    network = _Network(kind, params, has_biases, num_layers, dropout, train, 1 + bidirectional)
    h, c = _states(kind, hx)
    if not _is_ours([x, h, c, *params], network):
        return NotImplemented
    packed = [Packed.of(batch_sizes, x.shape[0], h.shape[1], turned=n == 1) for n in range(1 + bidirectional)]
    return _network(network, x, h, c, False, packed)


FORMS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.lstm.input: partial(_form, "lstm"),
        aten.gru.input: partial(_form, "gru"),
        aten.rnn_tanh.input: partial(_form, "tanh"),
        aten.rnn_relu.input: partial(_form, "relu"),
        aten.lstm.data: partial(_packed_form, "lstm"),
        aten.gru.data: partial(_packed_form, "gru"),
        aten.rnn_tanh.data: partial(_packed_form, "tanh"),
        aten.rnn_relu.data: partial(_packed_form, "relu"),
    }
)
"""Operator -> what gives its results from operators with gradients of our own; NotImplemented for other arguments."""
