"""`torch._check_tensor_all` and its like in the region: the program looks at the data, and goes on where it is true.

before: torch._check_tensor_all_with(ValueError, n == m)       which asks for the number: a graph break
after:  index_select(zeros(1), 0, ~(n == m))                   read by nobody, and kept, as it may raise

An index that is out of range ends the call, and eager makes it again, which raises what the program says. Other
backends than our own raise what they like, or leave out what nobody reads: there the graph breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from lampwork import pristine
from lampwork.capture.calls.torch_calls import call_native
from lampwork.graph.tracetensor import TraceTensor

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

_ALL: Any = torch._check_tensor_all  # pyright: ignore[reportPrivateUsage]
_ALL_WITH: Any = torch._check_tensor_all_with  # pyright: ignore[reportPrivateUsage]


def _call(function: Any, place: int) -> Callable[[Interpreter, list[Any], dict[str, Any]], Any]:
    """A check whose condition is the argument at `place`. What it is not made for breaks where torch asks for the
    number, or is refused as eager refuses it."""

    def call(interp: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
        condition = interp.force(args[place] if len(args) > place else kwargs.get("cond"))
        if not (interp.options.is_native and _is_checked_in_place(condition)):
            return call_native(interp, function, args, kwargs)
        call_native(interp, _look_up, [condition], {})
        return None

    return call


def _is_checked_in_place(condition: Any) -> bool:
    """Whether the condition is one of the CPU's: on a card an index out of range is the end of its context."""
    if type(condition) is not TraceTensor:
        return False
    spec = condition.spec
    return spec.dtype is torch.bool and spec.device.type == "cpu"


def _look_up(condition: torch.Tensor) -> None:
    """A look-up in a table of one element, which fails for a condition that is false somewhere."""
    places = condition.logical_not().reshape(-1).to(torch.int64)
    pristine.zeros(1, dtype=torch.uint8).index_select(0, places)


HANDLERS: dict[Any, Any] = {_ALL: _call(_ALL, 0), _ALL_WITH: _call(_ALL_WITH, 1)}
