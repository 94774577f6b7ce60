"""An extension for another torch or Python, and packages that are not there, are told of in plain words."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from lampwork.errors import InstallError
from lampwork.installed import check_extension, needed


def extension(folder: Path, built: str | None) -> Path:
    path = folder / f"_C{EXTENSION_SUFFIXES[0]}"
    path.write_bytes(b"")
    if built is not None:
        path.with_suffix(".torch").write_text(f"{built}\n")
    return path


@pytest.mark.parametrize("torch", ["2.13.0+cpu", "2.13.0", "2.13.1+cu126", "2.13.0a0+git1234"])
def test_the_minor_version_counts(tmp_path: Path, torch: str) -> None:
    extension(tmp_path, "2.13.0+cpu")
    check_extension(tmp_path, torch)


@pytest.mark.parametrize("torch", ["2.12.1", "2.14.0+cpu", "3.13.0", "2.1.3"])
def test_another_torch_is_refused(tmp_path: Path, torch: str) -> None:
    extension(tmp_path, "2.13.0+cpu")
    with pytest.raises(InstallError) as caught:
        check_extension(tmp_path, torch)
    assert isinstance(caught.value, ImportError) and str(caught.value) == (
        f"[LW002] expected torch 2.13, which Lampwork's extension was built with; came torch {torch}\n"
        f'  fix: pip install "torch==2.13.*", or build Lampwork with torch {torch}: '
        "pip wheel --no-build-isolation --no-deps ."
    )


def test_an_extension_without_a_note_is_taken(tmp_path: Path) -> None:
    extension(tmp_path, None)
    check_extension(tmp_path, "2.12.0")


def test_no_extension_for_this_python(tmp_path: Path) -> None:
    wanted = f"_C{EXTENSION_SUFFIXES[0]}"
    with pytest.raises(InstallError, match="came none"):
        check_extension(tmp_path, "2.13.0")
    (tmp_path / "_C.cpython-39-x86_64-linux-gnu.so").write_bytes(b"")
    (tmp_path / "_C.cpython-39-x86_64-linux-gnu.torch").write_text("2.13.0\n")
    with pytest.raises(InstallError) as caught:
        check_extension(tmp_path, "2.13.0")
    assert caught.value.cause == (
        f"expected Lampwork's extension for this Python, {wanted}; came that of _C.cpython-39-x86_64-linux-gnu.so"
    )


def test_a_package_that_is_not_there_is_named_when_it_is_used() -> None:
    there = needed("json", "to test")
    assert there is sys.modules["json"]
    absent = needed("no_such_package_of_ours", "to go on behind a graph break")
    assert getattr(absent, "__wrapped__", None) is None
    with pytest.raises(InstallError) as caught:
        absent.Bytecode
    assert str(caught.value) == (
        "[LW002] expected the package no_such_package_of_ours, which is needed to go on behind a graph break; "
        "it is not installed\n  fix: pip install no_such_package_of_ours"
    )


def test_what_a_package_lacks_itself_is_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_package_of_ours.py").write_text("import no_such_package_of_ours\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_package_of_ours"):
        needed("broken_package_of_ours", "to test")
