"""The index of the cache: which file holds the entry of a key, which entries were used last, and what was missed.

It is an SQLite file that can be lost at any time: entries say themselves what they are about, so it is made again from
those that lie there, and whatever it says is checked against them. Therefore nothing here waits for a disk. Where no
index can be kept (a folder that is read-only, a file system without locks), there is one in memory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Generator, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote

from lampwork.cache.key import Key, read_key
from lampwork.cache.objects import Found
from lampwork.folders import NEW, is_own
from lampwork.locks import hold_across_forks, importing, new_lock
from lampwork.records import record

if TYPE_CHECKING:
    from sqlite3 import Connection

VERSION = 1
"""Of the tables. Each version has a file of its own, so that several versions of Lampwork share a folder."""
MISSES = 256
"""So many are remembered."""
PATIENCE = 2.0
"""How long another process may keep the index locked, in seconds. After one that took longer nobody waits for a
minute."""
ROOM = 0.9
"""To which part of its limit the cache shrinks when it has grown above it, so that not every entry has to make room."""

T = TypeVar("T")

_TABLES = (
    """CREATE TABLE entries (
        number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, name TEXT NOT NULL, kind TEXT NOT NULL,
        text TEXT NOT NULL, bytes INTEGER NOT NULL, made REAL NOT NULL, turn INTEGER NOT NULL, seen REAL NOT NULL)""",
    "CREATE INDEX by_turn ON entries (turn, bytes)",
    "CREATE INDEX by_kind ON entries (kind)",
    """CREATE TABLE misses (
        number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, text TEXT NOT NULL, time REAL NOT NULL,
        process INTEGER NOT NULL, after INTEGER NOT NULL)""",
    "CREATE TABLE done (what TEXT PRIMARY KEY, time REAL NOT NULL)",
)
_COLUMNS = "number, key, name, text, bytes, made, seen"
_NEXT_TURN = "(SELECT coalesce(max(turn), 0) + 1 FROM entries)"
_NAME = re.compile("[0-9a-f]{64}")
_LOCAL = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "reiserfs", "tmpfs", "xfs", "zfs"}
)
"""File systems of one machine, whose processes share memory: what SQLite's write-ahead log needs."""
_BUSY = frozenset({5, 6, 15})
_DAMAGE = frozenset({0, 1, 11, 24, 26})
"""Codes of SQLite: of what passes, and of what is no index (or one without our tables)."""


class Unusable(Exception):
    """The index does not answer now; args[0] is the reason."""


class _Damage(Exception):
    """The file is no index of ours; args[0] is the reason."""


@record
class Row:
    """An entry, as the index has it.

    `number` grows from entry to entry. `made`, `seen`: when it was made, and used (noted at most once an hour).
    """

    number: int
    key: str
    name: str
    text: str
    bytes: int
    made: float
    seen: float


@record
class Miss:
    """A key that was not there when `process` asked for it; `after`: the last entry made before that."""

    key: Key
    time: float
    process: int
    after: int


_indexes: weakref.WeakSet[Index] = weakref.WeakSet()
_using = new_lock()
"""Held by a thread that is in SQLite."""


class _NoneOpen:
    """What forks take: nobody is in SQLite, and no connection is open, so a child has none of its parent's."""

    def acquire(self) -> None:
        _using.acquire()
        for index in list(_indexes):
            index.close()

    def release(self) -> None:
        _using.release()


hold_across_forks(_NoneOpen())


class Index:
    """The index in the file `path`. A process has one for each file: SQLite's locks are the process's.

    `entries` gives what lies there.
    """

    def __init__(self, path: Path, entries: Callable[[], Iterable[Found]]) -> None:
        self.path = path
        self._entries = entries
        self._connection: Connection | None = None
        self._opened: tuple[int, int] | None = None
        self._impatient = 0.0
        self.trouble = ""
        _indexes.add(self)

    def close(self) -> None:
        """Have no connection until the next use."""
        with _using:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def find(self, digest: str) -> Row | None:
        """The entry of a key.

        Raises:
            Unusable: the index does not answer. So do all methods.
        """

        def work(connection: Connection) -> Row | None:
            found = connection.execute(f"SELECT {_COLUMNS} FROM entries WHERE key = ?", (digest,)).fetchone()
            return None if found is None else _row(found)

        return self._run(work)

    def use(self, digest: str, now: float) -> None:
        """Note that an entry is used: it is the last one to go. Turns are counted, so clocks may jump."""

        def work(connection: Connection) -> None:
            with _writing(connection):
                connection.execute(
                    f"UPDATE entries SET turn = {_NEXT_TURN}, seen = ? WHERE key = ?", (now, digest)
                )

        self._run(work, patience=0.0)

    def keep(self, key: Key, name: str, bytes: int, now: float, most: int) -> list[str]:
        """Enter an entry; gives the names of those that have to go for it, which the index has no more."""

        def work(connection: Connection) -> list[str]:
            with _writing(connection):
                where = (key.digest, name)
                gone = connection.execute("SELECT name FROM entries WHERE key = ? AND name != ?", where)
                names = [found[0] for found in gone.fetchall()]
                connection.execute("DELETE FROM entries WHERE key = ?", (key.digest,))
                _enter(connection, key, name, bytes, now)
                total = connection.execute("SELECT total(bytes) FROM entries").fetchone()[0]
                if total > most:
                    names += _make_room(connection, key.digest, total - ROOM * most)
            return [each for each in names if _is_name(each)]

        return self._run(work)

    def drop(self, name: str) -> None:
        """Forget the entry of a file."""

        def work(connection: Connection) -> None:
            with _writing(connection):
                connection.execute("DELETE FROM entries WHERE name = ?", (name,))

        self._run(work)

    def clear(self) -> list[str]:
        """Forget everything; gives the names of the files."""

        def work(connection: Connection) -> list[str]:
            with _writing(connection):
                names = [found[0] for found in connection.execute("SELECT name FROM entries")]
                for table in ("entries", "misses", "done"):
                    connection.execute(f"DELETE FROM {table}")
            return [each for each in names if _is_name(each)]

        return self._run(work)

    def rows(self, kind: str | None = None) -> list[Row]:
        """All entries, or those of a kind; what was used last comes first."""

        def work(connection: Connection) -> list[Row]:
            where, values = ("", ()) if kind is None else ("WHERE kind = ?", (ascii(kind),))
            found = connection.execute(f"SELECT {_COLUMNS} FROM entries {where} ORDER BY turn DESC", values)
            return [_row(each) for each in found.fetchall()]

        return self._run(work)

    def names(self) -> set[str]:
        """Of the files of all entries."""

        def work(connection: Connection) -> set[str]:
            return {found[0] for found in connection.execute("SELECT name FROM entries")}

        return self._run(work)

    def note_miss(self, key: Key, now: float) -> None:
        """Remember that `key` was asked for in vain."""

        def work(connection: Connection) -> None:
            with _writing(connection):
                connection.execute(
                    "INSERT INTO misses (key, text, time, process, after) VALUES "
                    "(?, ?, ?, ?, (SELECT coalesce(max(number), 0) FROM entries))",
                    (key.digest, key.text, now, os.getpid()),
                )
                connection.execute(
                    "DELETE FROM misses WHERE number <= (SELECT max(number) FROM misses) - ?", (MISSES,)
                )

        self._run(work, patience=0.0)

    def misses(self) -> list[Miss]:
        """The last one comes first."""

        def work(connection: Connection) -> list[Miss]:
            found = connection.execute("SELECT text, time, process, after FROM misses ORDER BY number DESC")
            known = ((read_key(text), *rest) for text, *rest in found.fetchall())
            return [Miss(key, *cast(Any, rest)) for key, *rest in known if key is not None]

        return self._run(work)

    def is_due(self, what: str, now: float, period: float) -> bool:
        """Whether `what` has not been done for a period; then it counts as done, and who asked does it."""

        def work(connection: Connection) -> bool:
            done = connection.execute("SELECT time FROM done WHERE what = ?", (what,)).fetchone()
            # A time to come is one of a clock that was wrong.
            if done is not None and 0 <= now - done[0] < period:
                return False
            with _writing(connection):
                connection.execute("INSERT OR REPLACE INTO done (what, time) VALUES (?, ?)", (what, now))
            return True

        return self._run(work)

    def _run(self, work: Callable[[Connection], T], patience: float = PATIENCE) -> T:
        sqlite = _sqlite()
        now = time.monotonic()
        until, pause, made = now if now < self._impatient else now + patience, 0.001, False
        while True:
            # No thread sleeps in here, nor says anything: forks wait for it.
            with _using:
                try:
                    return work(self._open(sqlite))
                except sqlite.Error as error:
                    reason, code = str(error), (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
                except _Damage as error:
                    reason, code = str(error), 0
                if code in _DAMAGE and not made:
                    made = True
                    self._replace(sqlite, reason)
                    continue
                if code not in _BUSY:
                    self.close()
                    raise Unusable(reason)
            if time.monotonic() >= until:
                if patience:
                    self._impatient = time.monotonic() + 60.0
                raise Unusable(reason)
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def _open(self, sqlite: Any) -> Connection:
        if self._connection is not None:
            return self._connection
        try:
            if not os.access(self.path.parent, os.W_OK):
                return self._open_unwritable(sqlite)
            if not self.path.exists():
                self._make(sqlite, None)
            made = self._connect(sqlite)
        except OSError as error:
            self.trouble = str(error)
            made = self._in_memory(sqlite)
        self._connection = made
        return made

    def _connect(self, sqlite: Any) -> Connection:
        found = self._looked_at()
        self._opened = found.st_dev, found.st_ino
        made: Connection = sqlite.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            made.execute("PRAGMA synchronous = OFF")
            _check_version(made)
        except BaseException:
            made.close()
            raise
        return made

    def _open_unwritable(self, sqlite: Any) -> Connection:
        """An index that nobody writes to, as it is; else one of what lies there."""
        try:
            self._looked_at()
            made = sqlite.connect(
                f"file:{quote(str(self.path))}?immutable=1",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
            )
            _check_version(made)
        except (OSError, sqlite.Error, _Damage) as error:
            self.trouble = str(error)
            made = self._in_memory(sqlite)
        self._connection = made
        return made

    def _looked_at(self) -> os.stat_result:
        found = self.path.lstat()
        if not stat.S_ISREG(found.st_mode) or not is_own(found):
            raise PermissionError(errno.EPERM, "it is no file of this user's alone", str(self.path))
        return found

    def _in_memory(self, sqlite: Any) -> Connection:
        made: Connection = sqlite.connect(":memory:", isolation_level=None, check_same_thread=False)
        _fill(made, self._entries())
        return made

    def _replace(self, sqlite: Any, reason: str) -> None:
        """Make the index again, for what is there is none."""
        self.trouble = reason
        self.close()
        try:
            self._make(sqlite, self._opened)
        except (OSError, sqlite.Error) as error:
            self.trouble = f"{reason}, and no other can be made: {error}"
            self._connection = self._in_memory(sqlite)

    def _make(self, sqlite: Any, damaged: tuple[int, int] | None) -> None:
        """Make the file, unless another process has just done so: one at a time looks what lies there."""
        with _alone(self.path.with_suffix(".lock")):
            with contextlib.suppress(FileNotFoundError):
                found = self.path.lstat()
                if damaged is None or damaged != (found.st_dev, found.st_ino):
                    return
            handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=NEW)
            os.close(handle)
            try:
                made: Connection = sqlite.connect(name, timeout=0, isolation_level=None)
                with contextlib.closing(made):
                    made.execute("PRAGMA synchronous = OFF")
                    made.execute("PRAGMA journal_mode = MEMORY")
                    _fill(made, self._entries())
                    made.execute(
                        f"PRAGMA journal_mode = {'WAL' if _file_system(self.path) in _LOCAL else 'DELETE'}"
                    )
                for suffix in ("-wal", "-shm", "-journal"):
                    self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
                os.replace(name, self.path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise


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
def _writing(connection: Connection) -> Generator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def _check_version(connection: Connection) -> None:
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found != VERSION:
        raise _Damage(f"its tables are of version {found}")


def _fill(connection: Connection, entries: Iterable[Found]) -> None:
    """Make the tables, and enter what lies there; what was written last is used last."""
    with _writing(connection):
        for statement in _TABLES:
            connection.execute(statement)
        for each in sorted(entries, key=lambda each: each.time):
            if each.key is not None:
                connection.execute("DELETE FROM entries WHERE key = ?", (each.key.digest,))
                _enter(connection, each.key, each.name, each.bytes, each.time)
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _enter(connection: Connection, key: Key, name: str, bytes: int, now: float) -> None:
    connection.execute(
        "INSERT INTO entries (key, name, kind, text, bytes, made, turn, seen) "
        f"VALUES (?, ?, ?, ?, ?, ?, {_NEXT_TURN}, ?)",
        (key.digest, name, ascii(key.kind), key.text, bytes, now, now),
    )


def _make_room(connection: Connection, besides: str, bytes: float) -> list[str]:
    """Forget what was not used for longest, so many bytes of it."""
    names: list[str] = []
    for key, name, size in connection.execute(
        "SELECT key, name, bytes FROM entries ORDER BY turn"
    ).fetchall():
        if bytes <= 0:
            break
        if key != besides:
            connection.execute("DELETE FROM entries WHERE key = ?", (key,))
            names.append(name)
            bytes -= size
    return names


def _row(found: tuple[Any, ...]) -> Row:
    row = Row(*found)
    if not _is_name(row.name):
        raise _Damage("it names no file")
    return row


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


@contextlib.contextmanager
def _alone(path: Path) -> Generator[None]:
    """Hold the lock of a file, or go on without after a while, or where there are no locks: then two make the same."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.005)
            except OSError:
                break
        yield
    finally:
        os.close(handle)


def _file_system(path: Path) -> str:
    """Of the folder of a file, as Linux names it; "" where it does not say."""
    try:
        device = os.stat(path.parent).st_dev
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        mount, _, system = line.partition(" - ")
        if mount.split()[2:3] == [wanted]:
            return system.split()[0]
    return ""
