"""One at a time makes what a key stands for; the others wait for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

from lampwork.locks import hold_across_forks, in_child, new_lock

PATIENCE = 60.0
"""How long one waits for another, in seconds; then it makes the same itself."""


@dataclass(slots=True)
class _Turn:
    """What the threads of this process take turns with, for one key. `users`: who holds it or waits."""

    lock: threading.RLock = field(default_factory=new_lock)
    users: int = 0
    depth: int = 0


_turns: dict[tuple[str, str], _Turn] = {}
_lock = new_lock()
_handles: set[int] = set()
"""Of the locked files of this process."""


def _close_handles() -> None:
    # A lock belongs to the open file, which a child has too: it would hold it for as long as it lives.
    for handle in _handles:
        os.close(handle)
    _handles.clear()


in_child(_close_handles)
hold_across_forks(_lock)


@contextlib.contextmanager
def making(folder: Path | None, digest: str, patience: float = PATIENCE) -> Generator[None]:
    """Hold the turn to make a key, after at most `patience` seconds: by then without it. Who is killed gives it back,
    and where files cannot be locked (or there is no `folder`) only the threads of this process wait. A thread that
    has the turn gets it again at once."""
    until = time.monotonic() + patience
    with _turn(str(folder), digest) as turn:
        if not turn.lock.acquire(timeout=max(0.0, until - time.monotonic())):
            yield
            return
        turn.depth += 1
        try:
            if folder is None or turn.depth > 1:
                yield
            else:
                with _locked(folder / digest, until):
                    yield
        finally:
            turn.depth -= 1
            turn.lock.release()


@contextlib.contextmanager
def _turn(folder: str, digest: str) -> Generator[_Turn]:
    with _lock:
        turn = _turns.setdefault((folder, digest), _Turn())
        turn.users += 1
    try:
        yield turn
    finally:
        with _lock:
            turn.users -= 1
            if not turn.users:
                _turns.pop((folder, digest), None)


@contextlib.contextmanager
def _locked(path: Path, until: float) -> Generator[None]:
    handle = _lock_file(path, until)
    process = os.getpid()
    try:
        yield
    finally:
        # A child that was forked in between has closed it.
        if handle is not None and process == os.getpid():
            # It is removed while it is locked, and who waits for it looks whether it is there still.
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            with _lock:
                _handles.discard(handle)
                # Not only closed: children that were forked without us being told have the file open too.
                with contextlib.suppress(OSError):
                    fcntl.flock(handle, fcntl.LOCK_UN)
                os.close(handle)


def _lock_file(path: Path, until: float) -> int | None:
    """The handle of a locked file; None if another process keeps it for too long, or files cannot be locked here."""
    pause = 0.001
    while True:
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            handle = _opened(path)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, handle):
                return handle
            waits = False
        except BlockingIOError:
            waits = True
        except OSError:
            _close(handle)
            return None
        _close(handle)
        if waits:
            if time.monotonic() >= until:
                return None
            time.sleep(pause)
            pause = min(2 * pause, 0.05)


def _opened(path: Path) -> int:
    with _lock:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        _handles.add(handle)
        return handle


def _close(handle: int) -> None:
    with _lock:
        if handle in _handles:
            _handles.discard(handle)
            os.close(handle)


def _is_at(path: Path, handle: int) -> bool:
    """Whether an open file is the one at its place still."""
    try:
        there = path.lstat()
    except OSError:
        return False
    mine = os.fstat(handle)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def remove_left_over(folder: Path, age: float) -> None:
    """Remove the files of killed processes, which nobody has had locked for so many seconds."""
    try:
        paths = list(folder.iterdir())
    except OSError:
        return
    for path in paths:
        with contextlib.suppress(OSError):
            if abs(time.time() - path.lstat().st_mtime) > age:
                handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(handle)
