"""An ONNX model that torch's exporter wrote, run once beside the graph that it was written from.

Where a rule of torch's is wrong (and several are), nothing else would tell: such a file is never written.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

from lampwork import pristine
from lampwork.errors import ExportError, text_of
from lampwork.exports.pieces import Piece
from lampwork.exports.program import example
from lampwork.graph.concrete import concrete_graph
from lampwork.graph.interpret import run_graph
from lampwork.graph.spec import TensorSpec
from lampwork.rewriting.schema import packet_name

MOST_RUN = 256 * 2**20
"""Bytes of inputs and weights up to which a model is run."""

_TOLERANCES = {torch.float16: 2e-2, torch.float32: 1e-3, torch.float64: 1e-6}
"""How far a result may be off, by the largest magnitude in it."""

_CHOOSING = frozenset({"argmax", "argmin", "argsort", "max", "min", "median", "mode", "sort", "topk"})
"""Operators that say which of equal elements they took: each runtime takes another one."""


def compare(piece: Piece, model: onnx.ModelProto) -> tuple[str, ...]:
    """Run a model on random inputs; gives a note if it could not be run.

    Raises:
        ExportError: it gives something else than the graph.
    """
    reason = _beyond(piece)
    if reason is not None:
        return (f"it was not run for a test: {reason}",)
    try:
        inputs, expected = _expected(piece)
    except Exception as error:  # noqa: BLE001  (operators may refuse random values in any way)
        return (f"it was not run for a test: the model does not take random inputs: {_line(error)}",)
    try:
        results = _run(model, dict(zip(piece.inputs, inputs, strict=True)))
    except Exception as error:  # noqa: BLE001  (what a runtime lacks, it says by errors of its own)
        return (f"it could not be run for a test: {_line(error)}",)
    chooses = any(packet_name(node.target) in _CHOOSING for node in piece.calls)
    notes: list[str] = []
    for name, found, wanted in zip(piece.outputs, results, expected, strict=True):
        said = _difference(pristine.from_numpy(np.asarray(found).copy()), wanted)
        if said is None:
            continue
        if chooses and not wanted.dtype.is_floating_point:
            notes.append(f"{name} may differ where elements are equal: which one is taken is not specified")
            continue
        raise ExportError(
            f"what torch.onnx.export writes of {piece.name} is wrong: {name} {said}",
            fix="write .pt2, or export the modules around what is wrong with `module=`",
        )
    return tuple(notes)


def _expected(piece: Piece) -> tuple[list[Tensor], list[Tensor]]:
    """Random inputs, and what the graph gives of them. Integers are 0 and 1, which most tables have, or, where nothing
    can be divided by 0, 1 and 2."""
    specs = [node.meta["val"] for node in piece.placeholders[: len(piece.inputs)]]
    graph = concrete_graph(piece.graph, piece.hints)
    weights = [tensor.detach() for tensor in piece.tensors]
    with pristine.no_grad():
        try:
            inputs = [_random(spec, number, 0) for number, spec in enumerate(specs)]
            return inputs, run_graph(graph, [*inputs, *weights])
        except (RuntimeError, IndexError):
            inputs = [_random(spec, number, 1) for number, spec in enumerate(specs)]
            return inputs, run_graph(graph, [*inputs, *weights])


def _beyond(piece: Piece) -> str | None:
    """Why a piece cannot be compared."""
    for node in piece.placeholders:
        spec: TensorSpec = node.meta["val"]
        if spec.dtype.is_complex or spec.dtype == torch.bfloat16 or spec.dtype.itemsize == 0:
            return f"it takes {str(spec.dtype).removeprefix('torch.')}"
        if spec.device.type != "cpu":
            return f"it is on {spec.device}"
    random = next((node for node in piece.calls if node.meta.get("random")), None)
    if random is not None:
        return f"{packet_name(random.target)} is random"
    if sum(tensor.nbytes for tensor in piece.tensors) > MOST_RUN:
        return "it is large"
    return None


def _random(spec: TensorSpec, seed: int, least: int) -> Tensor:
    """A tensor of a spec, of normal numbers, or of the integers `least` and the next."""
    draw = np.random.default_rng(seed)

    def memory(count: int) -> Tensor:
        if spec.dtype.is_floating_point:
            return pristine.from_numpy(draw.standard_normal(count)).to(spec.dtype)
        return pristine.from_numpy(draw.integers(least, least + 2, count)).to(spec.dtype)

    return example(spec, memory)


def _run(model: onnx.ModelProto, inputs: Mapping[str, Tensor]) -> Sequence[Any]:
    taken = {info.name for info in model.graph.input}
    given = {name: tensor.contiguous().numpy() for name, tensor in inputs.items() if name in taken}
    if importlib.util.find_spec("onnxruntime") is None:
        reference: Any = importlib.import_module("onnx.reference")
        return reference.ReferenceEvaluator(model).run(None, given)
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, given)


def _difference(found: Tensor, wanted: Tensor) -> str | None:
    """How a result is wrong; None if it is not."""
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return f"is {found.dtype} {[*found.shape]}, not {wanted.dtype} {[*wanted.shape]}"
    if not wanted.dtype.is_floating_point:
        wrong = int((found != wanted).sum())
        return f"differs in {wrong} of {wanted.numel()} elements" if wrong else None
    one, other = found.double(), wanted.double()
    finite = other.isfinite()
    if not one[~finite].equal(other[~finite]) and not (one.isnan() == other.isnan()).all():
        return "is not finite in other places"
    if not finite.any():
        return None
    off = float((one - other)[finite].abs().max())
    largest = float(other[finite].abs().max())
    if off <= _TOLERANCES[wanted.dtype] * (largest + 0.01):
        return None
    return f"is off by {off:.3g}, of numbers up to {largest:.3g}"


def _line(error: BaseException) -> str:
    return next(iter(text_of(error).splitlines()), type(error).__name__)
