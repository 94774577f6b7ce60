"""Those who compute a function beside us, in the same process."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from lampwork.bench.compilers import COMPILERS, FunctionModule, Job
from lampwork.bench.kernels.case import Call
from lampwork.records import record

PEERS = ("eager", "torchscript", "onnxruntime", "openvino", "torch.compile")
DEFAULT = PEERS[:-1]
"""torch.compile runs a C++ compiler for seconds for each shape: asked for by name."""


@record
class Contenders:
    """calls: by name, "lampwork" first. failures: of the peers that have no code for the function, by name."""

    calls: dict[str, Call]
    failures: dict[str, str]


def contenders(
    fn: Callable[..., Any], inputs: tuple[Tensor, ...], names: Sequence[str], threads: int
) -> Contenders:
    """Lampwork and the peers of these names, each called once."""
    calls: dict[str, Call] = {
        "lampwork": _bound(COMPILERS["lampwork"].compile(Job(fn, inputs, threads)), inputs)
    }
    failures: dict[str, str] = {}
    calls["lampwork"]()
    for name in names:
        try:
            calls[name] = _bound(_compile(name, Job(fn, inputs, threads)), inputs)
            calls[name]()
        except Exception as error:  # noqa: BLE001  what a peer cannot compute is left out by name
            calls.pop(name, None)
            failures[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[
                :120
            ]
    return Contenders(calls, failures)


def _bound(compiled: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Call:
    return lambda: compiled(*inputs)


def _compile(name: str, job: Job) -> Callable[..., Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "onnxruntime":
            return _onnxruntime(job)
        if name == "torch.compile":
            import_module("torch._dynamo").reset()
        if name == "openvino":
            # Its converter gives PyTorch's own type where a hint asks for none.
            return COMPILERS[name].make(job)
        return COMPILERS[name].compile(job)


def _onnxruntime(job: Job) -> Callable[..., Any]:
    """By the exporter that traces: the same kernels, made in milliseconds where the other exporter takes seconds."""
    runtime = import_module("onnxruntime")
    module = job.fn if isinstance(job.fn, torch.nn.Module) else FunctionModule(job.fn).eval()
    buffer = io.BytesIO()
    torch.onnx.export(module, job.inputs, buffer, dynamo=False, opset_version=20)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = job.threads
    options.log_severity_level = 4
    session = runtime.InferenceSession(buffer.getvalue(), options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]

    def run(*args: Tensor) -> Tensor:
        feed = {name: arg.numpy() for name, arg in zip(names, args, strict=True)}
        return torch.from_numpy(session.run(None, feed)[0])

    return run
