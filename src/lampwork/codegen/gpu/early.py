"""What the first kernel of a process waits for on an NVIDIA card: LLVM's code generator for it, and the driver's
assembler, a library that the driver opens with the first PTX. Both take place in a thread, while Python code is
captured that is going to need them. Whether a cubin is in the cache is known only once there is its PTX, so the
assembler is opened in any case."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from lampwork import _C, logs
from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.device import TRIPLE
from lampwork.codegen.gpu.generator import KernelName, gpu_generator
from lampwork.codegen.llvm.library import slots
from lampwork.codegen.target import Target
from lampwork.errors import LampworkError

NAME = "lw_early"
_KERNEL = f"""target triple = "{TRIPLE}"

define ptx_kernel void @{NAME}() {{
  ret void
}}
"""


@dataclass(slots=True)
class _Early:
    """The thread, if one was started, and the kernel that it loaded: to unload it might wait for the card."""

    started: bool = False
    thread: threading.Thread | None = None
    kernel: _C.DeviceKernel | None = None


_early = _Early()


def start_early(target: Callable[[], Target]) -> None:
    """Start to compile and load a kernel that does nothing, where another core can do it. Once a process. `target`:
    gives that of a device which is here."""
    if _early.started or len(slots.locks) == 1:
        return
    _early.started = True
    thread = threading.Thread(target=_load, args=(target,), name="lampwork-card-early")
    try:
        thread.start()
    except RuntimeError:  # the system has no more, or the interpreter is about to end
        return
    _early.thread = thread


def _load(target: Callable[[], Target]) -> None:
    try:
        card = target()
        if not isinstance(card, GpuTarget) or card.device is None:
            return
        image = gpu_generator(card).jit.emit(_KERNEL, 0, verify=False)
        kernel = _C.DeviceKernel(image, KernelName(NAME, 0, 0), 0, 0)
        kernel.load(card.device)
        _early.kernel = kernel
    except LampworkError as error:
        # The first kernel that is wanted meets the same, and whoever wants it is told.
        logs.emit("ptx", f"nothing is loaded ahead of the first kernel: {error}")
