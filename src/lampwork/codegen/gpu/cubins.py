"""Cubins in the cache: what the driver's assembler made of a kernel's PTX in one process, for the next.

What is missing is assembled.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from lampwork import _C, logs
from lampwork.cache import Key, store
from lampwork.standard import functools

KIND = "cubin"
"""Of the entries."""
VERSION = 1
"""Of what the assembler is asked for beside the PTX."""


def driver_version() -> str:
    """The kernel module's, as NVIDIA's Linux drivers say it, and the CUDA that the driver serves.

    Raises:
        DriverError: there is no driver.
    """
    return f"{_module_version()} {_C.driver_version()}"


@functools.cache
def _module_version() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return " ".join(text.partition("\n")[0].split())


def load_kept(kernel: _C.DeviceKernel, ptx: bytes, device: int) -> None:
    """Load a kernel of this PTX on a card: from its cubin if the cache has one, which it has from then on. Many threads
    and processes may do so at a time.

    Raises:
        DriverError: there is no driver or card, or it refuses the PTX.
    """
    kept = store()
    if kept is None:
        kernel.load(device)
        return
    key = cubin_key(kernel.name, ptx, device)
    known = kept.get(key)
    if known:
        if kernel.load_binary(device, known):
            return
        logs.emit("program", f"the driver refuses {key}: {kernel.name} is assembled again")
    made = kernel.assemble(device)
    if isinstance(made, str):
        logs.emit("program", f"no cubin of {kernel.name} is kept: {made}")
    elif kernel.load_binary(device, made):
        kept.put(key, made)
        return
    # It says what is wrong with the PTX, if the driver does not take it either way.
    kernel.load(device)


def cubin_key(name: str, ptx: bytes, device: int) -> Key:
    """All that a cubin depends on, and the kernel's name, by which one finds it."""
    major, minor = divmod(_C.card_capability(device), 10)
    parts = {
        "kernel": name,
        "ptx": hashlib.sha256(ptx).hexdigest(),
        "capability": f"{major}.{minor}",
        "driver": driver_version(),
        "version": str(VERSION),
    }
    return Key(KIND, parts)
