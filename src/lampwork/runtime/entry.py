"""From a captured `Region` and its program to the C++ `Entry` that serves its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lampwork import _C
from lampwork.capture.region import Region

Wrap = Callable[[list[torch.Tensor], list[torch.Tensor]], Sequence[Any]]
OnFailure = Callable[[tuple[Any, ...], dict[str, Any]], Any]
Runnable = _C.Program | Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
Specialize = Callable[[tuple[int, ...]], Runnable]


def make_entry(
    region: Region,
    program: Runnable | None,
    *,
    specialize: Specialize | None = None,
    wrap: Wrap | None = None,
    on_failure: OnFailure | None = None,
    counted: bool = True,
) -> _C.Entry:
    """An entry that serves the calls that `region` was captured for.

    Args:
        program: what computes the region's graph: a `_C.Program` made with `region.bound`, or any callable from the
            list of tensors (inputs, then bound) to the sequence of outputs; None if the region has no graph.
        specialize: in place of `program` where the region has symbols: called with the values of the first
            `region.n_values` symbols when a call brings new ones, it gives what computes the graph for them. The last
            64 are kept. Threads may ask for the same at once. What it raises is raised by the call.
        wrap: called as wrap(outputs, tensors) after the program; returns the outputs that the recipe uses.
        on_failure: called as on_failure(args, kwargs) if the program fails before anything outside was changed; its
            result is the call's result.
        counted: whether its calls count in `stats()`, as compiled_calls or, if the region has breaks, partial_calls.

    Raises:
        ValueError: a slow guard does not hold now, or region, recipe, symbols and program do not fit together.
    """
    return _C.Entry(
        region.n_args,
        region.kwarg_names,
        region.guards,
        region.slow_guards,
        region.versioned,
        region.state,
        region.inputs,
        region.bound,
        program,
        region.recipe,
        wrap,
        on_failure,
        _counter(region, counted),
        region.symbols,
        tuple(region.conditions),
        region.n_values,
        specialize,
    )


def _counter(region: Region, counted: bool) -> int:
    if not counted:
        return 0
    return 2 if region.breaks else 1
