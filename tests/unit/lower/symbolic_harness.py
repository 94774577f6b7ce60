"""Records a function with symbolic sizes, compiles it once and runs it for many sizes against eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from lower_harness import compare
from torch import Tensor

from lampwork import config
from lampwork.backends.native.compile import Artifacts, compile_program
from lampwork.backends.native.symbolic import SymbolicProgram
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.graph.record import Recorder
from lampwork.graph.recorded import Recorded
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import Condition, SymbolicInt
from lampwork.loops.ir.symbols import evaluate
from lampwork.runtime import Executable
from lampwork.transforms.pipeline import run_passes

Sizes = Mapping[str, int]
"""Dimension by name -> size."""


@dataclass(frozen=True)
class Compiled:
    """A function of tensors whose dimensions have names, compiled for all sizes."""

    program: SymbolicProgram
    recorded: Recorded
    conditions: Sequence[Condition]
    symbols: Mapping[str, str]
    artifacts: Artifacts

    def values(self, sizes: Sizes) -> dict[str, int]:
        return {self.symbols[name]: size for name, size in sizes.items()}

    def serves(self, sizes: Sizes) -> bool:
        return all(condition.holds(self.values(sizes)) for condition in self.conditions)

    def run(self, inputs: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        values = self.values(sizes)
        program = self.program.instantiate(values)
        scalars = tuple(evaluate(index, values) for index in self.program.scalars)
        executable = Executable(program, [given.tensor for given in self.recorded.bound])
        results = executable.run(list(inputs), scalars)
        return [results[number] for number in self.recorded.outputs]


def symbolic_spec(tensor: Tensor, sizes: Mapping[int, SymbolicInt]) -> TensorSpec:
    """The spec of a contiguous tensor with symbols for some of its dimensions."""
    shape: list[Any] = [sizes.get(dim, size) for dim, size in enumerate(tensor.shape)]
    strides: list[Any] = []
    step: Any = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return replace(TensorSpec.of(tensor), shape=tuple(shape), strides=tuple(reversed(strides)))


def record(
    fn: Callable[..., Any], inputs: Sequence[Tensor], names: Sequence[Sequence[str | None]]
) -> tuple[Recorded, Recorder, dict[str, str]]:
    """`names`: for each input the names of its dimensions; None for one that stays as it is."""
    with Recorder() as recorder, torch.no_grad():
        symbols: dict[str, SymbolicInt] = {}
        traced = []
        for number, (tensor, dims) in enumerate(zip(inputs, names, strict=True)):
            for dim, name in enumerate(dims):
                if name is not None and name not in symbols:
                    symbols[name] = recorder.scope.symbol(tensor.shape[dim])
            here = {dim: symbols[name] for dim, name in enumerate(dims) if name is not None}
            traced.append(recorder.input(tensor, f"x{number}", spec=symbolic_spec(tensor, here)))
        result = fn(*traced)
    outputs = list(result) if isinstance(result, tuple | list) else [result]
    return recorder.finish(outputs), recorder, {name: str(symbol) for name, symbol in symbols.items()}


def compile_symbolic(
    fn: Callable[..., Any],
    inputs: Sequence[Tensor],
    names: Sequence[Sequence[str | None]],
    isa: str | None = None,
) -> Compiled:
    recorded, recorder, symbols = record(fn, inputs, names)
    run_passes(recorded.graph, config.current())
    artifacts = Artifacts()
    with config.using(verify=True):
        program = compile_program(recorded.graph, recorded.mutations, host_isa(isa), artifacts)
    assert isinstance(program, SymbolicProgram)
    return Compiled(program, recorded, recorder.scope.conditions, symbols, artifacts)


def resized(
    inputs: Sequence[Tensor], names: Sequence[Sequence[str | None]], sizes: Sizes, seed: int = 0
) -> list[Tensor]:
    """Other tensors of the same kinds, with these sizes; integers are below 2."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for tensor, dims in zip(inputs, names, strict=True):
        shape = [size if name is None else sizes[name] for size, name in zip(tensor.shape, dims, strict=True)]
        if tensor.dtype.is_floating_point:
            found.append(torch.randn(shape, dtype=tensor.dtype, generator=generator))
        else:
            found.append(torch.randint(0, 2, shape, dtype=tensor.dtype, generator=generator))
    return found


def check_sizes(
    compiled: Compiled,
    fn: Callable[..., Any],
    inputs: Sequence[Tensor],
    names: Sequence[Sequence[str | None]],
    sizes: Sequence[Sizes],
    scale: float = 4.0,
) -> int:
    """The one compilation equals eager for each of the sizes that its conditions allow. Returns how many did."""
    served = 0
    for each in sizes:
        if not compiled.serves(each):
            continue
        tensors = resized(inputs, names, each)
        expected = fn(*tensors)
        results = compiled.run(tensors, each)
        for result, want in zip(
            results, list(expected) if isinstance(expected, tuple | list) else [expected], strict=True
        ):
            compare(result, want, scale)
        served += 1
    return served
