"""State of torch that the region changes for a while: grad mode, inference mode, autocast.

Capture enters and leaves these contexts for real, so that the operators in them behave; `restore` undoes what is left
when capture ends, however it ends.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from typing import Any, Literal, cast

import torch
from torch.utils._device import DeviceContext

from lampwork import pristine
from lampwork.capture.model.errors import Break
from lampwork.graph.within import CAST

Surroundings = Literal["plain", "device", "foreign"]

_WITH_DEFAULT = frozenset({"cpu", "cuda"})
"""The types of devices that are followed as the default."""


def surroundings() -> Surroundings:
    """What acts on operators from outside of the call.

    "foreign": function or dispatch modes, transforms of torch.func, dual tensors, or torch.jit.trace, none of which
    would see the operators of a compiled region. "device": a default device, which the region is captured with.
    """
    if (
        torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.maybe_current_level() is not None  # pyright: ignore
        or torch.autograd.forward_ad._current_level >= 0
        or cast(Any, torch._C)._get_tracing_state() is not None
    ):
        return "foreign"
    if not torch._C._len_torch_function_stack():
        return "plain"
    return "foreign" if default_device() is None else "device"


def default_device() -> torch.device | None:
    """What `with torch.device(...)` or torch.set_default_device names; None if nothing does, or other function modes
    are on."""
    modes = _aside.modes or _stack()
    if len(modes) != 1 or type(modes[0]) is not DeviceContext or modes[0].device.type not in _WITH_DEFAULT:
        return None
    return modes[0].device


class _Aside(threading.local):
    """The function modes of a thread that are off their stack for a while, the first of them last."""

    modes: tuple[Any, ...] = ()


_aside = _Aside()


def _stack() -> list[Any]:
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


@contextlib.contextmanager
def beyond_function_modes() -> Generator[None]:
    """The stack of function modes is empty inside, and as it was after."""
    modes: list[Any] = []
    outer = _aside.modes
    try:
        while torch._C._len_torch_function_stack():
            modes.append(torch._C._pop_torch_function_stack())
        _aside.modes = tuple(modes) or outer
        yield
    finally:
        _aside.modes = outer
        while modes:
            torch._C._push_on_torch_function_stack(modes.pop())


@contextlib.contextmanager
def among_function_modes() -> Generator[None]:
    """The stack inside of `beyond_function_modes`, as it was around that."""
    modes = _aside.modes
    try:
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)
        yield
    finally:
        for _ in modes:
            torch._C._pop_torch_function_stack()


class Contexts:
    """`made`: context managers of the region with how they were constructed; `entered`: those we are inside of;
    `modes`: the grad mode at which each was entered, which it puts back; `outside`: for a context manager from
    outside, its stand-ins that are entered, since entering writes to a context manager. `device`: the default device,
    if one is set from outside."""

    def __init__(self) -> None:
        self.device = default_device()
        self.made: dict[int, tuple[Any, type, tuple[Any, ...], dict[str, Any]]] = {}
        self.entered: list[Any] = []
        self.modes: dict[int, bool] = {}
        self.outside: dict[int, list[Any]] = {}
        self.origins: dict[int, Any] = {}
        self.grad_enabled = pristine.is_grad_enabled()
        self.inference = pristine.is_inference_mode_enabled()
        self.autocast_outside = {
            kind: (pristine.is_autocast_enabled(kind), pristine.get_autocast_dtype(kind)) for kind in CAST
        }
        self._autocast_cache = pristine.is_autocast_cache_enabled()
        # The cache of weights cast under autocast would keep trace tensors beyond the capture.
        pristine.set_autocast_cache_enabled(False)

    def adopt(self, context: Any) -> bool:
        """Note a context manager that native code made in the region; False if it cannot be made again from what it
        tells of itself."""
        args = _arguments(context)
        if args is None:
            return False
        self.made[id(context)] = (context, type(context), args, {})
        return True

    def stand_in(self, context: Any) -> Any:
        """A fresh context manager like one from outside, to be entered in its place; None if there is none."""
        args = _arguments(context)
        if args is None:
            return None
        if isinstance(context, torch.autocast):
            args = (*args[:3], False)  # no cache: it would keep trace tensors
        made = cast(Any, type(context))(*args)
        self.made[id(made)] = (made, type(made), args, {})
        self.origins[id(made)] = context
        self.outside.setdefault(id(context), []).append(made)
        return made

    def enter(self, context: Any) -> Any:
        if not isinstance(context, torch.set_grad_enabled):
            self.modes[id(context)] = pristine.is_grad_enabled()
        leaves = type(context) is torch.inference_mode and not cast(Any, context).mode
        if leaves and pristine.is_inference_mode_enabled():
            raise Break("LW105", "torch.inference_mode(False) inside of inference mode")
        value = cast(Any, type(context)).__enter__(context)
        self.entered.append(context)
        return value

    def leave(self, context: Any, *error: Any) -> Any:
        if context in self.entered:
            self.entered.remove(context)
        return type(context).__exit__(context, *error)

    def restore(self) -> None:
        """Leave what is still entered, innermost first, and put the grad mode back."""
        while self.entered:
            context = self.entered.pop()
            type(context).__exit__(context, None, None, None)
        for kind, (enabled, dtype) in self.autocast_outside.items():
            pristine.set_autocast_enabled(kind, enabled)
            pristine.set_autocast_dtype(kind, dtype)
        pristine.set_autocast_cache_enabled(self._autocast_cache)
        torch._C._set_grad_enabled(self.grad_enabled)


def _arguments(context: Any) -> tuple[Any, ...] | None:
    """What a context manager was made from. torch.set_grad_enabled switches where it is made, so it has no twin."""
    kind = type(context)
    if kind is torch.autocast:
        return (context.device, context.fast_dtype, context._enabled, context._cache_enabled)
    if kind is torch.inference_mode:
        return (context.mode,)
    return () if kind in (torch.no_grad, torch.enable_grad) else None
