"""The files of the cache: each entry is one, under the name that its bytes give it."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from lampwork.cache.entry import FAMILY, is_foreign, key_of, name_of
from lampwork.cache.key import Key
from lampwork.folders import NEW, is_own, keep_file, kept_file
from lampwork.records import record

DAY = 24 * 3600
_HEAD = 1 << 16
"""How much of a file is read to find its key; of a longer key, all of the file."""
_LEFT_OVER = re.compile(re.escape(NEW) + "(-wal|-shm|-journal)?$")
_NAME = re.compile("[0-9a-f]{64}")


class Damaged(Exception):
    """A file that is not what its name says; args[0] is the reason."""


@record
class Found:
    """A file of the cache, as the folder shows it.

    `key`: what it is about by its first line, which is not held against its name; None if it is no entry of this form.
    `foreign`: it is an entry of another version of the form, which others may want.
    """

    name: str
    bytes: int
    time: float
    key: Key | None
    foreign: bool


@record
class Objects:
    """The folder of entries. Safe to use from many threads and processes at a time: a file comes to its place whole,
    and the same name always has the same content."""

    folder: Path

    def read(self, name: str, most: int) -> bytes | None:
        """An entry; None if there is no such file.

        Raises:
            Damaged: there is one, which cannot be trusted: its bytes are not those that gave it the name, or others
                can write to it.
            OSError: it cannot be read.
        """
        try:
            content, found = kept_file(self.path(name), most)
        except FileNotFoundError:
            return None
        if not is_own(found):
            raise Damaged("others can write to it")
        if len(content) > most:
            raise Damaged(f"it has more than {most} bytes")
        if name_of(content) != name:
            raise Damaged("its bytes are not those that were written")
        return content

    def write(self, entry: bytes) -> str:
        """Keep an entry; gives its name.

        Raises:
            OSError: it cannot be written.
        """
        name = name_of(entry)
        # Somebody may have removed all of it.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        keep_file(self.path(name), entry)
        return name

    def remove(self, name: str) -> None:
        """Remove an entry, if it is there.

        Raises:
            OSError: it cannot be removed.
        """
        self.path(name).unlink(missing_ok=True)

    def has(self, name: str) -> bool:
        return self.path(name).is_file()

    def names(self) -> Iterator[str]:
        """Of all files.

        Raises:
            OSError: the folder cannot be read.
        """
        for entry in self._files():
            if _NAME.fullmatch(entry.name) and entry.name[:2] == Path(entry.path).parent.name:
                yield entry.name

    def found(self, name: str) -> Found | None:
        """What a file is about; None if it is gone, or cannot be read."""
        try:
            begun, stat = kept_file(self.path(name), _HEAD)
            if len(begun) > _HEAD and b"\n" not in begun[len(FAMILY) + 2 :]:
                begun, stat = kept_file(self.path(name), stat.st_size)
        except OSError:
            return None
        return Found(name, stat.st_size, stat.st_mtime, key_of(begun), is_foreign(begun))

    def walk(self) -> Iterator[Found]:
        """All files that can be read, or those up to where the folder cannot."""
        with contextlib.suppress(OSError):
            for name in self.names():
                found = self.found(name)
                if found is not None:
                    yield found

    def remove_left_over(self) -> int:
        """Remove what processes that were killed began to write a day ago, or in a future that has not come; gives how
        many files these were.

        Raises:
            OSError: the folder cannot be read or written.
        """
        removed = 0
        for entry in self._files():
            stat = _stat(entry) if _LEFT_OVER.search(entry.name) else None
            if stat is not None and abs(time.time() - stat.st_mtime) > DAY:
                Path(entry.path).unlink(missing_ok=True)
                removed += 1
        return removed

    def path(self, name: str) -> Path:
        return self.folder / f"{name[:2]}/{name}"

    def _files(self) -> Iterator[os.DirEntry[str]]:
        """In the folder and in those with two letters."""
        with os.scandir(self.folder) as entries:
            top = list(entries)
        for each in top:
            if each.is_dir(follow_symlinks=False) and len(each.name) == 2:
                with os.scandir(each.path) as entries:
                    yield from entries
            else:
                yield each


def _stat(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Of a file; None if it is none, or another process has removed it."""
    try:
        return entry.stat(follow_symlinks=False) if entry.is_file(follow_symlinks=False) else None
    except FileNotFoundError:
        return None
