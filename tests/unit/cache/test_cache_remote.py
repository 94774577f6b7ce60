"""What machines share: it is there for those that know the secret, and nobody waits for it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cache_processes import run

from lampwork import config
from lampwork.cache import Key, Store, places, remote, store
from lampwork.errors import LampworkWarning
from lampwork.inspect.environment import _variables

KEY = Key("program", {"graph": "9f3a"})
SECRET = "a secret of some length"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMPWORK_CACHE_REMOTE_KEY", SECRET)
    remote._warn_once.cache_clear()


@pytest.fixture
def machine(tmp_path: Path):
    """Makes a machine: a cache folder of its own, with a shared cache behind it."""
    with ExitStack() as stack:

        def made(name: str, url: str) -> Store:
            stack.enter_context(config.using(cache=str(tmp_path / name), cache_remote=url, logs="cache"))
            found = store()
            assert found is not None
            return found

        yield made


@pytest.fixture
def share(tmp_path: Path) -> Path:
    made = tmp_path / "share"
    made.mkdir()
    return made


def shared(share: Path, key: Key = KEY) -> Path:
    return share / key.digest[:2] / key.digest


def test_machines_share_a_folder(machine, share: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one, two = (machine(name, share.as_uri()) for name in ("one", "two"))
    assert two.get(KEY) is None
    one.put(KEY, b"content")
    assert two.get(KEY) == b"content"
    assert f"bytes, in {share.as_uri()}" in capfd.readouterr().err
    shutil.rmtree(share)
    assert two.get(KEY) == b"content"  # by now it is in the folder
    assert [path.name for path in (two.local.objects.path(name) for name in two.local.objects.names())] == [
        path.name for path in (one.local.objects.path(name) for name in one.local.objects.names())
    ]


def test_what_is_written_over_is_new_everywhere(machine, share: Path) -> None:
    one = machine("one", share.as_uri())
    for content in (b"first", b"second"):
        one.put(KEY, content)
    assert machine("two", share.as_uri()).get(KEY) == b"second"
    assert list(share.rglob("*.new")) == []


def test_without_the_secret_nothing_is_taken(
    machine, share: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    machine("one", share.as_uri()).put(KEY, b"content")
    monkeypatch.setenv("LAMPWORK_CACHE_REMOTE_KEY", SECRET + "!")
    assert machine("two", share.as_uri()).get(KEY) is None
    assert "without the right signature: it is not used" in capfd.readouterr().err
    machine("two", share.as_uri()).put(KEY, b"another's")
    monkeypatch.setenv("LAMPWORK_CACHE_REMOTE_KEY", SECRET)
    assert machine("three", share.as_uri()).get(KEY) is None


@pytest.mark.parametrize("given, says", [(None, "is not set"), ("", "is not set"), ("short", "has 5 bytes")])
def test_without_a_secret_there_is_no_shared_cache(
    machine, share: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, says: str
) -> None:
    if given is None:
        monkeypatch.delenv("LAMPWORK_CACHE_REMOTE_KEY")
    else:
        monkeypatch.setenv("LAMPWORK_CACHE_REMOTE_KEY", given)
    with pytest.warns(
        LampworkWarning, match=f"left out: LAMPWORK_CACHE_REMOTE_KEY {says}\n  fix: set it to a secret"
    ):
        one = machine("one", share.as_uri())
    one.put(KEY, b"content")
    assert one.remote is None and one.get(KEY) == b"content" and list(share.iterdir()) == []
    assert machine("two", share.as_uri()).get(KEY) is None  # and it is said once


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _bare(path: Path) -> None:
    """The entry alone."""
    path.write_bytes(path.read_bytes()[len(remote._FIRST) + 32 :])


def _flipped(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"T")


def _evil(path: Path) -> None:
    bytes = path.read_bytes()
    path.write_bytes(bytes[: len(remote._FIRST) + 32] + b"lampwork entry 1\n" + KEY.text.encode() + b"\nevil")


def _junk(path: Path) -> None:
    path.write_bytes(os.urandom(1000))


@pytest.mark.parametrize("damage", [_cut, _empty, _bare, _flipped, _evil, _junk])
def test_what_others_wrote_there_is_not_used(machine, share: Path, damage) -> None:
    machine("one", share.as_uri()).put(KEY, b"content")
    damage(shared(share))
    two = machine("two", share.as_uri())
    assert two.get(KEY) is None and two.local.rows() == []
    two.put(KEY, b"content")
    assert machine("three", share.as_uri()).get(KEY) == b"content"


def test_an_entry_is_good_for_its_own_key_only(machine, share: Path) -> None:
    other = Key("program", {"graph": "other"})
    one = machine("one", share.as_uri())
    one.put(KEY, b"content")
    one.put(other, b"of the other")
    shutil.copy(shared(share, other), shared(share))
    assert machine("two", share.as_uri()).get(KEY) is None


def test_a_share_that_is_not_mounted_is_not_made(machine, tmp_path: Path, capfd) -> None:
    one = machine("one", (tmp_path / "nowhere").as_uri())
    for number in range(3):
        one.put(Key("test", {"n": str(number)}), b"content")
    assert not (tmp_path / "nowhere").exists()
    assert capfd.readouterr().err.count("is left alone for 60 seconds: FileNotFoundError") == 1


def test_without_a_folder_the_shared_cache_serves(machine, share: Path, tmp_path: Path) -> None:
    machine("one", share.as_uri()).put(KEY, b"content")
    (tmp_path / "two").mkdir()
    two = machine("two", share.as_uri())
    shutil.rmtree(two.local.folder)
    two.local.folder.write_text("no folder")
    found = store()
    assert found is not None and found.local is None and found.get(KEY) == b"content"
    with found.making(KEY) as other:
        assert other == b"content"


class _Slow:
    """A place that takes its time, or fails."""

    def __init__(self, seconds: float = 0.0, error: Exception | None = None) -> None:
        self.seconds, self.error, self.asked = seconds, error, 0

    def read(self, name: str) -> bytes | None:
        self.asked += 1
        time.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return None

    def write(self, name: str, content: bytes) -> None:
        self.read(name)


class _OfOthers(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    "place, says",
    [
        (_Slow(seconds=5), "it took more than 0 seconds"),
        (_Slow(error=PermissionError("not you")), "PermissionError: not you"),
        (_Slow(error=_OfOthers()), "_OfOthers"),
    ],
)
def test_what_fails_is_left_alone_for_a_minute(
    machine, monkeypatch: pytest.MonkeyPatch, place, says: str, capfd
) -> None:
    monkeypatch.setattr(remote, "TIMEOUT", 0.1)
    monkeypatch.setattr(remote, "opener", lambda url: lambda: place)
    one, began = machine("one", f"memory://{says}"), time.monotonic()
    for number in range(50):
        key = Key("test", {"n": str(number)})
        assert one.get(key) is None
        one.put(key, b"content")
        assert one.get(key) == b"content"
    assert time.monotonic() - began < 3 and place.asked == 1
    said = capfd.readouterr().err
    assert said.count("is left alone") == 1 and f"is left alone for 60 seconds: {says}\n" in said
    one.remote._off_until = 0.0  # a minute later
    place.seconds, place.error = 0.0, None
    one.put(KEY, b"content")
    assert place.asked == 2 and not one.remote.is_off


def test_opening_is_not_waited_for_either(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST_TIMEOUT", 0.1)
    monkeypatch.setattr(remote, "opener", lambda url: lambda: time.sleep(5))
    one, began = machine("one", "memory://opening"), time.monotonic()
    assert one.get(KEY) is None and one.get(KEY) is None and time.monotonic() - began < 2


@pytest.mark.parametrize("url", ["nosuch://place/x", "s3://bucket/x", "redis://localhost:1"])
def test_a_package_that_is_missing_is_named(machine, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    def none(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    if not url.startswith("nosuch"):
        monkeypatch.setattr(places, "import_module", none)
    one = machine("one", url)
    with pytest.warns(
        LampworkWarning, match=r"cannot be used: [\s\S]*fix: run `pip install \"lampwork\[remote\]\"`"
    ):
        assert one.get(KEY) is None
    one.put(KEY, b"content")
    assert one.get(KEY) == b"content"


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "LAMPWORK_CACHE_REMOTE_KEY": SECRET,
        "LAMPWORK_CACHE_REMOTE_PASSWORD": "hidden",
        "LAMPWORK_CACHE_REMOTE": "redis://user:hidden@host",
    }
    with pytest.warns(LampworkWarning) as warned:
        config.from_environment(variables)
    shown = str(list(_variables(variables))) + "".join(str(each.message) for each in warned)
    assert SECRET not in shown and "LAMPWORK_CACHE_REMOTE_KEY" in shown
    assert "put a password into the environment" in shown


# Servers


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = pytest.importorskip("moto.server", reason="moto is not installed")
    with pytest.MonkeyPatch.context() as patch:
        made = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        made.start()
        host, port = made.get_host_and_port()
        patch.setenv("AWS_ACCESS_KEY_ID", "none")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "none")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{port}/bucket", method="PUT")
        ).close()
        yield f"http://127.0.0.1:{port}/bucket"
        made.stop()


def test_machines_share_a_bucket(machine, s3: str, capfd) -> None:
    one, two = machine("one", "s3://bucket/some/folder"), machine("two", "s3://bucket/some/folder")
    assert one.get(KEY) is None
    one.put(KEY, bytes(100_000))
    assert two.get(KEY) == bytes(100_000)
    found = pytest.importorskip("boto3").client("s3").list_objects_v2(Bucket="bucket")["Contents"]
    assert [each["Key"] for each in found] == [f"some/folder/{KEY.digest[:2]}/{KEY.digest}"]
    assert "is left alone" not in capfd.readouterr().err

    def work() -> None:
        signal.alarm(20)
        child = machine("child", "s3://bucket/some/folder")
        assert child.get(KEY) == bytes(100_000)
        child.put(Key("test", {}), b"from a child")

    run(work)
    assert one.get(Key("test", {})) == b"from a child"


def test_a_bucket_that_there_is_not(machine, s3: str, capfd) -> None:
    one = machine("one", "s3://nobucket/folder")
    one.put(KEY, b"content")
    assert (
        "is left alone for 60 seconds: FileNotFoundError: The specified bucket does not exist"
        in capfd.readouterr().err
    )
    assert one.get(KEY) == b"content"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    pytest.importorskip("redis", reason="redis-py is not installed")
    server = shutil.which("redis-server")
    if server is None:
        pytest.skip("redis-server is not installed")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--requirepass", "hidden"]
    with (tmp_path / "redis.log").open("w") as log:
        process = subprocess.Popen([server, *options, "--dir", str(tmp_path)], stdout=log)
        try:
            for _ in range(500):
                with socket.socket() as asked:
                    if asked.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.01)
            yield f"redis://127.0.0.1:{port}/3", process
        finally:
            process.kill()
            process.wait()


def test_machines_share_redis(machine, redis, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    url, server = redis
    one, two = machine("one", url), machine("two", url)
    assert one.get(KEY) is None and "AuthenticationError" in capfd.readouterr().err
    monkeypatch.setenv("LAMPWORK_CACHE_REMOTE_PASSWORD", "hidden")
    one.remote._off_until = 0.0
    one.remote._place = None
    assert one.get(KEY) is None
    one.put(KEY, bytes(100_000))
    assert two.get(KEY) == bytes(100_000)

    def work() -> None:
        assert machine("child", url).get(KEY) == bytes(100_000)

    run(work)
    # A server that answers no more is waited for once, one that has gone not at all.
    three = machine("three", url)
    monkeypatch.setattr(remote, "TIMEOUT", 0.2)
    server.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    assert three.get(KEY) is None and three.get(KEY) is None and time.monotonic() - began < 1
    server.send_signal(signal.SIGCONT)
    three.remote._off_until = 0.0
    assert three.get(KEY) == bytes(100_000)
    server.kill()
    server.wait()
    four, began = machine("four", url), time.monotonic()
    assert four.get(KEY) is None and time.monotonic() - began < 1
    four.put(KEY, b"content")
    assert four.get(KEY) == b"content"
    assert capfd.readouterr().err.count("is left alone") == 2
