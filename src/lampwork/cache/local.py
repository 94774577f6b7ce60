"""The cache in a folder of this machine: files, the index of them, and who makes what is missing.

Everything is in `objects` below the folder of the option `cache`, which is this user's alone.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path

from lampwork import logs
from lampwork.cache.database import Unusable
from lampwork.cache.entry import content_of, is_foreign, key_of
from lampwork.cache.index import VERSION, Index, Miss, Row
from lampwork.cache.key import Key
from lampwork.cache.making import remove_left_over
from lampwork.cache.objects import DAY, Damaged, Objects
from lampwork.folders import is_own
from lampwork.locks import new_lock
from lampwork.records import record

HOUR = 3600.0
MOST_BYTES = 1 << 30
"""Of an entry."""
_FOLDER = "objects"
_NO_LIMIT = 1 << 62


@record
class Local:
    """The entries in one folder. Safe to use from many threads and processes at a time, and after a fork."""

    folder: Path
    objects: Objects
    index: Index

    def get(self, key: Key) -> bytes | None:
        """The content of a key; None if it is not here. What is damaged is removed."""
        try:
            row = self.index.find(key.digest)
            if row is None:
                return None
            content = self._content(key, row.name)
            if content is None:
                return None
        except Unusable as error:
            _say(f"the index in {self.folder} cannot be used: {error}")
            return None
        now = time.time()
        if not 0 <= now - row.seen < HOUR:
            with contextlib.suppress(Unusable):
                self.index.use(key.digest, now)
        return content

    def put(self, key: Key, entry: bytes, most: int) -> bool:
        """Keep an entry of `key`; gives whether it is kept. What was not used for longest makes room for it, down to
        `most` bytes."""
        if len(entry) > min(most, MOST_BYTES):
            _say(f"{key} is not kept: it has {len(entry)} bytes, above the limit")
            return False
        try:
            name = self.objects.write(entry)
            for gone in self.index.keep(key, name, len(entry), time.time(), most):
                self.objects.remove(gone)
        except (OSError, Unusable) as error:
            _say(f"{key} is not kept: {error}")
            return False
        self._tidy()
        return True

    def note_miss(self, key: Key) -> None:
        try:
            self.index.note_miss(key, time.time())
        except Unusable as error:
            _say(f"the miss of {key} is not noted: {error}")

    def rows(self, kind: str | None = None) -> list[Row]:
        """All entries; what was used last comes first.

        Raises:
            Unusable: the index does not answer.
        """
        return self.index.rows(kind)

    def misses(self) -> list[Miss]:
        """The last one comes first.

        Raises:
            Unusable: the index does not answer.
        """
        return self.index.misses()

    def clear(self) -> int:
        """Remove all entries; gives how many.

        Raises:
            Unusable: the index does not answer.
            OSError: a file cannot be removed.
        """
        names = {*self.index.clear(), *self.objects.names()}
        for name in names:
            self.objects.remove(name)
        return len(names)

    def verify(self) -> tuple[int, list[str]]:
        """Read all files; gives how many are whole, and what was wrong with the others, of which those that can be read
        are removed.

        Raises:
            Unusable: the index does not answer.
            OSError: the folder cannot be read.
        """
        known, whole, wrong = self.index.names(), 0, list[str]()
        seen = set(self.objects.names())
        for name in sorted(seen):
            try:
                entry = self.objects.read(name, MOST_BYTES)
                key = None if entry is None else key_of(entry)
                if entry is None or is_foreign(entry):
                    continue
                if key is None:
                    raise Damaged("it is no entry")
            except OSError as error:
                wrong.append(f"{name} cannot be read: {error}")
                continue
            except Damaged as error:
                wrong.append(f"{name} is removed: {error}")
                self._drop(name)
                continue
            whole += 1
            if name not in known:
                self.index.keep(key, name, len(entry), time.time(), _NO_LIMIT)
        for name in known - seen:
            if not self.objects.has(name):
                wrong.append(f"{name} is not there")
                self._drop(name)
        return whole, wrong

    def _content(self, key: Key, name: str) -> bytes | None:
        """What a file says of `key`. One that says nothing is removed, one that cannot be read now may be later."""
        try:
            entry = self.objects.read(name, MOST_BYTES)
            content = None if entry is None else content_of(key, entry)
            if entry is not None and content is None:
                raise Damaged(f"it is not about {key}")
        except OSError as error:
            _say(f"{self.objects.path(name)} is not used: {error}")
            return None
        except Damaged as error:
            _say(f"{self.objects.path(name)} is not used: {error}")
            content = None
        if content is None:
            self._drop(name)
        return content

    def _drop(self, name: str) -> None:
        """Remove an entry that is of no use."""
        try:
            self.objects.remove(name)
            self.index.drop(name)
        except (OSError, Unusable) as error:
            _say(f"{name} cannot be removed: {error}")

    def _tidy(self) -> None:
        """Once a day: remove what killed processes left, and enter what they wrote and did not enter."""
        try:
            if not self.index.is_due("tidy", time.time(), DAY):
                return
            self.objects.remove_left_over()
            remove_left_over(self.folder / "making", DAY)
            known, names = self.index.names(), set(self.objects.names())
            for found in map(self.objects.found, names - known):
                if found is None:
                    continue
                if found.key is not None and self.index.find(found.key.digest) is None:
                    self.index.keep(found.key, found.name, found.bytes, found.time, _NO_LIMIT)
                elif not found.foreign and abs(time.time() - found.time) > DAY:
                    self.objects.remove(found.name)
            for name in known - names:
                if not self.objects.has(name):
                    self.index.drop(name)
        except (OSError, Unusable) as error:
            _say(f"{self.folder} is not tidied: {error}")


_locals: dict[str, Local] = {}
_lock = new_lock()


def local(base: Path) -> Local:
    """The cache below `base`, which is made if need be.

    Raises:
        OSError: it cannot be made, is another user's, or others can write to it.
    """
    # A relative path means another folder once the program has gone elsewhere. Texts, as each look-up comes by here.
    name = os.path.join(base if base.is_absolute() else base.absolute(), _FOLDER)
    try:
        found = os.lstat(name)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(name), mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, mode=0o700)
        found = os.lstat(name)
    # What others can write to above does not matter: whatever they put in its place is no folder of this user's.
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{name} is no folder")
    if not is_own(found):
        raise PermissionError(f"{name} is another user's, or others can write to it")
    with _lock:
        if name not in _locals:
            folder = Path(name)
            objects = Objects(folder)
            index = Index(folder / f"index-{VERSION}.sqlite", objects.walk)
            _locals[name] = Local(folder, objects, index)
        return _locals[name]


def _say(text: str) -> None:
    logs.emit("cache", text)
