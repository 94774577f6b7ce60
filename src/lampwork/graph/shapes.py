"""The shape, strides and dtype of what an operator gives: own rules first, torch's meta kernels for the rest.

torch's meta kernels are the slow way (many are Python, and some import sympy, torch._dynamo and torch._inductor on
first use); the own rules cover the operators that common networks are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, cast

import torch

from lampwork.errors import UnsupportedOpError
from lampwork.graph import shapes_data, shapes_nn, shapes_pointwise, shapes_reduce, shapes_views
from lampwork.graph.shapes_common import Result, ShapeError
from lampwork.graph.spec import TensorSpec

__all__ = ["Result", "ShapeError", "infer", "own_rule"]


@lru_cache(maxsize=1)
def _rules() -> Mapping[Any, Callable[..., Result]]:
    return {
        **shapes_pointwise.RULES,
        **shapes_reduce.RULES,
        **shapes_data.RULES,
        **shapes_nn.RULES,
        **shapes_views.RULES,
    }


def own_rule(op: Any) -> Callable[..., Result] | None:
    """The rule for `op` (an OpOverload), called as the operator is, with TensorSpecs for tensors."""
    return _rules().get(op)


def infer(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Result:
    """What `op(*args, **kwargs)` gives, with TensorSpecs in place of tensors.

    Returns a TensorSpec, or a tuple of them for several results or a list of tensors.

    Raises:
        ShapeError: eager would refuse the arguments.
        UnsupportedOpError: neither a rule nor a meta kernel of torch exists.
    """
    rule = _rules().get(op)
    if rule is not None:
        return rule(*args, **(kwargs or {}))
    return infer_on_meta(op, args, kwargs or {})


def infer_on_meta(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Result:
    """`infer` by torch's own kernels on meta tensors."""
    device = _first_device(args) or _first_device(tuple(kwargs.values()))
    device = device or cast(torch.device, kwargs.get("device")) or torch.device("cpu")
    meta_kwargs = {name: _to_meta(value) for name, value in kwargs.items()}
    if "device" in meta_kwargs:
        meta_kwargs["device"] = torch.device("meta")
    try:
        result = op(*(_to_meta(value) for value in args), **meta_kwargs)
    except NotImplementedError as error:
        raise UnsupportedOpError(f"the shape of {op} is not known: {error}") from error
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ShapeError(f"{op}: {error}") from error
    return _from_meta(result, device)


def _first_device(values: tuple[Any, ...] | list[Any]) -> torch.device | None:
    for value in values:
        if isinstance(value, TensorSpec):
            return value.device
        if isinstance(value, (tuple, list)):
            found = _first_device(cast("list[Any]", value))
            if found is not None:
                return found
    return None


def _to_meta(value: Any) -> Any:
    if isinstance(value, TensorSpec):
        return torch.empty_strided(value.shape, value.strides, dtype=value.dtype, device="meta")
    if isinstance(value, (tuple, list)):
        return type(cast(Any, value))(_to_meta(item) for item in cast("list[Any]", value))
    return value


def _from_meta(result: Any, device: torch.device) -> Result:
    if isinstance(result, torch.Tensor):
        return TensorSpec(tuple(result.shape), tuple(result.stride()), result.dtype, device)
    if isinstance(result, (tuple, list)):
        specs = tuple(_from_meta(item, device) for item in cast("list[Any]", result))
        if all(isinstance(spec, TensorSpec) for spec in specs):
            return cast("tuple[TensorSpec, ...]", specs)
    raise UnsupportedOpError(f"an operator gave {type(result).__name__} where tensors were expected")
