"""The backend `onnxruntime`: parts of a graph run in ONNX Runtime's CPU provider, weights baked in."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, fx
from torch._C import _to_dlpack as to_dlpack

from lampwork import pristine
from lampwork.backends.onnx.convert import Converted, convert, single_node
from lampwork.backends.onnx.convert import supports as convertible
from lampwork.backends.onnx.part import Part, Session
from lampwork.backends.protocol import CompileOptions
from lampwork.records import record
from lampwork.standard import functools, operator
from lampwork.verdict import No, Verdict, Yes

_PROVIDERS = ["CPUExecutionProvider"]


@record
class OnnxRuntimeBackend:
    """Takes what has an ONNX form and a kernel in ONNX Runtime for its dtypes.

    Tensors are handed over and taken back without copies (DLPack); sessions use as many threads as
    `torch.get_num_threads()` says.
    """

    name: ClassVar[str] = "onnxruntime"
    bakes_weights: ClassVar[bool] = True

    def supports(self, node: fx.Node) -> Verdict:
        verdict = convertible(node)
        if isinstance(verdict, No) or node.target is operator.getitem:
            return verdict
        refusal = _refusal(single_node(node).SerializeToString(deterministic=True))
        return No(refusal) if refusal else Yes()

    def compile(
        self, graph: fx.Graph, example_inputs: Sequence[Tensor], options: CompileOptions
    ) -> Callable[..., Sequence[Tensor]]:
        bound = options.bound
        converted = convert(graph, bound)
        data = converted.model.SerializeToString()
        return Part.of(converted, graph, bound, lambda threads: _session(converted, data, threads))


@functools.cache
def _runtime() -> Any:
    return importlib.import_module("onnxruntime")


@functools.cache
def _bindings() -> Any:
    """ONNX Runtime's C++ types: its Python wrappers cost twice as much a call."""
    return importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")


def _options(threads: int) -> Any:
    options = _runtime().SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return options


@functools.lru_cache(maxsize=4096)
def _refusal(model: bytes) -> str:
    """Why ONNX Runtime does not run this one call; "" if it does. It alone knows for which dtypes it has kernels."""
    options = _options(1)
    options.graph_optimization_level = _runtime().GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        _runtime().InferenceSession(model, options, providers=_PROVIDERS)
    except _errors() as error:
        return f"ONNX Runtime says: {str(error).splitlines()[0].removeprefix('[ONNXRuntimeError] : ')}"
    return ""


@functools.cache
def _errors() -> tuple[type[Exception], ...]:
    names = ("Fail", "InvalidArgument", "InvalidGraph", "NotImplemented", "RuntimeException", "EPFail")
    return tuple(getattr(_bindings(), name) for name in names)


def _value(tensor: Tensor) -> Any:
    from_dlpack = _bindings().OrtValue.from_dlpack
    if tensor.dtype is torch.bool and _booleans_are_bytes():
        return from_dlpack(to_dlpack(tensor.view(torch.uint8)), True)
    return from_dlpack(to_dlpack(tensor))


@functools.cache
def _booleans_are_bytes() -> bool:
    """Whether this ONNX Runtime takes booleans as bytes and a flag (up to 1.31), not as DLPack's own booleans."""
    return "is_bool_tensor" in _bindings().OrtValue.from_dlpack.__doc__


@record
class _Session:
    """One session of ONNX Runtime. `weights`: what it reads where it lies, kept alive here."""

    inner: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    weights: tuple[Any, ...]

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        feed = {name: _value(tensor) for name, tensor in zip(self.inputs, tensors, strict=True)}
        found = self.inner.run_with_ort_values(feed, list(self.outputs), None)
        return [_taken(value, dtype) for value, dtype in zip(found, self.dtypes, strict=True)]


def _session(converted: Converted, model: bytes, threads: int) -> Session:
    options = _options(threads)
    weights = tuple(_value(tensor) for tensor in converted.baked.values())
    if weights:
        wrap = _runtime().OrtValue
        options.add_external_initializers(list(converted.baked), [wrap(value) for value in weights])
    session = _runtime().InferenceSession(model, options, providers=_PROVIDERS)
    roots = converted.boundary.roots
    return _Session(
        session._sess,
        tuple(f"input.{number}" for number in converted.inputs),
        converted.outputs,
        (*(root.meta["val"].dtype for root in roots), *[torch.bool] * converted.checks),
        weights,
    )


def _taken(value: Any, dtype: torch.dtype) -> Tensor:
    tensor = pristine.from_dlpack(_Capsule(value))
    return tensor if tensor.dtype is dtype else tensor.view(dtype)


@record
class _Capsule:
    value: Any

    def __dlpack__(self, **options: Any) -> Any:
        return self.value.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)
