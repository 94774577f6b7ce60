"""Whatever happens to the folder, to processes and to clocks: an entry is whole, or not there, and nothing raises."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cache_processes import NOBODY, finish, run, start

from lampwork import config, folders
from lampwork.cache import Key, Store, database, making, objects, store
from lampwork.cache.index import Index
from lampwork.cache.objects import DAY

KEY = Key("program", {"graph": "9f3a"})
SIZE = 30_000


def key(number: int) -> Key:
    return Key("test", {"number": str(number)})


def content(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE)


def opened() -> Store:
    found = store()
    assert found is not None and found.local is not None
    return found


def file_of(kept: Store, of: Key) -> Path:
    assert kept.local is not None
    row = kept.local.index.find(of.digest)
    assert row is not None
    return kept.local.objects.path(row.name)


@pytest.fixture
def kept(tmp_path: Path):
    with config.using(cache=str(tmp_path / "cache"), logs="cache"):
        yield opened()


@pytest.fixture
def anybodys():
    """A folder that other users get to."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def again(kept: Store):
    """The cache as a process sees it that comes later."""

    def open_again() -> Store:
        kept.local.index.close()
        return kept

    return open_again


# Processes


def test_who_is_killed_leaves_nothing_half(kept: Store, tmp_path: Path) -> None:
    dice, numbers = random.Random(15), range(12)

    def write() -> None:
        for round in range(10_000):
            number = dice.randrange(len(numbers))
            kept.put(key(number), content(number + 100 * (round % 2)))

    for _ in range(50):
        dice.random()
        child = start(write)
        time.sleep(dice.uniform(0.001, 0.05))
        os.kill(child, signal.SIGKILL)
        assert finish([child]) == [-signal.SIGKILL]
        for number in numbers:
            assert kept.get(key(number)) in (None, content(number), content(number + 100))
    there = sum(kept.get(key(number)) is not None for number in numbers)
    assert there >= 6
    whole, wrong = kept.local.verify()
    assert whole >= there and wrong == []


def test_a_hundred_processes_at_once(kept: Store) -> None:
    kept.local.clear()
    begin, go = os.pipe()

    def work(first: int) -> None:
        os.close(go)
        os.read(begin, 1)
        for number in range(first, first + 4):
            if kept.get(key(number % 25)) is None:
                kept.put(key(number % 25), content(number % 25))
        assert kept.get(key(first % 25)) == content(first % 25)

    children = [start(lambda first=first: work(first)) for first in range(100)]
    os.close(go)
    assert finish(children) == [0] * 100
    os.close(begin)
    assert [kept.get(key(number)) for number in range(25)] == [content(number) for number in range(25)]
    assert len(kept.local.rows()) == len(list(kept.local.objects.names())) == 25


def test_many_threads(kept: Store) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(25):
            number = dice.randrange(10)
            if dice.random() < 0.5:
                kept.put(key(number), content(number))
            elif kept.get(key(number)) not in (None, content(number)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and kept.local.verify() == (len(kept.local.rows()), [])


def test_a_fork_in_the_middle(kept: Store) -> None:
    """Children neither use nor close what their parent has open, whatever its threads are doing."""
    stop = threading.Event()

    def busy() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            kept.put(key(number % 5), content(number % 5))
            kept.get(key(number % 5))

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for round in range(20):
            kept.put(KEY, b"before")

            def work() -> None:
                signal.alarm(20)
                assert kept.local.index._database._connection is None
                assert kept.get(KEY) == b"before"
                with kept.making(KEY):
                    kept.put(key(100 + round), b"from a child")

            run(work)
            assert kept.get(key(100 + round)) == b"from a child" and kept.get(KEY) == b"before"
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_one_process_makes_it_and_the_others_get_it(kept: Store) -> None:
    read, write = os.pipe()

    def work() -> None:
        if kept.get(KEY) is not None:
            return
        with kept.making(KEY) as other:
            if other is None:
                os.write(write, b"x")
                time.sleep(0.1)
                kept.put(KEY, b"made")
            else:
                assert other == b"made"

    assert finish([start(work) for _ in range(10)]) == [0] * 10
    assert os.read(read, 100) == b"x"
    os.close(read)
    os.close(write)


def test_a_maker_that_is_killed_lets_others_go_on(kept: Store) -> None:
    read, write = os.pipe()

    def hold() -> None:
        with kept.making(KEY):
            # A child of the maker's outlives it, and holds nothing.
            start(lambda: time.sleep(5))
            os.write(write, b"x")
            time.sleep(60)

    child = start(hold)
    os.read(read, 1)
    threading.Timer(0.1, os.kill, (child, signal.SIGKILL)).start()
    began = time.monotonic()
    with kept.making(KEY) as other:
        assert other is None and 0.05 < time.monotonic() - began < 3
    finish([child])
    os.close(read)
    os.close(write)


def test_nobody_waits_for_ever(tmp_path: Path) -> None:
    read, write = os.pipe()

    def hold() -> None:
        with making.making(tmp_path, "a"):
            os.write(write, b"x")
            time.sleep(60)

    child = start(hold)
    os.read(read, 1)
    began = time.monotonic()
    with making.making(tmp_path, "a", patience=0.1):
        assert 0.1 <= time.monotonic() - began < 2
    os.kill(child, signal.SIGKILL)
    finish([child])
    threads = [threading.Event(), threading.Event()]

    def hold_here() -> None:
        with making.making(tmp_path, "b"):
            threads[0].set()
            threads[1].wait(30)

    thread = threading.Thread(target=hold_here)
    thread.start()
    threads[0].wait()
    with making.making(tmp_path, "b", patience=0.1):
        threads[1].set()
    thread.join()
    assert not making._turns and not making._handles
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL])
def test_where_files_cannot_be_locked_nobody_waits(
    kept: Store, monkeypatch: pytest.MonkeyPatch, code: int, again: Callable[[], Store]
) -> None:
    def flock(handle: int, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(making.fcntl, "flock", flock)
    with kept.making(KEY) as other:
        assert other is None
        kept.put(KEY, b"made")
    kept.local.index.path.unlink()
    assert again().get(KEY) == b"made"


# Disks


def test_a_disk_that_is_full_keeps_nothing(
    kept: Store, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    kept.put(key(1), b"before")

    def full(*args: object, **how: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("os.fdopen", "tempfile.mkstemp", "os.replace"):
        with monkeypatch.context() as patch:
            patch.setattr(
                folders, name.split(".")[0], _Other(getattr(folders, name.split(".")[0]), name, full)
            )
            kept.put(KEY, b"content")
        assert kept.get(KEY) is None and kept.get(key(1)) == b"before"
        assert "is not kept: [Errno 28] No space left on device" in capfd.readouterr().err
    assert [path for path in kept.local.folder.rglob("*") if path.name.endswith(".new")] == []


class _Other:
    """A module with another function in it."""

    def __init__(self, module: object, name: str, function: object) -> None:
        self._module, self._name, self._function = module, name.split(".")[1], function

    def __getattr__(self, name: str) -> object:
        return self._function if name == self._name else getattr(self._module, name)


@pytest.mark.parametrize("most", [0, 100, 5000, 40_000])
def test_files_that_must_not_grow(kept: Store, most: int) -> None:
    """A limit of the process: what is larger is cut off in the middle of a write, the index too."""
    kept.put(key(1), content(1))

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        with config.using(logs=""):  # stderr may be a file, too
            for number in range(2, 8):
                kept.put(key(number), content(number))
                assert kept.get(key(number)) in (None, content(number))
                assert kept.get(key(1)) == content(1)

    run(work)
    assert kept.get(key(1)) in (None, content(1))
    kept.put(key(9), content(9))
    assert kept.get(key(9)) == content(9) and kept.local.verify()[1] == []


def test_a_small_disk(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k,mode=700", "tmpfs", str(place)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with config.using(cache=str(place)):
            kept = opened()
            for number in range(20):
                kept.put(key(number), content(number))
                assert kept.get(key(number)) in (None, content(number))
            assert kept.get(key(0)) == content(0)
            kept.local.clear()
            kept.put(KEY, content(0))
            assert kept.get(KEY) == content(0)
            kept.local.index.close()
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_folder_that_is_read_only_gives_what_is_there(anybodys: Path) -> None:
    """With an index, and without."""
    folder = anybodys / "cache" / "objects"
    os.chmod(anybodys, 0o777)

    def fill() -> None:
        with config.using(cache=str(folder.parent)):
            kept = opened()
            kept.put(KEY, b"content")
            kept.local.index.close()

    def read() -> None:
        with config.using(cache=str(folder.parent)):
            kept = opened()
            kept.put(key(1), b"more")
            assert kept.get(KEY) == b"content" and kept.get(key(1)) is None
            with kept.making(key(1)) as other:
                assert other is None

    run(fill, NOBODY)
    for each in (*folder.glob("??"), folder, folder.parent):
        each.chmod(0o500)
    run(read, NOBODY)
    (folder / "index-1.sqlite").unlink()
    run(read, NOBODY)
    for each in (folder.parent, folder, *folder.glob("??")):
        each.chmod(0o700)


def test_a_home_that_is_read_only_keeps_nothing(anybodys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("LAMPWORK_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(anybodys))

    def work() -> None:
        assert store() is None

    os.chmod(anybodys, 0o555)
    run(work, NOBODY)
    assert list(anybodys.iterdir()) == []
    os.chmod(anybodys, 0o777)
    run(lambda: opened().put(KEY, b"now"), NOBODY)
    assert (anybodys / ".cache" / "lampwork" / "objects").stat().st_mode & 0o777 == 0o700


def test_who_has_no_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "LAMPWORK_CACHE"):
        monkeypatch.delenv(name, raising=False)
    if os.getuid() != 0:
        pytest.skip("only root can become a user that there is not")

    def work() -> None:
        assert store() is None

    run(work, 54321)


def test_folders_of_others_are_not_used(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with config.using(cache=str(tmp_path / "a"), logs="cache"):
        folder = opened().local.folder
        for mode in (0o777, 0o720, 0o702):
            folder.chmod(mode)
            assert store() is None
            assert f"{folder} is another user's, or others can write to it" in capfd.readouterr().err
        folder.chmod(0o755)  # others may read
        assert store() is not None
        if os.getuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
            assert store() is None
    # What is above may be anybody's: a folder there is used only if it is this user's.
    tmp_path.chmod(0o777)
    with config.using(cache=str(tmp_path)):
        assert store() is not None


def test_links_are_not_followed(tmp_path: Path, kept: Store, capfd: pytest.CaptureFixture[str]) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "objects").symlink_to(elsewhere)
    with config.using(cache=str(tmp_path / "b"), logs="cache"):
        assert store() is None and list(elsewhere.iterdir()) == []
    # The folder of the option itself may be a link: whoever gives it decides.
    (tmp_path / "c").symlink_to(elsewhere)
    with config.using(cache=str(tmp_path / "c")):
        opened().put(KEY, b"through a link")
        assert opened().get(KEY) == b"through a link"

    kept.put(KEY, b"content")
    path = file_of(kept, KEY)
    path.rename(elsewhere / "moved")
    path.symlink_to(elsewhere / "moved")
    assert kept.get(KEY) is None and (elsewhere / "moved").exists()
    assert "is not used" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["index-1.sqlite", "index-1.lock", "making"])
def test_what_is_no_file_is_not_waited_for(
    kept: Store, name: str, tmp_path: Path, again: Callable[[], Store]
) -> None:
    kept.put(KEY, b"content")
    kept.local.index.close()
    path = kept.local.folder / name
    for each in kept.local.folder.glob("index-1*"):
        each.unlink()
    if path.is_dir():
        path.rmdir()
    os.mkfifo(path)
    assert again().get(KEY) == b"content"
    with kept.making(key(1)) as other:
        assert other is None


# Damage


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _flip(path: Path) -> None:
    bytes = bytearray(path.read_bytes())
    bytes[random.Random(len(bytes)).randrange(len(bytes))] ^= 4
    path.write_bytes(bytes)


def _grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def _give(path: Path) -> None:
    path.chmod(0o666)


def _remove(path: Path) -> None:
    path.unlink()


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("damage", [_cut, _empty, _flip, _grow, _give, _remove, _folder, _pipe])
def test_damaged_files_are_misses(
    kept: Store, damage: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        kept.put(key(number), content(number))
    capfd.readouterr()
    damage(file_of(kept, key(1)))
    assert kept.get(key(1)) is None
    if damage is not _remove:
        assert "is not used: " in capfd.readouterr().err
    kept.put(key(1), content(1))
    if damage is not _folder:  # which is somebody else's doing, and stays
        assert kept.get(key(1)) == content(1)
    assert kept.get(key(0)) == content(0) and kept.get(key(2)) == content(2)


def test_an_entry_of_another_key_is_a_miss(kept: Store) -> None:
    """An index that says something else than the files is not believed."""
    kept.put(key(0), b"zero")
    kept.put(key(1), b"one")
    names = [file_of(kept, key(number)).name for number in (0, 1)]
    with sqlite3.connect(kept.local.index.path) as connection:
        connection.execute("UPDATE entries SET name = ? WHERE key = ?", (names[1], key(0).digest))
    connection.close()
    assert kept.get(key(0)) is None


def _text(path: Path) -> None:
    path.write_bytes(b"this is no index\n" * 500)


def _zeros(path: Path) -> None:
    bytes = path.read_bytes()
    path.write_bytes(bytes[:100] + b"\0" * (len(bytes) - 100))


def _other_version(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.close()


def _no_tables(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE entries")
    connection.commit()
    connection.close()


def _odd_names(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE entries SET name = '../../../etc/passwd'")
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "damage", [_cut, _empty, _text, _zeros, _other_version, _no_tables, _odd_names, _remove, _give]
)
@pytest.mark.parametrize("while_open", [False, True])
def test_a_damaged_index_is_made_again(kept: Store, damage: Callable[[Path], None], while_open: bool) -> None:
    for number in range(5):
        kept.put(key(number), content(number))
    kept.local.index.close()
    damage(kept.local.index.path)
    if while_open:  # another process has had it open since before
        assert kept.get(key(0)) == content(0)
    assert [kept.get(key(number)) for number in range(5)] == [content(number) for number in range(5)]
    kept.put(KEY, b"new")
    assert kept.get(KEY) == b"new"
    kept.local.index.close()
    assert kept.get(KEY) == b"new" and kept.get(key(0)) == content(0)


def test_bits_that_flip_in_the_index(kept: Store) -> None:
    for number in range(10):
        kept.put(key(number), content(number))
    kept.local.index.close()
    whole, dice = kept.local.index.path.read_bytes(), random.Random(3)
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(dice.choice([1, 10, 200])):
            damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        kept.local.index.path.write_bytes(damaged)
        for number in range(10):
            assert kept.get(key(number)) in (None, content(number))
        kept.put(key(3), content(3))
        kept.local.rows(), kept.local.misses(), kept.local.index.names()
        kept.local.index.close()


def test_an_index_that_stays_locked_is_a_miss(
    kept: Store, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(database, "PATIENCE", 0.1)
    kept.put(key(0), content(0))
    other = sqlite3.connect(kept.local.index.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    for number in range(5):
        kept.put(key(number), content(number))  # waits once
        assert kept.get(key(0)) == content(0)
    assert time.monotonic() - began < 1
    assert "is not kept: database is locked" in capfd.readouterr().err
    other.execute("ROLLBACK")
    other.close()
    kept.put(key(9), content(9))
    assert kept.get(key(9)) == content(9)


def test_a_python_without_sqlite(
    kept: Store, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def none(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(database, "import_module", none)
    kept.put(KEY, b"content")
    assert kept.get(KEY) is None
    assert "No module named 'sqlite3'" in capfd.readouterr().err


def test_a_folder_that_is_removed_is_made_again(kept: Store) -> None:
    kept.put(KEY, b"content")
    mask = os.umask(0o002)  # that of most users
    try:
        shutil.rmtree(kept.local.folder.parent)
        assert kept.get(KEY) is None
        kept.put(KEY, b"again")
        run(lambda: None if opened().get(KEY) == b"again" else os._exit(2))
    finally:
        os.umask(mask)
    assert kept.get(KEY) == b"again"
    # Another process's index takes the place of ours.
    kept.local.index.path.unlink()
    run(lambda: opened().put(key(1), b"from another"))
    assert kept.get(key(1)) == b"from another" and kept.get(KEY) == b"again"


def test_a_handler_of_signals_may_ask_too(kept: Store) -> None:
    """In the middle of a use of the same thread there is no answer, and that one goes on."""
    kept.put(KEY, b"content")
    asked: list[bytes | None] = []

    def work(connection: sqlite3.Connection) -> int:
        with database.writing(connection):
            asked.append(kept.get(KEY))
            return connection.execute("SELECT count(*) FROM entries").fetchone()[0]

    assert kept.local.index._run(work) == 1 and asked == [None]
    assert kept.get(KEY) == b"content" and kept.local.index.trouble == ""


# Versions and clocks


def test_versions_share_the_folder(kept: Store) -> None:
    """Another version of the index has a file of its own, and finds what the first one has written; an entry of
    another form stays where it is."""
    kept.put(KEY, b"content")
    other = Index(kept.local.folder / "index-2.sqlite", kept.local.objects.walk)
    assert other.find(KEY.digest).name == file_of(kept, KEY).name
    foreign = b"lampwork entry 2\n..."
    name = kept.local.objects.write(foreign)
    os.utime(kept.local.objects.path(name), (0, 0))
    tidy(kept)
    assert kept.local.verify() == (1, []) and kept.local.objects.path(name).read_bytes() == foreign
    other.close()


def tidy(kept: Store) -> None:
    with sqlite3.connect(kept.local.index.path) as connection:
        connection.execute("DELETE FROM done")
    connection.close()
    kept.local._tidy()


def test_what_killed_processes_left_is_removed_after_a_day(kept: Store) -> None:
    kept.put(KEY, b"content")
    now, folder = time.time(), kept.local.folder
    (folder / "ab").mkdir(exist_ok=True)
    (folder / "making").mkdir(exist_ok=True)
    old, young, to_come = folder / "ab" / "old.new", folder / "young.new", folder / "to come.new-wal"
    turn, held = folder / "making" / ("a" * 64), folder / "making" / ("b" * 64)
    for path, when in (
        (old, now - DAY - 60),
        (young, now - 60),
        (to_come, now + DAY + 60),
        (turn, 0),
        (held, 0),
    ):
        path.write_bytes(b"half")
        os.utime(path, (when, when))
    with held.open() as file:
        making.fcntl.flock(file, making.fcntl.LOCK_EX)
        tidy(kept)
    assert [path.exists() for path in (old, young, to_come, turn, held)] == [False, True, False, False, True]
    # What was written and not entered is entered; what is no entry goes when it is old.
    entry = b"lampwork entry 1\n" + key(5).text.encode() + b"\nfound"
    kept.local.objects.write(entry)
    junk = [kept.local.objects.path(kept.local.objects.write(b"junk" + bytes([n]))) for n in range(2)]
    os.utime(junk[0], (0, 0))
    tidy(kept)
    assert kept.get(key(5)) == b"found" and [path.exists() for path in junk] == [False, True]
    assert kept.get(KEY) == b"content"


def test_a_clock_that_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was used last stays, whatever the clock said then, and the rest goes as always."""
    now = [time.time()]
    monkeypatch.setattr(time, "time", lambda: now[0])
    year = 365.0 * DAY
    with config.using(cache=str(tmp_path), cache_bytes=10 * SIZE):
        kept = opened()
        for number, jump in enumerate([0, year, 0, -2 * year, 5 * year, -4 * year, -60 * year]):
            now[0] += jump
            kept.put(key(number), content(number))
            assert kept.get(key(number)) == content(number)
        assert all(kept.get(key(number)) == content(number) for number in range(7))
        for number in range(7, 20):
            kept.put(key(number), content(number))
            now[0] += 30 * year if number % 2 else -30 * year
        there = [number for number in range(20) if kept.get(key(number)) is not None]
        assert there == list(range(20 - len(there), 20)) and 8 <= len(there) <= 9


def test_uses_are_noted_once_an_hour(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now, noted = [time.time()], []
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(
        Index, "use", lambda self, digest, when, use=Index.use: (noted.append(when), use(self, digest, when))
    )
    kept.put(KEY, b"content")
    for step, expected in [(0, 0), (3599, 0), (2, 1), (60, 1), (-7200, 2), (0, 2), (1800, 2), (1800, 3)]:
        now[0] += step
        assert kept.get(KEY) == b"content" and len(noted) == expected, step


def test_what_cannot_be_read_now_may_be_later(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.put(KEY, b"content")

    def busy(*args: object, **how: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(objects, "kept_file", busy)
        assert kept.get(KEY) is None
    assert kept.get(KEY) == b"content"
