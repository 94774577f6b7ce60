"""`lampwork cache`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from lampwork import config
from lampwork.cache.archive import read_archive, write_archive
from lampwork.cache.database import Unusable
from lampwork.cache.index import Miss, Row
from lampwork.cache.key import Key, read_key
from lampwork.cache.local import Local, local
from lampwork.cache.remote import remote
from lampwork.cache.why import nearest
from lampwork.display import printable
from lampwork.display.blocks import aligned
from lampwork.display.units import bytes_text
from lampwork.errors import CacheError
from lampwork.folders import cache_folder

_AGES = ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second"))


def parser() -> argparse.ArgumentParser:
    """The arguments of the command."""
    top = argparse.ArgumentParser(
        prog="lampwork cache",
        description="Look at what is kept on disk between processes. LAMPWORK_CACHE names the folder.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="command")

    listed = commands.add_parser("ls", help="list the entries, those used last first")
    listed.add_argument("--kind", help="of one kind only")
    listed.add_argument("--json", action="store_true", help="as JSON, with all parts of the keys")
    listed.set_defaults(run=_ls)

    told = commands.add_parser("info", help="say where it is, how large, and whether it is shared")
    told.set_defaults(run=_info)

    checked = commands.add_parser(
        "verify", help="read all entries; damaged ones are removed, and the exit status is 1 if there are any"
    )
    checked.set_defaults(run=_verify)

    cleared = commands.add_parser("clear", help="remove all entries")
    cleared.set_defaults(run=_clear)

    written = commands.add_parser("export", help="write all entries to one file")
    written.add_argument("file", metavar="FILE", type=Path, help="a tar")
    written.set_defaults(run=_export)

    taken = commands.add_parser(
        "import",
        help="take in the entries of such a file",
        description="Take in the entries of a file that `lampwork cache export` wrote. They are code that will "
        "run here: import only what you would run. The exit status is 1 if something was refused.",
    )
    taken.add_argument("file", metavar="FILE", type=Path, help="a tar")
    taken.set_defaults(run=_import)

    asked = commands.add_parser(
        "why-miss", help="say in what a key that was missed differs from the nearest entry"
    )
    asked.add_argument(
        "key", metavar="KEY", nargs="?", default="last", help="how it begins (default: the last miss)"
    )
    asked.add_argument("--kind", help="of one kind only")
    asked.set_defaults(run=_why_miss)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; gives the exit status: 0, or 1 if something was wrong.

    Raises:
        CacheError: there is nothing to look at.
    """
    given = parser().parse_args(arguments)
    run: Callable[[Local, argparse.Namespace], int] = given.run
    try:
        return run(_local(), given)
    except Unusable as error:
        raise CacheError(f"the index of the cache cannot be used: {error}") from error


def _local() -> Local:
    options = config.current()
    folder = cache_folder(options)
    if folder is None:
        what = 'the option cache is "off"' if options.cache == "off" else "this user has no home"
        raise CacheError(f"nothing is kept on disk: {what}", fix="set LAMPWORK_CACHE to a folder")
    try:
        return local(folder)
    except (OSError, ValueError) as error:
        raise CacheError(
            f"nothing is kept on disk: {error}",
            fix="set LAMPWORK_CACHE to a folder that is yours, and that nobody else can write to",
        ) from error


def _ls(kept: Local, given: argparse.Namespace) -> int:
    rows, now = kept.rows(given.kind), time.time()
    if given.json:
        print(json.dumps([_described(row) for row in rows], indent=1))
        return 0
    table = [("key", "kind", "size", "made", "used")]
    for row in rows:
        table.append(
            (row.key[:12], _kind(row), bytes_text(row.bytes), _ago(now, row.made), _ago(now, row.seen))
        )
    print(printable("\n".join(aligned(table))))
    return 0


def _info(kept: Local, given: argparse.Namespace) -> int:
    options, rows = config.current(), kept.rows()
    kinds = Counter(map(_kind, rows))
    total = sum(row.bytes for row in rows)
    shared = remote(options)
    if not options.cache_remote:
        where = "with nobody"
    elif shared is None:
        where = f"not in {options.cache_remote}, for want of a secret"
    else:
        where = f"in {shared.url}"
    lines = [
        ("folder", str(kept.folder)),
        ("entries", f"{len(rows):,}"),
        *((f"  {kind}", f"{count:,}") for kind, count in sorted(kinds.items())),
        ("size", f"{bytes_text(total)} of {bytes_text(options.cache_bytes)}"),
        ("misses noted", f"{len(kept.misses()):,}"),
        ("shared", where),
    ]
    if kept.index.trouble:
        lines.append(("index", kept.index.trouble))
    print(printable("\n".join(aligned(lines))))
    return 0


def _verify(kept: Local, given: argparse.Namespace) -> int:
    whole, wrong = kept.verify()
    for each in wrong:
        print(printable(each), file=sys.stderr)
    print(f"{_counted(whole)} whole, {len(wrong)} damaged")
    return 1 if wrong else 0


def _clear(kept: Local, given: argparse.Namespace) -> int:
    try:
        print(f"{_counted(kept.clear())} removed")
    except OSError as error:
        raise CacheError(f"not all entries could be removed: {error}") from error
    return 0


def _export(kept: Local, given: argparse.Namespace) -> int:
    print(f"{_counted(write_archive(kept, given.file))} written to {given.file}")
    return 0


def _import(kept: Local, given: argparse.Namespace) -> int:
    most = config.current().cache_bytes
    found = read_archive(given.file, lambda key, entry: kept.put(key, entry, most))
    for each in found.refused:
        print(printable(f"refused {each}"), file=sys.stderr)
    print(f"{_counted(found.kept)} taken in, {len(found.refused)} refused")
    return 1 if found.refused else 0


def _why_miss(kept: Local, given: argparse.Namespace) -> int:
    misses = [miss for miss in kept.misses() if given.kind in (None, miss.key.kind)]
    miss = _miss(misses, given.key, given.kind)
    key, now = miss.key, time.time()
    rows = kept.rows(key.kind)
    print(printable(f"{key} was missed {_ago(now, miss.time)} by process {miss.process}"))
    before = [row for row in rows if row.number <= miss.after] or rows
    found = nearest(key, before)
    if found is None:
        print(printable(f"no other entry of kind {key.kind!r} is there"))
    else:
        print(f"the nearest entry is {found.row.key[:12]}, made {_ago(now, found.row.made)}; it differs in")
        for each in found.differences:
            print(printable(f"  {each}"))
        if found.same:
            print(printable(f"the same in both: {', '.join(found.same)}"))
    own = next((row for row in rows if row.key == key.digest), None)
    if own is not None:
        print(f"by now it is there, made {_ago(now, own.made)}")
    return 0


def _miss(misses: Sequence[Miss], begins: str, kind: str | None) -> Miss:
    if not misses:
        of = "" if kind is None else f" of kind {kind!r}"
        raise CacheError(f"no miss{of} has been noted", fix="run the program with this cache first")
    if begins == "last":
        return misses[0]
    for miss in misses:
        if miss.key.digest.startswith(begins.lower()):
            return miss
    known = ", ".join(dict.fromkeys(miss.key.digest[:12] for miss in misses[:8]))
    raise CacheError(
        f"no miss of a key that begins with {begins!r} is noted", fix=f"the last ones are {known}"
    )


def _described(row: Row) -> dict[str, object]:
    key = read_key(row.text) or Key("", {})
    return {
        "key": row.key,
        "kind": key.kind,
        "parts": dict(key.parts),
        "bytes": row.bytes,
        "made": row.made,
        "used": row.seen,
        "file": row.name,
    }


def _kind(row: Row) -> str:
    key = read_key(row.text)
    return "?" if key is None else key.kind


def _counted(number: int) -> str:
    return f"{number:,} {'entry' if number == 1 else 'entries'}"


def _ago(now: float, then: float) -> str:
    seconds = now - then
    if seconds < 0:
        return "at a time to come"
    for unit, name in _AGES:
        if seconds >= unit:
            number = int(seconds // unit)
            return f"{number} {name}{'' if number == 1 else 's'} ago"
    return "just now"
