"""LLVM on several cores: the functions of llvmlite's library that make code, without llvmlite's one lock.

LLVM keeps its state in contexts and target machines; threads that share neither need no lock. llvmlite takes one around
every call all the same, so the few functions that take time are called directly here: they let go of the interpreter's
lock, too, so Python code runs at the same time. Everything else is asked of llvmlite.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import threading
from dataclasses import dataclass
from typing import Any, cast

from lampwork.errors import CodegenError
from lampwork.installed import missing
from lampwork.locks import hold_across_forks, importing, new_lock
from lampwork.standard import functools

MOST_THREADS = 4
"""Compiling threads, at most: Python code, which one thread runs at a time, makes no more work than that."""


class Slots:
    """Locks that whoever makes code holds one of: a fork waits for all of them, since LLVM has locks of its own inside,
    and in the child nobody would release those."""

    def __init__(self) -> None:
        self.locks = tuple(new_lock() for _ in range(_cores()))
        for lock in self.locks:
            hold_across_forks(lock)


def _cores() -> int:
    """The cores that this process may use, up to the number of threads that are of use."""
    return max(1, min(len(os.sched_getaffinity(0)), MOST_THREADS))


slots = Slots()


class Library:
    """llvmlite, ready for use, and direct access to its library. Made late, so that importing Lampwork does not pay for
    LLVM."""

    def __init__(self) -> None:
        with importing:
            import llvmlite.binding as llvm
            from llvmlite.binding import ffi

            # LLVM has locks of its own inside, all of them under this one and those of `slots`.
            hold_across_forks(cast(Any, ffi).lib._lock._lock)
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
        self.llvm: Any = llvm
        self._has_all = False
        shared = cast(Any, ffi).lib
        library = ctypes.CDLL(shared._name, handle=shared._handle)
        # What takes less than a millisecond keeps the interpreter's lock: who gives it away waits 5 ms for it.
        at_once = ctypes.PyDLL(shared._name, handle=shared._handle)
        pointer = ctypes.c_void_p
        message = ctypes.POINTER(pointer)

        def function(name: str, result: Any, *arguments: Any, library: ctypes.CDLL = at_once) -> Any:
            found = library[name]
            found.restype, found.argtypes = result, arguments
            return found

        self._new_context = function("LLVMPY_ContextCreate", pointer)
        self._drop_context = function("LLVMPY_ContextDispose", None, pointer)
        self._parse = function("LLVMPY_ParseAssembly", pointer, pointer, ctypes.c_char_p, message)
        self._verify = function("LLVMPY_VerifyModule", ctypes.c_int, pointer, message, library=library)
        self._drop_module = function("LLVMPY_DisposeModule", None, pointer)
        self._emit = function(
            "LLVMPY_TargetMachineEmitToMemory",
            pointer,
            cast(Any, ffi).LLVMTargetMachineRef,
            pointer,
            ctypes.c_int,
            message,
            library=library,
        )
        self.address = ctypes.cast(self._emit, pointer).value or 0
        self._start = function("LLVMPY_GetBufferStart", pointer, pointer)
        self._size = function("LLVMPY_GetBufferSize", ctypes.c_size_t, pointer)
        self._drop_buffer = function("LLVMPY_DisposeMemoryBuffer", None, pointer)
        self._drop_string = function("LLVMPY_DisposeString", None, pointer)

    def with_all_targets(self) -> None:
        """Make code for other machines, too."""
        if not self._has_all:
            self.llvm.initialize_all_targets()
            self.llvm.initialize_all_asmprinters()
            self._has_all = True

    def machine(self, cpu: str, features: str, triple: str = "") -> Any:
        """A target machine, which one thread may use at a time. The cpu "native" is the one this runs on, with all it
        has. `triple`: of the machine; "" for this one."""
        if cpu == "native":
            cpu, features = self.llvm.get_host_cpu_name(), self.llvm.get_host_cpu_features().flatten()
        if triple:
            self.with_all_targets()
        found = self.llvm.Target.from_triple(triple or self.llvm.get_default_triple())
        return found.create_target_machine(cpu=cpu, features=features, opt=2, reloc="pic", codemodel="small")

    def card(self, cpu: str, features: str, triple: str) -> Any:
        """A target machine of a card."""
        self.with_all_targets()
        return self.llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=3)

    def emit(self, machine: Any, ir: str, *, verify: bool, assembly: bool = False) -> bytes:
        """The object code of a module, or its assembly text.

        Raises CodegenError if the IR is not valid.
        """
        context = self._new_context()
        error = ctypes.c_void_p()
        module = None
        try:
            module = self._parse(context, ir.encode(), ctypes.byref(error))
            if error.value:
                raise CodegenError(f"the generated LLVM IR is not valid: {self._text(error)}")
            if verify:
                self._check(module)
            buffer = self._emit(machine, module, int(not assembly), ctypes.byref(error))
            if not buffer:
                raise CodegenError(f"LLVM made no code: {self._text(error)}")
            code = ctypes.string_at(self._start(buffer), self._size(buffer))
            self._drop_buffer(buffer)
            return code
        finally:
            if module:
                self._drop_module(module)
            if error.value:
                self._drop_string(error)
            self._drop_context(context)

    def _check(self, module: int) -> None:
        """Raises CodegenError for a module that breaks rules which its parser does not know."""
        error = ctypes.c_void_p()
        try:
            if self._verify(module, ctypes.byref(error)):
                raise CodegenError(f"the generated LLVM IR is not valid: {self._text(error)}")
        finally:
            if error.value:
                self._drop_string(error)

    def _text(self, error: ctypes.c_void_p) -> str:
        return ctypes.string_at(error.value).decode(errors="replace") if error.value else "no reason given"


@dataclass(slots=True)
class _Early:
    """The thread that loads the library ahead of its use, if one was started."""

    started: bool = False
    thread: threading.Thread | None = None


_early = _Early()
_making = new_lock()


@functools.cache
def _is_installed() -> bool:
    return importlib.util.find_spec("llvmlite") is not None


def check_installed() -> None:
    """Raise InstallError where there is no llvmlite: in the thread that wants code, not in those that make it."""
    if not _is_installed():
        raise missing("llvmlite", "to compile")


def load_early() -> None:
    """Start to load the library in a thread of its own, where another core can do it: 20 to 40 ms of a first call,
    which captures Python code meanwhile."""
    if _early.started or len(slots.locks) == 1 or not _is_installed():
        return
    _early.started = True
    thread = threading.Thread(target=_made, name="lampwork-llvm-load")
    try:
        thread.start()
    except RuntimeError:  # the system has no more, or the interpreter is about to end
        return
    _early.thread = thread


def llvm_library() -> Library:
    """The library of this process."""
    thread = _early.thread
    if thread is not None:
        # To its end: where Python has other threads, calls take precautions.
        thread.join()
        _early.thread = None
    return _made()


def _made() -> Library:
    with _making:
        return _library()


@functools.cache
def _library() -> Library:
    return Library()
