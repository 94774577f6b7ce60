"""Shared fixtures. Everything runs strict: nothing may fall back to eager unseen."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

import pytest
import torch

GOLDEN = Path(__file__).parent / "golden"

# The name of the test that runs: what `make test` prints when a signal ends the whole run.
RUNNING = (
    Path(__file__).parent.parent / ".pytest_cache" / f"running-{'.'.join(map(str, sys.version_info[:2]))}"
)

# Some test modules make their data when they are imported: the same in every run.
torch.manual_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --update-golden nothing runs but the tests that compare with golden files."""
    if config.getoption("--update-golden"):
        items[:] = [item for item in items if "golden" in getattr(item, "fixturenames", ())]


def pytest_runtest_logstart(nodeid: str) -> None:
    RUNNING.parent.mkdir(exist_ok=True)
    RUNNING.write_text(nodeid + "\n")


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiler failures raise, and every pass is verified."""
    monkeypatch.setenv("LAMPWORK_STRICT", "1")
    monkeypatch.setenv("LAMPWORK_VERIFY", "1")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def golden(request: pytest.FixtureRequest):
    """`golden("loops/softmax", text)` compares with tests/golden/loops/softmax.txt; a missing file fails."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        text = text.rstrip() + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        assert path.exists(), f"{path} does not exist; look at the text and run `make golden`:\n{text}"
        want = path.read_text()
        diff = "\n".join(
            difflib.unified_diff(want.splitlines(), text.splitlines(), "golden", "now", lineterm="")
        )
        assert text == want, diff

    return check
