"""Kernels in, addresses out: equal kernels are compiled once per `KernelCompiler`, new ones in one module a batch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import field
from functools import cache

from lampwork.codegen.llvm.builder import Module
from lampwork.codegen.llvm.emit_kernel import add_kernel, emit_kernel, module_text
from lampwork.codegen.llvm.isa import Isa, host_isa
from lampwork.codegen.llvm.jit import Code, Jit
from lampwork.codegen.llvm.structure import structure
from lampwork.locks import new_lock
from lampwork.loops.nodes import Kernel
from lampwork.recent import Recent
from lampwork.records import record

REMEMBERED = 512
"""How many kernels a compiler remembers for kernels to come. Some 50 KB each, machine code and all."""


@record
class CompiledKernels:
    """Addresses by kernel name. `keepalive` owns the memory that they point into."""

    addresses: dict[str, int]
    keepalive: tuple[Code, ...] = field(default=(), repr=False, compare=False)


class KernelCompiler:
    """Compiles kernels for one instruction set and remembers them by structure. Safe to use from many threads."""

    def __init__(self, isa: Isa | None = None) -> None:
        self.jit = Jit(host_isa() if isa is None else isa)
        self._lock = new_lock()
        self._known: Recent[Hashable, tuple[int, Code]] = Recent(REMEMBERED)
        self._count = 0

    @property
    def isa(self) -> Isa:
        return self.jit.isa

    def compile(self, kernels: Sequence[Kernel]) -> CompiledKernels:
        """Machine code for every kernel, by name.

        Raises CodegenError for loop code that there is no rule for.
        """
        with self._lock:
            keys = [structure(kernel) for kernel in kernels]
            known = self._all(dict(zip(keys, kernels, strict=True)))
            found = [known[key] for key in keys]
        addresses = {kernel.name: address for kernel, (address, _) in zip(kernels, found, strict=True)}
        return CompiledKernels(addresses, tuple({id(code): code for _, code in found}.values()))

    def _all(self, kernels: dict[Hashable, Kernel]) -> dict[Hashable, tuple[int, Code]]:
        """Address and owner of each, those that are new from one module."""
        module = Module()
        names: dict[Hashable, str] = {}
        found: dict[Hashable, tuple[int, Code]] = {}
        for key, kernel in kernels.items():
            known = self._known.get(key)
            if known is not None:
                found[key] = known
            else:
                names[key] = f"lw{self._count}_{_identifier(kernel.name)}"
                self._count += 1
                add_kernel(module, kernel, self.isa, names[key])
        if names:
            code = self.jit.compile(module_text(module), list(names.values()))
            for key, name in names.items():
                found[key] = self._known.put(key, (code.addresses[name], code))
        return found

    def assembly(self, kernel: Kernel) -> str:
        """The assembly text of one kernel, for people."""
        return self.jit.assembly(emit_kernel(kernel, self.isa, _identifier(kernel.name)))


def _identifier(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)


@cache
def shared_compiler(isa: Isa) -> KernelCompiler:
    """The compiler of this process for an instruction set: whoever compiles through it shares its kernels."""
    return KernelCompiler(isa)


def compile_kernels(kernels: Sequence[Kernel], isa: Isa | None = None) -> CompiledKernels:
    """Machine code for every kernel, by name, from this process's shared compiler.

    Raises CodegenError for loop code that there is no rule for.
    """
    return shared_compiler(host_isa() if isa is None else isa).compile(kernels)
