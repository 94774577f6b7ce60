"""What the driver's assembler makes, kept on disk: found again, not taken where it does not fit, never in the way."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from device_support import Fake, with_driver

from lampwork import _C
from lampwork.cache import store
from lampwork.cache.command import main
from lampwork.codegen.gpu.cubins import cubin_key
from lampwork.codegen.gpu.generator import KernelName, PtxJit
from lampwork.codegen.gpu.nvidia import describe
from lampwork.config import using
from lampwork.errors import DriverError


def load(fake: Fake, name: str = "double", image: str = "", device: int = 0) -> list[str]:
    """What a new process, which has its generator, asks of the driver for one kernel."""
    fake.log()
    jit: Any = PtxJit(replace(describe(90), device=device))
    kernel = jit.loaded((image or f"fake:{name}").encode(), KernelName(name, 2, 0))
    log = fake.log()
    asked = [line for line in log if line.startswith(("load", "assemble"))]
    assert log.count("destroy link") == sum(line.startswith("assemble") for line in asked)
    assert kernel.registers(device) == 40 and fake.log() == []  # it is loaded
    return asked


def made(name: str = "double", device: int = 0, minor: int = 5) -> list[str]:
    return [f"assemble {name}", *found(name, device, minor)]


def found(name: str = "double", device: int = 0, minor: int = 5) -> list[str]:
    return [f"load cubin {minor}:{name} on {device}"]


def with_cache(folder: Path, job: Callable[[Fake], None], *flags: str) -> None:
    """In a forked child with that cache."""

    def task(fake: Fake) -> None:
        with using(cache=str(folder)):
            job(fake)

    with_driver(task, *flags)


def files(folder: Path) -> list[Path]:
    """Of the entries."""
    return sorted(path for path in folder.glob("objects/??/*") if len(path.name) == 64)


def test_the_next_process_finds_what_this_one_made(tmp_path: Path) -> None:
    def job(fake: Fake) -> None:
        assert load(fake) == made()
        assert load(fake) == found()
        assert load(fake, "add") == made("add")
        assert load(fake, device=1) == found(device=1)  # a card of the same kind

    with_cache(tmp_path, job)
    with_cache(tmp_path, lambda fake: _equal(load(fake), found()))
    assert len(files(tmp_path)) == 2
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files(tmp_path))


def _equal(got: object, wanted: object) -> None:
    assert got == wanted


def test_another_driver_or_card_has_its_own(tmp_path: Path) -> None:
    def job(fake: Fake) -> None:
        assert load(fake) == made()
        fake.set("version", 13000)
        assert load(fake) == made()
        assert load(fake) == found()
        fake.set("minor", 0)
        assert load(fake) == made(minor=0)
        assert load(fake) == found(minor=0)
        fake.set("version", 12040)
        fake.set("minor", 5)
        assert load(fake) == found()

    with_cache(tmp_path, job)
    assert len(files(tmp_path)) == 3


def _cut(content: bytes) -> bytes:
    return content[:-3]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda content: b"",
    "a part": _cut,
    "the head": lambda content: content[:40],
    "a bit": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "more": lambda content: content + b"x",
    "of another version": lambda content: content.replace(b"entry 1", b"entry 2", 1),
    "of another program": lambda content: b"\x7fELF" + content,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_made_again(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    def job(fake: Fake) -> None:
        load(fake)
        (path,) = files(tmp_path)
        path.write_bytes(damage(path.read_bytes()))
        assert load(fake) == made()
        assert load(fake) == found()

    with_cache(tmp_path, job)


@pytest.mark.timeout(60)
def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    def job(fake: Fake) -> None:
        load(fake)
        (path,) = files(tmp_path)
        path.unlink()
        os.mkfifo(path, 0o600)
        assert load(fake) == made()
        assert load(fake) == found() and path.is_file()
        path.unlink()
        path.mkdir(0o700)  # which no file can replace
        assert load(fake) == load(fake) == made()

    with_cache(tmp_path, job)


def test_a_file_about_another_kernel_is_not_taken(tmp_path: Path) -> None:
    def job(fake: Fake) -> None:
        load(fake)
        (double,) = files(tmp_path)
        load(fake, "add")
        (add,) = set(files(tmp_path)) - {double}
        add.write_bytes(double.read_bytes())
        assert load(fake, "add") == made("add")

    with_cache(tmp_path, job)


def test_a_cubin_that_the_driver_refuses_is_made_again(tmp_path: Path) -> None:
    def job(fake: Fake) -> None:
        kept, ptx = store(), b"fake:double"
        assert kept is not None
        load(fake)
        mine = cubin_key("double", ptx, 0)
        fake.set("minor", 0)
        load(fake)
        # As if the card were another one, though its key is right.
        kept.put(mine, kept.get(cubin_key("double", ptx, 0)) or b"")
        fake.set("minor", 5)
        assert load(fake) == ["load cubin 0:double on 0", *made()]
        assert load(fake) == found()
        kept.put(mine, b"")
        assert load(fake) == made()
        assert load(fake) == found()

    with_cache(tmp_path, job)


def test_files_that_others_can_write_to_are_not_taken(tmp_path: Path) -> None:
    def job(fake: Fake) -> None:
        load(fake)
        (path,) = files(tmp_path)
        path.chmod(0o666)
        assert load(fake) == made()
        assert load(fake) == found()
        (tmp_path / "objects").chmod(0o777)
        assert load(fake) == ["load fake:double on 0"]
        assert files(tmp_path) == [path]

    with_cache(tmp_path, job)


@pytest.mark.parametrize("function", ["cuLinkCreate_v2", "cuLinkAddData_v2", "cuLinkComplete"])
def test_where_the_driver_does_not_link_the_ptx_is_loaded(tmp_path: Path, function: str) -> None:
    def job(fake: Fake) -> None:
        fake.fail(function, 218)
        for _ in range(2):
            asked = load(fake)
            assert asked[-1] == "load fake:double on 0" and len(asked) == 1 + (function != "cuLinkCreate_v2")
        assert files(tmp_path) == []

    with_cache(tmp_path, job)


def test_an_older_driver_without_a_linker(tmp_path: Path) -> None:
    with_cache(tmp_path, lambda fake: _equal(load(fake), ["load fake:double on 0"]), "-DNO_LINKER")


def test_ptx_that_is_refused_is_the_error_it_was(tmp_path: Path) -> None:
    said = "the driver's assembler refused kernel 'double':\nptxas application ptx input, line 3; error"

    def job(fake: Fake) -> None:
        with pytest.raises(DriverError) as caught:
            load(fake, image="nonsense")
        assert caught.value.cause == said
        fake.fail("cuDevicePrimaryCtxRetain", 999)
        with pytest.raises(DriverError, match="cuda:2 cannot be used"):
            load(fake, device=2)
        with pytest.raises(DriverError, match="cuda:9 cannot be used"):
            load(fake, device=9)

    with_cache(tmp_path, job)


def test_nothing_is_kept_where_the_cache_is_off_or_cannot_be_written_to(tmp_path: Path) -> None:
    def off(fake: Fake) -> None:
        with using(cache="off"):
            assert load(fake) == load(fake) == ["load fake:double on 0"]

    with_cache(tmp_path, off)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "objects").write_text("")  # no folder can be there
    with_cache(tmp_path, lambda fake: _equal(load(fake), ["load fake:double on 0"]))


def test_files_of_other_layouts_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cubins").mkdir()
    (tmp_path / "cubins" / "0a.cubin").write_bytes(b"lampwork cubin 1")
    with_cache(tmp_path, lambda fake: _equal((load(fake), load(fake)), (made(), found())))
    assert [path.name for path in (tmp_path / "cubins").iterdir()] == ["0a.cubin"]


def test_a_user_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def expanduser(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("LAMPWORK_CACHE", raising=False)
    monkeypatch.setattr(Path, "expanduser", expanduser)
    with_driver(lambda fake: _equal(load(fake), ["load fake:double on 0"]))


def test_an_image_that_is_a_cubin_is_loaded_as_it_is(tmp_path: Path) -> None:
    def job(fake: Fake) -> None:
        with pytest.raises(DriverError, match="refused"):  # by the fake driver, which has no such images
            load(fake, image="\x7fELF and more")
        assert fake.log()[-1] == "load \x7fELF and more on 0"

    with_cache(tmp_path, job)


def test_two_processes_at_a_time(tmp_path: Path) -> None:
    """Each finds a whole file or none, and none is left half written."""

    def child(write: int) -> None:
        def job(fake: Fake) -> None:
            for turn in range(40):
                assert load(fake) in (made(), found())
                if turn % 4 == 0:
                    for path in files(tmp_path):
                        path.unlink(missing_ok=True)
            os.write(write, b"well")

        with_cache(tmp_path, job)

    read, write = os.pipe()
    pids: list[int] = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            try:
                child(write)
            finally:
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"wellwell"
    assert not list(tmp_path.glob("objects/**/*.new"))


def test_the_cache_does_not_grow_without_end(tmp_path: Path) -> None:
    """Cubins count with all the rest, and those used last stay."""

    def fill(fake: Fake) -> None:
        load(fake, "count1")
        size = files(tmp_path)[0].stat().st_size
        with using(cache_bytes=4 * size + size // 2):
            for number in range(2, 5):
                load(fake, f"count{number}")
            assert len(files(tmp_path)) == 4
            load(fake, "count5")
            assert load(fake, "count5") == found("count5")
            assert load(fake, "count1") == made("count1")

    with_cache(tmp_path, fill)


def test_another_machine_finds_what_was_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMPWORK_CACHE_REMOTE_KEY", "a secret of some length")
    (tmp_path / "share").mkdir()

    def job(fake: Fake) -> None:
        with using(cache_remote=(tmp_path / "share").as_uri()):
            with using(cache=str(tmp_path / "one")):
                assert load(fake) == made()
            with using(cache=str(tmp_path / "two")):
                assert load(fake) == found()
        with using(cache=str(tmp_path / "two")):
            assert load(fake) == found()  # by now it is there, too
        with using(cache=str(tmp_path / "three")):
            assert load(fake) == made()

    with_cache(tmp_path, job)


def test_the_command_knows_cubins(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    archive = tmp_path / "all.tar"

    def job(fake: Fake) -> None:
        load(fake)
        fake.set("version", 13000)
        load(fake)
        assert main(["ls", "--kind", "cubin"]) == 0
        assert main(["why-miss", "--kind", "cubin"]) == 0
        assert main(["info"]) == main(["verify"]) == main(["export", str(archive)]) == 0
        with using(cache=str(tmp_path / "other")):
            assert main(["import", str(archive)]) == 0
            assert load(fake) == found()
            assert main(["clear"]) == 0
            assert load(fake) == made()

    with_cache(tmp_path, job)
    said = capfd.readouterr().out
    assert len([line for line in said.splitlines() if " cubin " in line and "just now" in line]) >= 2
    assert "  driver: '13000' was missed, '12040' is there\n" in said
    assert "the same in both: capability, kernel, ptx, version\n" in said
    assert "  cubin" in said and "2 entries whole, 0 damaged" in said and "2 entries taken in" in said


def test_the_capability_of_a_card(tmp_path: Path) -> None:
    def job(fake: Fake) -> None:
        assert _C.card_capability(0) == 75
        fake.set("minor", 0)
        assert _C.card_capability(1) == 70

    with_driver(job)
