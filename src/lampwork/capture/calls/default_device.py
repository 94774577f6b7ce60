"""A default device around the call, of `with torch.device(...)` or torch.set_default_device: what it does to calls.

before: with torch.device("cuda"): compiled(x)      the region calls torch.zeros(3)
after:  zeros = aten.zeros([3], device=cuda)        under a guard that this is the default device

It is a mode for functions, and torch.nn asks whether there is one: each function of it calls itself again, without the
mode, so that what such a function makes itself lies where torch would put it by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch.overrides import handle_torch_function
from torch.utils import _device

from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import Known, Result
from lampwork.capture.state.contexts import default_device

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

_QUESTIONS = frozenset(
    getattr(torch._C, f"_has_torch_function{suffix}") for suffix in ("", "_unary", "_variadic")
)

UNMOVED: Any = object()


def guard_default(interp: Interpreter) -> None:
    """Have the region serve calls with this default device, if there is one. How many modes there are, none for other
    calls, every entry is guarded on."""
    if interp.contexts.device is not None:
        interp.environment.read(
            interp.contexts.device, Result(Known(default_device, "default_device")), "default device"
        )


def answered(interp: Interpreter, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What a function of torch's gives that looks at the mode; UNMOVED for all others."""
    device = interp.contexts.device
    if device is None:
        return UNMOVED
    if function in _QUESTIONS:
        return True
    if function is handle_torch_function:
        return _without_mode(interp, args, kwargs)
    if function is torch.get_default_device:
        if device.type != "cpu" and cast(Any, device).index is None:
            raise Break("LW104", "torch.get_default_device()")
        return device
    return UNMOVED


def _without_mode(interp: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """handle_torch_function(function, relevant, *args, **kwargs)."""
    contexts = interp.contexts
    device, contexts.device = contexts.device, None
    try:
        named = {**kwargs, "device": device} if _makes(args[0], device, kwargs) else kwargs
        return interp.call(interp.force(args[0]), args[2:], named)
    finally:
        contexts.device = device


def _makes(function: Any, device: torch.device | None, named: dict[str, Any]) -> bool:
    return device is not None and function in _device._device_constructors() and named.get("device") is None


def placed(interp: Interpreter, function: Any, named: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a call: with the default device for what makes a tensor and names none."""
    device = interp.contexts.device
    return {**named, "device": device} if _makes(function, device, named) else named
