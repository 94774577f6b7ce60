"""`lampwork cache`."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from pathlib import Path

import pytest

from lampwork import config
from lampwork.cache import Key, Store, command, store
from lampwork.cache.entry import entry_of, name_of
from lampwork.cli import main
from lampwork.errors import CacheError

FAST = {"graph": "9f3a", "options": "fast", "target": "threads=2 isa=avx512"}


@pytest.fixture
def kept(tmp_path: Path):
    with config.using(cache=str(tmp_path / "cache"), logs=""):
        found = store()
        assert found is not None
        yield found


def told(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(["cache", *arguments]) == status
    return "".join(capsys.readouterr())


def path_of(kept: Store, key: Key) -> Path:
    row = kept.local.index.find(key.digest)
    return kept.local.objects.path(row.name)


def test_entries_are_listed(kept: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "ls") == "key  kind  size  made  used\n"
    program, odd = Key("program", FAST), Key("an odd\x1b[31m kind\n", {"a": "b"})
    kept.put(program, bytes(5000))
    kept.put(odd, b"")
    head, first, second = told(capsys, "ls").splitlines()
    assert head.split() == ["key", "kind", "size", "made", "used"]
    assert first.startswith(f"{odd.digest[:12]}  an odd\\x1b[31m kind") and "just now" in first
    assert second.split()[:4] == [program.digest[:12], "program", "5.0", "KiB"]
    assert told(capsys, "ls", "--kind", "program").count("\n") == 2
    (found,) = json.loads(told(capsys, "ls", "--kind", "program", "--json"))
    assert found["parts"] == FAST and found["key"] == program.digest and found["bytes"] > 5000


def test_info(kept: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    kept.put(Key("program", FAST), bytes(5000))
    kept.get(Key("program", {}))
    lines = dict(re.split(r"  +", line.strip(), maxsplit=1) for line in told(capsys, "info").splitlines())
    assert lines == {
        "folder": str(kept.local.folder),
        "entries": "1",
        "program": "1",
        "size": "5.0 KiB of 2.0 GiB",
        "misses noted": "1",
        "shared": "with nobody",
    }
    monkeypatch.setenv("LAMPWORK_CACHE_REMOTE_KEY", "a secret of some length")
    with config.using(cache_remote="redis://localhost/3"):
        assert "in redis://localhost/3\n" in told(capsys, "info")


def test_verify_removes_what_is_damaged(kept: Store, capsys: pytest.CaptureFixture[str]) -> None:
    keys = [Key("test", {"n": str(n)}) for n in range(4)]
    for key in keys:
        kept.put(key, b"content")
    assert told(capsys, "verify") == "4 entries whole, 0 damaged\n"
    paths = [path_of(kept, key) for key in keys]
    os.truncate(paths[0], 3)
    paths[1].unlink()
    out = told(capsys, "verify", status=1)
    assert "2 entries whole, 2 damaged\n" in out
    assert f"{paths[0].name} is removed: its bytes are not those that were written" in out
    assert f"{paths[1].name} is not there" in out
    assert told(capsys, "verify") == "2 entries whole, 0 damaged\n" and not paths[0].exists()


def test_clear(kept: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for n in range(3):
        kept.put(Key("test", {"n": str(n)}), b"content")
    kept.local.objects.write(entry_of(Key("test", {"n": "not entered"}), b""))
    assert told(capsys, "clear") == "4 entries removed\n"
    assert kept.local.rows() == [] and list(kept.local.objects.names()) == []
    assert told(capsys, "clear") == "0 entries removed\n"


def test_an_archive_takes_everything_along(
    kept: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    keys, file = [Key("test", {"n": str(n)}) for n in range(3)], str(tmp_path / "archive.tar")
    for key in keys:
        kept.put(key, key.text.encode() * 1000)
    assert told(capsys, "export", file) == f"3 entries written to {file}\n"
    with config.using(cache=str(tmp_path / "other")):
        assert told(capsys, "import", file) == "3 entries taken in, 0 refused\n"
        other = store()
        assert [other.get(key) for key in keys] == [key.text.encode() * 1000 for key in keys]
        assert [row.key for row in other.local.rows()] == [row.key for row in kept.local.rows()]
    with config.using(cache=str(tmp_path / "small"), cache_bytes=40_000):
        told(capsys, "import", file)
        assert [row.key for row in store().local.rows()] == [keys[2].digest]  # what was used last
    assert list(tmp_path.glob("*.new")) == []


def _member(name: str, content: bytes, **how: object) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for field, value in how.items():
        setattr(member, field, value)
    return member, content


GOOD = entry_of(Key("test", {}), b"good")
FOREIGN = b"lampwork entry 2\n..."
EVIL = {
    "it has not the name of an entry": _member("../../.bashrc", GOOD),
    "it has not the name": _member(f"/{name_of(GOOD)}", GOOD),
    "it has not": _member(f"{name_of(GOOD)}/../x", GOOD),
    "its bytes are not those": _member("a" * 64, GOOD),
    "it is no entry": _member(name_of(b"junk"), b"junk"),
    "it is of another version": _member(name_of(FOREIGN), FOREIGN),
    "it is no file": _member(name_of(GOOD), b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "it is no fil": _member("fifo", b"", type=tarfile.FIFOTYPE),
    "it is no fi": _member("folder", b"", type=tarfile.DIRTYPE),
}


@pytest.mark.parametrize("says", EVIL)
@pytest.mark.parametrize("how", ["w", "w:gz"])
def test_an_archive_brings_entries_and_nothing_else(
    kept: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path, says: str, how: str
) -> None:
    file = tmp_path / "evil.tar"
    with tarfile.open(file, how) as archive:
        member, content = EVIL[says]
        archive.addfile(member, io.BytesIO(content))
        good, content = _member(name_of(GOOD), GOOD)
        archive.addfile(good, io.BytesIO(content))
    before = set(tmp_path.rglob("*"))
    out = told(capsys, "import", str(file), status=1)
    assert f": {says}" in out and "1 entry taken in, 1 refused" in out
    assert kept.get(Key("test", {})) == b"good" and len(list(kept.local.objects.names())) == 1
    assert {path.relative_to(tmp_path).parts[0] for path in set(tmp_path.rglob("*")) - before} <= {"cache"}


def test_what_is_no_archive_is_refused(
    kept: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "archive.tar"
    for n in range(3):
        kept.put(Key("test", {"n": str(n)}), bytes(5000))
    told(capsys, "export", str(file))
    whole = file.read_bytes()
    for content in (b"no archive", b"", whole[:7000], b"\x1f\x8b" + whole):
        file.write_bytes(content)
        out = told(capsys, "import", str(file), status=1)
        assert "[LW345]" in out and "fix: take one that `lampwork cache export` wrote" in out
    assert "cannot be read" in told(capsys, "import", str(tmp_path / "nowhere"), status=1)
    assert "cannot be written" in told(capsys, "export", str(tmp_path / "nowhere" / "x.tar"), status=1)
    assert "cannot be written" in told(capsys, "export", str(tmp_path), status=1)


def test_why_a_key_was_missed(kept: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert "[LW345] no miss has been noted" in told(capsys, "why-miss", status=1)
    first = Key("program", FAST)
    kept.get(first)
    assert "no other entry of kind 'program' is there" in told(capsys, "why-miss")
    kept.put(first, b"")
    kept.put(Key("program", {"graph": "other", "options": "eager"}), b"")
    kept.put(Key("kernel", {**FAST, "target": "threads=4 isa=avx512"}), b"")
    second = Key("program", {**FAST, "target": "threads=4 isa=avx512", "torch": "2.13"})
    kept.get(second)
    kept.put(second, b"")
    kept.put(Key("program", {**FAST, "target": "threads=4 isa=avx512", "torch": "2.14"}), b"")
    lines = told(capsys, "why-miss").splitlines()
    assert lines == [
        f"{second} was missed just now by process {os.getpid()}",
        f"the nearest entry is {first.digest[:12]}, made just now; it differs in",
        "  target: 'threads=4' was missed, 'threads=2' is there",
        "  torch: only the missed key has it: '2.13'",
        "the same in both: graph, options",
        "by now it is there, made just now",
    ]
    assert told(capsys, "why-miss", second.digest[:9].upper()).splitlines() == lines
    assert f"{first} was missed" in told(capsys, "why-miss", first.digest)
    third = Key("kernel", {})
    kept.get(third)
    assert told(capsys, "why-miss").startswith(f"{third} was missed")
    assert told(capsys, "why-miss", "--kind", "program").splitlines() == lines
    assert "no miss of kind 'tuning' has been noted" in told(capsys, "why-miss", "--kind", "tuning", status=1)
    out = told(capsys, "why-miss", "zz", status=1)
    assert "no miss of a key that begins with 'zz'" in out and second.digest[:12] in out


def test_the_log_says_why(kept: Store, capsys: pytest.CaptureFixture[str]) -> None:
    kept.put(Key("program", {"graph": "a" * 70 + "1"}), b"")
    with config.using(logs="cache"):
        key = Key("program", {"graph": "a" * 70 + "2"})
        kept.get(key)
    assert capsys.readouterr().err == (
        f"[cache] miss: {key}\n[cache]   graph: '…aaaaaaaaaa2' was missed, '…aaaaaaaaaa1' is there\n"
    )


def test_where_nothing_is_kept_that_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with config.using(cache="off"):
        assert 'nothing is kept on disk: the option cache is "off"' in told(capsys, "ls", status=1)
    (tmp_path / "objects").mkdir()
    (tmp_path / "objects").chmod(0o777)
    with config.using(cache=str(tmp_path)):
        out = told(capsys, "info", status=1)
        assert "others can write to it" in out and "fix: set LAMPWORK_CACHE to a folder that is yours" in out
    monkeypatch.setattr(command, "cache_folder", lambda options: None)
    with config.using(cache=""), pytest.raises(CacheError, match="this user has no home"):
        command.main(["ls"])


def test_ages() -> None:
    texts = [command._ago(1e6, 1e6 - age) for age in (0, 1, 59, 60, 7300, 86400, 9e5, -5)]
    assert texts == [
        *(
            "just now",
            "1 second ago",
            "59 seconds ago",
            "1 minute ago",
            "2 hours ago",
            "1 day ago",
            "10 days ago",
        ),
        "at a time to come",
    ]
