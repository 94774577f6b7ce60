"""Kernels in, functions out: equal kernels are compiled once per `KernelCompiler`, new ones a few to a module."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from lampwork.codegen.llvm.builder import Module
from lampwork.codegen.llvm.emit_kernel import add_kernel, module_text
from lampwork.codegen.llvm.jit import Batch, Jit, Pending
from lampwork.codegen.llvm.structure import structure
from lampwork.codegen.target import ForeignFunction, HostFunction, MachineFunction, PendingFunction
from lampwork.locks import new_lock
from lampwork.loops.ir.nodes import Kernel
from lampwork.recent import Recent
from lampwork.standard import itertools

REMEMBERED = 512
"""How many kernels a compiler remembers for kernels to come. Some 50 KB each, machine code and all."""

TOGETHER = 4
"""How many kernels go into one module: enough that what a module costs by itself (a millisecond or two) does not count,
few enough that there are modules for all threads."""


class KernelCompiler:
    """Compiles kernels for the target of `jit` and remembers them by structure. Safe to use from many threads."""

    def __init__(self, jit: Jit) -> None:
        self._jit = jit
        self._lock = new_lock()
        self._known: Recent[Hashable, tuple[Pending, str]] = Recent(REMEMBERED)
        self._count = 0

    def compile(self, kernels: Sequence[Kernel]) -> dict[str, HostFunction]:
        """Machine code for every kernel, by name.

        Raises CodegenError for loop code that there is no rule for.
        """
        with Batch(self._jit) as batch:
            return self.start(kernels, batch)()

    def start(self, kernels: Sequence[Kernel], batch: Batch) -> Callable[[], dict[str, HostFunction]]:
        """Start to compile what is new, as modules of `batch`; the call of what this gives waits for
        them, if the batch is to be waited for."""
        keys = [structure(kernel) for kernel in kernels]
        found: dict[Hashable, tuple[Pending, str]] = {}
        with self._lock:
            new: dict[Hashable, Kernel] = {}
            for key, kernel in zip(keys, kernels, strict=True):
                known = self._known.get(key)
                if known is not None:
                    found[key] = known
                else:
                    new.setdefault(key, kernel)
            rest = iter(new.items())
            while some := dict(itertools.islice(rest, TOGETHER)):
                found |= self._module(some, batch)

        def finish() -> dict[str, HostFunction]:
            functions = {key: function_of(*each, batch.waits) for key, each in found.items()}
            return {kernel.name: functions[key] for kernel, key in zip(kernels, keys, strict=True)}

        return finish

    def _module(self, kernels: dict[Hashable, Kernel], batch: Batch) -> dict[Hashable, tuple[Pending, str]]:
        module = Module()
        names: dict[Hashable, str] = {}
        for key, kernel in kernels.items():
            names[key] = f"lw{self._count}_{_identifier(kernel.name)}"
            self._count += 1
            add_kernel(module, kernel, self._jit.target, names[key])
        pending = batch.compile(module_text(module), list(names.values()))
        return {key: self._known.put(key, (pending, name)) for key, name in names.items()}


def function_of(pending: Pending, name: str, waits: bool) -> HostFunction:
    """One function of a module. `waits`: once it is there. Raises CodegenError."""
    if not waits:
        return PendingFunction(name, pending)
    code = pending.result()
    if not code.addresses:
        return ForeignFunction(name, code)
    return MachineFunction(code.addresses[name], code, name)


def _identifier(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
