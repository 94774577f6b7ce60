"""Values of `swap`: what is put in the place of a module."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from lampwork.errors import OptionError
from lampwork.standard import copy, functools


class Functional(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def extra_repr(self) -> str:
        return getattr(self.fn, "__qualname__", type(self.fn).__name__)


@dataclass(slots=True)
class Replacement:
    """A value of the mapping given to `swap`.

    `wraps`: it is made from the old module and may hold it, so that what lies inside is worth swapping too.
    `fits`: it takes the dtype of the old module; what a factory makes has the dtype that the factory chose.
    """

    given: Any
    share: bool
    wraps: bool
    fits: bool
    _make: Callable[[str, nn.Module], Any]
    _placed: dict[bool, nn.Module] = field(default_factory=dict[bool, nn.Module])
    _original: nn.Module | None = None

    def make(self, name: str, old: nn.Module, hooked: bool) -> nn.Module:
        """The module for this place.

        hooked: hooks of the old module will go over to it, so that it must not stand elsewhere too.

        Raises:
            OptionError: what was made is neither a module nor a function.
            Exception: what the class or the factory raises.
        """
        if isinstance(self.given, nn.Module):
            return self._instance(self.given, old.training, hooked)
        new = self._make(name, old)
        if isinstance(new, nn.Module):
            return new
        if callable(new) and not isinstance(new, type):
            return Functional(new)
        raise OptionError(
            f"the replacement of {name!r} is {type(new).__name__}, expected a module",
            fix="return an nn.Module, or a function of tensors, from the factory",
        )

    def _instance(self, given: nn.Module, training: bool, hooked: bool) -> nn.Module:
        """The instance itself at the first place. At others it too if the places would share no state, or if they
        are to; else a copy."""
        if self._original is None:
            # The first place's hooks go over to the instance, and are not to be copied to others.
            self._original = copy.deepcopy(given) if hooked and not self.share else given
            if not hooked:
                self._placed[training] = given
            return given
        if self.share:
            return given
        if hooked or has_state(given):
            return copy.deepcopy(self._original)
        if training not in self._placed:
            self._placed[training] = copy.deepcopy(self._original)
        return self._placed[training]


def replacement_of(given: Any, share: bool) -> Replacement:
    """A value of the mapping given to `swap`.

    Raises:
        OptionError: it is none of the kinds of values.
    """
    make: Callable[[str, nn.Module], Any]
    if given is None:
        return Replacement(nn.Identity(), share, False, True, lambda name, old: None)
    if isinstance(given, nn.Module):
        return Replacement(given, share, False, True, lambda name, old: given)
    if isinstance(given, type):
        return _class(given, share)
    if not callable(given):
        raise OptionError(
            f"a replacement is a module, a class, a function or None, got {given!r}",
            fix="give nn.ReLU(), nn.ReLU, lambda old: ... or torch.relu",
        )
    if computes_on_tensors(given):
        return Replacement(Functional(given), share, False, True, lambda name, old: None)
    needed = _required(given)
    if needed not in (1, 2):
        raise OptionError(
            f"a factory takes (old) or (name, old), {_name(given)} requires {needed} arguments",
            fix="write lambda old: ...; a function of tensors is lambda old: fn, or has Tensor annotations",
        )
    make = given if needed == 2 else lambda name, old: given(old)
    return Replacement(given, share, True, False, make)


def _class(given: type, share: bool) -> Replacement:
    if not issubclass(given, nn.Module):
        raise OptionError(f"{given.__name__} is no class of modules", fix="give a subclass of nn.Module")
    needed = _required(given)
    if needed > 1:
        raise OptionError(
            f"{given.__name__} requires {needed} arguments, and swap() knows only the old module",
            fix=f"write a factory: lambda old: {given.__name__}(...)",
        )
    if needed == 1:
        return Replacement(given, share, True, False, lambda name, old: given(old))
    return Replacement(given, share, False, True, lambda name, old: given())


def computes_on_tensors(fn: Any) -> bool:
    """Whether a callable is a function of tensors and no factory: one of torch's, or one with Tensor annotations."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if not isinstance(fn, (FunctionType, MethodType)):
        home = type(fn).__module__ if getattr(fn, "__module__", None) is None else fn.__module__
        return inspect.isbuiltin(fn) or inspect.isroutine(fn) or str(home).split(".")[0] == "torch"
    hints = list(fn.__annotations__.values())
    if any(_is_annotation(hint, "Module") for hint in hints):
        return False
    if any(_is_annotation(hint, "Tensor") for hint in hints):
        return True
    return str(fn.__module__).split(".")[0] == "torch"


def _is_annotation(hint: Any, name: str) -> bool:
    """An annotation may be the class or, where annotations are not evaluated, its text."""
    if isinstance(hint, str):
        return hint.split(".")[-1] == name
    return hint is (Tensor if name == "Tensor" else nn.Module)


def _required(fn: Callable[..., Any]) -> int:
    """How many positional arguments a call must have. A class with a C constructor counts as none."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError:
        return 0
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.kind in named and p.default is inspect.Parameter.empty]
    return len(required)


def has_state(module: nn.Module) -> bool:
    return any(True for _ in module.parameters()) or any(True for _ in module.buffers())


def _name(fn: Any) -> str:
    return getattr(fn, "__qualname__", type(fn).__name__)


def device_and_dtype(module: nn.Module) -> tuple[torch.device, torch.dtype] | None:
    """Those of the floating point parameters and buffers, if there are any and they agree."""
    tensors = [*module.parameters(), *module.buffers()]
    kinds = {(t.device, t.dtype) for t in tensors if t.is_floating_point()}
    return next(iter(kinds)) if len(kinds) == 1 else None
