"""A piece as a program of `torch.export`.

torch traces a module that runs the graph node by node, so that its own checks hold for what is written. What the trace
cannot see, the modules and lines that the nodes come from, is put back afterwards.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.traceback import annotate, preserve_node_meta

from lampwork import pristine
from lampwork.errors import ExportError, text_of
from lampwork.exports.naming import is_rebuilt, rebuilt, state_of, unique
from lampwork.exports.pieces import Piece
from lampwork.graph.concrete import symbol_names
from lampwork.graph.interpret import compute
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import hint_of
from lampwork.loops.ir.symbols import evaluate

_MARK = "lampwork"
_SIGNS = "\"'\\,;"


def exported_program(piece: Piece, *, plain: bool = False) -> tuple[Any, tuple[str, ...]]:
    """The `ExportedProgram` of a piece, and notes: what is fixed in it that a call could have left open.

    Sizes that the region leaves open stay open, where torch can express what the program does with them. Inputs are
    passed under their names; parameters and buffers have their module paths. The result is what the region returns.

    Args:
        plain: the result is all outputs of the piece in order, and nothing is written to inputs and buffers.

    Raises:
        ExportError: torch does not take it.
    """
    export: Any = importlib.import_module("torch.export")
    examples = [_example(node.meta["val"]) for node in piece.placeholders[: len(piece.inputs)]]
    by_name = dict(zip(piece.inputs, examples, strict=True))
    args = tuple(value for name, value in by_name.items() if name not in piece.keywords)
    kwargs = {name: value for name, value in by_name.items() if name in piece.keywords}
    opened: dict[str, dict[int, Any]] = {name: {} for name in piece.inputs}
    for number, node in enumerate(piece.placeholders[: len(piece.inputs)]):
        for dim, size in enumerate(node.meta["val"].shape):
            if not isinstance(size, int) and piece.sizes.keys() >= size.symbols():
                opened[piece.inputs[number]][dim] = export.Dim.AUTO
    try:
        with pristine.autocast("cpu", enabled=False), preserve_node_meta():
            found = export.export(_module(piece, plain), args, kwargs, dynamic_shapes=opened, strict=False)
    except Exception as error:
        raise ExportError(
            f"torch.export does not take {piece.name}: {text_of(error).splitlines()[0]}",
            fix="export a module in it with `module=`, or as .json or .dot",
        ) from error
    _place(found, piece)
    return found, _fixed(found, piece, opened)


def _example(spec: TensorSpec) -> Tensor:
    """A tensor with a spec's sizes in the call that was captured. Nobody reads its numbers."""
    shape, strides = ([int(hint_of(each)) for each in sizes] for sizes in (spec.shape, spec.strides))
    reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = pristine.zeros([reach if all(shape) else 0], dtype=spec.dtype, device=spec.device)
    return memory.as_strided(shape, strides)  # which may meet itself


def _module(piece: Piece, plain: bool) -> nn.Module:
    """A module that runs the piece under torch's tracer."""
    weights = _weights(piece)
    module = state_of(zip(weights, piece.tensors, strict=True))

    def forward(*args: Any, **kwargs: Any) -> Any:
        positional = (name for name in piece.inputs if name not in piece.keywords)
        given = {**dict(zip(positional, args, strict=True)), **kwargs}
        return _run(piece, weights, module, given, plain)

    ways = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = [inspect.Parameter(name, ways[name in piece.keywords]) for name in piece.inputs]
    parameters.sort(key=lambda parameter: parameter.kind)
    forward.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    module.forward = forward
    return module


def _weights(piece: Piece) -> tuple[str, ...]:
    """The paths of weights as torch can write them."""
    return unique(_writable(path) for path in piece.weights)


def _writable(path: str) -> str:
    """Without signs that end a string in the code that torch makes of a program, or a list in its files."""
    return "".join(sign if sign.isprintable() and sign not in _SIGNS else "_" for sign in path)


def _run(
    piece: Piece, weights: Sequence[str], module: nn.Module, given: Mapping[str, Tensor], plain: bool
) -> Any:
    inputs = [given[name] for name in piece.inputs]
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    tensors = [*inputs, *(state[name] for name in weights)]
    read = list(tensors)
    if piece.region is not None and piece.region.state.grad_enabled and not plain:
        for place, _ in piece.writes:
            read[place] = tensors[place].clone()  # which backward may read after it was written
    numbers: dict[str, Any] = dict(piece.hints)
    for symbol, (number, dim) in piece.sizes.items():
        numbers[symbol] = inputs[number].shape[dim]
    values: dict[fx.Node, Any] = dict(zip(piece.placeholders, read, strict=True))
    for node in piece.calls:
        with annotate({_MARK: node.name}):
            values[node] = compute(node, values, numbers)
    outputs = [values[node] for node in piece.results]
    if plain:
        return tuple(outputs)
    for place, number in piece.writes:
        tensors[place].copy_(outputs[number])
    region = piece.region
    if region is not None and is_rebuilt(region):
        found = dict(zip(piece.sources, inputs, strict=True))
        return rebuilt(region.recipe, outputs, found, lambda index: evaluate(index, numbers))
    named = dict(zip(piece.outputs, outputs, strict=True))
    results = {name: named[name] for name in piece.returned}
    return results if region is not None and not region.breaks else tuple(results.values())


def _place(program: Any, piece: Piece) -> None:
    """Give the nodes the modules and lines of those that they were traced from."""
    known = {node.name: node for node in piece.calls}
    for node in program.graph.nodes:
        marks = node.meta.get("custom")
        source = known.get(marks.pop(_MARK, "")) if isinstance(marks, dict) else None
        if marks is not None and not marks:
            del node.meta["custom"]
        if source is None:
            continue
        origin, location = source.meta.get("origin"), source.meta.get("location")
        if origin is not None:
            node.meta["nn_module_stack"] = _stack(origin.module, piece.kinds)
        if location is not None:
            node.meta["stack_trace"] = f'File "{location.file}", line {location.line}, in {location.function}'


def _stack(path: str, kinds: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The modules that are active in `path`, outermost first, as torch writes them."""
    parts = path.split(".") if path else []
    paths = [".".join(parts[:end]) for end in range(len(parts) + 1)]
    return {
        f"L__self__{'_' if each else ''}{_writable(each)}": (
            _writable(each),
            kinds.get(each, "torch.nn.Module"),
        )
        for each in paths
    }


def _fixed(program: Any, piece: Piece, opened: Mapping[str, Mapping[int, Any]]) -> tuple[str, ...]:
    """What does not stay open, in words."""
    notes = [
        f"{before!r} is {after!r} in it, as torch cannot write the name"
        for before, after in zip(piece.weights, _weights(piece), strict=True)
        if before != after
    ]
    if any(getattr(node.target, "namespace", "") == "lampwork" for node in piece.calls):
        notes.append("it has operators of Lampwork: import lampwork before torch.export.load")
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for name, dims in opened.items():
        value = nodes[name].meta["val"] if name in nodes else None
        for dim in dims:
            if value is not None and isinstance(value.shape[dim], int):
                notes.append(
                    f"dimension {dim} of {name} is {value.shape[dim]} only: torch.export cannot leave it open"
                )
    if numbers := [f"{symbol} = {piece.hints[symbol]}" for symbol in _closed(piece)]:
        notes.append(f"numbers that are no sizes of inputs are those of the call: {', '.join(numbers)}")
    return tuple(notes)


def _closed(piece: Piece) -> list[str]:
    """Symbols of the graph that no input's size tells."""
    return sorted((symbol_names(piece.graph) - piece.sizes.keys()) & piece.hints.keys())


def save(piece: Piece, target: Path, path: Path) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Write a piece to `target` as .pt2; gives notes, and the files beside it.

    Raises:
        ExportError: torch does not take it.
    """
    program, notes = exported_program(piece)
    torch.export.save(program, target)
    return notes, ()
