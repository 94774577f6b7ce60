"""The cache that machines share, behind the folder of each.

What it gives becomes machine code of this process. So each entry carries an HMAC-SHA256 of itself under a secret that
all who share the cache know, and what has another one is not there. Without a secret there is no shared cache: that
nobody else can write to a bucket is nothing that a program can see.

It is never waited for long. What fails, or takes too long, is left alone for a minute.
"""

from __future__ import annotations

import hmac
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from lampwork import logs
from lampwork.cache.entry import content_of
from lampwork.cache.key import Key
from lampwork.cache.places import NoPlace, Place, opener
from lampwork.config import SECRET, Config
from lampwork.errors import text_of, warn
from lampwork.locks import in_child, new_lock
from lampwork.standard import functools

TIMEOUT = 2.0
"""Of reading or writing an entry, in seconds."""
FIRST_TIMEOUT = 10.0
"""Of getting ready to ask at all, once in a process: credentials are looked up, clients are made."""
PAUSE = 60.0
"""For how long a place is left alone after it has failed, in seconds."""
LEAST_SECRET = 16
_FIRST = b"lampwork remote 1\n"
_DIGEST = 32

T = TypeVar("T")


class _Failed(Exception):
    """args[0] is the reason."""


class Remote:
    """A shared cache. Safe to use from many threads and processes at a time, and after a fork."""

    def __init__(self, url: str, secret: bytes) -> None:
        self.url = url
        self._secret = secret
        self._place: Place | None = None
        self._off_until = 0.0
        self._lock = new_lock()
        self.trouble = ""
        in_child(self._forget)

    def get(self, key: Key) -> bytes | None:
        """The entry of `key`; None if there is none that was made by who knows the secret."""
        found = self._ask(lambda place: place.read(key.digest))
        if found is None:
            return None
        start = len(_FIRST) + _DIGEST
        entry = found[start:]
        signed = hmac.compare_digest(found[:start], _FIRST + self._signature(entry))
        if not signed or content_of(key, entry) is None:
            logs.emit("cache", f"{self.url} has {key} without the right signature: it is not used")
            return None
        return entry

    def put(self, key: Key, entry: bytes) -> None:
        """Share an entry."""
        content = b"".join((_FIRST, self._signature(entry), entry))
        self._ask(lambda place: place.write(key.digest, content))

    @property
    def is_off(self) -> bool:
        """Whether it has failed, within the last minute."""
        return time.monotonic() < self._off_until

    def _signature(self, entry: bytes) -> bytes:
        return hmac.digest(self._secret, _FIRST + entry, "sha256")

    def _ask(self, question: Callable[[Place], T]) -> T | None:
        if self.is_off:
            return None
        try:
            place = self._place
            if place is None:
                place = self._place = _bounded(opener(self.url), FIRST_TIMEOUT)
            return _bounded(lambda: question(place), TIMEOUT)
        except NoPlace as error:
            _warn_once(f"the option cache_remote is left out: {error.args[0]}\n  fix: {error.args[1]}")
            reason = error.args[0]
        except _Failed as error:
            reason = error.args[0]
        with self._lock:
            first, self._off_until = not self.is_off, time.monotonic() + PAUSE
            self.trouble = reason
        if first:
            logs.emit("cache", f"{self.url} is left alone for {PAUSE:.0f} seconds: {reason}")
        return None

    def _forget(self) -> None:
        self._place = None


def _bounded(work: Callable[[], T], seconds: float) -> T:
    """What `work` returns; it runs in a thread, which is left to itself after so many seconds.

    Raises:
        _Failed: it raised, or is not ready by then.
    """
    found: list[Any] = []
    failed: list[Exception] = []
    done = threading.Event()

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:  # noqa: BLE001  (the boundary to code of others)
            failed.append(error)
        finally:
            done.set()

    try:
        threading.Thread(target=run, name="lampwork-cache", daemon=True).start()
    except RuntimeError as error:  # the process ends, or has too many
        raise _Failed(str(error)) from error
    if not done.wait(seconds):
        raise _Failed(f"it took more than {seconds:.0f} seconds")
    if failed:
        raise _Failed(text_of(failed[0]))
    return found[0]


_remotes: dict[tuple[str, bytes], Remote] = {}
_lock = new_lock()


def remote(options: Config) -> Remote | None:
    """The shared cache of the options; None if there is none, or no secret for it."""
    url = options.cache_remote
    if not url:
        return None
    secret = os.fsencode(os.environ.get(SECRET, ""))
    if len(secret) < LEAST_SECRET:
        has = f"has {len(secret)} bytes" if secret else "is not set"
        _warn_once(
            f"the option cache_remote is left out: {SECRET} {has}\n"
            f"  fix: set it to a secret of {LEAST_SECRET} bytes or more, the same on all machines that share the cache"
        )
        return None
    with _lock:
        made = _remotes.get((url, secret))
        if made is None:
            made = _remotes[url, secret] = Remote(url, secret)
        return made


@functools.cache
def _warn_once(text: str) -> None:
    warn(text)
