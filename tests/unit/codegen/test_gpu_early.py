"""What is compiled and loaded ahead of the first kernel of a card, on a driver that stands in for one."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lampwork import logs
from lampwork.backends.native import compile as native
from lampwork.backends.native.compile import NativeBackend
from lampwork.codegen.gpu import early, generator
from lampwork.codegen.gpu.nvidia import describe, emulated
from lampwork.codegen.target import Target
from lampwork.errors import DriverError

sys.path.append(str(Path(__file__).parents[1] / "runtime"))
from device_support import Fake, with_driver  # noqa: E402

CARD = replace(describe(90), device=0)


def begun(target: Callable[[], Target], cores: int = 2) -> early._Early:
    """The state after a start in this process, which has not had one."""
    state = early._early = early._Early()
    early.slots = type("Slots", (), {"locks": (None,) * cores})()  # pyright: ignore[reportAttributeAccessIssue]
    early.start_early(target)
    if state.thread is not None:
        state.thread.join()
    return state


def real_ptx(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the code generator makes; the driver that stands in gets a kernel of its own."""
    made: list[bytes] = []
    emit = generator.PtxJit.emit

    def emitted(jit: Any, ir: str, slot: int, **how: bool) -> bytes:
        made.append(emit(jit, ir, slot, **how))
        return f"fake:{early.NAME}".encode()

    monkeypatch.setattr(generator.PtxJit, "emit", emitted)
    return made


def test_a_kernel_is_loaded_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made = real_ptx(monkeypatch)

    def job(fake: Fake) -> None:
        state = begun(lambda: CARD)
        assert state.kernel is not None and state.kernel.name == early.NAME
        assert b".target sm_90" in made[0] and f".visible .entry {early.NAME}".encode() in made[0]
        assert sum(line.startswith("load fake") for line in fake.log()) == 1
        early.start_early(lambda: CARD)
        assert len(made) == 1 and threading.active_count() == 1

    with_driver(job)


def test_errors_are_those_of_the_first_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    real_ptx(monkeypatch)
    said: list[str] = []
    monkeypatch.setattr(logs, "emit", lambda topic, text: said.append(text))

    def job(fake: Fake) -> None:
        os.environ["LAMPWORK_CUDA_DRIVER"] = "/nowhere/libcuda.so.1"
        assert begun(lambda: CARD).kernel is None
        assert len(said) == 1 and "the CUDA driver cannot be opened" in said[0]
        with pytest.raises(DriverError, match="cannot be opened"):
            generator.gpu_generator(CARD).jit.compile(early._KERNEL, [generator.KernelName(early.NAME, 0, 0)])

    with_driver(job)


def test_nothing_is_loaded_where_it_would_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    made = real_ptx(monkeypatch)

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def job(fake: Fake) -> None:
        assert begun(lambda: CARD, cores=1).thread is None
        assert begun(emulated).kernel is None and begun(lambda: describe(90)).kernel is None
        threading.Thread.start = refused
        assert begun(lambda: CARD).thread is None
        assert not made and fake.log() == []

    with_driver(job)


@pytest.mark.parametrize("in_use", [True, False])
@pytest.mark.parametrize("capturing", [True, False])
def test_captures_of_programs_that_use_cards_begin_it(
    in_use: bool, capturing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Target] = []
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: in_use)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(early, "start_early", lambda target: asked.append(target()))
    monkeypatch.setattr(native, "device_target", lambda device, options: replace(CARD, device=device.index))
    NativeBackend().prepare()
    assert [each.device for each in asked] == ([3] if in_use and not capturing else [])
