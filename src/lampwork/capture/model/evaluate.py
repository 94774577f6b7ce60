"""Guards and recipes, evaluated in Python: the reference for the C++ runtime, and what explains a failed guard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from lampwork import pristine
from lampwork._C import strictly_equal
from lampwork.capture.model.region import (
    Arg,
    Attr,
    CellContents,
    ClassAttr,
    DictItem,
    FunctionState,
    GlobalState,
    Guard,
    InstanceDict,
    Item,
    Known,
    Kwarg,
    Region,
    Result,
    Slot,
    Source,
    TensorGuard,
)
from lampwork.graph.concrete import concrete_graph
from lampwork.graph.interpret import run_graph
from lampwork.graph.symbols import bits_of_float
from lampwork.loops.ir.symbols import evaluate

_LOOKUP_ERRORS = (AttributeError, KeyError, IndexError, TypeError, ValueError)


def find(source: Source, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The object at a source.

    Raises:
        AttributeError, KeyError, IndexError, TypeError, ValueError: there is none.
    """
    match source:
        case Arg(index):
            return args[index]
        case Kwarg(name):
            return kwargs[name]
        case Known(value, _):
            return value
        case Attr(base, name):
            return getattr(find(base, args, kwargs), name)
        case Slot(base, descriptor):
            return descriptor.__get__(find(base, args, kwargs))
        case DictItem(base, key):
            table = find(base, args, kwargs)
            if not dict.__contains__(table, key):  # a `__missing__` of the dict is not to be asked
                raise KeyError(key)
            return dict.__getitem__(table, key)
        case Item(base, key):
            return find(base, args, kwargs)[key]
        case CellContents(base):
            return find(base, args, kwargs).cell_contents
        case InstanceDict(base):
            return find(base, args, kwargs).__dict__
        case Result(base):
            return find(base, args, kwargs)()


def holds(guard: Guard, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a guard holds for a call. A source that leads nowhere does not hold."""
    try:
        value = find(guard.source, args, kwargs)
        other = (
            find(guard.expected, args, kwargs)
            if guard.kind in ("same", "distinct", "storage_distinct")
            else guard.expected
        )
    except _LOOKUP_ERRORS:
        return False
    match guard.kind:
        case "type":
            return type(value) is other
        case "is" | "same":
            return value is other
        case "distinct":
            return value is not other
        case "equals":
            return strictly_equal(value, other)
        case "len":
            return len(value) == other
        case "keys":
            return strictly_equal(tuple(value), other)
        case "missing_key":
            return other not in value
        case "missing_attr":
            return not hasattr(value, other)
        case "tensor":
            return _tensor_fits(value, other)
        case "storage_distinct":
            return not overlap(value, other)
        case "mro":
            mro: tuple[type, ...] = value.__mro__
            return len(mro) == len(other) and all(a is b for a, b in zip(mro, other, strict=True))
        case "class_attr":
            return _class_gives(value, other)
        case "function":
            now = FunctionState.of(value)
            slots = ("code", "defaults", "kwdefaults")
            return all(getattr(now, name) is getattr(other, name) for name in slots)
        case "predicate":
            return bool(other(value))


def _class_gives(cls: type, expected: ClassAttr) -> bool:
    for base in cls.__mro__:
        if expected.name in base.__dict__:
            found = base.__dict__[expected.name]
            plain = type(expected.found) in (int, float, str)
            return not expected.missing and (
                found is expected.found or (plain and strictly_equal(found, expected.found))
            )
    return expected.missing


def _tensor_fits(value: Any, expected: TensorGuard) -> bool:
    if type(value) is not expected.type:
        return False
    tensor = cast(torch.Tensor, value)
    return (
        tensor.dtype == expected.dtype
        and tensor.device == expected.device
        and tensor.requires_grad == expected.requires_grad
        and _fits(tensor.shape, expected.sizes)
        and _fits(tensor.stride(), expected.strides)
    )


def _fits(numbers: Sequence[int], expected: Sequence[int | None]) -> bool:
    return len(numbers) == len(expected) and all(
        want is None or have == want for have, want in zip(numbers, expected, strict=True)
    )


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor and the one past its last."""
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (reach + 1) * tensor.element_size()


def overlap(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether the memory that two tensors span has a byte in common."""
    a, b = _extent(left), _extent(right)
    return a[0] < b[1] and b[0] < a[1]


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
        with torch._C._DisableAutocast():  # pyright: ignore[reportPrivateUsage]
            outputs = run_graph(graph, tensors)
        for placeholder, output in region.mutations:
            with pristine.no_grad():
                tensors[placeholder].copy_(outputs[output])
    return run_recipe(region, outputs, args, kwargs)
