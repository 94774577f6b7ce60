"""torch.cuda and torch.accelerator: which device is the current one is asked again on every call, what else they do to
streams, memory and devices ends the region.

Functions are told by module and name: to name them would import what a program may not use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lampwork.capture.calls.torch_calls import run_unrecorded
from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import Known, Result
from lampwork.capture.model.values import is_constant
from lampwork.standard import functools

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

Args = list[Any]
Kwargs = dict[str, Any]
Handler = Callable[["Interpreter", Any, Args, Kwargs], Any]

_MODULES = ("torch.cuda", "torch.accelerator")
_APART = ("torch.cuda.amp", "torch.cuda._utils", "torch.cuda.nccl")
"""Of these, what is captured as other modules of torch are."""
_SETTLED = frozenset(
    {
        "is_available",
        "device_count",
        "is_bf16_supported",
        "is_tf32_supported",
        "get_device_capability",
        "get_device_name",
        "get_arch_list",
        "current_accelerator",
        "_is_compiled",
    }
)
"""Questions with one answer as long as the process lives."""
_ASKED = frozenset({"current_device", "current_device_index", "current_device_idx", "is_initialized"})


def handler_of(function: Any) -> Handler | None:
    """What to do for a call of a function, None if it is none of an accelerator's."""
    module: Any = function.__module__
    if type(module) is not str or not module.startswith(_MODULES) or module.startswith(_APART):
        return None
    name = function.__name__
    if name in _SETTLED:
        return None
    return _ask if name in _ASKED else _refuse


def _ask(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    values = [interp.force(value) for value in args]
    named = {name: interp.force(value) for name, value in kwargs.items()}
    if not all(map(is_constant, (*values, *named.values()))):
        return _refuse(interp, function, args, kwargs)
    asked = functools.partial(function, *values, **named)
    result = run_unrecorded(asked, [], {})
    return interp.environment.read(result, Result(Known(asked, function.__name__)), f"{function.__name__}()")


def _refuse(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    raise Break("LW105", f"{function.__module__}.{function.__qualname__}()")
