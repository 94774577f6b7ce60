"""The code generators of GPUs: kernels go onto a grid and become code of the card, or of this CPU in its place."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from lampwork import _C, config, logs
from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.device import TRIPLE, emit_device
from lampwork.codegen.gpu.emulated import emit_emulated
from lampwork.codegen.gpu.rows import TILE, emit_rows
from lampwork.codegen.llvm.jit import Batch, Jit, Pending
from lampwork.codegen.llvm.library import Library, load_early
from lampwork.codegen.llvm.structure import structure
from lampwork.codegen.target import (
    CompiledTemplate,
    DeviceFunction,
    DeviceRows,
    HostFunction,
    MachineFunction,
    Target,
)
from lampwork.errors import CodegenError
from lampwork.locks import new_lock
from lampwork.loops.ir.grid import Grid
from lampwork.loops.ir.index import as_index
from lampwork.loops.ir.nodes import Attention, Definition, Kernel, Template
from lampwork.loops.ir.symbols import NO_HINTS
from lampwork.loops.schedule.grid import on_grid
from lampwork.recent import Recent
from lampwork.standard import functools

REMEMBERED = 512
"""How many kernels a generator remembers for kernels to come."""

Function = MachineFunction | DeviceFunction


class KernelName(str):
    """The name of a kernel, and how many buffers and sizes it takes."""

    __slots__ = ("buffers", "sizes")

    def __new__(cls, kernel: Kernel) -> KernelName:
        letters = (c if c.isascii() and c.isalnum() else "_" for c in kernel.name)
        name = super().__new__(cls, f"lw_{''.join(letters)}")
        name.buffers, name.sizes = len(kernel.params), len(kernel.sizes)
        return name


class PtxJit(Jit):
    """IR in, PTX out, and assembled by the driver: where a kernel is compiled, so several at a time."""

    def machine(self, library: Library) -> Any:
        library.with_all_targets()
        return library.machine(self.target.cpu, self.target.features, TRIPLE)

    def emit(self, ir: str, slot: int, *, verify: bool, assembly: bool = True) -> bytes:
        return super().emit(ir, slot, verify=verify, assembly=True)

    def load(self, object_code: bytes, names: Sequence[str]) -> Any:
        (name,) = names
        assert isinstance(name, KernelName)
        if logs.enabled("ptx"):
            logs.emit("ptx", object_code.decode())
        kernel = _C.DeviceKernel(object_code, name, name.buffers, name.sizes)
        if isinstance(self.target, GpuTarget) and self.target.device is not None:
            kernel.load(self.target.device)
        return kernel


class GpuGenerator:
    """A `CodeGenerator` of kernels alone: products and whatever else has templates on a CPU are calls of ATen."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.jit = self._new_jit()
        self._lock = new_lock()
        self._known: Recent[Hashable, Callable[[], Function]] = Recent(REMEMBERED)

    def _new_jit(self) -> Jit:
        return PtxJit(self.target)

    def prepare(self) -> None:
        load_early()

    def compile_kernels(self, kernels: Sequence[Kernel]) -> dict[str, MachineFunction]:
        """As functions that can be called from here, of which a card has none."""
        found = self.compile(kernels, (), NO_HINTS)[0]
        here = {name: each for name, each in found.items() if isinstance(each, MachineFunction)}
        if len(here) < len(found):
            raise CodegenError(f"functions of {self.target.name} can only be launched")
        return here

    def compile(
        self,
        kernels: Iterable[Kernel],
        templates: Sequence[Template],
        hints: Mapping[str, int] = NO_HINTS,
        waits: bool = True,
    ) -> tuple[dict[str, Function], list[CompiledTemplate]]:
        if templates:
            raise CodegenError(f"{self.target.name} has no template for a {type(templates[0]).__name__}")
        found: dict[str, Callable[[], Function]] = {}
        with Batch(self.jit) as batch:
            for kernel in kernels:
                found[kernel.name] = self._start(kernel, hints, batch)
            return {name: function() for name, function in found.items()}, []

    def _start(self, kernel: Kernel, hints: Mapping[str, int], batch: Batch) -> Callable[[], Function]:
        grid = on_grid(kernel, hints)
        key = (structure(grid.kernel), grid.threads, grid.groups, grid.lanes)
        with self._lock:
            known = self._known.get(key)
        if known is not None:
            return known
        name = KernelName(kernel)
        pending = batch.compile(self.emit(grid, name), [name])
        once = functools.cache(lambda: self.function(grid, name, pending))
        with self._lock:
            return self._known.put(key, once)

    def emit(self, grid: Grid, name: str) -> str:
        """The LLVM IR of one kernel."""
        return emit_device(grid, self.target, name)

    def function(self, grid: Grid, name: str, pending: Pending) -> Function:
        handle: Any = pending.result()
        block = (grid.groups, 1) if grid.is_flat else (grid.threads, grid.groups)
        return DeviceFunction(handle, block, grid.per_block, as_index(grid.shared_bytes))

    def compile_rows(self, kernel: Kernel, flag: str | None = None) -> HostFunction | DeviceRows:
        name, grid = KernelName(kernel), on_grid(kernel)
        text = emit_rows(grid, self.target, name, flag)
        code: Any = self.jit.compile(text, [name])
        return DeviceRows(code, grid.groups, TILE)

    def attends(self, attention: Attention) -> bool:
        return False

    def prepack(
        self,
        main: Sequence[Definition],
        constant: Sequence[Definition],
        fixed: frozenset[str],
        hints: Mapping[str, int] = NO_HINTS,
    ) -> tuple[list[Definition], list[Definition]]:
        return list(main), list(constant)

    def texts(self, kernels: Sequence[Kernel]) -> list[str]:
        distinct = {structure(kernel): kernel for kernel in kernels}
        return [self.emit(on_grid(kernel), kernel.name) for kernel in distinct.values()]

    def assembly(self, text: str) -> str:
        return self.jit.emit(text, 0, verify=bool(config.current().verify), assembly=True).decode()


class EmulatingGenerator(GpuGenerator):
    """The same grids as functions of this CPU."""

    def _new_jit(self) -> Jit:
        return Jit(self.target)

    def emit(self, grid: Grid, name: str) -> str:
        return emit_emulated(grid, self.target, name)

    def compile_rows(self, kernel: Kernel, flag: str | None = None) -> HostFunction | DeviceRows:
        return self.compile_kernels([kernel])[kernel.name]

    def function(self, grid: Grid, name: str, pending: Pending) -> Function:
        code = pending.result()
        return MachineFunction(code.addresses[name], code)


@functools.cache
def gpu_generator(target: Target) -> GpuGenerator:
    """The generator of this process for a card."""
    return GpuGenerator(target)


@functools.cache
def emulating_generator(target: Target) -> EmulatingGenerator:
    """The generator of this process that runs a card's kernels on this CPU."""
    return EmulatingGenerator(target)
