"""Regions evaluated in plain Python: the reference for the C++ runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lampwork import pristine
from lampwork.capture.model.evaluate import find, holds
from lampwork.capture.model.region import GlobalState, Guard, Region
from lampwork.graph.concrete import concrete_graph
from lampwork.graph.interpret import run_graph
from lampwork.graph.symbols import bits_of_float
from lampwork.loops.ir.symbols import evaluate

_LOOKUP_ERRORS = (AttributeError, KeyError, IndexError, TypeError, ValueError)


def check_guards(region: Region, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Guard | None:
    """The first guard, fast or slow, that does not hold for a call; None if the region fits.

    The shape of the call and the global state are not looked at: see `fits_call`.
    """
    for guard in (*region.guards, *region.slow_guards):
        if not holds(guard, args, kwargs):
            return guard
    return None


def symbol_values(region: Region, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, int]:
    """What the symbols of a region are on a call.

    Raises:
        TypeError: an int symbol stands for something else.
    """
    values: dict[str, int] = {}
    for symbol in region.symbols:
        value = find(symbol.source, args, kwargs)
        if symbol.kind in ("int", "float"):
            if type(value).__name__ != symbol.kind:
                raise TypeError(f"{symbol.name} is no {symbol.kind}")
            number = value if symbol.kind == "int" else bits_of_float(value)
            values[symbol.name] = -number if symbol.negated else number
        else:
            numbers = value.shape if symbol.kind == "size" else value.stride()
            values[symbol.name] = numbers[symbol.dim]
    return values


def conditions_hold(region: Region, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the conditions on the symbols of a region hold for a call that its guards accept."""
    try:
        values = symbol_values(region, args, kwargs)
    except _LOOKUP_ERRORS:
        return False
    return all(condition.holds(values) for condition in region.conditions)


def fits_call(region: Region, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a region answers a call: its shape, the global state, and all guards."""
    return (
        len(args) == region.n_args
        and tuple(kwargs) == region.kwarg_names
        and GlobalState.now() == region.state
        and check_guards(region, args, kwargs) is None
        and conditions_hold(region, args, kwargs)
    )


def graph_inputs(region: Region, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors for the placeholders of `region.graph`, in order."""
    return [*(find(source, args, kwargs) for source in region.inputs), *region.bound]


def run_recipe(
    region: Region, outputs: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Build what the caller sees from the program's outputs, replaying effects.

    Sources are read first, before any effect.
    """
    values: dict[int, Any] = {
        number: find(step.payload, args, kwargs)
        for number, step in enumerate(region.recipe.steps)
        if step.kind == "source"
    }
    for number, step in enumerate(region.recipe.steps):
        parts = [values[a] for a in step.args]
        match step.kind:
            case "source":
                pass
            case "output":
                values[number] = outputs[step.payload]
            case "const":
                values[number] = step.payload
            case "symbol":
                values[number] = evaluate(step.payload, symbol_values(region, args, kwargs))
            case "tuple":
                values[number] = tuple(parts)
            case "list":
                values[number] = parts
            case "dict":
                values[number] = dict(zip(parts[::2], parts[1::2], strict=True))
            case "call":
                values[number] = parts[0](*parts[1:])
    return values[region.recipe.result]


def run_region(region: Region, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The whole region, its graph in eager: what a compiled entry must do."""
    outputs: Sequence[Any] = ()
    if region.graph is not None:
        tensors = graph_inputs(region, args, kwargs)
        graph = region.graph
        if region.symbols:
            graph = concrete_graph(graph, symbol_values(region, args, kwargs))
        # The graph has the casts of autocast in it already.
        with torch._C._DisableAutocast():
            outputs = run_graph(graph, tensors)
        for placeholder, output in region.mutations:
            with pristine.no_grad():
                tensors[placeholder].copy_(outputs[output])
    return run_recipe(region, outputs, args, kwargs)
