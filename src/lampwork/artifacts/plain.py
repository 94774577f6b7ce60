"""Which tensors have memory that programs read: dense ones on the CPU, as they lie there."""

from __future__ import annotations

import torch
from torch import Tensor

keys_of = torch._C._dispatch_keys


def _foreign() -> int:
    """The dispatch keys that no dense tensor with memory on the CPU has."""
    of = torch._C.DispatchKey
    own = (of.CPU, of.ADInplaceOrView, of.AutogradCPU, of.AutocastCPU, of.Conjugate, of.Negative)
    found = 0
    for key in own:
        found |= torch._C.DispatchKeySet(key).raw_repr()
    return ~found


FOREIGN = _foreign()
"""A tensor is what its keys say: wrappers of torch.func, nested and lazy tensors have the type of plain ones, and
programs would read their memory, which is not there."""


def is_dense(tensor: Tensor) -> bool:
    """Whether it is a dense tensor on the CPU, all of whose elements have memory; they may be conjugated or negated
    when they are read."""
    if keys_of(tensor).raw_repr() & FOREIGN:
        return False
    if tensor.numel() == 0:
        return True
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    last = int(tensor.storage_offset()) + steps
    return (last + 1) * tensor.itemsize <= tensor.untyped_storage().nbytes()


def is_lazy(tensor: Tensor) -> bool:
    """Whether its elements are others than its memory has: they are conjugated or negated when they are read."""
    return tensor.is_conj() or tensor.is_neg()
