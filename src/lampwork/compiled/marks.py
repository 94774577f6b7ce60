"""`lampwork.disable`: what is never compiled, wherever it is called from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

import torch
from torch import nn

from lampwork.errors import OptionError
from lampwork.standard import functools

F = TypeVar("F", bound=Callable[..., Any])


@overload
def disable(fn: F, *, recursive: bool = True, reason: str = "") -> F: ...


@overload
def disable(fn: None = None, *, recursive: bool = True, reason: str = "") -> Callable[[F], F]: ...


def disable(fn: Any = None, *, recursive: bool = True, reason: str = "") -> Any:
    """Leave a function or a module to plain Python: a call of it inside a compiled function is a graph break (LW113).

    Also a decorator, with or without arguments. The mark is the one that `torch.compiler.disable` sets, so
    `torch.compile` leaves the function alone too.

    Args:
        fn: a function, method or other callable: a wrapper of it is returned, and it stays as it is. A module, or a
            class of modules, is marked itself and returned.
        recursive: what it calls is left to plain Python as well. False: `torch.compile` may compile what it calls;
            Lampwork compiles around the call, never inside of it, in either case.
        reason: said in the record of the break.

    Raises:
        OptionError: it is not callable, or is a class but not of modules.
    """
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if isinstance(fn, (staticmethod, classmethod)):
        return type(fn)(disable(fn.__func__, recursive=recursive, reason=reason))
    if isinstance(fn, nn.Module) or (isinstance(fn, type) and issubclass(fn, nn.Module)):
        for name, value in _marks(recursive, reason).items():
            # Past nn.Module.__setattr__, which is for tensors and modules.
            type.__setattr__(fn, name, value) if isinstance(fn, type) else object.__setattr__(fn, name, value)
        return fn
    if isinstance(fn, type) or not callable(fn):
        kind = "a class" if isinstance(fn, type) else type(fn).__name__
        raise OptionError(
            f"disable() takes a function or a module, got {kind}",
            fix="disable the methods that are to run eager",
        )
    wrapper = _recursive(fn) if recursive else _shallow(fn)
    for name, value in _marks(recursive, reason).items():
        setattr(wrapper, name, value)
    return wrapper


def is_disabled(fn: Any) -> bool:
    """Whether a callable carries the mark."""
    return bool(getattr(fn, "_torchdynamo_disable", False))


def _marks(recursive: bool, reason: str) -> dict[str, Any]:
    return {
        "_torchdynamo_disable": True,
        "_torchdynamo_disable_recursive": recursive,
        "_torchdynamo_disable_msg": reason or None,
    }


# Two wrappers with code objects of their own: Dynamo's instructions below are for code objects.
def _recursive(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    _tell_dynamo(disabled, recursive=True)
    return disabled


def _shallow(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def disabled_shallow(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    _tell_dynamo(disabled_shallow, recursive=False)
    return disabled_shallow


def _tell_dynamo(wrapper: Any, *, recursive: bool) -> None:
    """Have Dynamo's frame hook pass over the wrapper, and all that it calls. This imports no torch._dynamo."""
    hook = cast(Any, torch._C)._dynamo.eval_frame
    skip, go_on = hook._FrameAction.SKIP, hook._FrameAction.DEFAULT
    strategy = hook._FrameExecStrategy(skip, skip if recursive else go_on)
    hook.set_code_exec_strategy(wrapper.__code__, strategy)
