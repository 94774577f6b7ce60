"""The Python code behind a callable: what a call of it runs first, and the names of its positional arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, cast

from torch import nn

from lampwork.capture.breaks.resume import Resume
from lampwork.records import record
from lampwork.standard import functools

_CACHED = type(functools.lru_cache(lambda: None))


@record
class Target:
    """`name`: qualified. `parameters`: the names of the positional parameters that a call fills, in order; those of
    `*args` have none. `file` and `line`: the definition, or where a resume function goes on. `python`: whether a
    call is a call of Python code: it is not for builtins, nor where a cache of functools stands before the code."""

    name: str
    parameters: tuple[str, ...] = ()
    file: str = "<unknown>"
    line: int = 0
    python: bool = True

    @property
    def place(self) -> tuple[str, int]:
        return self.file, self.line


def target_of(fn: Callable[..., Any]) -> Target:
    """What `fn(...)` runs: through partials, methods, `functools.wraps`, modules and objects with `__call__`."""
    name = _name(fn)
    if isinstance(fn, Resume):
        line = fn.decoded.instructions[fn.point.index].line
        file = fn.decoded.code.co_filename
        return Target(f"{name}_resume_{line}", tuple(fn.point.arguments), file, line)
    found: Any = fn
    cached = False
    filled = 0  # parameters that the callable itself gives: self, the arguments of a partial
    while not isinstance(code := getattr(found, "__code__", None), CodeType):
        if isinstance(found, functools.partial):
            partial = cast("functools.partial[Any]", found)
            filled += len(partial.args)
            found = partial.func
        elif isinstance(found, nn.Module):
            found = found.forward
        elif hasattr(found, "__wrapped__"):
            cached = cached or isinstance(found, _CACHED)
            found = found.__wrapped__
        elif isinstance(call := inspect.getattr_static(type(found), "__call__", None), FunctionType):
            found = MethodType(call, found)
        else:
            return Target(name, python=False)
    if isinstance(found, MethodType):
        filled += 1
    inner = inspect.unwrap(found)
    if isinstance(unwrapped := getattr(inner, "__code__", None), CodeType):
        code = unwrapped
    parameters = code.co_varnames[filled : code.co_argcount]
    return Target(name, parameters, code.co_filename, code.co_firstlineno, python=not cached)


def _name(fn: Any) -> str:
    """What users call it; builtins of torch have the qualified names of classes that nobody knows."""
    while isinstance(fn, functools.partial):
        fn = cast("functools.partial[Any]", fn).func
    if isinstance(fn, nn.Module):
        return type(fn).__name__
    which = "__name__" if isinstance(fn, BuiltinFunctionType) else "__qualname__"
    return str(getattr(fn, which, type(fn).__name__))
