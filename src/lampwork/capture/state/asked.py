"""What a program asks of capture in its own code: whether it is being captured, a graph break, a native function in the
graph. Run eager, all of it does nothing.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, TypeVar

from lampwork.errors import OptionError

F = TypeVar("F", bound=Callable[..., Any])

# A promise about a function holds for the process, as torch's does.
_allowed: set[Any] = set()


def is_compiling() -> bool:
    """Whether this code is being compiled: True in a compiled function, False where it runs eager, also behind a graph
    break that runs in plain Python. `torch.compiler.is_compiling()` and `is_dynamo_compiling()` answer the same there.
    """
    return False


def graph_break(reason: str = "") -> None:
    """End the graph here (LW139): what follows is compiled as a graph of its own. Does nothing where no function is
    compiled. `torch._dynamo.graph_break()` does the same.

    Args:
        reason: text for the record of the graph break.
    """


def allow_in_graph(fn: F) -> F:
    """Promise that a native function, of an extension module, is made of torch's operators on the tensors it is given,
    and has no effects: a call of it inside a compiled function is recorded, where it would be a graph break (LW103).
    Functions compiled before keep their break. Also works as a decorator; Python functions stay as they are, since
    what they do is compiled anyway.

    A function that reads or writes memory itself has to be a custom operator instead.

    Raises:
        OptionError: `fn` is not callable, or a class.
    """
    given: Any = fn
    if isinstance(given, type) or not callable(given):
        kind = "a class" if isinstance(given, type) else type(given).__name__
        raise OptionError(
            f"allow_in_graph() takes a function, got {kind}", fix="pass the function that is called"
        )
    if isinstance(given, types.BuiltinFunctionType):
        _allowed.add(given)
    return fn


def is_allowed(function: Any) -> bool:
    """Whether a native function may be recorded, by a promise of the program."""
    return function in _allowed
