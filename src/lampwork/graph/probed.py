"""Eager's word on a call before it is recorded: a probe refuses what eager refuses, and nothing that it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lampwork.errors import UnsupportedOpError
from lampwork.graph.open_sizes import confine_sizes
from lampwork.graph.probes import probe
from lampwork.graph.recorded import call_specs, check_looks
from lampwork.graph.shapes import eager_takes
from lampwork.graph.shapes_common import ShapeError
from lampwork.graph.symbols import Scope

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def probed(handler: Handler, scope: Scope, *, is_special: bool) -> Handler:
    """The handler of an operator, asked once eager takes the call; `is_special`: it records other operators for it."""

    def asked(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        specs, named = call_specs(args), call_specs(kwargs)
        try:
            looks = probe(func, specs, named)
        except ShapeError as error:
            # What stands for an argument is smaller, and laid out otherwise; some operators mind.
            if eager_takes(func, specs, named):
                raise UnsupportedOpError(f"{func} of tensors laid out like these") from error
            raise
        try:
            made = handler(func, args, kwargs)
        except ShapeError as error:
            if looks is None and not is_special:
                raise
            # The rule, or what this operator is recorded as, is stricter than eager is: it has the last word.
            raise UnsupportedOpError(f"the shape of {func} is not known: {error.cause}") from error
        if looks is not None:
            check_looks(func, looks, made)
            if scope.hints:
                confine_sizes(func, specs, named, scope)
        return made

    return asked
