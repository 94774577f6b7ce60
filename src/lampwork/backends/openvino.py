"""The backend `openvino`: parts of a graph run in OpenVINO's CPU plugin, in float32, weights baked in."""

from __future__ import annotations

import importlib
import queue
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, fx

from lampwork import pristine
from lampwork.backends.onnx.convert import Converted, convert
from lampwork.backends.onnx.convert import supports as convertible
from lampwork.backends.onnx.part import Part, Session
from lampwork.backends.protocol import CompileOptions
from lampwork.graph.spec import TensorSpec
from lampwork.records import record
from lampwork.standard import functools, operator
from lampwork.verdict import No, Verdict

_RESULTS = (torch.float32, torch.bool)
_OPERANDS = (torch.float32, torch.bool, torch.int64, torch.int32)


@record
class OpenVinoBackend:
    """Takes what has an ONNX form and gives float32 or bool.

    The plugin computes float64 in float32 and int64 in int32, so results of those types are left to others; 64-bit
    integers that come in (indices) are looked at on every call, and what does not fit is run by eager. Inputs and
    outputs are PyTorch's memory, without copies; `torch.get_num_threads()` threads. One difference remains: the
    plugin's relu and clamp give their lower bound for nan, where PyTorch gives nan.
    """

    name: ClassVar[str] = "openvino"
    bakes_weights: ClassVar[bool] = True

    def supports(self, node: fx.Node) -> Verdict:
        verdict = convertible(node)
        if isinstance(verdict, No) or node.target is operator.getitem:
            return verdict
        found: Any = node.meta["val"]
        for spec in found if isinstance(found, tuple) else (found,):
            if spec.dtype not in _RESULTS:
                return No(
                    f"it gives {_short(spec.dtype)}; OpenVINO computes float32 and bool exactly, others not"
                )
        for operand in node.all_input_nodes:
            spec = operand.meta["val"]
            if isinstance(spec, TensorSpec) and spec.dtype not in _OPERANDS:
                return No(f"it reads {_short(spec.dtype)}, which OpenVINO narrows")
        return verdict

    def compile(
        self, graph: fx.Graph, example_inputs: Sequence[Tensor], options: CompileOptions
    ) -> Callable[..., Sequence[Tensor]]:
        converted = convert(graph, options.bound, constants_as_inputs=True)
        converted = replace(converted, narrow=_wide_inputs(graph, converted))
        data = converted.model.SerializeToString()
        return Part.of(converted, graph, options.bound, lambda threads: _session(converted, data, threads))


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _wide_inputs(graph: fx.Graph, converted: Converted) -> tuple[int, ...]:
    """The inputs of int64, by placeholder number."""
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    return tuple(i for i in converted.inputs if placeholders[i].meta["val"].dtype is torch.int64)


@functools.cache
def _openvino() -> Any:
    return importlib.import_module("openvino")


@functools.cache
def _core() -> Any:
    return _openvino().Core()


def _session(converted: Converted, data: bytes, threads: int) -> Session:
    ov = _openvino()
    model = _core().read_model(data)
    _fill_constants(ov, model, converted)
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "EXECUTION_MODE_HINT": "ACCURACY",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,
        "CPU_DENORMALS_OPTIMIZATION": False,
        # Its generated code for attention overwrites what it still reads where a transpose follows (2026.4).
        "SNIPPETS_MODE": "DISABLE",
    }
    compiled = _core().compile_model(model, "CPU", settings)
    layouts = [(tuple(port.get_shape()), _dtype(port)) for port in compiled.outputs]
    idle: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def run(tensors: Sequence[Tensor]) -> list[Tensor]:
        # A request serves one call at a time: there are as many as calls have met.
        try:
            request = idle.get_nowait()
        except queue.Empty:
            request = compiled.create_infer_request()
        results = [pristine.empty(shape, dtype=dtype) for shape, dtype in layouts]
        for number, tensor in enumerate(tensors):
            request.set_input_tensor(number, ov.Tensor(tensor.numpy(), shared_memory=True))
        for number, tensor in enumerate(results):
            request.set_output_tensor(number, ov.Tensor(tensor.numpy(), shared_memory=True))
        request.infer()
        idle.put(request)
        return results

    return run


def _fill_constants(ov: Any, model: Any, converted: Converted) -> None:
    """Put constants, which stay PyTorch's memory, in place of the inputs that stand for them."""
    opset = importlib.import_module("openvino.opset13")
    for parameter in model.get_parameters():
        value = converted.baked.get(parameter.get_friendly_name())
        if value is None:
            continue
        constant = opset.constant(value.numpy(), shared_memory=True)
        parameter.output(0).replace(constant.output(0))
        model.remove_parameter(parameter)
    model.validate_nodes_and_infer_types()


def _dtype(port: Any) -> torch.dtype:
    return {"f32": torch.float32, "boolean": torch.bool}[port.get_element_type().get_type_name()]
