"""All entries in one file, to take to another machine: a tar with a member for each, as it lies in the cache."""

from __future__ import annotations

import io
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

from lampwork.cache.entry import is_foreign, key_of, name_of
from lampwork.cache.key import Key
from lampwork.cache.local import MOST_BYTES, Local
from lampwork.cache.objects import Damaged
from lampwork.errors import CacheError
from lampwork.records import record
from lampwork.written import write_with

_NAME = re.compile("[0-9a-f]{64}")


@record
class Imported:
    """What became of an archive: how many entries are kept now, and what of it was refused, and why."""

    kept: int
    refused: tuple[str, ...]


def write_archive(kept: Local, path: Path) -> int:
    """Write all entries that are whole; gives how many. The file comes to its place whole.

    Raises:
        CacheError: it cannot be written.
        Unusable: the index does not answer.
    """
    # Those used last come last, so that they stay where there is little room.
    rows = list(reversed(kept.rows()))

    def write(target: Path) -> int:
        written = 0
        with open(target, "wb") as file, tarfile.open(fileobj=file, mode="w|") as archive:
            for row in rows:
                try:
                    entry = kept.objects.read(row.name, MOST_BYTES)
                except Damaged:
                    continue
                if entry is not None:
                    member = tarfile.TarInfo(row.name)
                    member.size = len(entry)
                    archive.addfile(member, io.BytesIO(entry))
                    written += 1
        return written

    return write_with(path, write, "the archive", CacheError)


def read_archive(path: Path, keep: Callable[[Key, bytes], bool]) -> Imported:
    """Give each entry of an archive to `keep`, which says whether it is kept. Nothing is unpacked: a name is what the
    bytes have to give, and no path.

    Raises:
        CacheError: it is no archive, or cannot be read to its end.
    """
    kept, refused = 0, list[str]()
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                try:
                    key, entry = _entry(archive, member)
                except Damaged as error:
                    refused.append(f"{member.name}: {error}")
                    continue
                if keep(key, entry):
                    kept += 1
                else:
                    refused.append(f"{member.name}: it could not be kept, LAMPWORK_LOGS=cache says why")
    except (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
        raise CacheError(
            f"{path} cannot be read after {kept} entries: {error}",
            fix="take one that `lampwork cache export` wrote",
        ) from error
    return Imported(kept, tuple(refused))


def _entry(archive: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[Key, bytes]:
    if not member.isreg():
        raise Damaged("it is no file")
    if not _NAME.fullmatch(member.name):
        raise Damaged("it has not the name of an entry")
    if member.size > MOST_BYTES:
        raise Damaged(f"it has {member.size} bytes")
    file = archive.extractfile(member)
    entry = b"" if file is None else file.read()
    if name_of(entry) != member.name:
        raise Damaged("its bytes are not those that gave it its name")
    key = key_of(entry)
    if key is None:
        raise Damaged("it is of another version" if is_foreign(entry) else "it is no entry")
    return key, entry
