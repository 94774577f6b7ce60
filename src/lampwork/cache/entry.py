"""The form of an entry: what it is about, then its content. It is the same in a file, in an archive and in a remote
store.

    lampwork entry 1
    ["program",{"graph":"9f3a...","options":"..."}]
    content, to the end

Its name is the SHA-256 of all these bytes, so it stands for the key and the content together.
"""

from __future__ import annotations

import hashlib

from lampwork.cache.key import Key, read_key

FAMILY = b"lampwork entry "
"""Begins an entry of any version of this form."""
_FIRST = FAMILY + b"1\n"
_END = b"\n"


def entry_of(key: Key, content: bytes) -> bytes:
    return b"".join((_head(key), content))


def name_of(entry: bytes) -> str:
    """64 hexadecimal digits."""
    return hashlib.sha256(entry).hexdigest()


def content_of(key: Key, entry: bytes) -> bytes | None:
    """The content of an entry; None if it is not about `key`."""
    head = _head(key)
    return entry[len(head) :] if entry.startswith(head) else None


def key_of(entry: bytes) -> Key | None:
    """What an entry is about, of which the beginning is enough; None if it is no entry, or has not begun to be one."""
    end = entry.find(_END, len(_FIRST))
    if not entry.startswith(_FIRST) or end < 0:
        return None
    try:
        return read_key(entry[len(_FIRST) : end].decode("ascii"))
    except UnicodeDecodeError:
        return None


def is_foreign(entry: bytes) -> bool:
    """Whether this is an entry of another version of the form."""
    return entry.startswith(FAMILY) and not entry.startswith(_FIRST)


def _head(key: Key) -> bytes:
    return _FIRST + key.text.encode("ascii") + _END
