"""Eager's word on a call before it is recorded: a probe refuses what eager refuses, and nothing that it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lampwork.errors import UnsupportedOpError
from lampwork.graph.devices import CPU, specs_in
from lampwork.graph.nested import leaves
from lampwork.graph.open_sizes import confine_sizes
from lampwork.graph.probes import Look, probe
from lampwork.graph.recorded import call_specs, check_looks
from lampwork.graph.shapes import eager_takes, taken_on_meta
from lampwork.graph.shapes_common import ShapeError
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import Scope

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def probed(handler: Handler, scope: Scope, *, is_special: bool) -> Handler:
    """The handler of an operator, asked once eager takes the call; `is_special`: it records other operators for it."""

    def asked(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        specs, named = call_specs(args), call_specs(kwargs)
        refused: ShapeError | None = None
        try:
            looks = probe(func, specs, named)
        except ShapeError as error:
            # What stands for an argument is smaller, and laid out otherwise; some operators mind.
            if eager_takes(func, specs, named):
                raise UnsupportedOpError(f"{func} of tensors laid out like these") from error
            if not _elsewhere(specs, named):
                raise
            # The CPU speaks for itself: other devices may have a kernel for these dtypes.
            looks = _looks_on_meta(func, specs, named)
            refused = error if looks is None else None
        try:
            made = handler(func, args, kwargs)
        except ShapeError as error:
            if looks is None and not is_special:
                raise
            # The rule, or what this operator is recorded as, is stricter than eager is: it has the last word.
            raise UnsupportedOpError(f"the shape of {func} is not known: {error.cause}") from error
        if refused is not None:
            raise UnsupportedOpError(f"the CPU does not take {func}: {refused.cause}") from refused
        if looks is not None:
            check_looks(func, looks, made)
            if scope.hints:
                confine_sizes(func, specs, named, scope)
        return made

    return asked


def check_taken(func: Any, specs: Any, named: Mapping[str, Any]) -> None:
    """Ask eager whether it takes a call that is recorded as another.

    Raises:
        ShapeError: it does not.
        UnsupportedOpError: the CPU does not, in place of another device.
    """
    try:
        probe(func, specs, named)
    except ShapeError as error:
        if _elsewhere(specs, named):
            raise UnsupportedOpError(f"the CPU does not take {func}: {error.cause}") from error
        raise


def _elsewhere(specs: Any, named: Mapping[str, Any]) -> bool:
    """Whether a tensor of the call is not on the CPU."""
    return any(spec.device != CPU for spec in leaves((specs, tuple(named.values())), TensorSpec))


def _looks_on_meta(func: Any, specs: Any, named: Mapping[str, Any]) -> tuple[Look, ...] | None:
    """`probe` by torch's meta kernel, which computes on no device; None if that refuses the call too."""
    found = taken_on_meta(func, tuple(specs), named)
    return None if found is None else tuple((spec.dtype, len(spec.shape)) for spec in specs_in(found))
