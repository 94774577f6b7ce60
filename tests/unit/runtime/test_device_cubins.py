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
from lampwork.codegen.gpu import cubins
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
    return sorted((folder / "cubins").iterdir())


def test_the_next_process_finds_what_this_one_made(tmp_path: Path) -> None:
    def job(fake: Fake) -> None:
        assert load(fake) == made()
        assert load(fake) == found()
        assert load(fake, "add") == made("add")
        assert load(fake, device=1) == found(device=1)  # a card of the same kind

    with_cache(tmp_path, job)
    with_cache(tmp_path, lambda fake: _equal(load(fake), found()))
    assert len(files(tmp_path)) == 2
    assert all(path.suffix == ".cubin" and path.stat().st_mode & 0o777 == 0o600 for path in files(tmp_path))


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
    "of another version": lambda content: content.replace(b"cubin 1", b"cubin 2", 1),
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
        fake.set("minor", 0)
        load(fake)
        (path,) = files(tmp_path)
        content = path.read_bytes()
        path.unlink()
        fake.set("minor", 5)
        load(fake)
        (mine,) = files(tmp_path)
        # As if the card were another one, though its key is right.
        head = len(b"lampwork cubin 1\n") + 32
        mine.write_bytes(mine.read_bytes()[:head] + content[head:])
        assert load(fake) == ["load cubin 0:double on 0", *made()]
        assert load(fake) == found()

    with_cache(tmp_path, job)


def test_files_that_others_can_write_to_are_not_taken(tmp_path: Path) -> None:
    def job(fake: Fake) -> None:
        load(fake)
        (path,) = files(tmp_path)
        path.chmod(0o666)
        assert load(fake) == made()
        assert load(fake) == found()
        path.parent.chmod(0o777)
        assert load(fake, "add") == made("add")
        assert files(tmp_path) == [path]

    with_cache(tmp_path, job)


@pytest.mark.parametrize("function", ["cuLinkCreate_v2", "cuLinkAddData_v2", "cuLinkComplete"])
def test_where_the_driver_does_not_link_the_ptx_is_loaded(tmp_path: Path, function: str) -> None:
    def job(fake: Fake) -> None:
        fake.fail(function, 218)
        for _ in range(2):
            asked = load(fake)
            assert asked[-1] == "load fake:double on 0" and len(asked) == 1 + (function != "cuLinkCreate_v2")
        assert not (tmp_path / "cubins").exists()

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
    (tmp_path / "cubins").write_text("")  # no folder can be there
    with_cache(tmp_path, lambda fake: _equal((load(fake), load(fake)), (made(), made())))


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
    assert all(path.suffix == ".cubin" for path in files(tmp_path))


def test_the_folder_does_not_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was used last stays."""
    monkeypatch.setattr(cubins, "MOST_KEPT", 600)
    names = [f"count{number}" for number in range(1, 10)]

    def fill(fake: Fake) -> None:
        jit: Any = PtxJit(replace(describe(90), device=0))
        for number, name in enumerate(names):
            before = set(files(tmp_path)) if number else set[Path]()
            jit.loaded(f"fake:{name}".encode(), KernelName(name, 2, 0))
            (path,) = set(files(tmp_path)) - before
            os.utime(path, (number * 1000, number * 1000))
        assert load(fake, "count1") == found("count1")  # which notes that it is used
        (tmp_path / "cubins" / "left over.new").write_text("half")
        os.utime(tmp_path / "cubins" / "left over.new", (0, 0))
        (tmp_path / "cubins" / "beginning.new").write_text("half")
        load(fake, "double")
        names_left = {path.name for path in files(tmp_path)}
        assert "left over.new" not in names_left and "beginning.new" in names_left
        assert sum(path.stat().st_size for path in files(tmp_path)) <= 450
        assert [load(fake, name) for name in ("double", "count1", "count9", "count2")] == [
            *(found(name) for name in ("double", "count1", "count9")),
            made("count2"),
        ]

    with_cache(tmp_path, fill)


def test_the_capability_of_a_card(tmp_path: Path) -> None:
    def job(fake: Fake) -> None:
        assert _C.card_capability(0) == 75
        fake.set("minor", 0)
        assert _C.card_capability(1) == 70

    with_driver(job)
