"""The Python code behind a callable: what a call of it runs first, and what its positional arguments are called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

from torch import nn


@dataclass(frozen=True, slots=True)
class Target:
    """`code` is None for what has no Python code. The first `filled` of its parameters are given by the callable
    itself: `self`, the arguments of a partial."""

    code: CodeType | None
    filled: int = 0

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the positional parameters that a call fills, in order; those of `*args` have none."""
        if self.code is None:
            return ()
        return self.code.co_varnames[self.filled : self.code.co_argcount]

    @property
    def place(self) -> tuple[str, int]:
        """(file, line) of the definition."""
        if self.code is None:
            return "<unknown>", 0
        return self.code.co_filename, self.code.co_firstlineno


def target_of(fn: Callable[..., Any]) -> Target:
    """What `fn(...)` runs: through partials, methods, `functools.wraps`, modules and objects with `__call__`."""
    found: Any = fn
    filled = 0
    while True:
        if isinstance(found, functools.partial):
            partial = cast("functools.partial[Any]", found)
            filled += len(partial.args)
            found = partial.func
        elif isinstance(found, nn.Module):
            found = found.forward
        elif isinstance(found, MethodType):
            filled += 1
            found = found.__func__
        elif isinstance(code := getattr(found, "__code__", None), CodeType):
            break
        elif hasattr(found, "__wrapped__"):
            found = found.__wrapped__
        elif isinstance(call := inspect.getattr_static(type(found), "__call__", None), FunctionType):
            found = MethodType(call, found)
        else:
            return Target(None)
    inner = inspect.unwrap(found)
    if inner is not found and isinstance(getattr(inner, "__code__", None), CodeType):
        code = inner.__code__
    return Target(code, filled)
