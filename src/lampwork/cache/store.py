"""The cache that programs use: the folder of this machine, and behind it what several machines share."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from lampwork import config, logs
from lampwork.cache.database import Unusable
from lampwork.cache.entry import content_of, entry_of
from lampwork.cache.key import Key
from lampwork.cache.local import Local, local
from lampwork.cache.making import making
from lampwork.cache.remote import Remote, remote
from lampwork.cache.why import nearest
from lampwork.config import Config
from lampwork.folders import cache_folder
from lampwork.records import record


@record
class Store:
    """Contents by key. Nothing here raises for the sake of a disk or a network: what cannot be read is not there, what
    cannot be written is not kept, and the log's topic `cache` says why. Safe to use from many threads and processes at
    a time, and after a fork.

    `local`: None where there is no folder to write to. `most`: how many bytes it keeps.
    """

    local: Local | None
    remote: Remote | None
    most: int

    def get(self, key: Key) -> bytes | None:
        """The content that was kept under `key`; None if there is none that is whole."""
        found = None if self.local is None else self.local.get(key)
        if found is not None:
            logs.emit("cache", f"hit: {key}, {len(found)} bytes")
            return found
        found = self._shared(key)
        if found is not None:
            return found
        if logs.enabled("cache"):
            logs.emit("cache", f"miss: {key}{self._why(key)}")
        if self.local is not None:
            self.local.note_miss(key)
        return None

    def put(self, key: Key, content: bytes) -> None:
        """Keep the content of `key`, instead of what was kept for it before."""
        entry = entry_of(key, content)
        if self.local is not None:
            self.local.put(key, entry, self.most)
        if self.remote is not None:
            self.remote.put(key, entry)

    @contextlib.contextmanager
    def making(self, key: Key) -> Generator[bytes | None]:
        """Have the turn to make the content of `key`, which one process and thread has at a time; gives what another
        one has made in the meantime. Nobody waits for longer than a minute."""
        with making(None if self.local is None else self.local.folder / "making", key.digest):
            yield self._shared(key) if self.local is None else self.local.get(key)

    @property
    def place(self) -> str:
        """Names where the contents are."""
        here = "" if self.local is None else str(self.local.folder)
        return here if self.remote is None else f"{here} {self.remote.url}"

    def _why(self, key: Key) -> str:
        """In what the nearest entry differs, for the log."""
        try:
            found = None if self.local is None else nearest(key, self.local.rows(key.kind))
        except Unusable as error:
            return f" ({error})"
        return "" if found is None else "".join(f"\n  {each}" for each in found.differences)

    def _shared(self, key: Key) -> bytes | None:
        """The content of `key` from the shared cache; from then on it is in the folder too."""
        entry = None if self.remote is None else self.remote.get(key)
        if entry is None:
            return None
        if self.local is not None:
            self.local.put(key, entry, self.most)
        content = content_of(key, entry)
        if self.remote is not None and content is not None:
            logs.emit("cache", f"hit: {key}, {len(content)} bytes, in {self.remote.url}")
        return content


def store(options: Config | None = None) -> Store | None:
    """The cache of the options in force; None if nothing is to be kept, or there is nowhere to keep it."""
    options = options or config.current()
    if options.cache == "off":
        return None
    shared = remote(options)
    try:
        folder = cache_folder(options)
        found = None if folder is None else local(folder)
    except (OSError, ValueError) as error:  # the latter for a path that is none
        logs.emit("cache", f"no folder is used: {error}")
        found = None
    return None if found is None and shared is None else Store(found, shared, options.cache_bytes)
