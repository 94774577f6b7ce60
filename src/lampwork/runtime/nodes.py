"""The autograd nodes of compiled regions, version counters, and what memory held: see csrc/autograd.cpp, csrc/holds.h
and `lampwork._C`."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._device import DeviceContext

from lampwork import _C, pristine
from lampwork.graph.within import devices_cast
from lampwork.lasting import lasting

attach = _C.attach
with_edge = _C.with_edge
keep = _C.keep
versions = _C.versions
moved = _C.moved
hold = _C.hold
changed = _C.changed
operator_failed = _C.operator_failed


def forbid_writes(view: Tensor) -> None:
    """Have autograd refuse in-place operators on a view, as on those of which one operator gives several."""
    autograd = cast(Any, torch)._C._autograd
    autograd._set_creation_meta(view, autograd.CreationMeta.MULTI_OUTPUT_NODE)


def allow_writes(view: Tensor) -> None:
    """Have autograd take in-place operators on a view, though it was made where gradients were off."""
    autograd = cast(Any, torch)._C._autograd
    autograd._set_creation_meta(view, autograd.CreationMeta.DEFAULT)


def set_version(tensor: Tensor, version: int) -> None:
    """Have the tensor count writes from `version` on."""
    if not tensor.is_inference():
        cast(Any, torch)._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def is_plain(tensor: Tensor) -> bool:
    """Whether it is a tensor of torch's own with memory, of no transform, not lazily conjugated or negated."""
    if type(tensor) is not Tensor:
        return False
    return _keys(tensor) == (_PLAIN if tensor.device.type == "cpu" else _plain_keys(tensor.device))


@cache
def _plain_keys(device: torch.device) -> Any:
    with lasting():
        return _keys(pristine.empty(0, device=device))


def modes_are_on() -> bool:
    """Whether a mode sees the operators that run, or autocast has them compute in other dtypes. A default device is a
    mode that sees nothing."""
    count = torch._C._len_torch_function_stack()
    functions = count > 1 or (count == 1 and type(torch._C._get_function_stack_at(0)) is not DeviceContext)
    return bool(functions or torch._C._len_torch_dispatch_stack() or devices_cast())


_keys: Any = cast(Any, torch)._C._dispatch_keys
with lasting():  # the package may be imported under inference mode
    _PLAIN = _keys(pristine.empty(0))
