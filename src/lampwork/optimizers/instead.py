"""What stands in for functions of torch that a training loop calls, in a compiled function."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

from torch import optim

from lampwork.codegen.target import Target
from lampwork.optimizers.clipping import clipping_instead
from lampwork.optimizers.steps import step_instead

_zero_grad = cast(FunctionType, optim.Optimizer.zero_grad)


def instead(function: FunctionType, target: Target) -> Callable[..., Any] | None:
    """What compiled code calls in place of a function of torch; None if it is the function itself."""
    if function is _zero_grad:
        # Without what has Dynamo leave it alone, for which Dynamo is imported.
        return cast(Any, function).__wrapped__
    return step_instead(function, target) or clipping_instead(function, target)
