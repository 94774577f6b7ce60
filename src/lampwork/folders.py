"""Where Lampwork keeps files between processes."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from lampwork.config import Config

NEW = ".new"
"""Ends the name of a file that is being written."""


def cache_folder(config: Config) -> Path | None:
    """The folder of the option `cache`; None if nothing is to be kept. It need not exist."""
    if config.cache == "off":
        return None
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        if config.cache:
            return Path(config.cache).expanduser()
        # The specification has relative paths ignored.
        return (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "lampwork"
    except RuntimeError:  # a user without a home
        return None


def keep_file(path: Path, content: bytes) -> None:
    """Write a file of the cache, beside its place first, so that no reader in whatever process or thread sees half of
    it; who writes last wins. Its folder is made, for this user alone.

    Raises:
        OSError: nothing can be written there, or others can write to the folder.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_own(path.parent.stat()):
        raise PermissionError(f"{path.parent} can be written by others")
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=NEW)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def kept_file(path: Path, most: int) -> tuple[bytes, os.stat_result]:
    """A file of the cache, up to `most` bytes of it and one more where there are more, and what the system says of it.

    Raises:
        OSError: it cannot be read, or is no regular file: of these, one that nobody writes to would be waited for, and
            a link leads to what is somebody else's.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is no regular file")
        return file.read(min(most, found.st_size) + 1), found


def is_own(found: os.stat_result) -> bool:
    """Whether a file or folder is this user's, and nobody else can write to it."""
    return found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o022
