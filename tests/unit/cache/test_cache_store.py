"""Contents by key: what is kept is there, in this process and others, until there is no room for it."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from pathlib import Path

import pytest
from cache_processes import run

from lampwork import config
from lampwork.cache import Key, Store, store
from lampwork.cache.index import MISSES

KEY = Key("program", {"graph": "9f3a", "options": "fast"})


@pytest.fixture
def kept(tmp_path: Path):
    with config.using(cache=str(tmp_path / "cache"), logs="cache"):
        found = store()
        assert found is not None
        yield found


def key(number: int) -> Key:
    return Key("test", {"number": str(number)})


def files(kept: Store) -> list[Path]:
    return [kept.local.objects.path(name) for name in kept.local.objects.names()]


def test_what_is_kept_is_there(kept: Store) -> None:
    assert kept.get(KEY) is None
    kept.put(KEY, b"one")
    assert kept.get(KEY) == b"one"
    kept.put(KEY, b"")
    assert kept.get(KEY) == b""
    kept.put(KEY, bytes(range(256)) * 5000)
    assert kept.get(KEY) == bytes(range(256)) * 5000
    assert len(files(kept)) == 1  # what was there before makes room


def test_a_key_is_its_kind_and_parts_in_any_order() -> None:
    same = Key("program", {"options": "fast", "graph": "9f3a"})
    assert same == KEY and hash(same) == hash(KEY) and same.digest == KEY.digest
    assert re.fullmatch("[0-9a-f]{64}", KEY.digest) and str(KEY) == f"program {KEY.digest[:12]}"
    others = [
        Key("constant", {"graph": "9f3a", "options": "fast"}),
        Key("program", {"graph": "9f3a", "options": "fast", "more": ""}),
        Key("program", {"graph": "9f3a"}),
        Key("program", {"graph": "9f3", "options": "afast"}),
        Key("program", {"graph": '9f3a","options":"fast'}),
        Key("program", {"graph": "9f3a", "options": "fast\n"}),
        Key("program", {"graph": "9f3a", "options": "\ud800 und ü"}),
    ]
    assert len({each.digest for each in [KEY, *others]}) == 1 + len(others)
    with pytest.raises(TypeError, match="made of texts, got 1"):
        Key("program", {"graph": 1})  # type: ignore[dict-item]


def test_odd_keys_are_kept_as_others_are(kept: Store) -> None:
    odd = [
        Key("", {}),
        Key("a\nb", {"": "\n\0"}),
        Key("\ud800", {"ü": "\udfff"}),
        Key("k", {"long": "x" * 200_000}),
    ]
    for number, each in enumerate(odd):
        kept.put(each, str(number).encode())
    assert [kept.get(each) for each in odd] == [b"0", b"1", b"2", b"3"]


def test_a_file_is_named_for_its_bytes_and_is_the_users_alone(kept: Store) -> None:
    kept.put(KEY, b"content")
    (path,) = files(kept)
    assert path.name == hashlib.sha256(path.read_bytes()).hexdigest() and path.parent.name == path.name[:2]
    assert path.read_bytes() == f"lampwork entry 1\n{KEY.text}\ncontent".encode()
    for each in (path, *path.parents[:3]):
        assert not each.stat().st_mode & 0o077, each


def test_another_process_finds_it(kept: Store) -> None:
    kept.put(KEY, b"from here")

    def work() -> None:
        found = store().get(KEY)
        store().put(Key("x", {}), found + b" and there")

    run(work)
    assert kept.get(Key("x", {})) == b"from here and there"


def test_the_folder_may_be_off(tmp_path: Path) -> None:
    with config.using(cache="off"):
        assert store() is None


def test_what_was_not_used_for_longest_makes_room(tmp_path: Path) -> None:
    with config.using(cache=str(tmp_path), cache_bytes=10_000):
        kept = store()
        assert kept is not None
        for number in range(8):
            kept.put(key(number), bytes(1000))
        kept.local.index.use(key(0).digest, time.time())
        for number in range(8, 11):
            kept.put(key(number), bytes(1000))
        there = [number for number in range(11) if kept.get(key(number)) is not None]
        assert there[0] == 0 and there[-3:] == [8, 9, 10] and 1 not in there
        assert sum(path.stat().st_size for path in files(kept)) <= 10_000
        assert len(files(kept)) == len(there) >= 7


def test_what_is_larger_than_the_limit_is_not_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with config.using(cache=str(tmp_path), cache_bytes=1000, logs="cache"):
        kept = store()
        assert kept is not None
        kept.put(key(1), bytes(100))
        kept.put(key(2), bytes(2000))
        assert kept.get(key(1)) == bytes(100) and kept.get(key(2)) is None
        assert "is not kept: it has 2041 bytes, above the limit" in capfd.readouterr().err


def test_misses_are_noted_and_forgotten(kept: Store) -> None:
    for number in range(MISSES + 10):
        assert kept.get(key(number)) is None
    found = kept.local.misses()
    assert len(found) == MISSES
    assert found[0].key == key(MISSES + 9) and found[0].process == os.getpid()
    kept.get(KEY)
    kept.get(Key("tes", {"number": "1"}))
    for number in range(MISSES + 10):  # what is missed often does not push out what is missed seldom
        kept.get(key(number))
    found = [miss.key for miss in kept.local.misses()]
    assert len(found) == MISSES + 2 and found[-2:] == [Key("tes", {"number": "1"}), KEY]


def test_one_thread_makes_it_and_the_others_get_it(kept: Store) -> None:
    made, got = [], []

    def ask() -> None:
        with kept.making(KEY) as other:
            if other is None:
                made.append(threading.get_ident())
                time.sleep(0.05)
                kept.put(KEY, b"made")
            got.append(other)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and sorted(got, key=bool) == [None] + [b"made"] * 7
    assert list((kept.local.folder / "making").iterdir()) == []


def test_who_fails_to_make_it_leaves_it_to_the_next(kept: Store) -> None:
    with pytest.raises(ZeroDivisionError), kept.making(KEY):
        raise ZeroDivisionError
    with kept.making(KEY) as other:
        assert other is None
        with kept.making(KEY) as again:  # the same thread does not wait for itself
            assert again is None
            kept.put(KEY, b"made")
    with kept.making(KEY) as other:
        assert other == b"made"
