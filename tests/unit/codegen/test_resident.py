"""LLVM's code leaves the memory when nothing is compiled, and comes back when something is."""

from __future__ import annotations

import ctypes
import threading
import time
from pathlib import Path

import pytest
import torch

import lampwork
from lampwork import _C
from lampwork.codegen.llvm import resident
from lampwork.codegen.llvm.library import llvm_library


def resident_bytes(part: str) -> int:
    """Of the mappings of the files whose names hold `part`."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            ours = part in line
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def compile_something(seed: int) -> None:
    x = torch.randn(7)
    torch.testing.assert_close(
        lampwork.compile(lambda x: (x * seed).sin() + seed)(x), (x * seed).sin() + seed
    )


def test_the_library_is_given_back_and_read_again() -> None:
    compile_something(3)
    resident.give_back()
    before = resident_bytes("llvmlite")
    compile_something(4)
    compile_something(5)
    assert resident.give_back() > 0
    assert resident_bytes("llvmlite") <= max(before, 8 << 20)
    compile_something(6)


def test_code_that_runs_meanwhile_is_not_disturbed() -> None:
    done = threading.Event()

    def give_back() -> None:
        while not done.is_set():
            resident.give_back()

    thread = threading.Thread(target=give_back)
    thread.start()
    try:
        for seed in range(10, 16):
            compile_something(seed)
    finally:
        done.set()
        thread.join()


def test_what_is_written_to_stays() -> None:
    number = ctypes.c_int.in_dll(_library_of_python(), "Py_VerboseFlag")
    address = ctypes.addressof(number)
    before, number.value = number.value, 12345
    try:
        _C.drop_code_pages(address)
        assert number.value == 12345
    finally:
        number.value = before


def test_an_address_of_no_library_is_nothing_to_give_back() -> None:
    block = ctypes.create_string_buffer(1 << 16)
    assert _C.drop_code_pages(ctypes.addressof(block)) == 0
    with pytest.raises(TypeError):
        _C.drop_code_pages("here")  # pyright: ignore


def test_a_burst_gives_back_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    now = [100.0]
    monkeypatch.setattr(resident, "give_back", lambda: given.append(1))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    policy = resident.Resident()
    policy.worked(0.01)
    assert len(given) == 1  # the first compilation may be the only one
    for _ in range(3):
        now[0] += 0.05
        policy.worked(0.05)
    assert len(given) == 1
    now[0] += 0.05
    policy.worked(0.06)
    assert len(given) == 2
    now[0] += 10
    policy.worked(0.001)
    assert len(given) == 3


def test_the_address_is_the_library_s() -> None:
    assert llvm_library().address != 0


def _library_of_python() -> ctypes.CDLL:
    return ctypes.pythonapi
