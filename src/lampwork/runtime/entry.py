"""From a captured `Region` and its program to the C++ `Entry` that serves its calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import torch

from lampwork import _C
from lampwork.capture.model.region import Region
from lampwork.capture.state.contexts import among_function_modes
from lampwork.graph.symbols import SymbolicFloat
from lampwork.loops.ir.index import Index
from lampwork.records import record

OnFailure = Callable[[tuple[Any, ...], dict[str, Any]], Any]
Runnable = _C.Executable | Callable[..., Sequence[torch.Tensor]]
Specialize = Callable[[tuple[int, ...]], Runnable]


@record
class Numbers:
    """What a region's programs do with its symbols. `keys`: the numbers of those that a program is made for. `scalars`:
    what a program takes with each call, over the names of symbols and of `computed`, floats that Python computes."""

    keys: tuple[int, ...] = ()
    scalars: tuple[Index, ...] = ()
    computed: Mapping[str, SymbolicFloat] = field(default_factory=dict[str, SymbolicFloat])


@record
class Service:
    """How an entry serves the calls of its region; see `make_entry`. `counter`: 0 for calls that do not count, 1 for
    whole ones, 2 for those of a region with breaks."""

    program: Runnable | None
    specialize: Specialize | None
    keys: tuple[int, ...]
    scalars: tuple[Index, ...]
    computed: dict[str, SymbolicFloat]
    on_failure: OnFailure | None
    counter: int
    draws: bool
    acts: bool
    versions: tuple[tuple[int, int], ...]
    reuses: bool


def make_entry(
    region: Region,
    program: Runnable | None,
    *,
    specialize: Specialize | None = None,
    numbers: Numbers | None = None,
    on_failure: OnFailure | None = None,
    counted: bool = True,
    reuse_results: bool = False,
) -> _C.Entry:
    """An entry that serves the calls that `region` was captured for.

    Args:
        program: what computes the region's graph: an `_C.Executable` made with `region.bound`, or any callable from the
            list of tensors (inputs, then bound) to the sequence of outputs; None if the region has no graph.
        specialize: in place of `program` where sizes are symbols: called with the values of the keys when a call brings
            new ones, it gives what computes the graph for them. The last 64 are kept. Threads may ask for the same at
            once. What it raises is raised by the call.
        numbers: None: the first `region.n_values` symbols are keys. With scalars, a callable in the place of a
            `_C.Executable` gets the scalars and the values of all symbols too, as tuples of ints.
        on_failure: called as on_failure(args, kwargs) if the program fails before anything outside was changed, or is
            not begun since hooks on saved tensors might end it in the middle; its result is the call's result.
        counted: whether its calls count in `stats()`, as compiled_calls or, if the region has breaks, partial_calls.
        reuse_results: results are tensors of earlier calls, once nobody else refers to these: no new objects or memory.

    Raises:
        ValueError: a slow guard does not hold now, or region, recipe, symbols and program do not fit together.
    """
    if numbers is None:
        numbers = Numbers(tuple(range(region.n_values)) if specialize is not None else ())
    with among_function_modes():  # how many there are is a guard
        return _C.Entry(
            region,
            Service(
                program,
                specialize,
                numbers.keys,
                numbers.scalars,
                dict(numbers.computed),
                on_failure,
                _counter(region, counted),
                _draws(region),
                _acts(region),
                _versions(region),
                reuse_results,
            ),
        )


def _draws(region: Region) -> bool:
    """Whether its program draws random numbers. A call that fails is run by eager from where the generator was."""
    return region.graph is not None and any(node.meta.get("random") for node in region.graph.nodes)


def _acts(region: Region) -> bool:
    """Whether a call changes what is outside. Objects that the result is built of count too: they are calls as well."""
    return bool(region.mutations) or any(step.kind == "call" for step in region.recipe.steps)


def _versions(region: Region) -> tuple[tuple[int, int], ...]:
    """(number among inputs, then bound; how often) of the tensors whose versions eager moves on several times, or not
    at all: `.data`, statistics of a batch norm. A program does it once."""
    pairs = zip(region.mutations, region.versions, strict=False)
    return tuple((place, count) for (place, _), count in pairs if count != 1)


def _counter(region: Region, counted: bool) -> int:
    if not counted:
        return 0
    return 2 if region.breaks else 1
