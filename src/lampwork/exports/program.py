"""A piece as a program of `torch.export`.

torch traces a module that runs the graph node by node, so that its own checks hold for what is written. What the trace
cannot see, the modules and lines that the nodes come from, is put back afterwards.
"""

from __future__ import annotations

import importlib
import inspect
import io
import keyword
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.traceback import annotate, preserve_node_meta

from lampwork import pristine
from lampwork.backends.core_aten import decomposition_of
from lampwork.errors import ExportError, text_of
from lampwork.exports.naming import state_of, unique
from lampwork.exports.pieces import Piece
from lampwork.exports.results import rebuilt
from lampwork.graph.interpret import compute, resolve
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import hint_of
from lampwork.locks import new_lock
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
    examples = [example(node.meta["val"]) for node in piece.placeholders[: len(piece.inputs)]]
    by_name = dict(zip(piece.inputs, examples, strict=True))
    args = tuple(value for name, value in by_name.items() if name not in piece.keywords)
    kwargs = {name: value for name, value in by_name.items() if name in piece.keywords}
    opened: dict[str, dict[int, Any]] = {name: {} for name in piece.inputs}
    for number, node in enumerate(piece.placeholders[: len(piece.inputs)]):
        for dim, size in enumerate(node.meta["val"].shape):
            if not isinstance(size, int) and piece.sizes.keys() >= size.symbols():
                opened[piece.inputs[number]][dim] = export.Dim.AUTO
    try:
        with _one_at_a_time, pristine.autocast("cpu", enabled=False), preserve_node_meta():
            found = export.export(_module(piece, plain), args, kwargs, dynamic_shapes=opened, strict=False)
    except Exception as error:
        raise ExportError(
            f"torch.export does not take {piece.name}: {_first_line(error)}",
            fix="export a module in it with `module=`, or as .json or .dot",
        ) from error
    _place(found, piece)
    return found, _fixed(found, piece, opened)


def example(spec: TensorSpec, memory: Callable[[int], Tensor] | None = None) -> Tensor:
    """A tensor with a spec's sizes in the call that was captured. `memory`: makes so many elements; else zeros."""
    shape, strides = ([int(hint_of(each)) for each in sizes] for sizes in (spec.shape, spec.strides))
    reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    count = reach if all(shape) else 0
    made = pristine.zeros([count], dtype=spec.dtype, device=spec.device) if memory is None else memory(count)
    return made.as_strided(shape, strides)  # which may meet itself


def _module(piece: Piece, plain: bool) -> nn.Module:
    """A module that runs the piece under torch's tracer."""
    weights = _weights(piece, plain)
    module = state_of(zip(weights, map(_stored, piece.tensors), strict=True))

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


def _weights(piece: Piece, plain: bool = False) -> tuple[str, ...]:
    """The paths of weights as torch can write them; where inputs, outputs and weights share their names, as in ONNX, as
    nothing else is called."""
    return unique(map(_writable, piece.weights), (*piece.inputs, *piece.outputs) if plain else ())


def _stored(tensor: Tensor) -> Tensor:
    """A weight as torch can write it: a copy of what is made for inference only, or a part of more memory."""
    if not tensor.is_inference() and tensor.untyped_storage().nbytes() == tensor.nbytes:
        return tensor
    copy = tensor.detach().clone(memory_format=torch.preserve_format)
    return nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copy


def _writable(path: str) -> str:
    """Without signs that end a string in the code that torch makes of a program, or a list in its files, and without
    the words of Python, as that code reads attributes."""
    kept = "".join(sign if sign.isprintable() and sign not in _SIGNS else "_" for sign in path)
    return ".".join(f"{part}_" if keyword.iskeyword(part) else part for part in kept.split("."))


def _run(
    piece: Piece, weights: Sequence[str], module: nn.Module, given: Mapping[str, Tensor], plain: bool
) -> Any:
    inputs = [given[name] for name in piece.inputs]
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    tensors = [*inputs, *(state[name] for name in weights)]
    read = list(tensors)
    if piece.trained and not plain:
        for place, _ in piece.writes:
            read[place] = tensors[place].clone()  # which backward may read after it was written
    numbers: dict[str, Any] = dict(piece.hints)
    for symbol, (number, dim) in piece.sizes.items():
        numbers[symbol] = inputs[number].shape[dim]
    values: dict[fx.Node, Any] = dict(zip(piece.placeholders, read, strict=True))
    for node in piece.calls:
        with annotate({_MARK: node.name}):
            apart = decomposition_of(node.target) if plain and node.target in _MISREAD else None
            values[node] = compute(node, values, numbers) if apart is None else _apart(apart, node, values)
    if plain:
        return _each_its_own(piece, values)
    for place, number in piece.writes:
        tensors[place].copy_(values[piece.results[number]])
    values.update(zip(piece.placeholders, tensors, strict=True))
    outputs = [values[node] for node in piece.results]
    return rebuilt(piece.tree, outputs, lambda index: evaluate(index, numbers))


_MISREAD = frozenset({torch.ops.aten._native_batch_norm_legit_functional.default})
"""Operators that torch's exporter to ONNX writes wrongly, and rightly what torch decomposes them into."""


def _apart(function: Any, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
    return function(*resolve(node.args, values), **resolve(node.kwargs, values))


def _each_its_own(piece: Piece, values: Mapping[fx.Node, Any]) -> tuple[Any, ...]:
    """The outputs of a piece, none of which is an input, a weight or another output: a file names each of them."""
    seen = set(piece.placeholders)
    found: list[Any] = []
    for node in piece.results:
        found.append(values[node].clone() if node in seen else values[node])
        seen.add(node)
    return tuple(found)


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
    return tuple(notes)


def save(piece: Piece, target: Path, path: Path) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Write a piece to `target` as .pt2; gives notes, and the files beside it.

    Raises:
        ExportError: torch does not take it.
    """
    program, notes = exported_program(piece)
    data = io.BytesIO()  # torch's own writer ends the process if the disk is full
    try:
        with _one_at_a_time:
            torch.export.save(program, data)
    except Exception as error:
        raise ExportError(
            f"torch.export.save does not take {piece.name}: {_first_line(error)}",
            fix="export a module in it with `module=`, or as .json or .dot",
        ) from error
    target.write_bytes(data.getbuffer())
    return notes, ()


_one_at_a_time = new_lock()
"""torch.export keeps what it traces in globals."""


def _first_line(error: BaseException) -> str:
    return next(iter(text_of(error).splitlines()), type(error).__name__)
