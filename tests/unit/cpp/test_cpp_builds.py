"""The build of the C++ runtime: its own tests, damaged files under sanitizers, the installed package, AArch64."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cpp_runtime import BUILD, BUILDS, ROOT, built
from lamp_files import object_code, write_lamp

pytestmark = BUILDS

SANITIZED = BUILD.with_name("cpp-sanitize")
CROSS = BUILD.with_name("cpp-aarch64")
NO_CROSS = ", ".join(tool for tool in ("aarch64-linux-gnu-g++", "qemu-aarch64") if shutil.which(tool) is None)


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    return done.stdout


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lamp(tmp_path_factory.mktemp("lamp") / "hand.lamp", object_code())


def test_the_parts_by_themselves() -> None:
    folder = built(targets=["lampwork_unit"])
    assert run(folder / "tests" / "lampwork_unit") == "all right\n"


def test_damaged_files_are_refused(path: Path) -> None:
    """Nothing of them is read or written out of bounds; cpp/tests/fuzz.sh does the same a million times."""
    folder = built(
        SANITIZED,
        ["-DLAMPWORK_SANITIZE=ON", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1"],
        ["all"],
    )
    run(folder / "tests" / "lampwork_unit")
    seen = run(folder / "tests" / "lampwork_fuzz", "2500", "11", path)
    counts = {status: int(times) for status, times in (line.split() for line in seen.splitlines())}
    assert sum(counts.values()) == 2500 and counts["LW_FORMAT"] > 1000 and counts["LW_OK"] > 100
    assert "LW_INTERNAL" not in counts


def test_the_installed_package_is_found(tmp_path: Path, path: Path) -> None:
    folder = built(targets=["lampwork_runtime"])
    run("cmake", "--install", folder, "--prefix", tmp_path / "prefix", "--component", "Unspecified")
    consumer = ROOT / "cpp" / "tests" / "consumer"
    prefix = f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}"
    run("cmake", "-G", "Ninja", "-S", consumer, "-B", tmp_path / "build", prefix)
    run("ninja", "-C", tmp_path / "build")
    assert run(tmp_path / "build" / "from_c", path) == "3 5 7 9\n"
    assert run(tmp_path / "build" / "from_cpp", path) == "3 5 7 9 3 5 7 9 \nLW_INPUT\n"
    if shutil.which("pkg-config"):
        found = next((tmp_path / "prefix").rglob("lampwork.pc")).parent
        flags = run("pkg-config", "--cflags", "--libs", "lampwork", PKG_CONFIG_PATH=str(found))
        assert "-llampwork_runtime" in flags
        # It is found where it was installed, which need not be where the build was to go.
        (include,) = (each[2:] for each in flags.split() if each.startswith("-I"))
        assert (Path(include) / "lampwork" / "lampwork.h").samefile(
            tmp_path / "prefix" / "include" / "lampwork" / "lampwork.h"
        )
        (folder,) = (each[2:] for each in flags.split() if each.startswith("-L"))
        assert (Path(folder) / "liblampwork_runtime.so").exists()


def test_the_library_exports_its_interface_alone() -> None:
    library = built(targets=["lampwork_runtime"]) / "liblampwork_runtime.so"
    names = [line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()]
    assert names and all(name.startswith("lw_") for name in names)
    needed = run("readelf", "-d", library)
    assert "torch" not in needed and "python" not in needed


@pytest.mark.skipif(bool(NO_CROSS), reason=f"running code of AArch64 needs {NO_CROSS}")
def test_models_run_on_aarch64(tmp_path: Path) -> None:
    """Under an emulator, with code that was made here."""
    import torch
    from safetensors.torch import save_file
    from test_cpp_models import Net
    from torch.export import Dim

    import lampwork

    torch.manual_seed(0)
    model, ids = Net().eval(), torch.randint(20, (3, 5))
    shapes = ({0: Dim("b", max=32), 1: Dim("n", max=64)},)
    lampwork.export(model, (ids,), dynamic_shapes=shapes, path=tmp_path / "net.lamp", targets=["aarch64"])
    with torch.no_grad():
        results = {f"out.{n}": each.contiguous() for n, each in enumerate(model(ids).values())}
    save_file({"in.0": ids, **results}, tmp_path / "case")
    toolchain = ROOT / "cpp" / "cmake" / "aarch64-linux-gnu.cmake"
    folder = built(CROSS, [f"-DCMAKE_TOOLCHAIN_FILE={toolchain}"], ["lampwork_run", "lampwork_unit"])
    emulated = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-E", f"LD_LIBRARY_PATH={folder}")
    assert run(*emulated, folder / "tests" / "lampwork_unit") == "all right\n"
    said = run(
        *emulated,
        folder / "tests" / "lampwork_run",
        tmp_path / "net.lamp",
        "forward",
        tmp_path / "case",
        "1e-5",
        "2",
    )
    assert "picked aarch64" in said and "3 results" in said
