"""Fake kernels of operators from outside ATen, run with sizes that stay open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch._library.simple_registry import singleton
from torch.utils._python_dispatch import TorchDispatchMode

from lampwork import pristine
from lampwork.graph.nested import leaves
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symnode import from_torch, symints

Infer = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Any]


def fake_kernel(op: Any) -> Callable[..., Any] | None:
    """What `torch.library.register_fake` was given for `op`, a Python function."""
    entry = singleton.find(op.name())
    kernel = entry.fake_impl.kernel
    return None if kernel is None else cast("Callable[..., Any]", kernel.func)


class OwnShapes(TorchDispatchMode):
    """Answers ATen calls on meta tensors by our shape rules, which know symbolic sizes; torch's meta kernels in C++ do
    not. Calls that write are left to torch: they change no shape."""

    def __init__(self, infer: Infer) -> None:
        super().__init__()
        self.infer = infer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        takes_tensors = any(True for _ in leaves((args, given), torch.Tensor))
        if func.namespace != "aten" or func._schema.is_mutable or not takes_tensors:
            return func(*args, **given)
        found = self.infer(func, _specs(args), _specs(given))
        return _tensors(found, list if _gives_list(func) else tuple)


def _gives_list(func: Any) -> bool:
    returns = func._schema.returns
    return len(returns) == 1 and "List" in str(returns[0].type)


def _specs(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        shape, strides = from_torch(tuple(value.shape)), from_torch(tuple(value.stride()))
        return TensorSpec(shape, strides, value.dtype, torch.device("cpu"))
    if isinstance(value, (tuple, list)):
        return type(cast(Any, value))(_specs(item) for item in cast("list[Any]", value))
    if isinstance(value, dict):
        return {key: _specs(item) for key, item in cast("dict[str, Any]", value).items()}
    return from_torch(value)


def _tensors(found: Any, kind: Callable[[Any], Any]) -> Any:
    if isinstance(found, tuple):
        return kind(_tensors(spec, kind) for spec in cast("tuple[Any, ...]", found))
    return pristine.empty_strided(
        symints(found.shape), symints(found.strides), dtype=found.dtype, device="meta"
    )
