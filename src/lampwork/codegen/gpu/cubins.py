"""Cubins on disk: what the driver's assembler made of a kernel's PTX in one process, for the next.

They lie in the folder `cubins` of the option `cache`, a file for each PTX, compute capability and driver. A file that
cannot be read, is damaged, or is another user's counts as missing, and what is missing is assembled; a folder that
cannot be written to is no error.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

from lampwork import _C, config, logs
from lampwork.folders import NEW, cache_folder, is_own, keep_file, kept_file
from lampwork.locks import new_lock
from lampwork.standard import functools

MOST_BYTES = 16 << 20
"""Of a file: a cubin of ours has 5 to 100 KB."""
MOST_KEPT = 256 << 20
"""Of the folder: a process that adds to it removes first what has not been used for longest."""
DAY = 24 * 3600
_MAGIC = b"lampwork cubin 1\n"
_DIGEST = 32


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


class Cubins:
    """The cubins of a card. Safe to use from many threads and processes at a time."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._tidied: set[Path] = set()
        self._lock = new_lock()

    def load(self, kernel: _C.DeviceKernel, ptx: bytes) -> None:
        """Load a kernel of this PTX on the card: from its cubin if there is one, which there is from then on.

        Raises:
            DriverError: there is no driver or card, or it refuses the PTX.
        """
        folder = cache_folder(config.current())
        if folder is None:
            kernel.load(self._device)
            return
        key = self._key(ptx)
        path = folder / "cubins" / f"{key.hex()[:32]}.cubin"
        known = _read(path, key)
        if known is not None:
            if kernel.load_binary(self._device, known):
                return
            logs.emit("program", f"the driver refuses {path}: {kernel.name} is assembled again")
        made = kernel.assemble(self._device)
        if isinstance(made, str):
            logs.emit("program", f"no cubin of {kernel.name} is kept: {made}")
        elif kernel.load_binary(self._device, made):
            self._keep(path, key, made)
            return
        # It says what is wrong with the PTX, if the driver does not take it either way.
        kernel.load(self._device)

    def _key(self, ptx: bytes) -> bytes:
        """What a cubin is made of."""
        card = f"{_C.card_capability(self._device)} {driver_version()}"
        return hashlib.sha256(b"\0".join((card.encode(), ptx))).digest()

    def _keep(self, path: Path, key: bytes, cubin: bytes) -> None:
        try:
            keep_file(path, b"".join((_MAGIC, key, hashlib.sha256(cubin).digest(), cubin)))
            with self._lock:
                if path.parent in self._tidied:
                    return
                self._tidied.add(path.parent)
            _tidy(path.parent)
        except OSError as error:
            logs.emit("program", f"{path} is not kept: {error}")


def _read(path: Path, key: bytes) -> bytes | None:
    """The cubin of a file; None if there is none that can be used."""
    try:
        content, found = kept_file(path, MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        logs.emit("program", f"{path} cannot be read: {error}")
        return None
    start = len(_MAGIC) + 2 * _DIGEST
    cubin = content[start:]
    head = b"".join((_MAGIC, key, hashlib.sha256(cubin).digest()))
    if not is_own(found) or len(content) > MOST_BYTES or not cubin or content[:start] != head:
        logs.emit("program", f"{path} is damaged, or another user's: it is made again")
        return None
    if time.time() - found.st_mtime > DAY:
        _touch(path)
    return cubin


def _touch(path: Path) -> None:
    """Note that a file is used still."""
    try:
        os.utime(path)
    except OSError as error:
        logs.emit("program", f"{path} keeps its time: {error}")


def _tidy(folder: Path) -> None:
    """Remove what has not been used for longest, down to three quarters of what may be kept, and what a process that
    ended in the middle of it began to write."""
    found: list[tuple[float, int, str]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            stat = _stat(entry)
            if stat is not None:
                found.append((stat.st_mtime, stat.st_size, entry.path))
    total = sum(size for _, size, _ in found)
    least = total if total <= MOST_KEPT else MOST_KEPT * 3 // 4
    for mtime, size, path in sorted(found):
        is_left_over = path.endswith(NEW) and time.time() - mtime > DAY
        if is_left_over or total > least:
            Path(path).unlink(missing_ok=True)
            total -= size


def _stat(entry: os.DirEntry[Any]) -> os.stat_result | None:
    """Of a file; None if it is none, or another process has removed it."""
    try:
        return entry.stat(follow_symlinks=False) if entry.is_file(follow_symlinks=False) else None
    except FileNotFoundError:
        return None
