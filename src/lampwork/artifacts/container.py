"""The file of an artifact: a safetensors file whose weights any reader of that format sees.

    8 bytes        N, little-endian
    N bytes        JSON: {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets"}, ...}, spaces behind
    the rest       the bytes of the tensors, one after another, without holes; it begins at a multiple of 64

Sections are tensors of bytes whose names begin with `lampwork.`. What programs computed of weights at the export
(`lampwork-prepacked.0`) lies among these, in whole lines of 64 bytes. A file comes from anywhere: nothing of it is used
before all offsets, counts and names are known to be right.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from lampwork import pristine
from lampwork.artifacts.checked import parsed
from lampwork.errors import ArtifactError, ExportError, text_of
from lampwork.records import record
from lampwork.runtime import part_of
from lampwork.standard import struct
from lampwork.written import write_with

ALIGNMENT = 64
"""Of the data in the file, and of each weight whose bytes are a multiple of it."""

LARGEST_HEADER = 100_000_000
"""Bytes, as readers of safetensors have it."""

MOST_TENSORS = 1_000_000
LONGEST_NAME = 1024
SECTION = "lampwork."
"""How the names of sections begin."""

PREPACKED = "lampwork-prepacked."
"""How the names of tensors begin that were computed of weights."""

METADATA = "__metadata__"

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""What safetensors calls a dtype -> torch's own."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_CHUNK = 1 << 24


@record
class Span:
    """A tensor in the file: its dtype, its sizes, and which bytes of the data are its."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


# --- writing ----------------------------------------------------------------------------------------------------------


def write_container(
    path: str | os.PathLike[str],
    weights: Mapping[str, Tensor],
    sections: Mapping[str, bytes],
    metadata: Mapping[str, str],
    check: Callable[[Path], None] | None = None,
) -> int:
    """Write a file, whole or not at all; gives its size. Weights are written from where they lie, in pieces. `check`:
    looks at the file before it has its name, and raises what it has against that.

    Raises:
        ExportError: it cannot be written, or a weight has a dtype that safetensors does not know.
    """
    for name, tensor in weights.items():
        if tensor.dtype not in _NAMES:
            raise ExportError(
                f"{name} is of {tensor.dtype}, which a .lamp file cannot have",
                fix=f"convert it; what it can have is {', '.join(sorted(map(_short, _NAMES)))}",
            )
    order = sorted(
        weights, key=lambda name: (weights[name].nbytes % ALIGNMENT != 0, -weights[name].dtype.itemsize, name)
    )
    header: dict[str, Any] = {METADATA: dict(metadata)}
    place = 0
    for name in order:
        tensor = weights[name]
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, place + tensor.nbytes],
        }
        place += tensor.nbytes
    for name, data in sections.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [place, place + len(data)]}
        place += len(data)
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    if len(text) > LARGEST_HEADER:
        raise ExportError(
            f"the header would have {len(text)} bytes, and no reader takes more than {LARGEST_HEADER}",
            fix="pass less metadata",
        )

    def write(target: Path) -> int:
        with open(target, "wb") as file:
            file.write(struct.pack("<Q", len(text)))
            file.write(text)
            for name in order:
                for piece in pieces(weights[name]):
                    file.write(piece)
            for data in sections.values():
                file.write(data)
            size = file.tell()
        if check is not None:
            check(target)
        return size

    return write_with(path, write, "the artifact", ExportError)


def pieces(tensor: Tensor) -> Iterator[Any]:
    """The bytes of a tensor, row after row: views of its memory where that lies so, else copies of a part at a time."""
    detached = tensor.detach()
    if not detached.numel():
        return
    if detached.is_contiguous():
        flat = detached.view(-1).view(torch.uint8)
        for begin in range(0, flat.numel(), _CHUNK):
            yield memoryview(cast(Any, flat[begin : begin + _CHUNK].numpy()))
        return
    rows = max(1, _CHUNK // max(1, detached[0].nbytes))
    for begin in range(0, detached.shape[0], rows):
        part = detached[begin : begin + rows].contiguous()
        yield memoryview(cast(Any, part.view(-1).view(torch.uint8).numpy()))


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --- reading ----------------------------------------------------------------------------------------------------------


@record(eq=False)
class Container:
    """A file, mapped: pages are read when they are used, and shared between processes until they are written.

    `metadata`: texts by name. `spans`: tensors and sections by name. `start`: where the data begins in the file.
    `header`: the bytes of the header. `memory`: the whole file; what is written to it is this process's own.
    `kept`: all data from some place on, with that place, copied from the pages, whose bytes change with the file's.
    """

    path: str
    metadata: Mapping[str, str]
    spans: Mapping[str, Span]
    start: int
    header: bytes = field(repr=False)
    memory: Any = field(repr=False)
    kept: tuple[int, bytes] | None = field(default=None, repr=False)

    @property
    def weights(self) -> tuple[str, ...]:
        """The names of the tensors that are no sections, and not computed of others."""
        return tuple(name for name in self.spans if not name.startswith((SECTION, PREPACKED)))

    @property
    def data(self) -> memoryview:
        """The bytes of all tensors and sections."""
        return memoryview(self.memory)[self.start :]

    @property
    def nbytes(self) -> int:
        return len(self.memory)

    def tensor(self, name: str) -> Tensor:
        """A tensor over the mapped pages, which it alone gives access to: to be asked for once."""
        span = self.spans[name]
        if span.begin == span.end:
            return pristine.empty(span.shape, dtype=span.dtype)
        begin = self.start + span.begin
        if begin % span.dtype.itemsize:
            # What any writer of safetensors may make; ours does not.
            data = bytearray(memoryview(self.memory)[begin : self.start + span.end])
            return part_of(data, 0, span.dtype, span.shape)
        return part_of(self.memory, begin, span.dtype, span.shape)

    def section(self, name: str) -> bytes:
        """The bytes of a section.

        Raises:
            ArtifactError: there is none.
        """
        span = self.spans.get(name)
        if span is None or not name.startswith(SECTION) or span.dtype != torch.uint8:
            raise self.damaged(f"there is no section {name!r}")
        if self.kept is not None and span.begin >= self.kept[0]:
            begin, kept = self.kept
            return kept[span.begin - begin : span.end - begin]
        return memoryview(self.memory)[self.start + span.begin : self.start + span.end].tobytes()

    def damaged(self, what: str) -> ArtifactError:
        return damaged(self.path, what)


def damaged(path: str, what: str) -> ArtifactError:
    return ArtifactError(
        f"{path} is damaged, or no artifact of Lampwork: {what}",
        fix="copy the file again, or export the model again: lampwork.export(model, args, path='m.lamp')",
    )


def open_plain(path: str) -> int:
    """A descriptor to read a file by. Other things have names in folders too, and reading those may take for ever.

    Raises:
        OSError: it cannot be opened, or is no plain file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return handle
    os.close(handle)
    number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    raise OSError(number, os.strerror(number) if stat.S_ISDIR(mode) else "it is no plain file")


def open_container(path: str | os.PathLike[str]) -> Container:
    """Map a file, with its header checked.

    Raises:
        ArtifactError: it cannot be read, or is no such file.
    """
    text = os.fspath(path)
    try:
        with open(open_plain(text), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < 8:
                raise damaged(text, f"it has {size} bytes, expected at least 8")
            memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        cause = (isinstance(error, OSError) and error.strerror) or text_of(error)
        raise ArtifactError(
            f"{text!r} cannot be read: {cause}", fix="give the path of a .lamp file"
        ) from error
    return read_container(text, memory)


def read_container(path: str, memory: Any) -> Container:
    """The container that these bytes are.

    Raises:
        ArtifactError: they are none.
    """
    size = len(memory)
    (count,) = struct.unpack_from("<Q", memory, 0)
    if not 2 <= count <= min(size - 8, LARGEST_HEADER):
        raise damaged(path, f"its header has {count} bytes, expected 2 to {min(size - 8, LARGEST_HEADER)}")
    header = memory[8 : 8 + count]
    found = parsed(header, lambda what: damaged(path, f"its header {what}"))
    if not isinstance(found, dict):
        raise damaged(path, "its header is no object")
    items = cast("dict[str, Any]", found)
    metadata = _metadata(path, items.pop(METADATA, {}))
    if len(items) > MOST_TENSORS:
        raise damaged(path, f"it has {len(items)} tensors, expected at most {MOST_TENSORS}")
    spans = {name: _span(path, name, given) for name, given in items.items()}
    _check_order(path, spans, size - 8 - count)
    return Container(path, metadata, spans, 8 + count, bytes(header), memory)


def _metadata(path: str, given: Any) -> dict[str, str]:
    if not isinstance(given, dict) or not all(
        isinstance(value, str) for value in cast("dict[str, Any]", given).values()
    ):
        raise damaged(path, "its __metadata__ has other things than texts")
    return cast("dict[str, str]", given)


def _span(path: str, name: str, given: Any) -> Span:
    def wrong(what: str) -> ArtifactError:
        return damaged(path, f"tensor {name[:80]!r} {what}")

    if not 0 < len(name) <= LONGEST_NAME or "\0" in name:
        raise wrong(f"has a name of {len(name)} characters, expected 1 to {LONGEST_NAME} and none that is 0")
    if not isinstance(given, dict) or cast("dict[str, Any]", given).keys() != {
        "dtype",
        "shape",
        "data_offsets",
    }:
        raise wrong("has not just a dtype, a shape and data_offsets")
    items = cast("dict[str, Any]", given)
    dtype = DTYPES.get(items["dtype"]) if isinstance(items["dtype"], str) else None
    if dtype is None:
        raise wrong(f"has the dtype {str(items['dtype'])[:80]!r}, expected one of {', '.join(DTYPES)}")
    shape, offsets = items["shape"], items["data_offsets"]
    if not _are_counts(shape) or len(shape) > 64:
        raise wrong(f"has the shape {str(shape)[:80]}, expected a list of numbers")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise wrong(f"has the data_offsets {str(offsets)[:80]}, expected two numbers in order")
    count = dtype.itemsize
    for each in shape:
        count *= each
        if count > sys.maxsize:
            raise wrong("has more elements than there is memory")
    if count != offsets[1] - offsets[0]:
        raise wrong(f"has {offsets[1] - offsets[0]} bytes, expected {count} for its dtype and shape")
    return Span(dtype, tuple(shape), offsets[0], offsets[1])


def _are_counts(found: Any) -> bool:
    return isinstance(found, list) and all(
        type(each) is int and 0 <= each <= sys.maxsize for each in cast("Sequence[Any]", found)
    )


def _check_order(path: str, spans: Mapping[str, Span], size: int) -> None:
    """That the tensors are all of the data: none lies in another's bytes, and there are no bytes of nobody's."""
    place = 0
    for name, span in sorted(spans.items(), key=lambda item: (item[1].begin, item[1].end)):
        if span.begin != place:
            raise damaged(path, f"tensor {name[:80]!r} begins at byte {span.begin}, expected {place}")
        place = span.end
    if place != size:
        raise damaged(path, f"it has {size} bytes of data, expected {place}")


def digest(data: Iterable[Any] | bytes) -> str:
    """The sha256 of bytes, in hex."""
    found = hashlib.sha256()
    for piece in (data,) if isinstance(data, bytes) else data:
        found.update(piece)
    return found.hexdigest()
