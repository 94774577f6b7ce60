"""The cache that programs use: the folder of this machine, and behind it what several machines share."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from lampwork import config, logs
from lampwork.cache.key import Key
from lampwork.cache.local import Local, local
from lampwork.config import Config
from lampwork.folders import cache_folder
from lampwork.records import record


@record
class Store:
    """Contents by key. Nothing here raises for the sake of a disk or a network: what cannot be read is not there, what
    cannot be written is not kept, and the log's topic `cache` says why. Safe to use from many threads and processes at
    a time, and after a fork.

    `most`: how many bytes the folder keeps.
    """

    local: Local
    most: int

    def get(self, key: Key) -> bytes | None:
        """The content that was kept under `key`; None if there is none that is whole."""
        found = self.local.get(key)
        if found is None:
            self.local.note_miss(key)
            logs.emit("cache", f"miss: {key}")
        else:
            logs.emit("cache", f"hit: {key}, {len(found)} bytes")
        return found

    def put(self, key: Key, content: bytes) -> None:
        """Keep the content of `key`, instead of what was kept for it before."""
        self.local.put(key, content, self.most)

    @contextlib.contextmanager
    def making(self, key: Key) -> Generator[bytes | None]:
        """Have the turn to make the content of `key`, which one process and thread has at a time; gives what another
        one has made in the meantime. Nobody waits for longer than a minute."""
        with self.local.making(key):
            yield self.local.get(key)


def store(options: Config | None = None) -> Store | None:
    """The cache of the options in force; None if nothing is to be kept, or there is nowhere to keep it."""
    options = options or config.current()
    folder = cache_folder(options)
    if folder is None:
        return None
    try:
        return Store(local(folder), options.cache_bytes)
    except (OSError, ValueError) as error:  # the latter for a path that is none
        logs.emit("cache", f"nothing is kept: {error}")
        return None
