"""The index of the cache: which file holds the entry of a key, which entries were used last, and what was missed.

It can be lost at any time: entries say themselves what they are about, so it is filled again from those that lie there,
and whatever it says is checked against them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lampwork.cache.database import Damage, Database, writing
from lampwork.cache.key import Key, read_key
from lampwork.cache.objects import Found
from lampwork.records import record

if TYPE_CHECKING:
    from sqlite3 import Connection

VERSION = 1
"""Of the tables. Each version has a file of its own, so that several versions of Lampwork share a folder."""
MISSES = 256
"""So many of each kind are remembered: a program has one key, and hundreds of kernels."""
ROOM = 0.9
"""To which part of its limit the cache shrinks when it has grown above it, so that not every entry has to make room."""

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


class Index:
    """The index in the file `path`. A process has one for each file.

    `entries` gives what lies there.
    """

    def __init__(self, path: Path, entries: Callable[[], Iterable[Found]]) -> None:
        self._database = Database(path, VERSION, lambda connection: _fill(connection, entries()))
        self._run = self._database.run

    @property
    def path(self) -> Path:
        return self._database.path

    @property
    def trouble(self) -> str:
        """What was wrong with the file last, or ""."""
        return self._database.trouble

    def close(self) -> None:
        """Have no connection until the next use."""
        self._database.close()

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
            with writing(connection):
                connection.execute(
                    f"UPDATE entries SET turn = {_NEXT_TURN}, seen = ? WHERE key = ?", (now, digest)
                )

        self._run(work, patience=0.0)

    def keep(self, key: Key, name: str, bytes: int, now: float, most: int) -> list[str]:
        """Enter an entry; gives the names of those that have to go for it, which the index has no more."""

        def work(connection: Connection) -> list[str]:
            with writing(connection):
                where = (key.digest, name)
                gone = connection.execute("SELECT name FROM entries WHERE key = ? AND name != ?", where)
                names = [found[0] for found in gone.fetchall()]
                connection.execute("DELETE FROM entries WHERE key = ?", (key.digest,))
                _enter(connection, key, name, bytes, now)
                total = connection.execute("SELECT total(bytes) FROM entries").fetchone()[0]
                if total > most:
                    names += _make_room(connection, key.digest, total - ROOM * most)
            return [each for each in names if _is_name(each)]

        # What has just been made took longer to make.
        return self._run(work, patience=5.0)

    def drop(self, name: str) -> None:
        """Forget the entry of a file."""

        def work(connection: Connection) -> None:
            with writing(connection):
                connection.execute("DELETE FROM entries WHERE name = ?", (name,))

        self._run(work)

    def clear(self) -> list[str]:
        """Forget everything; gives the names of the files."""

        def work(connection: Connection) -> list[str]:
            with writing(connection):
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
            found = connection.execute("SELECT name FROM entries").fetchall()
            return {each[0] for each in found if _is_name(each[0])}

        return self._run(work)

    def note_miss(self, key: Key, now: float) -> None:
        """Remember that `key` was asked for in vain."""

        def work(connection: Connection) -> None:
            with writing(connection):
                connection.execute(
                    "INSERT INTO misses (key, text, time, process, after) VALUES "
                    "(?, ?, ?, ?, (SELECT coalesce(max(number), 0) FROM entries))",
                    (key.digest, key.text, now, os.getpid()),
                )
                # A key as text begins with its kind.
                alike = json.dumps([key.kind])[:-1] + ","
                connection.execute(
                    "DELETE FROM misses WHERE instr(text, ?) = 1 AND number <= (SELECT number FROM misses "
                    "WHERE instr(text, ?) = 1 ORDER BY number DESC LIMIT 1 OFFSET ?)",
                    (alike, alike, MISSES),
                )

        self._run(work, patience=0.0)

    def misses(self) -> list[Miss]:
        """The last one comes first."""

        def work(connection: Connection) -> list[Miss]:
            found = connection.execute("SELECT text, time, process, after FROM misses ORDER BY number DESC")
            misses: list[Miss] = []
            for text, *numbers in found.fetchall():
                key = read_key(text) if isinstance(text, str) else None
                if key is not None and all(map(_is_number, numbers)):
                    misses.append(Miss(key, *numbers))
            return misses

        return self._run(work)

    def is_due(self, what: str, now: float, period: float) -> bool:
        """Whether `what` has not been done for a period; then it counts as done, and who asked does it."""

        def work(connection: Connection) -> bool:
            done = connection.execute("SELECT time FROM done WHERE what = ?", (what,)).fetchone()
            # A time to come is one of a clock that was wrong.
            if done is not None and _is_number(done[0]) and 0 <= now - done[0] < period:
                return False
            with writing(connection):
                connection.execute("INSERT OR REPLACE INTO done (what, time) VALUES (?, ?)", (what, now))
            return True

        return self._run(work)


def _fill(connection: Connection, entries: Iterable[Found]) -> None:
    """Make the tables, and enter what lies there; what was written last is used last."""
    for statement in _TABLES:
        connection.execute(statement)
    for each in sorted(entries, key=lambda each: each.time):
        if each.key is not None:
            connection.execute("DELETE FROM entries WHERE key = ?", (each.key.digest,))
            _enter(connection, each.key, each.name, each.bytes, each.time)


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
    numbers, texts = (row.number, row.bytes, row.made, row.seen), [row.key, row.text]
    if not (all(map(_is_number, numbers)) and all(type(each) is str for each in texts)):
        raise Damage("an entry is not one")
    if not _is_name(row.name):
        raise Damage("an entry names no file")
    return row


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None
