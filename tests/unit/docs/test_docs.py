"""Every Python block of the documentation runs, page by page in one namespace, and prints what the page shows."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
from docs_blocks import ROOT, Block, blocks_of, missing, run_block, run_commands, script_of

import lampwork
from lampwork.backends import registry
from lampwork.plugins import registry as plugins

WRITTEN = (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/readers/*.md"))
PAGES = sorted(p.relative_to(ROOT) for p in WRITTEN if blocks_of(p.read_text()))


@pytest.fixture
def own_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a page registers is gone after it."""
    fresh = registry._standard()
    monkeypatch.setattr(registry, "_registry", lambda: fresh)
    yield
    for item in plugins.registry().all():
        item.unregister()


@pytest.mark.every_case
@pytest.mark.usefixtures("own_plugins")
@pytest.mark.parametrize("page", PAGES, ids=str)
def test_blocks_run(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LAMPWORK_STRICT")  # the pages show what a user sees
    namespace = {"__name__": "__main__"}
    lampwork.reset_stats()
    state = torch.is_grad_enabled()
    with warnings.catch_warnings(), mock.patch.dict(os.environ):
        # An eager run that a page does not announce is an error.
        warnings.simplefilter("error", lampwork.LampworkWarning)
        for block in blocks_of((ROOT / page).read_text()):
            if (script := script_of(block)) is not None:
                (tmp_path / script).write_text(block.code)
                outputs = []
            elif block.language == "console":
                outputs = run_commands(block, tmp_path)
            else:
                outputs = [(block.shown or "", run_block(block, ROOT / page, namespace))]
            for shown, printed in outputs:
                lacking = missing(shown, printed)
                assert lacking is None, (
                    f"{page}:{block.line}: the output lacks, or has in another place, {lacking!r}:\n{printed}"
                )
    assert torch.is_grad_enabled() == state


@pytest.mark.parametrize("page", ["README.md", "docs/tour.md", "docs/extending.md"])
def test_page_has_blocks(page: str) -> None:
    assert Path(page) in PAGES


def test_links_lead_somewhere() -> None:
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.S | re.M)
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_files_that_pages_name_exist() -> None:
    for path in WRITTEN:
        for name in re.findall(
            r"`((?:src|tests|docs|examples|csrc|tools|benchmarks)/[\w./-]*)`", path.read_text()
        ):
            assert (ROOT / name).exists(), f"{path.name} names {name}"


def test_shown_output_is_compared() -> None:
    assert missing("a  b\n...\nc...e\n", "x\na b\ny\nc d e\n") is None
    assert missing("b\na\n", "a\nb\n") == "a"
    assert missing("a", "ab") == "a"
    page = (
        "```python\nprint(1)\n```\n\n```text\n1\n```\n\ntext\n\n```python\n2\n```\nwords\n```text\n3\n```\n"
    )
    assert blocks_of(page) == [Block("print(1)\n", 2, "1\n"), Block("2\n", 12, None)]
