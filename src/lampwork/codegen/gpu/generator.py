"""The code generators of GPUs: kernels go onto a grid and become code of the card, or of this CPU in its place;
products that have a variant are compiled by the source that it names."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from lampwork import _C, config, logs
from lampwork.codegen.gpu.assembler import for_assembler
from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.cubins import load_kept
from lampwork.codegen.gpu.device import TRIPLE, emit_device
from lampwork.codegen.gpu.emulated import emit_emulated
from lampwork.codegen.gpu.products import ProductCode, check_product
from lampwork.codegen.gpu.rows import TILE, emit_rows
from lampwork.codegen.gpu.sources import source_of
from lampwork.codegen.llvm.jit import Batch, Jit, Pending
from lampwork.codegen.llvm.library import Library, load_early
from lampwork.codegen.llvm.structure import structure, template_structure
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
from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.grid import Grid
from lampwork.loops.ir.index import ONE, Index, as_index
from lampwork.loops.ir.nodes import Attention, Definition, Gemm, Kernel, Template
from lampwork.loops.ir.symbols import NO_HINTS, replace_symbols
from lampwork.loops.schedule.grid import on_grid
from lampwork.recent import Recent
from lampwork.records import record
from lampwork.standard import functools

ELF = b"\x7fELF"
"""How a cubin begins."""
REMEMBERED = 512
"""How many kernels a generator remembers for kernels to come."""

Function = MachineFunction | DeviceFunction


class KernelName(str):
    """The name of a function of a card, and how many buffers and sizes it takes."""

    __slots__ = ("buffers", "sizes")

    def __new__(cls, text: str, buffers: int, sizes: int) -> KernelName:
        name = super().__new__(cls, text)
        name.buffers, name.sizes = buffers, sizes
        return name

    @classmethod
    def of(cls, kernel: Kernel) -> KernelName:
        letters = (c if c.isascii() and c.isalnum() else "_" for c in kernel.name)
        return cls(f"lw_{''.join(letters)}", len(kernel.params), len(kernel.sizes))


class PtxJit(Jit):
    """IR in, PTX out, and assembled by the driver: where a kernel is compiled, so several at a time."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._device = target.device if isinstance(target, GpuTarget) else None

    def machine(self, library: Library) -> Any:
        return library.card(self.target.cpu, self.target.features, TRIPLE)

    def emit(self, ir: str, slot: int, *, verify: bool, assembly: bool = True) -> bytes:
        return for_assembler(super().emit(ir, slot, verify=verify, assembly=True).decode()).encode()

    def load(self, object_code: bytes, names: Sequence[str]) -> Any:
        (name,) = names
        assert isinstance(name, KernelName)
        if logs.enabled("ptx"):
            logs.emit("ptx", object_code.decode())
        return self.loaded(object_code, name)

    def loaded(self, image: bytes, name: KernelName) -> _C.DeviceKernel:
        """A function of an image, on the card if it is here."""
        kernel = _C.DeviceKernel(image, name, name.buffers, name.sizes)
        if self._device is not None:
            if image.startswith(ELF):
                kernel.load(self._device)
            else:
                load_kept(kernel, image, self._device)
        return kernel


@record
class _Made:
    """A product's code, and what makes its function. `buffers`, `symbols`: of the product, in the order of its
    structure."""

    code: ProductCode
    buffers: tuple[str, ...]
    symbols: tuple[str, ...]
    function: Callable[[], Function]


class GpuGenerator:
    """A `CodeGenerator` of kernels, and of products that have a variant. Whatever else has templates on a CPU is a call
    of ATen."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.jit = self._new_jit()
        self._lock = new_lock()
        self._known: Recent[Hashable, Callable[[], Function]] = Recent(REMEMBERED)
        self._products: Recent[Hashable, _Made] = Recent(REMEMBERED)
        self._count = 0

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
        found: dict[str, Callable[[], Function]] = {}
        with Batch(self.jit) as batch:
            products = [(each, self._start_product(each, hints, batch)) for each in templates]
            for kernel in kernels:
                found[kernel.name] = self._start(kernel, hints, batch)
            functions = {name: function() for name, function in found.items()}
            return functions, [_compiled(definition, *started) for definition, started in products]

    def _start(self, kernel: Kernel, hints: Mapping[str, int], batch: Batch) -> Callable[[], Function]:
        grid = on_grid(kernel, hints, self.target.neighbour_sums)
        key = (structure(grid.kernel), grid.threads, grid.groups, grid.lanes, grid.turns, grid.cluster)
        with self._lock:
            known = self._known.get(key)
        if known is not None:
            return known
        name = KernelName.of(kernel)
        pending = batch.compile(self.emit(grid, name), [name])
        once = functools.cache(lambda: self.function(grid, name, pending))
        with self._lock:
            return self._known.put(key, once)

    def _start_product(
        self, definition: Template, hints: Mapping[str, int], batch: Batch
    ) -> tuple[_Made, tuple[str, ...], tuple[str, ...]]:
        """The code of a product, and the names of its buffers and symbols in the order of its structure."""
        if not isinstance(definition, Gemm) or not isinstance(self.target, GpuTarget):
            raise CodegenError(f"{self.target.name} has no template for a {type(definition).__name__}")
        check_product(definition)
        structure, buffers, symbols = template_structure(definition)
        key = (structure, tuple(hints.get(symbol) for symbol in symbols))
        with self._lock:
            known = self._products.get(key)
            self._count += 1
            text = f"lwp{self._count}"
        if known is None:
            code = source_of(definition.variant).compile(
                definition, self.target, definition.variant, text, hints
            )
            made = _Made(code, buffers, symbols, functools.cache(self._product(code, batch)))
            with self._lock:
                known = self._products.put(key, made)
        return known, buffers, symbols

    def _product(self, code: ProductCode, batch: Batch) -> Callable[[], Function]:
        """What gives the function of a product once the batch has compiled it."""
        assert isinstance(self.jit, PtxJit)
        name = KernelName(code.name, len(code.params), len(code.sizes))
        if isinstance(code.image, bytes):
            kernel = self.jit.loaded(code.image, name)
            handle: Callable[[], Any] = lambda: kernel  # noqa: E731
        else:
            handle = batch.compile(code.image, [name]).result
        shared = as_index(code.shared)
        return lambda: DeviceFunction(handle(), (code.threads, 1), 1, shared)

    def emit(self, grid: Grid, name: str) -> str:
        """The LLVM IR of one kernel."""
        return emit_device(grid, self.target, name)

    def function(self, grid: Grid, name: str, pending: Pending) -> Function:
        handle: Any = pending.result()
        shared, counters = as_index(grid.shared_bytes), as_index(grid.counters)
        return DeviceFunction(handle, grid.block, grid.per_block, shared, grid.cluster, counters)

    def compile_rows(self, kernel: Kernel, flag: str | None = None) -> HostFunction | DeviceRows:
        name, grid = KernelName.of(kernel), on_grid(kernel)
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
        sums = self.target.neighbour_sums
        return [self.emit(on_grid(kernel, sums=sums), kernel.name) for kernel in distinct.values()]

    def assembly(self, text: str) -> str:
        return self.jit.emit(text, 0, verify=bool(config.current().verify), assembly=True).decode()


def _compiled(
    definition: Template, made: _Made, buffers: tuple[str, ...], symbols: tuple[str, ...]
) -> CompiledTemplate:
    """The code of an equal product, for the buffers and symbols of this one."""
    assert isinstance(definition, Gemm)
    code = made.code
    names = dict(zip(made.buffers, buffers, strict=True))
    values = {old: Index.sym(new) for old, new in zip(made.symbols, symbols, strict=True)}
    own = {definition.out.name: definition.out}
    own |= {load.buffer.name: load.buffer for load in loads(definition)}
    text = code.image if isinstance(code.image, str) else f"; {len(code.image)} bytes of an image"
    return CompiledTemplate(
        made.function(),
        tuple(own[names[buffer.name]] for buffer in code.params),
        tuple(replace_symbols(size, values) for size in code.sizes),
        replace_symbols(code.extent, values),
        ONE,
        1,
        f"; {definition.variant}\n{text}",
    )


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
        return MachineFunction(code.addresses[name], code, name)


@functools.cache
def gpu_generator(target: Target) -> GpuGenerator:
    """The generator of this process for a card."""
    return GpuGenerator(target)


@functools.cache
def emulating_generator(target: Target) -> EmulatingGenerator:
    """The generator of this process that runs a card's kernels on this CPU."""
    return EmulatingGenerator(target)
