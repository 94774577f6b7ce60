"""Kernels in, functions out: equal kernels are compiled once per `KernelCompiler`, new ones in one module a batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from lampwork.codegen.llvm.builder import Module
from lampwork.codegen.llvm.emit_kernel import add_kernel, module_text
from lampwork.codegen.llvm.jit import Batch, Jit, Pending
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
        self._known: Recent[Hashable, tuple[Pending, str]] = Recent(REMEMBERED)
        self._count = 0

    def compile(self, kernels: Sequence[Kernel]) -> dict[str, MachineFunction]:
        """Machine code for every kernel, by name.

        Raises CodegenError for loop code that there is no rule for.
        """
        with Batch(self._jit) as batch:
            return self.start(kernels, batch)()

    def start(self, kernels: Sequence[Kernel], batch: Batch) -> Callable[[], dict[str, MachineFunction]]:
        """Start to compile what is new, as one module of `batch`; the call of what this gives waits for it."""
        keys = [structure(kernel) for kernel in kernels]
        found: dict[Hashable, tuple[Pending, str]] = {}
        new: dict[Hashable, str] = {}
        module = Module()
        with self._lock:
            for key, kernel in zip(keys, kernels, strict=True):
                known = self._known.get(key)
                if known is not None:
                    found[key] = known
                elif key not in new:
                    new[key] = f"lw{self._count}_{_identifier(kernel.name)}"
                    self._count += 1
                    add_kernel(module, kernel, self._jit.target, new[key])
            if new:
                pending = batch.compile(module_text(module), list(new.values()))
                found |= {key: self._known.put(key, (pending, name)) for key, name in new.items()}

        def finish() -> dict[str, MachineFunction]:
            functions = {key: function_of(*each) for key, each in found.items()}
            return {kernel.name: functions[key] for kernel, key in zip(kernels, keys, strict=True)}

        return finish


def function_of(pending: Pending, name: str) -> MachineFunction:
    """One function of a module, once it is there. Raises CodegenError."""
    code = pending.result()
    return MachineFunction(code.addresses[name], code)


def _identifier(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
