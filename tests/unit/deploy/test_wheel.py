"""A wheel works on a bare machine: in an environment of its own that has torch and what the wheel asks for, without a
compiler on the path. It is made of the extension of this tree, as `make wheel` does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
MINOR = ".".join(torch.__version__.split(".")[:2])


def required(names: Iterable[str]) -> set[str]:
    """Distributions with all that they require, by name."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            wanted = [Requirement(each) for each in distribution(name).requires or ()]
            left += [
                each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})
            ]
    return found


def link(names: Iterable[str], target: Path) -> None:
    """Put the files of installed distributions into another environment, by links."""
    for name in names:
        one = distribution(name)
        tops = {Path(str(file)).parts[0] for file in one.files or ()} - {"..", "__pycache__"}
        for top in tops:
            if not (target / top).exists():
                (target / top).symlink_to(one.locate_file(top))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("src", "csrc", "cpp"):
        if (ROOT / name).is_dir():
            skip = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
            shutil.copytree(ROOT / name, tree / name, ignore=skip)
    env = {**os.environ, "LAMPWORK_BUILD_REUSE": "1"}
    command = [sys.executable, "setup.py", "-q", "bdist_wheel", "-d", "dist"]
    made = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return next((tree / "dist").glob("*.whl"))


class Machine:
    """An environment with torch and the wheel, and nothing else: no compiler, no home, none of our variables."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        self.packages = folder / "lib" / version / "site-packages"
        link(required(["torch", "numpy"]), self.packages)
        pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "--quiet"]
        subprocess.run([*pip, "--no-deps", "--no-index", "--no-compile", wheel], check=True)

    def run(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [self.folder / "bin/python", "-c", code, *arguments]
        env = {"PATH": "/nowhere", "HOME": str(self.folder), "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def machine(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("machine"), wheel)


def test_its_files_and_what_it_asks_for(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        metadata = opened.read(next(name for name in names if name.endswith("METADATA"))).decode()
        notes = [opened.read(name).decode() for name in names if name.endswith(".torch")]
    assert [
        line for line in metadata.split("\n") if line.startswith("Requires-Dist") and "extra" not in line
    ] == [
        f"Requires-Dist: torch=={MINOR}.*",
        "Requires-Dist: llvmlite>=0.45",
        "Requires-Dist: bytecode>=0.16",
        "Requires-Dist: numpy",
    ]
    assert len(notes) == 1 and notes[0].startswith(MINOR)
    assert f"cp{sys.version_info[0]}{sys.version_info[1]}" in wheel.name
    assert {"lampwork/py.typed", "lampwork/inspect/report/assets/report.html"} <= set(names)
    tracked = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert tracked <= set(names), "each module is in it"
    assert {name.split("/")[0].split("-")[0] for name in names} == {"lampwork"}
    headers = {path.name for path in (ROOT / "cpp" / "include").rglob("*.h*")}
    assert headers <= {Path(name).name for name in names if name.startswith("lampwork/include/")}


BARE = """
import sys, warnings, torch, lampwork
with warnings.catch_warnings(record=True) as caught:
    assert lampwork.compile(lambda x: x + 1)(torch.ones(3)).tolist() == [2.0] * 3
print(*(each.message for each in caught))
"""


def test_it_is_imported_without_llvmlite_and_bytecode(machine: Machine) -> None:
    done = machine.run(BARE)
    assert done.returncode == 0, done.stderr
    assert "expected the package llvmlite, which is needed to compile; it is not installed" in done.stdout
    assert "Traceback" not in done.stderr


ALEXNET = """
import shutil, torch, lampwork
from torch import nn
assert not any(map(shutil.which, ("gcc", "g++", "cc", "clang", "ld", "nvcc")))
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 5, stride=2, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
    nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
    nn.Flatten(), nn.Dropout(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10),
).eval()
x = torch.randn(2, 3, 33, 33)
compiled = lampwork.compile(model, fullgraph=True)
with torch.no_grad():
    torch.testing.assert_close(compiled(x), model(x))
print(lampwork.__file__, len(compiled.entries))
"""


def test_a_network_is_compiled_without_a_compiler_on_the_path(machine: Machine, wheel: Path) -> None:
    link(["llvmlite", "bytecode"], machine.packages)
    done = machine.run(ALEXNET)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(machine.packages / "lampwork/__init__.py"), "1"]
    assert (machine.folder / "bin/lampwork").is_file()
    # Beside another torch it is refused before the system's loader sees it.
    note = next((machine.packages / "lampwork").glob("_C.*.torch"))
    note.write_text("2.7.1\n")
    done = machine.run("import lampwork")
    assert done.returncode == 1 and done.stderr.split("\n")[-3].endswith(
        f"[LW002] expected torch 2.7, which Lampwork's extension was built with; came torch {torch.__version__}"
    )
