"""`ops` and `F`: the functions of torch and torch.nn.functional for the patterns and replacements of the tree.

They make terms by their names alone. The functions in torch's own modules a program may have replaced by others, which
must not become part of a rewrite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lampwork.rewriting.language.names import adapt
from lampwork.rewriting.language.term import Call, call, without_rest


class Functions:
    def __init__(self, *, functional: bool) -> None:
        self._functional = functional

    def __getattr__(self, name: str) -> Callable[..., Call]:
        """`name(*args, **kwargs)` as a call of the ATen op that the function is."""
        if name.startswith("__"):
            raise AttributeError(name)

        def called(*args: Any, **kwargs: Any) -> Call:
            given, rest = without_rest(name, args, kwargs)
            op, values, named = adapt(name, given, kwargs, functional=self._functional, rest=bool(rest))
            return call(op, *values, *rest, **named)

        return called


ops = Functions(functional=False)
F: Any = Functions(functional=True)
