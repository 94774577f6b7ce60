"""An AArch64 machine, emulated by qemu: programs that `compile_for` makes, linked with a driver and run in one process.

machine = EmulatedMachine(folder, "aarch64")
sums = machine.add(lambda x, w: (x @ w).sum(0), [x], bound=[w])
machine.run()
sums.outputs
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import graphkit
import torch
from torch import Tensor

from lampwork.backends.native.compile_for import CompiledFor, compile_for
from lampwork.codegen.llvm.targets import named_target
from lampwork.graph.concrete import scope_of
from lampwork.loops.ir.symbols import NO_HINTS, evaluate
from lampwork.runtime.program import CallKernel, Program, Release, Scalar, Take, Value

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
MISSING = ", ".join(tool for tool in (COMPILER, EMULATOR) if shutil.which(tool) is None)
"""The tools that are not here; "": none."""


@dataclass(slots=True)
class Job:
    """A program that was added, and what came of it."""

    compiled: CompiledFor
    program: Program
    blocks: list[int]
    outputs: list[Tensor] = field(default_factory=list[Tensor])


@dataclass(slots=True)
class _Block:
    nbytes: int
    data: bytes = b""


class EmulatedMachine:
    """Programs are added, and then run all at once, each on memory of its own that nobody cleared."""

    def __init__(self, folder: Path, target: str) -> None:
        self._folder, self._target = folder, named_target(target)
        self._blocks: list[_Block] = []
        self._calls: list[bytes] = []
        self._objects: dict[bytes, Path] = {}
        self._functions: dict[str, int] = {}
        self._jobs: list[Job] = []

    def add(self, fn: Callable[..., Any], inputs: Sequence[Tensor], bound: Sequence[Tensor] = ()) -> Job:
        """What is recorded of fn(*inputs, *bound) is compiled, standalone."""
        return self.add_graph(graphkit.record(fn, *inputs, bound=bound), inputs, bound)

    def add_graph(self, graph: torch.fx.Graph, inputs: Sequence[Tensor], bound: Sequence[Tensor]) -> Job:
        compiled = self.compiled(graph)
        scope = scope_of(graph)
        return self.place(compiled, inputs, bound, {} if scope is None else scope.hints)

    def compiled(self, graph: torch.fx.Graph) -> CompiledFor:
        found = compile_for(graph, self._target, standalone=True)
        assert not found.calls, found.calls
        return found

    def place(
        self,
        compiled: CompiledFor,
        inputs: Sequence[Tensor],
        bound: Sequence[Tensor] = (),
        sizes: Mapping[str, int] = NO_HINTS,
    ) -> Job:
        """One call of a program, for these values of its symbols."""
        program = compiled.layout.place(sizes)
        scalars = [evaluate(index, sizes) for index in compiled.layout.scalars]
        given, held = [self._given(t) for t in inputs], [self._given(t) for t in bound]
        constants: list[int] = []
        if program.constants is not None:
            made = self._enter(program.constants, held, [], [], [])
            constants = [made[number] for number in program.constants.outputs]
        blocks = self._enter(program, given, held, constants, scalars)
        job = Job(compiled, program, [blocks[number] for number in program.outputs])
        self._jobs.append(job)
        return job

    def run(self) -> None:
        """Link the code, run it, and read the outputs of all programs."""
        folder = self._folder
        folder.mkdir(exist_ok=True)
        for code, path in self._objects.items():
            path.write_bytes(code)
        names = list(self._functions)
        table = folder / "table.c"
        table.write_text(
            "#include <stdint.h>\ntypedef int64_t kernel(void **, const int64_t *, int64_t, int64_t);\n"
            + "".join(f"extern kernel {name};\n" for name in names)
            + f"kernel *const kernels[] = {{{', '.join(names)}}};\n"
        )
        driver = Path(__file__).with_suffix(".c")
        linked = [driver, table, *self._objects.values(), "-lm"]
        self._tool(COMPILER, "-O1", "-static", "-o", folder / "driver", *linked)
        outputs = [block for job in self._jobs for block in job.blocks]
        with (folder / "jobs").open("wb") as file:
            file.write(_words(len(self._blocks)))
            for block in self._blocks:
                file.write(_words(block.nbytes, len(block.data)) + block.data)
            file.write(_words(len(self._calls)) + b"".join(self._calls) + _words(len(outputs), *outputs))
        self._tool(EMULATOR, folder / "driver", folder / "jobs", folder / "results")
        results = (folder / "results").read_bytes()
        assert results[:8] == _words(0), "a kernel refused its data"
        at = 8
        for job in self._jobs:
            for number, block in zip(job.program.outputs, job.blocks, strict=True):
                nbytes = self._blocks[block].nbytes
                job.outputs.append(_tensor(job.program, number, results[at : at + nbytes]))
                at += nbytes

    def _tool(self, *command: str | Path) -> None:
        found = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
        assert found.returncode == 0, f"{command[0]}: {found.returncode}\n{found.stderr}"

    # --- programs as memory and calls ---------------------------------------------------------------------------------

    def _block(self, nbytes: int, data: bytes = b"") -> int:
        self._blocks.append(_Block(nbytes, data))
        return len(self._blocks) - 1

    def _given(self, tensor: Tensor) -> int:
        data = bytes(tensor.detach().untyped_storage())
        at = tensor.storage_offset() * tensor.itemsize
        return self._block(len(data) - at, data[at:])

    def _enter(
        self,
        program: Program,
        inputs: Sequence[int],
        bound: Sequence[int],
        constants: Sequence[int],
        scalars: Sequence[int],
    ) -> list[int]:
        """The block of each value."""
        arena = self._block(program.arena_bytes)
        blocks: list[int] = []
        offsets: list[int] = []
        given = {"input": inputs, "bound": bound, "constant": constants}
        for value in program.values:
            offset = 0
            if value.kind == "arena":
                block, offset = arena, value.offset
            elif value.kind == "view":
                block = blocks[value.base]
                offset = offsets[value.base] + value.offset * _itemsize(value)
            elif value.kind in given:
                block = given[value.kind][value.position]
            else:
                assert value.kind in ("fresh", "heap"), value.kind
                block = self._block(value.nbytes)
            blocks.append(block)
            offsets.append(offset)
        for step in program.instructions:
            if isinstance(step, Take | Release):
                continue
            assert isinstance(step, CallKernel), step
            places = [word for number in step.buffers for word in (blocks[number], offsets[number])]
            sizes = [scalars[size.place] if isinstance(size, Scalar) else size for size in step.sizes]
            middle = (step.extent + 1) // 2
            head = (self._function(step.code), len(step.buffers), *places, len(sizes), *sizes)
            self._calls.append(_words(*head, step.extent, middle))
        return blocks

    def _function(self, code: Any) -> int:
        self._objects.setdefault(code.owner.object_code, self._folder / f"module{len(self._objects)}.o")
        return self._functions.setdefault(code.name, len(self._functions))


def _words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


def _itemsize(value: Value) -> int:
    assert value.dtype is not None
    return value.dtype.itemsize


def _tensor(program: Program, number: int, data: bytes) -> Tensor:
    value = program.values[number]
    offset = 0
    if value.kind == "view":
        offset, base = value.offset, program.values[value.base]
        assert base.kind != "view"
    elements = (
        torch.frombuffer(bytearray(data), dtype=value.dtype) if data else torch.empty(0, dtype=value.dtype)
    )
    return elements.as_strided(value.shape, value.strides, offset)
