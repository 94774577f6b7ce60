"""Packed sequences as a joint graph has them: spread over all steps before a recurrence, and packed again behind it.

before: y, h = gru(x, batch_sizes, h0, weights, …)        of the elements of sequences of several lengths
after:  g = linear(x, w_ih, …)                            of these elements
        y = recurrence(where(there, g[rows], held), w_hh, h0)
        y = y[places]; h = y at the last steps

A sequence begins at the first step in both directions; in the second one its last element comes first. At the steps
behind its end gates are closed, so that no gradient comes from there and that of a cell passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor

from lampwork import pristine
from lampwork.loops.ir.nodes import CellKind
from lampwork.records import record

_CLOSED: Mapping[CellKind, tuple[float, ...]] = MappingProxyType(
    {"lstm": (-inf, inf, 0.0, -inf), "gru": (0.0, inf, 0.0), "tanh": (-inf,), "relu": (-inf,)}
)
"""The product with the input, for each gate, at a step that keeps the cell, or the state of a gru, as it is."""


@record
class Packed:
    """Where the elements of one direction lie.

    rows: int64[steps * batch], which element a step of a sequence has, any for none. there: bool[steps * batch, 1],
    whether it has one. places: int64[elements], the step and sequence of each. last: int64[batch], the last ones.
    """

    rows: Tensor
    there: Tensor
    places: Tensor
    last: Tensor

    @staticmethod
    def of(batch_sizes: Tensor, elements: int, batch: int, *, turned: bool) -> Packed:
        """batch_sizes: int64[steps], how many sequences have each step."""
        ends = batch_sizes.cumsum(0)
        starts = ends - batch_sizes
        column, element = pristine.arange(batch), pristine.arange(elements)
        lengths = (batch_sizes.unsqueeze(1) > column).sum(0)
        step = pristine.searchsorted(ends, element, right=True)
        # Sizes that eager refuses make an index that is out of range, and the call is eager's.
        refused = (batch_sizes[1:] > batch_sizes[:-1]).any() | (batch_sizes[0] != batch)
        sequence = element - starts[step + refused * batch_sizes.shape[0]]
        t = pristine.arange(batch_sizes.shape[0]).unsqueeze(1).expand(-1, batch)
        there = t < lengths
        if turned:
            step, t = lengths[sequence] - 1 - step, lengths - 1 - t
        rows = (starts[t.clamp(min=0)] + column).where(there, 0)
        last = (lengths - 1) * batch + column
        return Packed(rows.flatten(), there.reshape(-1, 1), step * batch + sequence, last)

    def spread(self, product: Tensor, kind: CellKind) -> Tensor:
        """[elements, gates * units] -> [steps, batch, gates * units]."""
        spread = cast(Any, _Spread).apply(product, self.rows, self.there, self.places, _CLOSED[kind])
        return spread.unflatten(0, (-1, self.last.shape[0]))

    def gather(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """([elements, units], the last states [batch, units]) of [steps, batch, units]."""
        flat = states.flatten(0, 1)
        return cast(Any, _Gathered).apply(flat, self.rows, self.there, self.places), flat.index_select(
            0, self.last
        )


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, product: Tensor, rows: Tensor, there: Tensor, places: Tensor, closed: tuple[float, ...]
    ) -> Tensor:
        ctx.save_for_backward(places)
        units = product.shape[1] // len(closed)
        held = pristine.cat([pristine.full((units,), value, dtype=product.dtype) for value in closed])
        return product.index_select(0, rows).where(there, held)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        return grads[0].index_select(0, places), None, None, None, None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, rows: Tensor, there: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(rows, there)
        return states.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        rows, there = ctx.saved_tensors
        return grads[0].index_select(0, rows).where(there, 0), None, None, None
