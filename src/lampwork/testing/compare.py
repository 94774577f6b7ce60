"""The criterion by which Lampwork decides that two results are equal."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from lampwork.graph.nested import leaves

# Where the exact result is (nearly) zero, errors are measured against this.
_FLOOR = 1e-3
# On top of twice eager's error: what another order of summation costs, in units of the dtype's precision.
_ROUNDINGS = 8.0


def widened(value: Any) -> Any:
    """A copy in double precision: floating tensors, modules, and tuples, lists and dicts of them."""
    if isinstance(value, Tensor):
        copied = value.detach().clone()
        if copied.is_floating_point():
            return copied.double()
        return copied.to(torch.complex128) if copied.is_complex() else copied
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).double()
    if isinstance(value, dict):
        return {k: widened(v) for k, v in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        items = [widened(v) for v in cast("Sequence[Any]", value)]
        return items if isinstance(value, list) else tuple(items)
    return value


def exact_result(fn: Callable[..., Any], args: Sequence[Any]) -> list[Tensor] | None:
    """The results of `fn` in double precision, as a flat list; None if it cannot run in double precision.

    It raises nothing: if an operator has no kernel for double precision, or the program names a dtype, then eager's own
    result becomes the reference.
    """
    try:
        with torch.no_grad():
            return [*leaves(widened(fn)(*widened(tuple(args))), Tensor)]
    except (RuntimeError, TypeError, NotImplementedError):
        return None


def difference(
    got: Any,
    eager: Any,
    exact: Sequence[Tensor] | None = None,
    *,
    strides: bool = True,
    tolerance: float = 0.0,
) -> str:
    """How `got` differs from `eager`; "" if it does not.

    Structure, shapes, dtypes and, by default, strides must be equal, and so must integers and booleans. The root mean
    square distance of floating-point results from `exact`, eager's result in double precision, may be twice that of
    eager itself plus a few roundings, and `tolerance` times the root mean square of the results; without `exact` the
    distance from eager counts. Infinities and nans must be where eager has them.
    """
    ours, theirs = [*leaves(got, Tensor)], [*leaves(eager, Tensor)]
    if type(got) is not type(eager) and not isinstance(got, list | tuple):
        return f"a {type(got).__name__}, not a {type(eager).__name__}"
    if len(ours) != len(theirs):
        return f"{len(ours)} tensors, not {len(theirs)}"
    truths: Sequence[Tensor | None] = exact if exact is not None else [None] * len(ours)
    if len(truths) != len(theirs):
        truths = [None] * len(ours)
    for number, (mine, other, truth) in enumerate(zip(ours, theirs, truths, strict=True)):
        text = _tensor_difference(mine, other, truth, strides, tolerance)
        if text:
            return f"result {number}: {text}"
    return ""


def bits_difference(got: Any, eager: Any) -> str:
    """How floating-point results differ from eager's in any bit, but for the bits of a nan; "" if they do not."""
    pairs = zip(leaves(got, Tensor), leaves(eager, Tensor), strict=True)
    for number, (mine, other) in enumerate(pairs):
        differ = (mine != other) | (torch.signbit(mine) != torch.signbit(other))
        differ &= ~(torch.isnan(mine) & torch.isnan(other))
        if differ.any():
            a, b = mine[differ][0].item(), other[differ][0].item()
            return f"result {number}: {int(differ.sum())} of {differ.numel()} elements differ, {a} where eager has {b}"
    return ""


def _tensor_difference(
    mine: Tensor, other: Tensor, truth: Tensor | None, strides: bool, tolerance: float
) -> str:
    if mine.shape != other.shape:
        return f"shape {tuple(mine.shape)}, not {tuple(other.shape)}"
    if mine.dtype != other.dtype:
        return f"{mine.dtype}, not {other.dtype}"
    if mine.device != other.device:
        return f"on {mine.device}, not on {other.device}"
    if strides and mine.stride() != other.stride():
        return f"strides {mine.stride()}, not {other.stride()}"
    if not (mine.is_floating_point() or mine.is_complex()):
        wrong = int((mine != other).sum())
        return f"{wrong} of {mine.numel()} elements differ" if wrong else ""
    return _inexact_difference(mine.detach(), other.detach(), truth, tolerance)


def _inexact_difference(mine: Tensor, other: Tensor, truth: Tensor | None, tolerance: float) -> str:
    wide = torch.complex128 if mine.is_complex() else torch.float64
    precision = torch.finfo(mine.dtype).eps
    a, b = mine.to(wide), other.to(wide)
    finite = torch.isfinite(b)
    if not torch.equal(torch.isnan(a), torch.isnan(b)):
        return "nans in other places"
    special = ~finite & ~torch.isnan(b)
    if not torch.equal(a[special], b[special]):
        return "infinities in other places, or of other sign"
    if not torch.isfinite(a[finite]).all():
        return "infinities where eager has numbers"
    usable = (
        truth is not None
        and truth.shape == other.shape
        and truth.is_floating_point() == other.is_floating_point()
    )
    c = truth.to(wide) if truth is not None and usable else b
    kept = finite & torch.isfinite(c)
    a, b, c = a[kept], b[kept], c[kept]
    if not a.numel():
        return ""
    scale = max(_rms(c), _FLOOR)
    error, allowed = _rms(a - c), 2 * _rms(b - c) + (_ROUNDINGS * precision + tolerance) * scale
    if error <= allowed:
        return ""
    return f"error {error:.3g} where eager's is {_rms(b - c):.3g} (allowed {allowed:.3g})"


def _rms(values: Tensor) -> float:
    return float(values.abs().square().mean().sqrt())
