"""LLVM in this process: IR text in, addresses of machine code out.

llvmlite is imported with the first compilation, not with this module. What was measured here (LLVM 22, per function of
20 to 300 instructions): parsing 0.05 ms, code generation 1.5 ms and up, linking 0.5 ms a module; the optimisation level
of the code generator makes no difference to its time; the emitter writes code that needs no IR passes. A `Batch`
compiles on several cores (library.py), while Python code writes what it compiles next.
"""

from __future__ import annotations

import collections
import ctypes
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from lampwork import config, logs
from lampwork.codegen.llvm.library import Library, check_installed, llvm_library, slots
from lampwork.codegen.llvm.resident import resident
from lampwork.codegen.machine_code import Code, link
from lampwork.codegen.target import Target
from lampwork.errors import BackendError, CodegenError
from lampwork.locks import in_child


class Jit:
    """Compiles for one target. Safe to use from many threads."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._machines: dict[int, Any] = {}

    def compile(self, ir: str, names: Sequence[str]) -> Code:
        """Compile a module and look up its functions `names`.

        Raises CodegenError if the IR is not valid or a symbol is missing.
        """
        return self.load(self.object_code(ir), names)

    def object_code(self, ir: str) -> bytes:
        """The relocatable object file of a module (ELF): what a cache keeps and `load` takes."""
        _show(ir)
        return self.emit(ir, 0, verify=bool(config.current().verify))

    def emit(self, ir: str, slot: int, *, verify: bool, assembly: bool = False) -> bytes:
        """Object code, or assembly text. Calls with different slots run at the same time."""
        library = llvm_library()
        with slots.locks[slot]:
            machine = self._machines.get(slot)
            if machine is None:
                machine = self._machines[slot] = self.machine(library)
            return library.emit(machine, ir, verify=verify, assembly=assembly)

    def machine(self, library: Library) -> Any:
        """A new target machine."""
        target = self.target
        return library.machine(target.cpu, target.features, target.triple)

    def forget_machines(self) -> None:
        """Target machines hold 1 MB and more each, and are made in 0.4 ms."""
        for slot, lock in enumerate(slots.locks):
            with lock:
                self._machines.pop(slot, None)

    def load(self, object_code: bytes, names: Sequence[str]) -> Code:
        """Link object code into this process. Undefined symbols are looked up in the process (the C library). That of a
        target with a triple is kept as it is.

        Raises:
            CodegenError: a symbol is missing, or the object code is not of this machine.
        """
        if self.target.triple:
            return Code({}, object_code, None)
        return link(object_code, names)

    def assembly(self, ir: str) -> str:
        """The assembly text of a module, for people."""
        return self.emit(ir, 0, verify=bool(config.current().verify), assembly=True).decode()


def _show(ir: str) -> None:
    if logs.enabled("llvm"):
        logs.emit("llvm", ir)


class Workers:
    """The threads that compile modules in the order in which they come, whatever their batch. They live while there is
    work or a batch is open; the interpreter does not end before they do. The last slot is for those who wait: they
    compile what no thread has begun meanwhile."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: collections.deque[Pending] = collections.deque()
        self._threads: dict[int, threading.Thread] = {}
        self._jits: set[Jit] = set()
        self._open = 0
        self._started = 0.0
        in_child(self._forget)

    def open(self) -> None:
        """A batch begins."""
        with self._changed:
            self._open += 1

    def close(self) -> None:
        """A batch has ended."""
        with self._changed:
            self._open = max(0, self._open - 1)  # a forked child starts with none
            self._changed.notify_all()

    def take(self, pending: Pending, jit: Jit) -> bool:
        """Whether a thread is going to compile it: not where there is one core only, or no thread to be had."""
        with self._changed:
            free = [slot for slot in range(len(slots.locks) - 1) if slot not in self._threads]
            if free:
                self._start(free[0])
            if not self._threads:
                return False
            self._jits.add(jit)
            self._waiting.append(pending)
            self._changed.notify()
            return True

    def withdraw(self, wanted: Pending) -> Pending | None:
        """What no thread has begun to compile, and none will: `wanted`, or else the first; None if there is nothing."""
        with self._changed:
            if not self._waiting:
                return None
            found = wanted if wanted in self._waiting else self._waiting[0]
            self._waiting.remove(found)
            found.ended.set()
            return found

    def join(self) -> None:
        """Wait for the threads to end, unless others have work for them."""
        with self._changed:
            ending = () if self._waiting or self._open else tuple(self._threads.values())
        for thread in ending:
            thread.join()

    def _start(self, slot: int) -> None:
        thread = threading.Thread(target=self._work, args=(slot,), name=f"lampwork-llvm-{slot}", daemon=False)
        if not self._threads:
            self._started = time.monotonic()
        self._threads[slot] = thread
        try:
            thread.start()
        except RuntimeError:  # the system has no more, or the interpreter is about to end
            del self._threads[slot]

    def _work(self, slot: int) -> None:
        try:
            while (pending := self._next(slot)) is not None:
                pending.run(slot)
        except BaseException:
            with self._changed:
                del self._threads[slot]
            raise

    def _next(self, slot: int) -> Pending | None:
        """What to compile next; None if the thread of this slot is to end."""
        with self._changed:
            while not self._waiting:
                if not self._open:
                    del self._threads[slot]
                    if not self._threads:
                        self._tidy()
                    return None
                self._changed.wait()
            return self._waiting.popleft()

    def _tidy(self) -> None:
        if resident.worked(time.monotonic() - self._started):
            for jit in self._jits:
                jit.forget_machines()
        self._jits.clear()

    def _forget(self) -> None:
        """In a forked child there are no threads."""
        self._changed = threading.Condition()
        self._waiting.clear()
        self._threads.clear()
        self._open = 0


workers = Workers()


class Batch:
    """Modules that are compiled while their maker goes on.

        with Batch(jit) as batch:
            first, second = batch.compile(one, ["f"]), batch.compile(other, ["g"])
            first.result().addresses["f"]

    Threads do it (`Workers`), and at the end they are gone, unless the batch is not to be waited for. Where there is
    one core only, or no thread to be had, modules are compiled as they come.
    """

    def __init__(self, jit: Jit, waits: bool = True) -> None:
        self._jit, self._config = jit, config.current()
        self.waits = waits
        self._taken: list[Pending] = []
        self._alone: float | None = None  # since when modules have been compiled as they came

    def __enter__(self) -> Batch:
        check_installed()
        workers.open()
        return self

    def __exit__(self, *raised: object) -> None:
        workers.close()
        if self.waits:
            for pending in self._taken:
                pending.finish()
            workers.join()
        if self._alone is not None and resident.worked(time.monotonic() - self._alone):
            self._jit.forget_machines()

    def compile(self, ir: str, names: Sequence[str]) -> Pending:
        """Start compiling a module: see `Jit.compile`."""
        _show(ir)
        pending = Pending(self._jit, ir, tuple(names), self._config)
        if workers.take(pending, self._jit):
            self._taken.append(pending)
        else:
            self._alone = self._alone or time.monotonic()
            pending.run(0)
        return pending


class Pending:
    """A module of a `Batch`, compiled under these options by whatever thread. Any thread may wait for it. `ended`: no
    thread of the workers has it to do."""

    def __init__(self, jit: Jit, ir: str, names: tuple[str, ...], options: config.Config) -> None:
        self._jit, self._ir, self._names, self._config = jit, ir, names, options
        self._process = os.getpid()
        self.ended = threading.Event()
        # The first one counts. In a forked child two threads may be at it: none is freed that has been handed out.
        self._made: list[Code] = []
        self._error: BackendError | None = None

    @property
    def _code(self) -> Code | None:
        return self._made[0] if self._made else None

    def run(self, slot: int) -> None:
        """Compile it in this thread. A BackendError is left for `result`."""
        try:
            if not self._made:
                with config.using_config(self._config):
                    object_code = self._jit.emit(self._ir, slot, verify=bool(self._config.verify))
                    self._made.append(self._jit.load(object_code, self._names))
            self._ir = ""
        except BackendError as error:
            self._error = error
        finally:
            self.ended.set()

    def finish(self) -> None:
        """Wait until it is compiled, or has failed."""
        while self._code is None and self._error is None:
            if self.ended.is_set() or self._process != os.getpid():
                self._run_here()  # the thread that had it was left behind by a fork, or broke off
            elif (other := workers.withdraw(self)) is not None:
                other._run_here()
            else:
                self.ended.wait()

    def _run_here(self) -> None:
        with slots.locks[-1]:
            if self._code is None and self._error is None:
                self.run(len(slots.locks) - 1)

    def result(self) -> Code:
        """The code, once it is there.

        Raises CodegenError as `Jit.compile` does.
        """
        self.finish()
        if self._code is None:
            raise self._error or CodegenError("a module was not compiled")
        return self._code


def as_function(address: int) -> Any:
    """A kernel as a ctypes function (buffers, sizes, begin, end) -> status, for tests and tools."""
    pointer = ctypes.c_void_p
    return ctypes.CFUNCTYPE(
        ctypes.c_int64, pointer, pointer, ctypes.c_int64, ctypes.c_int64, use_errno=False
    )(address)
