"""Files that people asked for, written as a whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from lampwork.errors import LampworkError, text_of

HINT = "give the path of a file in a folder that exists and can be written to"


def write_whole(
    path: str | os.PathLike[str], text: str, what: str, error: Callable[..., LampworkError]
) -> Path:
    """Write text to a file, in UTF-8; gives its path. A file that is there is replaced when all is written, where a
    link leads to, and keeps its mode; what is no file (a pipe, a device) is written to as it is.

    Args:
        what: names the text in the message: "the report".
        error: makes the error that is raised if the text cannot be written.
    """
    try:
        given = os.fspath(path)
        target = Path(os.path.realpath(given))
        if not Path(given).name or target.is_dir():
            raise IsADirectoryError(None, "it names no file")
        data = text.encode("utf-8", "backslashreplace")
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace(target, data)
    except (OSError, ValueError) as reason:  # of a path with a NUL, and one that is no Unicode
        cause = (isinstance(reason, OSError) and reason.strerror) or text_of(reason)
        raise error(f"{what} cannot be written to {str(path)!r}: {cause}", fix=HINT) from reason
    return Path(path)


def _replace(target: Path, data: bytes) -> None:
    partial = target.with_name(f".lampwork.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with partial.open("xb") as file:
            file.write(data)
        if target.exists():
            partial.chmod(stat.S_IMODE(target.stat().st_mode))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
