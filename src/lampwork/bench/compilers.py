"""The compilers compared: each adapter takes a callable and its inputs and gives a callable of the same signature."""

from __future__ import annotations

import importlib
import importlib.util
import io
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from lampwork.records import record

Callee = Callable[..., Any]


@record
class Compiler:
    """`needs`: packages that must be installed; a compiler that lacks one is skipped by name."""

    name: str
    make: Callable[[Callee, tuple[Any, ...], int], Callee]
    needs: tuple[str, ...] = ()

    def missing(self) -> str | None:
        """The first package that is not installed, or None."""
        return next((name for name in self.needs if importlib.util.find_spec(name) is None), None)


class FunctionModule(nn.Module):
    """A function as a module, for compilers that take only modules."""

    def __init__(self, fn: Callee) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Tensor) -> Any:
        return self.fn(*args)


def _module(fn: Callee) -> nn.Module:
    return fn if isinstance(fn, nn.Module) else FunctionModule(fn).eval()


def _eager(fn: Callee, inputs: tuple[Any, ...], threads: int) -> Callee:
    return fn


def _lampwork(fn: Callee, inputs: tuple[Any, ...], threads: int) -> Callee:
    # Strict, so that a compiler failure is seen as one instead of as eager's time.
    return importlib.import_module("lampwork").compile(fn, options={"strict": True})


def _inductor(fn: Callee, inputs: tuple[Any, ...], threads: int) -> Callee:
    return torch.compile(fn)


def _freeze() -> None:
    config: Any = importlib.import_module("torch._inductor.config")
    config.freezing = True


def _inductor_freezing(fn: Callee, inputs: tuple[Any, ...], threads: int) -> Callee:
    _freeze()
    return torch.compile(fn)


def _inductor_autotune(fn: Callee, inputs: tuple[Any, ...], threads: int) -> Callee:
    _freeze()
    return torch.compile(fn, mode="max-autotune")


def _torchscript(fn: Callee, inputs: tuple[Any, ...], threads: int) -> Callee:
    traced = torch.jit.trace(_module(fn), inputs, check_trace=False)
    return cast(Callee, torch.jit.optimize_for_inference(torch.jit.freeze(cast(Any, traced))))


def _onnxruntime(fn: Callee, inputs: tuple[Any, ...], threads: int) -> Callee:
    runtime = importlib.import_module("onnxruntime")
    exported = cast(Any, torch.onnx.export(_module(fn), inputs, dynamo=True, verbose=False))
    buffer = io.BytesIO()
    exported.save(buffer)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(buffer.getvalue(), options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]

    def run(*args: Tensor) -> Any:
        feed = {name: arg.numpy() for name, arg in zip(names, args, strict=True)}
        return torch.from_numpy(session.run(None, feed)[0])

    return run


def _openvino(fn: Callee, inputs: tuple[Any, ...], threads: int) -> Callee:
    ov = importlib.import_module("openvino")
    model = ov.convert_model(_module(fn), example_input=inputs, input=[list(x.shape) for x in inputs])
    # float32 all through: by default it may compute in bfloat16 on machines that have it.
    options = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = ov.Core().compile_model(model, "CPU", options)
    request = compiled.create_infer_request()

    def run(*args: Tensor) -> Any:
        result = request.infer([arg.numpy() for arg in args], share_inputs=True)
        return torch.from_numpy(result[0])

    return run


COMPILERS: dict[str, Compiler] = {
    compiler.name: compiler
    for compiler in (
        Compiler("eager", _eager),
        Compiler("lampwork", _lampwork),
        Compiler("torch.compile", _inductor),
        Compiler("torch.compile-freezing", _inductor_freezing),
        Compiler("torch.compile-max-autotune-freezing", _inductor_autotune),
        Compiler("torchscript", _torchscript),
        Compiler("onnxruntime", _onnxruntime, ("onnxruntime", "onnx", "onnxscript")),
        Compiler("openvino", _openvino, ("openvino",)),
    )
}
