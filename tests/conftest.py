"""Shared fixtures. Everything runs strict: nothing may fall back to eager unseen."""

from __future__ import annotations

import collections
import difflib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lampwork.capture.state.births import anything_frozen

GOLDEN = Path(__file__).parent / "golden"

# The name of the test that runs: what `make test` prints when a signal ends the whole run.
RUNNING = os.environ.get("TEST_RUNNING")

# Some test modules make their data when they are imported: the same in every run.
torch.manual_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")
    parser.addoption(
        "--share",
        type=int,
        default=1,
        metavar="N",
        help="of each test with many cases, but those marked every_case, run about one in N, the same every time",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --update-golden nothing runs but the tests that compare with golden files; with --share a part of sweeps."""
    if config.getoption("--update-golden"):
        items[:] = [item for item in items if "golden" in getattr(item, "fixturenames", ())]
    if config.getoption("--share") > 1:
        cases: dict[str, list[pytest.Item]] = collections.defaultdict(list)
        for item in items:
            every = item.get_closest_marker("every_case") is not None
            cases[item.nodeid if every else item.nodeid.partition("[")[0]].append(item)
        kept = {
            item.nodeid for of_one in cases.values() for item in share(of_one, config.getoption("--share"))
        }
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
        items[:] = [item for item in items if item.nodeid in kept]


FEW = 2
"""A test with no more cases than this always runs all of them."""


def share(cases: list[pytest.Item], parts: int) -> list[pytest.Item]:
    """About one in `parts` of a test's cases, but never fewer than FEW: those whose names hash lowest, so that a case
    added or taken away leaves the choice among the others nearly as it is."""
    count = max(FEW, len(cases) // parts)
    return sorted(cases, key=lambda item: zlib.crc32(item.nodeid.encode()))[:count]


def pytest_runtest_logstart(nodeid: str) -> None:
    if RUNNING:
        Path(RUNNING).write_text(nodeid + "\n")


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiler failures raise, and every pass is verified."""
    monkeypatch.setenv("LAMPWORK_STRICT", "1")
    monkeypatch.setenv("LAMPWORK_VERIFY", "1")


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """No test leaves objects frozen: a capture freezes what is there, and takes other ways where that was done."""
    before = anything_frozen()
    yield
    assert before or not anything_frozen(), "this test froze objects (gc.freeze) and did not thaw them"


# Here, too, as fixtures of modules come before those of tests, and servers that fork keep what they began with.
os.environ["LAMPWORK_CACHE"] = "off"


@pytest.fixture(autouse=True)
def without_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests compile what they test, whatever ran before; those of the cache name a folder."""
    monkeypatch.setenv("LAMPWORK_CACHE", "off")


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
