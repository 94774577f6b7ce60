"""What a step that is deferred (`deferral.py`) may call without anything being computed yet.

POINTWISE and FOREACH are put off. METADATA is done at once, all else after what is pending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from lampwork.optimizers import trace

_MORE = """
    ceil cos eq expm1 floor ge gt le log1p log2 lt masked_fill ne relu round rsub sin trunc where
"""
NAMES = frozenset([*trace.POINTWISE, *_MORE.split()]) - {"clone"}
"""Operators that compute an element of each operand's elements at its place, and draw no random numbers."""

WRITING = "_"  # how the name of an operator that writes to its first operand ends


def _members(names: Iterable[str]) -> Iterator[tuple[Callable[..., Any], str]]:
    for name in names:
        for spelled in (name, name + WRITING):
            if hasattr(Tensor, spelled):
                yield getattr(Tensor, spelled), spelled
            if callable(getattr(torch, spelled, None)):
                yield getattr(torch, spelled), f"torch.{spelled}"


POINTWISE: dict[Any, str] = {
    **dict(_members(NAMES)),
    Tensor.__rsub__: "torch.rsub",
    Tensor.__eq__: "eq",
    Tensor.__ne__: "ne",
}
"""By what a function mode is given: the name as in `trace.Call`."""

_LISTS = "_foreach_"
FOREACH: dict[Any, str] = {
    getattr(torch, name): name.removeprefix(_LISTS)
    for name in dir(torch)
    if name.startswith(_LISTS)
    and name.removeprefix(_LISTS).removesuffix(WRITING) in NAMES
    and hasattr(Tensor, name.removeprefix(_LISTS))
}
"""Operators on lists of tensors, by name of the one that is done to each."""

CASTS = frozenset([Tensor.to, Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16])
"""Give a tensor itself where it has that dtype."""


def _getter(name: str) -> Any:
    return getattr(Tensor, name).__get__


ALIASING = frozenset([_getter("data"), Tensor.detach])
"""Gives another tensor with the same memory."""

_ATTRIBUTES = """
    device dtype grad grad_fn is_cpu is_cuda is_leaf is_meta is_mkldnn is_quantized is_sparse layout ndim requires_grad
    shape
"""
_METHODS = """
    __len__ dim element_size is_complex is_contiguous is_floating_point nelement new_empty new_zeros numel size stride
"""
_FUNCTIONS = "empty_like full_like is_complex is_floating_point numel ones_like zeros_like"
METADATA = frozenset(
    [
        *map(_getter, _ATTRIBUTES.split()),
        *[getattr(Tensor, name) for name in _METHODS.split()],
        *[getattr(torch, name) for name in _FUNCTIONS.split()],
        *ALIASING,
    ]
)
"""Neither reads nor writes the elements of a tensor that it is given."""

_MEMORY = """
    __array__ __dlpack__ _typed_storage data_ptr numpy share_memory_ storage tolist untyped_storage
"""
RAW = frozenset([getattr(Tensor, name) for name in _MEMORY.split()])
"""Gives access to memory that nobody sees."""
