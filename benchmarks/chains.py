"""Pointwise functions of float32, in cache and out of it: nanoseconds per element, bandwidth, and the ratio to eager.

    python benchmarks/chains.py [NAME ...] [--sizes 16384 1048576] [--threads 1] [--openvino]

Eager and compiled calls take turns in one process; printed are the medians of each, and the median over the turns of
their ratio. `GB/s` counts what must be read and written once. `--openvino` adds OpenVINO where it is installed.
"""

from __future__ import annotations

import argparse
import importlib
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import lampwork

ROUNDS = 15
SAMPLE_SECONDS = 0.01

ONE: Mapping[str, Callable[[Tensor], Tensor]] = {
    "copy": lambda x: x * 1.5,
    "mish written out": lambda x: x * torch.tanh(F.softplus(x)),
    "mish": F.mish,
    "softplus": F.softplus,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "elu": F.elu,
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 1.5),
    "hardswish": F.hardswish,
    "logsigmoid": F.logsigmoid,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": lambda x: torch.log(x.abs()),
    "log2": lambda x: torch.log2(x.abs()),
    "log10": lambda x: torch.log10(x.abs()),
    "log1p": lambda x: torch.log1p(x.abs()),
    "pow 3": lambda x: x**3,
    "pow 4": lambda x: x**4,
    "pow 7": lambda x: x**7,
    "pow 0.5": lambda x: x.abs() ** 0.5,
    "pow 1.5": lambda x: x.abs() ** 1.5,
    "pow 2.7": lambda x: x.abs() ** 2.7,
    "pow of 10000": lambda x: 10000.0**x,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "asin": lambda x: torch.asin(x * 0.2),
    "acos": lambda x: torch.acos(x * 0.2),
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "asinh": torch.asinh,
    "acosh": lambda x: torch.acosh(x.abs() + 1),
    "atanh": lambda x: torch.atanh(x * 0.2),
    "rsqrt": lambda x: torch.rsqrt(x.abs()),
    "logit": lambda x: torch.logit(x, 1e-3),
}
TWO: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "pow": lambda x, y: x.abs() ** y,
    "atan2": torch.atan2,
    "logaddexp": torch.logaddexp,
    "hypot": torch.hypot,
    "xlogy": lambda x, y: torch.xlogy(x, y.abs()),
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "floor divide": lambda x, y: torch.div(x, y, rounding_mode="floor"),
}


def openvino(fn: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Callable[..., Any]:
    """`fn` converted by OpenVINO, one thread, float32; called with numpy arrays that share memory."""
    ov: Any = importlib.import_module("openvino")

    class Module(torch.nn.Module):
        def forward(self, *args: Tensor) -> Tensor:
            return fn(*args)

    model = ov.convert_model(Module(), example_input=inputs)
    hints = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    request = ov.Core().compile_model(model, "CPU", hints).create_infer_request()
    arrays = [x.numpy() for x in inputs]
    return lambda *_: request.infer(arrays, share_inputs=True, share_outputs=True)


def seconds(fn: Callable[..., Any], inputs: tuple[Tensor, ...], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        fn(*inputs)
    return (time.perf_counter() - start) / calls


def measure(name: str, fn: Callable[..., Tensor], inputs: tuple[Tensor, ...], with_openvino: bool) -> str:
    functions = {"eager": fn, "lampwork": lampwork.compile(fn)}
    if with_openvino:
        functions["openvino"] = openvino(fn, inputs)
    calls: dict[str, int] = {}
    for key, each in functions.items():
        seconds(each, inputs, 3)
        calls[key] = max(1, math.ceil(SAMPLE_SECONDS / seconds(each, inputs, 3)))
    rounds: dict[str, list[float]] = {key: [] for key in functions}
    for _ in range(ROUNDS):
        for key, each in functions.items():
            rounds[key].append(seconds(each, inputs, calls[key]))
    own, n = rounds["lampwork"], inputs[0].numel()
    own_median = statistics.median(own)
    moved = 4 * n * (len(inputs) + 1)
    text = f"{name:18} {n:9} {own_median / n * 1e9:7.3f} ns {moved / own_median / 1e9:6.1f} GB/s"
    for key, times in rounds.items():
        if key != "lampwork":
            ratio = statistics.median(a / b for a, b in zip(times, own, strict=True))
            text += f"   {key} {statistics.median(times) / n * 1e9:7.3f} ns {ratio:5.2f} x"
    return text


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--sizes", nargs="+", type=int, default=[1 << 14, 1 << 20])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--openvino", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    with torch.no_grad():
        for size in options.sizes:
            x, y = torch.randn(size) * 2, torch.randn(size) * 2
            for name, fn in {**ONE, **TWO}.items():
                if not options.names or name in options.names:
                    inputs = (x, y) if name in TWO else (x,)
                    print(measure(name, fn, inputs, options.openvino), flush=True)


if __name__ == "__main__":
    main()
