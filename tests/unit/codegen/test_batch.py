"""Modules compiled by threads of a batch: the same code, the same errors, and forks in the middle."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from lampwork import config
from lampwork.codegen.llvm import jit as jit_module
from lampwork.codegen.llvm import library
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.codegen.llvm.jit import Batch, Jit, Pending, as_function
from lampwork.errors import CodegenError


def _module(number: int) -> str:
    return f"define i64 @f{number}(ptr %b, ptr %s, i64 %begin, i64 %end) {{\n  ret i64 {number}\n}}"


def _called(pending: Pending, number: int) -> int:
    code = pending.result()
    return as_function(code.addresses[f"f{number}"])(None, None, 0, 0)


@pytest.fixture
def jit() -> Jit:
    return Jit(host_isa())


class _Slots:
    def __init__(self, count: int) -> None:
        self.locks = tuple(threading.RLock() for _ in range(count))


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_every_module_is_compiled(jit: Jit, monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(jit_module, "slots", _Slots(cores))
    before = set(threading.enumerate())
    with Batch(jit) as batch:
        found = [batch.compile(_module(number), [f"f{number}"]) for number in range(12)]
        assert len(set(threading.enumerate()) - before) <= (cores if cores > 1 else 0)
        assert [_called(pending, number) for number, pending in enumerate(found)] == list(range(12))
    assert set(threading.enumerate()) <= before


def test_results_outlive_the_batch(jit: Jit) -> None:
    with Batch(jit) as batch:
        pending = batch.compile(_module(3), ["f3"])
    assert _called(pending, 3) == 3


def test_what_is_not_valid_fails_alone(jit: Jit) -> None:
    with Batch(jit) as batch:
        wrong = batch.compile("define i64 @f( {", ["f"])
        nameless = batch.compile(_module(1), ["g"])
        right = batch.compile(_module(2), ["f2"])
        with pytest.raises(CodegenError, match="IR is not valid"):
            wrong.result()
        with pytest.raises(CodegenError, match="has no g"):
            nameless.result()
        assert _called(right, 2) == 2


def test_without_threads_modules_are_compiled_as_they_come(jit: Jit, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(jit_module, "slots", _Slots(2))
    monkeypatch.setattr(threading.Thread, "start", start)
    with Batch(jit) as batch:
        assert _called(batch.compile(_module(5), ["f5"]), 5) == 5


def test_a_forked_child_compiles_what_its_parent_has_started(
    jit: Jit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit_module, "slots", _Slots(2))
    pending = Pending(jit, _module(7), ("f7",), config.current())  # no thread will ever run it
    child = os.fork()
    if child == 0:
        os._exit(0 if _called(pending, 7) == 7 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_the_library_is_loaded_early_by_a_thread_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    early = library._Early()
    monkeypatch.setattr(library, "_early", early)
    monkeypatch.setattr(library, "slots", _Slots(2))
    library.load_early()
    library.load_early()
    thread = early.thread
    assert thread is not None
    assert library.llvm_library() is library.llvm_library()
    assert not thread.is_alive() and early.thread is None


def test_where_there_is_one_core_or_no_thread_to_be_had_it_is_loaded_when_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    for count, start in ((1, threading.Thread.start), (2, refused)):
        early = library._Early()
        monkeypatch.setattr(library, "_early", early)
        monkeypatch.setattr(library, "slots", _Slots(count))
        monkeypatch.setattr(threading.Thread, "start", start)
        library.load_early()
        assert early.thread is None and library.llvm_library() is not None


class Slow:
    """Compiles modules; the threads of the workers stop in front of `held`."""

    def __init__(self, jit: Jit, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.held = "@f0("
        self.raises: BaseException | None = None
        self._emit = jit.emit
        monkeypatch.setattr(jit, "emit", self.emit)

    def emit(self, ir: str, slot: int, **how: bool) -> bytes:
        if self.held in ir:
            if threading.current_thread() is not threading.main_thread():
                self.begun.set()
                self.goes_on.wait()
            error, self.raises = self.raises, None
            if error is not None:
                raise error
        return self._emit(ir, slot, **how)


@pytest.fixture
def slow(jit: Jit, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    monkeypatch.setattr(jit_module, "slots", _Slots(2))
    slow = Slow(jit, monkeypatch)
    yield slow
    slow.goes_on.set()
    jit_module.workers.join()


def test_a_batch_may_end_before_its_modules(jit: Jit, slow: Slow) -> None:
    with Batch(jit, waits=False) as batch:
        pending = batch.compile(_module(0), ["f0"])
    assert not pending.ended.is_set()
    slow.goes_on.set()
    assert _called(pending, 0) == 0
    jit_module.workers.join()
    assert not any(thread.name.startswith("lampwork-llvm-") for thread in threading.enumerate())


def test_who_waits_compiles_what_no_thread_has_begun(jit: Jit, slow: Slow) -> None:
    with Batch(jit, waits=False) as batch:
        found = [batch.compile(_module(number), [f"f{number}"]) for number in range(4)]
        assert slow.begun.wait(60)
        assert _called(found[2], 2) == 2
        assert not found[1].ended.is_set()
        threading.Timer(0.1, slow.goes_on.set).start()
        assert _called(found[0], 0) == 0
        assert found[1].ended.is_set() and found[3].ended.is_set()


def test_a_module_is_compiled_again_after_an_interrupt(jit: Jit, slow: Slow) -> None:
    slow.raises = KeyboardInterrupt()
    with Batch(jit, waits=False) as batch:
        first = batch.compile(_module(0), ["f0"])
        assert slow.begun.wait(60)
        second = batch.compile(_module(1), ["f1"])
        slow.held = "@f1("
        with pytest.raises(KeyboardInterrupt):
            second.result()
        assert _called(second, 1) == 1
        slow.goes_on.set()
        assert _called(first, 0) == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_module_whose_thread_broke_off_is_compiled_by_who_waits(jit: Jit, slow: Slow) -> None:
    slow.raises = MemoryError()
    with Batch(jit, waits=False) as batch:
        pending = batch.compile(_module(0), ["f0"])
        assert slow.begun.wait(60)
        slow.goes_on.set()
        assert _called(pending, 0) == 0
        assert _called(batch.compile(_module(1), ["f1"]), 1) == 1
