"""Which Lampwork this is: a digest of its own code, equal on all machines that have the same."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from lampwork.locks import in_child, new_lock
from lampwork.standard import functools

_PACKAGE = Path(__file__).parent.parent
_KINDS = (".py", ".so")


def own_code() -> str:
    """The digest, 64 hex digits: of the list of files that an installer keeps (RECORD), which has a digest of each; in
    a source tree of the files themselves."""
    thread = _early.thread
    if thread is not None:
        thread.join()
        _early.thread = None
    with _early.lock:
        return _digest()


@dataclass(slots=True)
class _Early:
    """The thread that reads the files ahead of need."""

    thread: threading.Thread | None = None
    started: bool = False
    lock: threading.RLock = field(default_factory=new_lock)


_early = _Early()


def _forget() -> None:
    _early.thread = None


in_child(_forget)


def read_early() -> None:
    """Start to read Lampwork's files in a thread of its own: some 30 ms, while a first call is captured."""
    if _early.started:
        return
    _early.started = True
    thread = threading.Thread(target=own_code_here, name="lampwork-own-code", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the system has no more, or the interpreter is about to end
        return
    _early.thread = thread


def own_code_here() -> None:
    """Find the digest in this thread."""
    with _early.lock:
        _digest()


@functools.cache
def _digest() -> str:
    return digest_of(_PACKAGE)


def digest_of(package: Path) -> str:
    """The digest of a package's code."""
    records = sorted(package.parent.glob(f"{package.name}-*.dist-info/RECORD"))
    if len(records) == 1 and (listed := _listed(records[0], package.name)):
        return hashlib.sha256("\n".join(listed).encode()).hexdigest()
    digest = hashlib.sha256()
    for path in _files(package, ""):
        digest.update(path.encode() + b"\0" + hashlib.sha256((package / path).read_bytes()).digest())
    return digest.hexdigest()


def _listed(record: Path, name: str) -> list[str]:
    """The lines of a RECORD that have the digest of a file of code."""
    lines = record.read_text(encoding="utf-8").splitlines()
    ours = [line for line in lines if line.startswith(f"{name}/")]
    return sorted(line for line in ours if line.split(",")[0].endswith(_KINDS) and ",sha256=" in line)


def _files(folder: Path, path: str) -> Iterator[str]:
    """The files of code, by their paths from the package on, in order."""
    with os.scandir(folder / path) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        inside = f"{path}/{entry.name}" if path else entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _files(folder, inside)
        elif entry.name.endswith(".py") or _suffix(entry.name) in EXTENSION_SUFFIXES:
            yield inside


def _suffix(name: str) -> str:
    """From the first dot on: an extension for another Python, built in the same tree, is not of this one's code."""
    return name[name.find(".") :]
