"""Tensors known while recording: small ones computed from the program's literals alone, so that `int(torch.tensor(8) //
2)` and `x.view(2, torch.div(8, 4, rounding_mode="floor"))` need no data of the call's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx

from lampwork import pristine
from lampwork.graph.opinfo import OpInfo
from lampwork.graph.spec import TensorSpec

aten = torch.ops.aten

# Larger ones are not worth computing twice.
_LIMIT = 16
_SOURCES = frozenset({aten.full.default, aten.scalar_tensor.default, aten.zeros.default, aten.ones.default})
_LITERALS = frozenset({int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout})
_UNKNOWN = object()


def known_value(node: fx.Node) -> Tensor | None:
    """The value of a node that depends on literals only, None for all others. Not to be written."""
    return node.meta.get("known")


def note_known(node: fx.Node, info: OpInfo) -> None:
    """Compute a node whose arguments are all known, if it is small."""
    spec = node.meta["val"]
    args = node.args
    first = args[0] if args else None
    # Nearly every node of a program is told here.
    if type(first) is fx.Node:
        if "known" not in first.meta:
            return
    elif node.target not in _SOURCES:
        return
    if cast(Any, node.target).namespace not in ("aten", "prims"):
        return  # it may do more than compute
    if not isinstance(spec, TensorSpec) or spec.device.type != "cpu" or info.random or "empty" in info.name:
        return
    if any(type(size) is not int for size in spec.shape) or spec.numel > _LIMIT:
        return
    values = [_value(argument) for argument in args]
    named = {name: _value(argument) for name, argument in node.kwargs.items()}
    if any(value is _UNKNOWN for value in (*values, *named.values())):
        return
    result = compute(node.target, values, named)
    if result.dtype is spec.dtype and result.shape == spec.shape:
        node.meta["known"] = result


def of_numbers(func: Any, args: Sequence[Any]) -> bool:
    """Whether an operator on tensors is given only numbers, which torch makes tensors of: `torch.div(8, 4)`."""
    if not args or type(args[0]) not in (int, float, bool, complex):
        return False
    parameters = func._schema.arguments
    if str(parameters[0].type) != "Tensor":
        return False
    return all(_value(argument) is not _UNKNOWN and not isinstance(argument, fx.Node) for argument in args)


def compute(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """Run an operator on real tensors while something is being recorded."""
    with torch._C._DisableTorchDispatch(), pristine.no_grad():
        return cast(Tensor, func(*args, **kwargs))


def ask(known: Tensor, method: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of a known value while something is being recorded."""
    with torch._C._DisableTorchDispatch():
        return getattr(known, method)(*args, **kwargs)


def _value(argument: Any) -> Any:
    """An argument with nodes replaced by what is known of them; _UNKNOWN if nothing is."""
    if isinstance(argument, fx.Node):
        return argument.meta.get("known", _UNKNOWN)
    if isinstance(argument, (list, tuple)):
        items = [_value(item) for item in cast("Sequence[Any]", argument)]
        return _UNKNOWN if any(item is _UNKNOWN for item in items) else items
    return argument if type(argument) in _LITERALS else _UNKNOWN
