"""LLVM in this process: IR text in, addresses of machine code out.

llvmlite is imported with the first compilation, not with this module. What was measured here (LLVM 22, per function of
20 to 300 instructions): parsing 0.05 ms, code generation 1.5 ms and up, linking 0.5 ms a module; the optimisation level
of the code generator makes no difference to its time; the emitter writes code that needs no IR passes. llvmlite holds
one lock over all of its calls, so compiling in several threads gains nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import field
from typing import Any, cast

from lampwork import _C, config, logs
from lampwork.codegen.target import Target
from lampwork.errors import CodegenError
from lampwork.locks import hold_across_forks, importing, new_lock
from lampwork.records import record


def _loaded() -> Any:
    """llvmlite, ready for use. Imported here, so that importing Lampwork does not pay for LLVM."""
    with importing:
        import llvmlite.binding as llvm
        from llvmlite.binding import ffi

        # LLVM has locks of its own inside, all of them under this one.
        hold_across_forks(cast(Any, ffi).lib._lock._lock)
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        return llvm


@record
class Code:
    """Machine code in memory: addresses by function name. The memory lives as long as this object."""

    addresses: dict[str, int]
    object_code: bytes = field(repr=False)
    _library: Any = field(repr=False, compare=False)


class Jit:
    """Compiles for one target. Safe to use from many threads."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._lock = new_lock()
        self._llvm: Any = None
        self._machine: Any = None

    def compile(self, ir: str, names: Sequence[str]) -> Code:
        """Compile a module and look up its functions `names`.

        Raises CodegenError if the IR is not valid or a symbol is missing.
        """
        return self.load(self.object_code(ir), names)

    def object_code(self, ir: str) -> bytes:
        """The relocatable object file of a module (ELF): what a cache keeps and `load` takes."""
        if logs.enabled("llvm"):
            logs.emit("llvm", ir)
        with self._lock:
            self._start()
            return bytes(self._machine.emit_object(self._parse(ir)))

    def load(self, object_code: bytes, names: Sequence[str]) -> Code:
        """Link object code into this process. Undefined symbols are looked up in the process (the C library).

        Raises:
            CodegenError: a symbol is missing, or the object code is not of this machine.
        """
        try:
            library = _C.MachineCode(object_code)
        except ValueError as error:
            raise CodegenError(f"the generated code could not be linked: {error}") from error
        addresses = library.functions
        missing = [name for name in names if name not in addresses]
        if missing:
            raise CodegenError(f"the generated code has no {', '.join(missing)}")
        return Code({name: addresses[name] for name in names}, object_code, library)

    def assembly(self, ir: str) -> str:
        """The assembly text of a module, for people."""
        with self._lock:
            self._start()
            return str(self._machine.emit_assembly(self._parse(ir)))

    def _parse(self, ir: str) -> Any:
        try:
            module = self._llvm.parse_assembly(ir)
            if config.current().verify:
                module.verify()
        except RuntimeError as error:
            raise CodegenError(f"the generated LLVM IR is not valid: {error}") from error
        return module

    def _start(self) -> None:
        if self._machine is not None:
            return
        llvm = _loaded()
        self._llvm = llvm
        self._machine = self._new_machine()

    def _new_machine(self) -> Any:
        cpu, features = self.target.cpu, self.target.features
        if cpu == "native":
            cpu = self._llvm.get_host_cpu_name()
            features = self._llvm.get_host_cpu_features().flatten()
        triple = self._llvm.Target.from_default_triple()
        return triple.create_target_machine(cpu=cpu, features=features, opt=2, reloc="pic", codemodel="small")


def as_function(address: int) -> Any:
    """A kernel as a ctypes function (buffers, sizes, begin, end) -> status, for tests and tools."""
    pointer = ctypes.c_void_p
    return ctypes.CFUNCTYPE(
        ctypes.c_int64, pointer, pointer, ctypes.c_int64, ctypes.c_int64, use_errno=False
    )(address)
