"""The diffs of docs/extending.md: each is applied to a copy of the tree, where the code beneath it must run.

A diff names its file after `---` (`--- /dev/null` and `+++` for a new one). Its hunks, parted by `@@`, have no line
numbers: the lines that a hunk keeps or removes must occur once in the file, in a row.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from docs_blocks import missing

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "extending.md"
# By the heading they stand under: the files of the tree that a contribution opens.
FILES = {
    "To contribute one": 1,
    "To contribute a pass": 2,
    "A combinator": 1,
    "A lowering rule": 1,
    "An operation of the loops": 3,  # two, and one for the operator of its example
}


@dataclass
class Contribution:
    """The diffs under one heading of the page, the code that runs after them, and what it prints."""

    diffs: list[str] = field(default_factory=list)
    code: str = ""
    shown: str = ""


def contributions() -> dict[str, Contribution]:
    found: dict[str, Contribution] = {}
    heading = previous = ""
    for match in re.finditer(r"^#+ ([^\n]*)$|^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.S | re.M):
        heading, kind, text = match[1] or heading, match[2], match[3]
        if kind == "diff":
            found.setdefault(heading, Contribution()).diffs.append(text)
        elif kind == "py":
            found[heading].code += text
        elif kind == "text" and previous == "py":
            found[heading].shown += text
        previous = kind
    return found


def file_of(diff: str) -> str:
    return re.findall(r"^(?:---|\+\+\+) (src/\S+)$", diff, re.M)[0]


def apply(diff: str, tree: Path) -> None:
    path = tree / file_of(diff)
    header = re.match(r"--- /dev/null\n\+\+\+ .*\n|--- .*\n", diff)
    assert header is not None
    if "/dev/null" in header[0]:
        assert not path.exists()
        path.write_text("".join(line[1:] for line in diff[header.end() :].splitlines(keepends=True)))
        return
    text = path.read_text()
    for hunk in diff[header.end() :].split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        assert text.count(before) == 1, f"{path.name} has these lines {text.count(before)} times:\n{before}"
        text = text.replace(before, after)
    path.write_text(text)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with all contributions of the page."""
    copy = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for contribution in contributions().values():
        for diff in contribution.diffs:
            apply(diff, copy)
    return copy


def test_each_opens_as_many_files_as_the_page_says() -> None:
    opened = {heading: {file_of(diff) for diff in found.diffs} for heading, found in contributions().items()}
    assert {heading: len(files) for heading, files in opened.items()} == FILES
    promise = "a rewrite, a combinator or a lowering rule one, a pass or an operation of the loops two"
    assert promise in " ".join(PAGE.read_text().split())
    operation = opened["An operation of the loops"] - opened["A lowering rule"]
    assert len(operation) == 2


def test_all_run_in_one_tree(tree: Path) -> None:
    found = contributions().values()
    code, shown = "".join(one.code for one in found), "".join(one.shown for one in found)
    environment = os.environ | {
        "PYTHONPATH": str(tree / "src"),
        "LAMPWORK_STRICT": "1",
        "LAMPWORK_VERIFY": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint(lampwork.__file__)"],
        capture_output=True, text=True, timeout=120, check=False, cwd=tree, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(str(tree))
    lacking = missing(shown, done.stdout)
    assert lacking is None, f"the output lacks {lacking!r}:\n{done.stdout}"


@pytest.mark.parametrize("check", [["ruff", "check"], ["ruff", "format", "--check"]], ids=" ".join)
def test_they_are_written_as_the_tree_is(tree: Path, check: list[str]) -> None:
    files = sorted({file_of(diff) for found in contributions().values() for diff in found.diffs})
    tool = Path(sys.executable).parent / check[0]
    if not tool.exists():
        pytest.skip("ruff is not installed")
    command = [tool, *check[1:], "--config", ROOT / "pyproject.toml", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tree)
    assert done.returncode == 0, done.stdout
