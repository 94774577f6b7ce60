"""An SQLite file that can be lost at any time, since whoever has it knows how to fill it again.

So nothing here waits for a disk. A file that is damaged, or of other tables, is made again; where none can be kept (a
folder that is read-only, a disk that is full, a file system without locks) there is a database in memory for a while.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from lampwork.folders import NEW, is_own
from lampwork.locks import hold_across_forks, importing, new_lock
from lampwork.standard import math

if TYPE_CHECKING:
    from sqlite3 import Connection

PATIENCE = 2.0
"""How long another process may keep the file locked, in seconds."""
PAUSE = 60.0
"""For how long nobody waits after one that took longer, and for how long a database in memory serves, in seconds."""

_LONGEST_PAUSE = 0.05
T = TypeVar("T")

_LOCAL = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "reiserfs", "tmpfs", "xfs", "zfs"}
)
"""File systems of one machine, whose processes share memory: what SQLite's write-ahead log needs."""
_READ_ONLY = 8
_BUSY = frozenset({5, 6, 15})
_DAMAGE = frozenset({0, 1, 11, 24, 26})
"""Codes of SQLite: of what passes, and of what is no database (or one without our tables)."""


class Unusable(Exception):
    """The database does not answer now; args[0] is the reason."""


class Damage(Exception):
    """What is in the file is not what was written; args[0] is the reason."""


_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_using = new_lock()
"""Held by a thread that is in SQLite."""


class _NoneOpen:
    """What forks take when nobody is in SQLite: no connection is open, so a child has none of its parent's."""

    def acquire(self) -> None:
        for database in list(_databases):
            database.close()

    def release(self) -> None:
        pass


hold_across_forks(_using)
hold_across_forks(_NoneOpen())


class Database:
    """The database in the file `path`. A process has one for each file: SQLite's locks are the process's.

    `fill` makes the tables and fills them; `version` is that of the tables. `trouble`: what was wrong last, or "".
    """

    def __init__(self, path: Path, version: int, fill: Callable[[Connection], None]) -> None:
        self.path = path
        self.trouble = ""
        self._version = version
        self._fill = fill
        self._connection: Connection | None = None
        self._file: tuple[int, int] | None = None
        """Which file is open, so that one that takes its place is noticed; None for one in memory."""
        self._fixed = False
        self._until = math.inf
        self._impatient = 0.0
        self._at_work = False
        _databases.add(self)

    def close(self) -> None:
        """Have no connection until the next use."""
        with _using:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._until = math.inf

    def run(self, work: Callable[[Connection], T], patience: float = 1.0) -> T:
        """What `work` returns; it may be called again, so it does nothing else. It raises Damage where what it reads
        cannot be. `patience`: how long to wait for other processes, in times of `PATIENCE`.

        Raises:
            Unusable: the database does not answer.
        """
        sqlite = _sqlite()
        replaced = False
        pauses = _pauses(0.0 if time.monotonic() < self._impatient else patience * PATIENCE)
        while True:
            # No thread sleeps in here, nor says anything: forks wait for it.
            with _using:
                if self._at_work:  # a signal came, whose handler wants something too
                    raise Unusable("this thread is at work in it")
                self._at_work = True
                try:
                    return work(self._opened(sqlite))
                except sqlite.Error as error:
                    reason, code = str(error), (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
                except (Damage, UnicodeError) as error:  # the latter where a damaged name is in a message
                    reason, code = str(error), 0
                finally:
                    self._at_work = False
                if self._fixed and code == _READ_ONLY:
                    raise Unusable(reason)
                if code not in _BUSY:
                    if replaced:
                        self.close()
                        raise Unusable(reason)
                    self._replace(sqlite, reason, code in _DAMAGE)
                    replaced = True
                    continue
            if not next(pauses):
                if patience:
                    self._impatient = time.monotonic() + PAUSE
                raise Unusable(reason)

    def _opened(self, sqlite: Any) -> Connection:
        if self._connection is not None and (self._has_gone() or time.monotonic() >= self._until):
            self.close()
        if self._connection is None:
            try:
                self._connection = self._open(sqlite)
            except OSError as error:
                self.trouble = str(error)
                self._connection = self._in_memory(sqlite)
        return self._connection

    def _has_gone(self) -> bool:
        """Whether another file is in its place, or none."""
        if self._file is None:
            return False
        try:
            found = os.lstat(self.path)
        except OSError:
            return True
        return self._file != (found.st_dev, found.st_ino)

    def _open(self, sqlite: Any) -> Connection:
        self._fixed = not os.access(self.path.parent, os.W_OK)
        if not self._fixed and not self.path.exists():
            self._make(sqlite, None)
        found = self.path.lstat()
        if not stat.S_ISREG(found.st_mode) or not is_own(found):
            raise PermissionError(errno.EPERM, "it is no file of this user's alone", str(self.path))
        self._file = found.st_dev, found.st_ino
        # What nobody writes to needs no locks, and no files beside it.
        name = f"file:{quote(str(self.path))}{'?immutable=1' if self._fixed else ''}"
        made: Connection = sqlite.connect(name, **_HOW, uri=True)
        try:
            made.execute("PRAGMA synchronous = OFF")
            version = made.execute("PRAGMA user_version").fetchone()[0]
            if version != self._version:
                raise Damage(f"its tables are of version {version}")
        except BaseException:
            made.close()
            raise
        return made

    def _in_memory(self, sqlite: Any) -> Connection:
        self._file, self._fixed = None, False
        self._until = time.monotonic() + PAUSE
        made: Connection = sqlite.connect(":memory:", **_HOW)
        self._filled(made)
        return made

    def _replace(self, sqlite: Any, reason: str, damaged: bool) -> None:
        """Make the file again if what is there is none; else there is one in memory for a while: on a disk that is
        full, say, from which one can read still."""
        self.trouble = reason
        self.close()
        try:
            if damaged and not self._fixed:
                self._make(sqlite, self._file)
                return
        except (OSError, sqlite.Error) as error:
            self.trouble = f"{reason}, and no other can be made: {error}"
        self._connection = self._in_memory(sqlite)

    def _make(self, sqlite: Any, damaged: tuple[int, int] | None) -> None:
        """Make the file, unless another process has just done so: one at a time looks what is to be in it."""
        with _alone(self.path.with_suffix(".lock")):
            with contextlib.suppress(FileNotFoundError):
                found = self.path.lstat()
                if damaged is None or damaged != (found.st_dev, found.st_ino):
                    return
            handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=NEW)
            os.close(handle)
            try:
                made: Connection = sqlite.connect(name, **_HOW)
                with contextlib.closing(made):
                    made.execute("PRAGMA synchronous = OFF")
                    made.execute("PRAGMA journal_mode = MEMORY")
                    self._filled(made)
                    mode = "WAL" if _file_system(self.path.parent) in _LOCAL else "DELETE"
                    made.execute(f"PRAGMA journal_mode = {mode}")
                for suffix in ("-wal", "-shm", "-journal"):
                    self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
                os.replace(name, self.path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise

    def _filled(self, connection: Connection) -> None:
        with writing(connection):
            self._fill(connection)
            connection.execute(f"PRAGMA user_version = {self._version}")


_HOW: dict[str, Any] = {"timeout": 0, "isolation_level": None, "check_same_thread": False}


@contextlib.contextmanager
def writing(connection: Connection) -> Generator[None]:
    """All that is written in the block, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def _pauses(patience: float) -> Iterator[bool]:
    """Sleep, longer and longer, then say whether to try again: for so many seconds, or for so many times where a
    machine is so busy that its processes seldom get their turn."""
    began, tries = time.monotonic(), patience / _LONGEST_PAUSE
    pause = 0.001
    while (waited := time.monotonic() - began) < patience or (tries > 0 and waited < 3 * patience):
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        tries -= 1
        yield True
    while True:
        yield False


def _sqlite() -> Any:
    """The module, which takes some milliseconds to import.

    Raises:
        Unusable: this Python is built without.
    """
    with importing:
        try:
            return import_module("sqlite3")
        except ImportError as error:
            raise Unusable(str(error)) from error


@contextlib.contextmanager
def _alone(path: Path) -> Generator[None]:
    """Hold the lock of a file, or go on without after a while, or where there are no locks: then two make the same."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        pauses = _pauses(PATIENCE)
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not next(pauses):
                    break
            except OSError:
                break
        yield
    finally:
        os.close(handle)


def _file_system(folder: Path) -> str:
    """As Linux names it; "" where it does not say."""
    try:
        device = os.stat(folder).st_dev
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        mount, _, system = line.partition(" - ")
        if mount.split()[2:3] == [wanted]:
            return system.split()[0]
    return ""
