"""The windows of a convolution: how each spatial dimension is stepped through."""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import Axis, Expr
from lampwork.lower import exprs as e
from lampwork.records import record


@record
class Dim:
    """One spatial dimension: input and output size, taps, and how they step."""

    input: int
    output: int
    taps: int
    stride: int
    padding: int
    dilation: int

    def place(self, out: Index, tap: Index) -> Index:
        return out * self.stride + tap * self.dilation - self.padding

    @property
    def is_padded(self) -> bool:
        return self.padding > 0


def inside(dims: Sequence[Dim], places: Sequence[Index]) -> Expr | None:
    """Whether none of the places lies in the padding; None where there is none."""
    mask: Expr | None = None
    for dim, place in zip(dims, places, strict=True):
        if dim.is_padded:
            mask = e.both(mask, e.inside(place, 0, as_index(dim.input)))
    return mask


def axis(name: str, size: int) -> Axis:
    return Axis(name, as_index(size))
