"""`lampwork.disable`: functions and modules that are never compiled, wherever they are called from."""

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
    """Run a function or a module in plain Python: a call of it inside a compiled function is a graph break (LW113).

    Also works as a decorator, with or without arguments. It sets the same mark as `torch.compiler.disable`, so
    `torch.compile` does not compile the function either.

    Args:
        fn: a function, method or other callable, which stays as it is: a marked wrapper is returned. A module or a
            subclass of nn.Module is marked itself and returned.
        recursive: also run everything that `fn` calls in plain Python. If False, `torch.compile` may compile what `fn`
            calls; Lampwork never compiles inside the call, in either case.
        reason: text for the record of the graph break.

    Raises:
        OptionError: `fn` is not callable, or is a class other than a subclass of nn.Module.
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
    """Make Dynamo's frame hook skip the wrapper and, if `recursive`, all that it calls. Imports no torch._dynamo."""
    hook = cast(Any, torch._C)._dynamo.eval_frame
    skip, go_on = hook._FrameAction.SKIP, hook._FrameAction.DEFAULT
    strategy = hook._FrameExecStrategy(skip, skip if recursive else go_on)
    hook.set_code_exec_strategy(wrapper.__code__, strategy)
