"""The compilers compared: each adapter takes a job and gives a callable of the signature of the job's."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import io
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn

from lampwork.bench.workloads.workload import Precision
from lampwork.records import record

Callee = Callable[..., Any]


@record
class Job:
    """What is to be compiled: a callable, its inputs, the threads it may use, and the precision it computes in."""

    fn: Callee
    inputs: tuple[Any, ...]
    threads: int = 1
    dtype: Precision = "f32"


@record
class Compiler:
    """`needs`: packages that must be installed; a compiler that lacks one is skipped by name.

    refuses: why it does not compute in a precision, by precision; a refused measurement is a failure that says so.
    by_hint: it takes float32 modules and inputs and computes in the precision of the job; the others take modules and
        inputs of that precision.
    """

    name: str
    make: Callable[[Job], Callee]
    needs: tuple[str, ...] = ()
    refuses: Mapping[Precision, str] = field(default_factory=dict[Precision, str])
    by_hint: bool = False

    def missing(self) -> str | None:
        """The first package that is not installed, or None."""
        return next((name for name in self.needs if importlib.util.find_spec(name) is None), None)

    def compile(self, job: Job) -> Callee:
        """The callable of the job.

        Raises:
            UnsupportedPrecision: this compiler has no code for the job's precision here.
        """
        reason = self.refuses.get(job.dtype)
        if reason is not None:
            raise UnsupportedPrecision(reason)
        return self.make(job)


class UnsupportedPrecision(Exception):
    """A compiler has no code for a precision on this machine."""


class FunctionModule(nn.Module):
    """A function as a module, for compilers that take only modules."""

    def __init__(self, fn: Callee) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Tensor) -> Any:
        return self.fn(*args)


def _module(fn: Callee) -> nn.Module:
    return fn if isinstance(fn, nn.Module) else FunctionModule(fn).eval()


def _eager(job: Job) -> Callee:
    return job.fn


_OPTIONS = MappingProxyType({"strict": True, "cache": "off"})
"""A compiler failure is seen as one instead of as eager's time, and a first call compiles."""


def _lampwork(job: Job) -> Callee:
    if job.dtype == "int8":
        return _lampwork_int8(job)
    return importlib.import_module("lampwork").compile(job.fn, options=dict(_OPTIONS))


def _lampwork_int8(job: Job) -> Callee:
    lampwork = importlib.import_module("lampwork")
    model = lampwork.quantize(copy.deepcopy(_module(job.fn))).model
    return lampwork.compile(model, options=dict(_OPTIONS))


def _torch_ao(job: Job) -> Callee:
    """torch's own dynamic quantization: eager, with linear layers of oneDNN or FBGEMM."""
    ao: Any = importlib.import_module("torch.ao.quantization")
    return cast(Callee, ao.quantize_dynamic(copy.deepcopy(_module(job.fn)), {nn.Linear}, dtype=torch.qint8))


def _inductor(job: Job) -> Callee:
    return torch.compile(job.fn)


def _freeze() -> None:
    config: Any = importlib.import_module("torch._inductor.config")
    config.freezing = True


def _inductor_freezing(job: Job) -> Callee:
    _freeze()
    return torch.compile(job.fn)


def _inductor_autotune(job: Job) -> Callee:
    _freeze()
    return torch.compile(job.fn, mode="max-autotune")


def _torchscript(job: Job) -> Callee:
    traced = torch.jit.trace(_module(job.fn), job.inputs, check_trace=False)
    return cast(Callee, torch.jit.optimize_for_inference(torch.jit.freeze(cast(Any, traced))))


def _onnxruntime(job: Job) -> Callee:
    runtime = importlib.import_module("onnxruntime")
    exported = cast(Any, torch.onnx.export(_module(job.fn), job.inputs, dynamo=True, verbose=False))
    if job.dtype == "int8":
        serialized = _onnx_int8(exported.model_proto)
    else:
        buffer = io.BytesIO()
        exported.save(buffer)
        serialized = buffer.getvalue()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = job.threads
    session = runtime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]

    def run(*args: Tensor) -> Any:
        feed = {name: arg.numpy() for name, arg in zip(names, args, strict=True)}
        return torch.from_numpy(session.run(None, feed)[0])

    return run


def _onnx_int8(model: Any) -> bytes:
    """A model with its products quantized by ONNX Runtime, weights to int8 once and activations when they come."""
    tools = importlib.import_module("onnxruntime.quantization")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        tools.quantize_dynamic(model, path, weight_type=tools.QuantType.QInt8)
        return path.read_bytes()


def _openvino(job: Job) -> Callee:
    ov = importlib.import_module("openvino")
    model = ov.convert_model(
        _module(job.fn), example_input=job.inputs, input=[list(x.shape) for x in job.inputs]
    )
    # By default it may compute in bfloat16 on machines that have it.
    options = {
        "INFERENCE_PRECISION_HINT": job.dtype,
        "INFERENCE_NUM_THREADS": job.threads,
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = ov.Core().compile_model(model, "CPU", options)
    taken = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    if taken != job.dtype:
        raise UnsupportedPrecision(f"OpenVINO takes {taken} on this machine where {job.dtype} is asked for")
    request = compiled.create_infer_request()

    def run(*args: Tensor) -> Any:
        result = request.infer([arg.numpy() for arg in args], share_inputs=True)
        return torch.from_numpy(result[0])

    return run


_NOT_INT8: Mapping[Precision, str] = {"int8": "torch's quantization is the row torch.ao"}
_ONLY_INT8: Mapping[Precision, str] = {
    "f32": "torch.ao quantizes to int8",
    "bf16": "torch.ao quantizes to int8",
    "f16": "torch.ao quantizes to int8",
}
_NO_NNCF: Mapping[Precision, str] = {"int8": "OpenVINO's models are quantized by NNCF, with calibration"}

COMPILERS: dict[str, Compiler] = {
    compiler.name: compiler
    for compiler in (
        Compiler("eager", _eager),
        Compiler("lampwork", _lampwork),
        Compiler("torch.compile", _inductor, refuses=_NOT_INT8),
        Compiler("torch.compile-freezing", _inductor_freezing, refuses=_NOT_INT8),
        Compiler("torch.compile-max-autotune-freezing", _inductor_autotune, refuses=_NOT_INT8),
        Compiler("torchscript", _torchscript, refuses=_NOT_INT8),
        Compiler("torch.ao", _torch_ao, refuses=_ONLY_INT8),
        Compiler(
            "onnxruntime",
            _onnxruntime,
            ("onnxruntime", "onnx", "onnxscript"),
            {"bf16": "ONNX Runtime has no bfloat16 kernels for CPUs"},
        ),
        Compiler("openvino", _openvino, ("openvino",), _NO_NNCF, by_hint=True),
    )
}


def available(names: Sequence[str]) -> list[str]:
    """Those of these compilers that are installed; the others are named on stderr."""
    found: list[str] = []
    for name in names:
        missing = COMPILERS[name].missing()
        if missing is None:
            found.append(name)
        else:
            print(f"{name}: skipped, the package {missing} is not installed", file=sys.stderr)
    return found
