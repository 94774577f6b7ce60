"""Arithmetic on dimensions, the same for shape rules, passes, rewrites and lowering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

RANK_PLUS_ONE = frozenset({"unsqueeze", "unsqueeze_copy", "stack", "_stack", "diag_embed"})
"""Operators whose results have one dimension more than their operands: their dimensions count in the results."""


def slice_bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """(start, end) of a slice with a positive step, clamped as torch does: 0 <= start <= end <= size."""
    first = 0 if start is None else start
    last = size if end is None else end
    first = min(max(first + size if first < 0 else first, 0), size)
    last = min(max(last + size if last < 0 else last, first), size)
    return first, last


def from_front(value: Any, rank: int | None) -> Any:
    """A dimension, or a list of them, counted from the front; what is out of range, or no int, stays."""
    if rank is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value % rank if -rank <= value < rank else value
    if isinstance(value, list | tuple):
        return [from_front(v, rank) for v in cast("Sequence[Any]", value)]
    return value


def permutation(name: str, args: Sequence[Any], rank: int) -> list[int] | None:
    """The order in which `name(x, *args)` puts the dimensions of a tensor of `rank`: dimension n of the result is
    dimension order[n] of x. None if `name` is no such operator, or the rank does not suit it."""
    order = list(range(rank))
    match name:
        case "t" | "numpy_T":
            order.reverse()
        case "mT" | "mH" | "adjoint":
            if rank < 2:
                return None
            order[-2:] = reversed(order[-2:])
        case "transpose" | "swapaxes" | "swapdims":
            a, b = (from_front(dim, rank) for dim in args[:2])
            if not all(isinstance(dim, int) and 0 <= dim < rank for dim in (a, b)):
                return None if rank else order
            order[a], order[b] = order[b], order[a]
        case "movedim" | "moveaxis":
            sources, targets = (_listed(dims, rank) for dims in args[:2])
            if not all(0 <= dim < rank for dim in (*sources, *targets)):
                return None if rank else order
            place = dict(zip(targets, sources, strict=True))
            rest = iter(dim for dim in order if dim not in sources)
            order = [place[dim] if dim in place else next(rest) for dim in order]
        case "permute":
            order = from_front(list(args[0]), rank)
        case _:
            return None
    return order


def _listed(dims: Any, rank: int) -> list[int]:
    return from_front(list(dims) if isinstance(dims, list | tuple) else [dims], rank)
