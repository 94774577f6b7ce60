"""A wheel works on a bare machine: in an environment of its own that has torch and what the wheel asks for, without a
compiler on the path. It is made of the extension of this tree, as `make wheel` does; of those for other Pythons, too,
where this tree has them (`make setup PYTHON=python3.13`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

import lampwork

ROOT = Path(__file__).parents[3]
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


@dataclass(frozen=True)
class Python:
    """An interpreter that has torch. `path`: where it looks for packages; `torch`: of which version that is."""

    program: Path
    version: str
    path: tuple[str, ...]
    torch: str

    @staticmethod
    def of(program: Path) -> Python | None:
        code = (
            "import json, sys, torch; print(json.dumps([sys.version_info[:2], sys.path, torch.__version__]))"
        )
        done = subprocess.run([program, "-c", code], capture_output=True, text=True, cwd="/")
        if done.returncode != 0:
            return None
        (major, minor), path, version = json.loads(done.stdout)
        return Python(program, f"{major}.{minor}", tuple(path), version)

    @property
    def has_extension(self) -> bool:
        return any((ROOT / "src/lampwork").glob(f"_C.cpython-{self.version.replace('.', '')}-*.so"))

    def distribution(self, name: str) -> Distribution:
        return next(iter(Distribution.discover(name=name, path=list(self.path))))


@pytest.fixture(scope="module", params=["3.11", "3.12", "3.13"])
def python(request: pytest.FixtureRequest) -> Python:
    """One that runs here: this one, or the one of an environment that `make setup` made."""
    version = str(request.param)
    if version == HERE:
        return Python(Path(sys.executable), version, tuple(sys.path), torch.__version__)
    for name in (f".venv-{version}", ".venv"):
        program = ROOT / name / "bin" / f"python{version}"
        found = Python.of(program) if program.exists() else None
        if found is not None and found.has_extension:
            return found
    pytest.skip(
        f"this tree has no environment or no extension for Python {version}: make setup PYTHON=python{version}"
    )


def required(python: Python, names: Iterable[str]) -> set[str]:
    """Distributions with all that they require, by name."""
    found: set[str] = set()
    left = list(names)
    environment = {
        "extra": "",
        "python_version": python.version,
        "python_full_version": f"{python.version}.0",
    }
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            wanted = [Requirement(each) for each in python.distribution(name).requires or ()]
            left += [each.name for each in wanted if each.marker is None or each.marker.evaluate(environment)]
    return found


def link(python: Python, names: Iterable[str], target: Path) -> None:
    """Put the files of installed distributions into another environment, by links."""
    for name in names:
        one = python.distribution(name)
        tops = {Path(str(file)).parts[0] for file in one.files or ()} - {"..", "__pycache__"}
        for top in tops:
            if not (target / top).exists():
                (target / top).symlink_to(Path(str(one.locate_file(top))).resolve())


@pytest.fixture(scope="module")
def wheel(python: Python, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("src", "csrc", "cpp"):
        if (ROOT / name).is_dir():
            skip = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
            shutil.copytree(ROOT / name, tree / name, ignore=skip)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [python.program, "setup.py", "-q", "bdist_wheel", "-d", "dist"]
    made = subprocess.run(
        command, cwd=tree, env={**env, "LAMPWORK_BUILD_REUSE": "1"}, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    return next((tree / "dist").glob("*.whl"))


class Machine:
    """An environment with torch and the wheel, and nothing else: no compiler, no home, none of our variables."""

    def __init__(self, python: Python, folder: Path, wheel: Path) -> None:
        self.python, self.folder = python, folder
        subprocess.run([python.program, "-m", "venv", "--without-pip", folder], check=True)
        self.packages = folder / "lib" / f"python{python.version}" / "site-packages"
        link(python, required(python, ["torch", "numpy"]), self.packages)
        pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "--quiet"]
        subprocess.run([*pip, "--no-deps", "--no-index", "--no-compile", wheel], check=True)

    def add(self, *names: str) -> None:
        link(self.python, names, self.packages)

    def run(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.execute(self.folder / "bin/python", "-c", code, *arguments)

    def lampwork(self, *arguments: str) -> str:
        done = self.execute(self.folder / "bin/lampwork", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def execute(self, *command: Path | str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": "/nowhere", "HOME": str(self.folder), "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def machine(python: Python, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(python, tmp_path_factory.mktemp("machine"), wheel)


def test_its_files_and_what_it_asks_for(python: Python, wheel: Path) -> None:
    minor = ".".join(python.torch.split(".")[:2])
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        metadata = opened.read(next(name for name in names if name.endswith("METADATA"))).decode()
        notes = [opened.read(name).decode() for name in names if name.endswith(".torch")]
    assert [
        line for line in metadata.split("\n") if line.startswith("Requires-Dist") and "extra" not in line
    ] == [
        f"Requires-Dist: torch=={minor}.*",
        "Requires-Dist: llvmlite>=0.45",
        "Requires-Dist: bytecode>=0.16",
        "Requires-Dist: numpy",
    ]
    assert len(notes) == 1 and notes[0].startswith(minor)
    assert f"cp{python.version.replace('.', '')}" in wheel.name
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
model = lampwork.load(sys.argv[1], trust=True)
print(model(torch.ones(2, 4)).tolist() == [[5.0, 5.0], [5.0, 5.0]])
assert not {"llvmlite", "bytecode"} & set(sys.modules)
"""


def test_it_loads_and_runs_without_llvmlite_and_bytecode(machine: Machine, tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 2)
    for each in model.parameters():
        torch.nn.init.ones_(each)
    lampwork.export(model.eval(), (torch.ones(2, 4),), path=tmp_path / "m.lamp", targets=["host"])
    done = machine.run(BARE, str(tmp_path / "m.lamp"))
    assert done.returncode == 0, done.stderr
    assert "expected the package llvmlite, which is needed to compile; it is not installed" in done.stdout
    assert done.stdout.endswith("True\n") and "Traceback" not in done.stderr
    assert "forward(" in machine.lampwork("inspect", str(tmp_path / "m.lamp"))


NETWORK = """
import shutil, sys, torch, lampwork
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
    expected = model(x)
    torch.testing.assert_close(compiled(x), expected)
print(lampwork.__file__, len(compiled.entries), "llvmlite" in sys.modules)
"""
EXPORTS = """
lampwork.export(model, (x,), path="network.lamp", targets=["host"])
torch.testing.assert_close(lampwork.load("network.lamp", trust=True)(x), expected)
"""


def test_a_network_is_compiled_kept_and_exported_without_a_compiler_on_the_path(machine: Machine) -> None:
    machine.add("llvmlite", "bytecode")
    found: list[list[str]] = []
    for code in (NETWORK + EXPORTS, NETWORK):
        done = machine.run(code)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.split())
    package = str(machine.packages / "lampwork/__init__.py")
    assert found == [[package, "1", "True"], [package, "1", "False"]], (
        "the second one finds what the first kept"
    )
    assert str(machine.folder) in machine.lampwork("cache", "info")
    # Beside another torch it is refused before the system's loader sees it.
    note = next((machine.packages / "lampwork").glob("_C.*.torch"))
    note.write_text("2.7.1\n")
    done = machine.run("import lampwork")
    cause = "[LW002] expected torch 2.7, which Lampwork's extension was built with; came torch"
    assert done.returncode == 1 and done.stderr.split("\n")[-3].endswith(f"{cause} {machine.python.torch}")
