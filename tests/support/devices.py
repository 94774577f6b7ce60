"""Graphs on devices that are not there: recorded, compiled and planned for them, and run on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from scalar_target import SCALAR
from torch import fx

from lampwork.backends.native import compile as native
from lampwork.codegen.target import Target
from lampwork.graph.record import Recorder
from lampwork.graph.recorded import Recorded
from lampwork.graph.spec import TensorSpec
from lampwork.runtime import Executable
from lampwork.runtime.program import CallAten, Program, Value

CPU = torch.device("cpu")
CUDA = torch.device("cuda:0")

GRID: Target = replace(SCALAR, name="grid", templates=False)
"""Has what a GPU has: loops, and nothing else."""


def skip_where_torch_asks_the_driver() -> None:
    """A torch that was built with CUDA asks the driver about each device that is named: where none works, an error."""
    if torch.version.cuda is not None and not torch.cuda.is_available():
        pytest.skip("torch asks a CUDA driver that is not there")


@contextmanager
def without_lazy_init() -> Iterator[None]:
    """torch lets functions name devices that it was built without, as long as nothing runs on them."""
    before = torch.cuda._lazy_init
    torch.cuda._lazy_init = lambda: None
    try:
        yield
    finally:
        torch.cuda._lazy_init = before


def pretend(monkeypatch: Any) -> None:
    """Have tensors from outside say that they are on cuda:0, by code that looks as ours does to a capture."""
    of = TensorSpec.of

    def on_cuda(tensor: torch.Tensor) -> TensorSpec:
        return replace(of(tensor), device=CUDA)

    on_cuda.__code__ = on_cuda.__code__.replace(co_filename=of.__code__.co_filename)
    monkeypatch.setattr(TensorSpec, "of", staticmethod(on_cuda))


def record_on(
    fn: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    devices: Sequence[str] = (),
    bound: Sequence[torch.Tensor] = (),
    bound_devices: Sequence[str] = (),
) -> Recorded:
    """Record `fn(*inputs, *bound)` as if its arguments were on these devices; cuda:0 where none is given."""
    with without_lazy_init(), Recorder() as rec:
        args = []
        for kind, tensors, places in (("x", inputs, devices), ("p", bound, bound_devices)):
            for n, tensor in enumerate(tensors):
                device = torch.device(places[n]) if places else CUDA
                spec = replace(TensorSpec.of(tensor), device=device)
                args.append(rec.input(tensor, f"{kind}{n}", bound=kind == "p", spec=spec))
        result = fn(*args)
    outputs = list(result) if isinstance(result, tuple | list) else [result]
    return rec.finish(outputs)


def compile_on(graph: fx.Graph, mutations: Sequence[tuple[int, int]] = ()) -> Program:
    """The program of a graph, with kernels of a target that has what a GPU has."""
    program = native.compile_program(graph, mutations, GRID, native.Artifacts())
    return program if isinstance(program, Program) else program.layout.place({})


def on_cpu(program: Program) -> Program:
    """The program with all on the CPU: the device's arena lies behind the CPU's."""
    start = -(-program.arena_bytes // 256) * 256

    def here(value: Value) -> Value:
        offset = value.offset + start if value.kind == "arena" and value.device != CPU else value.offset
        return replace(value, device=CPU, offset=offset)

    def called(step: Any) -> Any:
        if not isinstance(step, CallAten):
            return step
        return replace(step, args=_without_devices(step.args), kwargs=_without_devices(step.kwargs))

    return replace(
        program,
        values=tuple(map(here, program.values)),
        instructions=tuple(map(called, program.instructions)),
        arena_bytes=start + program.device_arena_bytes,
        constants=None if program.constants is None else on_cpu(program.constants),
        device=None,
        device_arena_bytes=0,
    )


def _without_devices(value: Any) -> Any:
    if isinstance(value, torch.device):
        return CPU
    if isinstance(value, list | tuple):
        return type(value)(map(_without_devices, value))
    return value


def run_on_cpu(recorded: Recorded, inputs: Sequence[torch.Tensor], bound: Sequence[torch.Tensor] = ()) -> Any:
    program = compile_on(recorded.graph, recorded.mutations)
    return Executable(on_cpu(program), list(bound)).run(list(inputs))
