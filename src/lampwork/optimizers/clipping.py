"""Clipping of gradients, in compiled functions that call torch's: what stands in for the functions of torch.nn.utils.

Torch's own code runs, with the functions exchanged in it that work on gradients. The norm of all of them is one pass of
csrc/norms.cpp, with their norms rounded as eager rounds them; another multiplies them, unless by 1. Values are clipped
as an optimizer's rule is applied. What these do not take, such as norms of other orders, sparse gradients or several
dtypes, goes to torch's functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor

from lampwork import _C
from lampwork.capture.state.contexts import surroundings
from lampwork.codegen.target import Target
from lampwork.compiled.stance import current_stance
from lampwork.optimizers.update import updater_for
from lampwork.standard import math

_torch: Any = torch.nn.utils.clip_grad
_total_norm, _scale_by_norm = _torch._get_total_norm, _torch._clip_grads_with_norm_
_clip_norm, _clip_value = _torch.clip_grad_norm_, _torch.clip_grad_value_


def clipping_instead(function: FunctionType, target: Target) -> Callable[..., Any] | None:
    """What compiled code calls in place of a function that clips gradients or takes their norm; None for others."""
    if function is _clip_value:
        return _by_rows(target)
    return _INSTEAD.get(function)


def total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """As torch.nn.utils.get_total_norm."""
    listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    norm = _C.total_norm(listed, float(norm_type)) if _is_ours() else None
    if norm is None or (error_if_nonfinite and not math.isfinite(norm.item())):
        return _total_norm(listed, norm_type, error_if_nonfinite, foreach)
    return norm


def scale_by_norm(
    parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """As torch.nn.utils.clip_grads_with_norm_."""
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    grads = [param.grad for param in listed if param.grad is not None]
    if not _is_ours() or not _C.clip_to_norm(grads, total_norm, float(max_norm)):
        _scale_by_norm(listed, max_norm, total_norm, foreach)


def _by_rows(target: Target) -> Callable[..., None]:
    """torch.nn.utils.clip_grad_value_ by a kernel."""

    def clip_value(
        parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None
    ) -> None:
        value = float(clip_value)
        listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        grads = [param.grad for param in listed if param.grad is not None]

        def rule(cells: list[list[Any]], step: float) -> None:
            cells[0][0].clamp_(-value, value)

        if not grads or not math.isfinite(value) or not updater_for(target).run(rule, (grads,), []):
            _clip_value(listed, clip_value, foreach)

    return clip_value


def _is_ours() -> bool:
    """Whether nothing watches operators, and compiled code is to run."""
    return current_stance() != "force_eager" and surroundings() == "plain"


def _exchanged() -> Callable[..., Tensor]:
    """torch.nn.utils.clip_grad_norm_ with both passes exchanged."""
    inner = cast(FunctionType, _clip_norm.__wrapped__)
    names = {**inner.__globals__, "_get_total_norm": total_norm, "_clip_grads_with_norm_": scale_by_norm}
    return _torch._no_grad(
        FunctionType(inner.__code__, names, inner.__name__, inner.__defaults__, inner.__closure__)
    )


_INSTEAD: dict[Any, Callable[..., Any]] = {
    _total_norm: total_norm,
    _scale_by_norm: scale_by_norm,
    _clip_norm: _exchanged(),
}
