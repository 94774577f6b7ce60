"""Kernels in, functions out: equal kernels are compiled once per `KernelCompiler`, new ones in one module a batch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from lampwork.codegen.llvm.builder import Module
from lampwork.codegen.llvm.emit_kernel import add_kernel, module_text
from lampwork.codegen.llvm.jit import Jit
from lampwork.codegen.llvm.structure import structure
from lampwork.codegen.target import MachineFunction
from lampwork.locks import new_lock
from lampwork.loops.ir.nodes import Kernel
from lampwork.recent import Recent

REMEMBERED = 512
"""How many kernels a compiler remembers for kernels to come. Some 50 KB each, machine code and all."""


class KernelCompiler:
    """Compiles kernels for the target of `jit` and remembers them by structure. Safe to use from many threads."""

    def __init__(self, jit: Jit) -> None:
        self._jit = jit
        self._lock = new_lock()
        self._known: Recent[Hashable, MachineFunction] = Recent(REMEMBERED)
        self._count = 0

    def compile(self, kernels: Sequence[Kernel]) -> dict[str, MachineFunction]:
        """Machine code for every kernel, by name.

        Raises CodegenError for loop code that there is no rule for.
        """
        with self._lock:
            keys = [structure(kernel) for kernel in kernels]
            known = self._all(dict(zip(keys, kernels, strict=True)))
        return {kernel.name: known[key] for kernel, key in zip(kernels, keys, strict=True)}

    def _all(self, kernels: dict[Hashable, Kernel]) -> dict[Hashable, MachineFunction]:
        """The function of each, those that are new from one module."""
        module = Module()
        names: dict[Hashable, str] = {}
        found: dict[Hashable, MachineFunction] = {}
        for key, kernel in kernels.items():
            known = self._known.get(key)
            if known is not None:
                found[key] = known
            else:
                names[key] = f"lw{self._count}_{_identifier(kernel.name)}"
                self._count += 1
                add_kernel(module, kernel, self._jit.target, names[key])
        if names:
            code = self._jit.compile(module_text(module), list(names.values()))
            for key, name in names.items():
                found[key] = self._known.put(key, MachineFunction(code.addresses[name], code))
        return found


def _identifier(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
