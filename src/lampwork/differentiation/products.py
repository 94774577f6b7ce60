"""Products of elements as a joint graph has them: with a gradient of a pass or two over the elements.

before: y = prod(x)
after:  y = prod(x); and in backward
            zeros = sum(x == 0); rest = prod(where(x == 0, 1, x))
            grad_x = grad_y * (rest / x if zeros == 0 else rest where x is the only zero else 0)

eager looks whether x has zeros at all, and has running products from both ends of it if so, which is what it records of
tensors without data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.dim, ctx.keepdim = dim, keepdim
        return x.prod() if dim is None else x.prod(dim, keepdim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,), (grad,), dim = ctx.saved_tensors, grads, ctx.dim
        if dim is not None and not ctx.keepdim:
            grad = grad.unsqueeze(dim)

        def total(values: Tensor) -> Tensor:
            return values.sum() if dim is None else values.sum(dim, True)

        is_zero, is_odd = x == 0, x.isfinite().logical_not()
        filled = x.masked_fill(is_zero, 1)
        rest = filled.prod() if dim is None else filled.prod(dim, True)
        zeros, odd = total(is_zero.to(x.dtype)), total(is_odd.to(x.dtype))
        # A zero among the others, times infinities or NaN among them.
        nothing = x.new_zeros(()).masked_fill(odd > is_odd, float("nan"))
        others = (rest / filled).where(zeros == 0, rest.where(is_zero & (zeros == 1), nothing))
        return grad * others, None, None


def form(x: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """What the operator gives; NotImplemented where eager's gradient is another one."""
    if dtype is not None or x.dtype not in _FLOATS or x.dim() == 0 or 0 in x.shape:
        return NotImplemented
    return _Product.apply(x, dim, keepdim)
