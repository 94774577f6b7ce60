"""Files that people asked for, written as a whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from lampwork.errors import LampworkError, text_of

Result = TypeVar("Result")
Refusal = Callable[..., LampworkError]
HINT = "give the path of a file in a folder that exists and can be written to"


def write_whole(path: str | os.PathLike[str], text: str, what: str, error: Refusal) -> Path:
    """Write text to a file, in UTF-8, as `write_with` does; gives its path."""
    data = text.encode("utf-8", "backslashreplace")
    write_with(path, lambda target: target.write_bytes(data), what, error)
    return Path(path)


def write_with(
    path: str | os.PathLike[str], write: Callable[[Path], Result], what: str, error: Refusal
) -> Result:
    """Have a file written. One that is there is replaced when all is written, where a link leads, and keeps its mode;
    what is no file (a pipe, a device) is written to as it is.

    Args:
        write: called with the path to write to, of the same suffix; what it gives is the result.
        what: names the file in the message: "the report".
        error: makes the error that is raised if it cannot be written.
    """
    try:
        given = os.fspath(path)
        target = Path(os.path.realpath(given))
        if not Path(given).name or target.is_dir():
            raise IsADirectoryError(None, "it names no file")
        is_special = target.exists() and not target.is_file()
    except (OSError, ValueError, TypeError) as reason:  # of a path with a NUL, of what is no path
        raise _refusal(path, reason, what, error) from reason
    try:
        return write(target) if is_special else _replace(target, write)
    except OSError as reason:
        raise _refusal(path, reason, what, error) from reason


def _replace(target: Path, write: Callable[[Path], Result]) -> Result:
    partial = target.with_name(f".lampwork.{os.getpid()}.{os.urandom(4).hex()}{target.suffix[:32]}")
    try:
        result = write(partial)
        if target.exists():
            partial.chmod(stat.S_IMODE(target.stat().st_mode))
        partial.replace(target)
        return result
    finally:
        partial.unlink(missing_ok=True)


def _refusal(path: str | os.PathLike[str], reason: Exception, what: str, error: Refusal) -> LampworkError:
    cause = (isinstance(reason, OSError) and reason.strerror) or text_of(reason)
    return error(f"{what} cannot be written to {str(path)!r}: {cause}", fix=HINT)
