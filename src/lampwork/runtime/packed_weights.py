"""options={"weights": "packed"}: the weights that a program reads only packed copies of leave memory.

    before:  weight: 9 MB in memory; packed copy: 9 MB in memory
    after:   weight: the same tensor, over a file that was unlinked and is mapped for this process alone; packed copy

The tensor keeps its identity, strides, version and hooks, and whoever reads it has the system read the file:
state_dict(), eager PyTorch, the packing of another version. A write makes the pages that it touches private memory
again; the runtime notices it as any other write, and packs again. The file has no name any more, so it goes with the
last process that maps it.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from lampwork import _C, logs, pristine
from lampwork.config import Config
from lampwork.folders import cache_folder
from lampwork.lasting import lasting
from lampwork.runtime.program import Program, used_by

SUFFIX = ".lampwork-weight"
"""By this the runtime (csrc/weight_files.cpp) knows the pages that it may have dropped after packing."""
LEAST_BYTES = 1 << 16
"""Of a tensor that is worth a file."""
_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})


def release_weights(program: Program, bound: Sequence[Tensor], config: Config) -> None:
    """Move what of `bound` only the constants of `program` read to files, where that can be done unseen. The log says
    what was done, and why the rest was not."""
    base = cache_folder(config) or Path(tempfile.gettempdir()) / f"lampwork-{os.getuid()}"
    folder = base / "weights"
    moved = kept = 0
    reasons: dict[str, int] = {}
    read = _read_by(program)
    for position, tensor in enumerate(bound):
        size = tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else 0
        if position in read or size < LEAST_BYTES or is_released(tensor):
            continue
        reason = _obstacle(tensor, size)
        if not reason:
            try:
                _move(tensor, folder, size)
            except OSError as error:
                reason = str(error)
        if reason:
            kept += size
            reasons[reason] = reasons.get(reason, 0) + 1
        else:
            moved += size
    text = f"weights: {moved / 1e6:.1f} MB are packed copies only, the originals in a file below {folder}"
    if reasons:
        why = "; ".join(f"{count}: {reason}" for reason, count in reasons.items())
        text += f"; {kept / 1e6:.1f} MB stay in memory beside their copies ({why})"
    logs.emit("program", text)


def is_released(tensor: Tensor) -> bool:
    """Whether a weight has left memory."""
    return _C.in_weight_file(tensor)


def _read_by(program: Program) -> set[int]:
    """The positions of bound tensors that the program itself reads, not its constants alone."""
    used = set(program.outputs)
    for step in program.instructions:
        used.update(used_by(step))
    # Views come after what they are views of.
    for number in range(len(program.values) - 1, -1, -1):
        value = program.values[number]
        if value.kind == "view" and number in used:
            used.add(value.base)
    values = enumerate(program.values)
    return {value.position for number, value in values if value.kind == "bound" and number in used}


def _obstacle(tensor: Tensor, size: int) -> str:
    """Why the memory of a tensor cannot be exchanged unseen; "" if it can."""
    storage = cast(Any, tensor.untyped_storage())
    if tensor.device.type != "cpu" or type(tensor) not in (Tensor, torch.nn.Parameter):
        return "no plain tensor of the CPU"
    if tensor.is_inference():
        return "made in inference mode"
    if storage.is_shared() or not storage.resizable():
        return "other owners of its memory"
    # The tensor's own reference, and that of `storage`.
    if torch._C._storage_Use_Count(storage._cdata) > 2:
        return "other tensors over its memory"
    if tensor.storage_offset() != 0 or tensor.numel() * tensor.element_size() != size:
        return "a part of its memory"
    return ""


def _move(tensor: Tensor, folder: Path, size: int) -> None:
    """Exchange a tensor's memory for a mapping of a file with the same content.

    Raises:
        OSError: the file cannot be written there, or not be mapped.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    kind = _file_system(folder)
    if kind in _IN_MEMORY:
        raise OSError(f"{folder} is on a {kind}, which is memory itself")
    handle, name = tempfile.mkstemp(dir=folder, suffix=SUFFIX)
    try:
        # Written, not mapped: a full disk is an error here, and would end the process there.
        with os.fdopen(handle, "wb", buffering=0) as file:
            content = memoryview((ctypes.c_char * size).from_address(tensor.untyped_storage().data_ptr()))
            done = 0
            while done < size:
                done += file.write(content[done:])
        mapped = torch.UntypedStorage.from_file(name, False, size)
    except (RuntimeError, UnicodeError) as error:
        raise OSError(f"torch cannot map a file there: {error}") from error
    finally:
        os.unlink(name)
    with lasting():
        twin = pristine.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
            cast(Any, mapped), 0, tensor.size(), tensor.stride()
        )
        tensor.data = twin


def _file_system(folder: Path) -> str:
    """The kind of file system that a folder is on; "" if it cannot be told."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    place, found = str(folder.resolve()), ("", "")
    for line in lines:
        parts = line.split(" ")
        root = parts[1].rstrip("/")
        if (place == root or place.startswith(f"{root}/")) and len(root) >= len(found[0]):
            found = (root, parts[2])
    return found[1]
