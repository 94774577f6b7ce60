"""The pages of the site: each is in the index, and each block on them is run, or says why not."""

from __future__ import annotations

import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from docs_blocks import ROOT, RUN, all_blocks, blocks_of, script_of

CONFIGURATION = runpy.run_path(str(ROOT / "site" / "conf.py"))
PAGES = sorted(
    p.relative_to(ROOT) for pattern in CONFIGURATION["include_patterns"] for p in ROOT.glob(pattern)
)
INDEX = Path(CONFIGURATION["root_doc"] + ".md")
READERS = sorted(p for p in PAGES if p.parent.name == "readers")
# Their blocks are run by other tests, which know what to do with them.
ELSEWHERE = {"docs/extending.md": ("diff", "py")}


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / "site" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_each_block_is_run_or_says_why_not(page: Path) -> None:
    text = (ROOT / page).read_text()
    if page.parent.name == "reference":  # its blocks are printed by the code
        assert "Made from the code by `make docs`" in text
        return
    commands = "".join(b.code for b in blocks_of(text) if b.language == "console")
    for block in all_blocks(text):
        script = script_of(block)
        assert script is None or f" {script}\n" in commands, f"{page}: no command runs {script}"
        if block.language not in (*RUN, *ELSEWHERE.get(str(page), ())):
            assert block.reason is not None, (
                f"{page}:{block.line}: make this a ```python or ```console block, which runs, or say why it does not "
                f"run in a comment above it: <!-- not run: the reason -->\n{block.code}"
            )


def test_every_page_is_in_the_index() -> None:
    entries = load("navigation").entries((ROOT / INDEX).read_text())
    linked = {
        (ROOT / INDEX.parent / f"{page}.md").resolve().relative_to(ROOT)
        for pages in entries.values()
        for _, page in pages
    }
    orphans = sorted(map(str, set(PAGES) - linked - {INDEX}))
    assert not orphans, f"{INDEX} does not link to {', '.join(orphans)}"
    assert not linked - set(PAGES)


def test_navigation_is_the_index() -> None:
    index = "# A\n[x](x.md)\n## One\n[T](t.md) and [U u](../u.md)\n\n* **Two**: [T again](t.md), [V](r/v.md#place)\n"
    assert load("navigation").entries(index) == {"One": [("T", "t"), ("U u", "../u")], "Two": [("V", "r/v")]}


def test_a_page_for_each_reader() -> None:
    index = (ROOT / INDEX).read_text()
    assert len(READERS) == 6
    for page in READERS:
        text = (ROOT / page).read_text()
        assert len(text.splitlines()) <= 150, page
        assert f"(readers/{page.name})" in index.partition("\n* **")[0], (
            f"{page.name} is not where readers begin"
        )
        assert text.count("](../") >= 3, f"{page} leads nowhere"
        assert any(block.language in RUN for block in all_blocks(text))


def test_pictures_are_small_and_said_in_words() -> None:
    used: set[Path] = set()
    for page in PAGES:
        for words, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", (ROOT / page).read_text()):
            picture = (ROOT / page.parent / target).resolve()
            assert len(words.split()) >= 5, f"{page}: say in words what {target} shows"
            assert picture.stat().st_size <= 120_000, f"{picture.name} is too large to be checked in"
            used.add(picture)
    assert used >= set((ROOT / "docs" / "pictures").iterdir()), "a picture that no page shows"


def test_blocks_are_found() -> None:
    text = (
        "```python\n1\n```\n\n```text\n1\n```\n\n<!-- not run: too\nlong -->\n\n    make x\n\nwords\n\n"
        "```text\n2\n```\n* item\n\n  ```console\n  $ lampwork env\n  ```\n"
    )
    found = [(b.language, b.line, b.shown, b.reason) for b in all_blocks(text)]
    assert found == [
        ("python", 2, "1\n", None),
        ("", 12, None, "too\nlong"),
        ("text", 17, None, None),
        ("console", 22, None, None),
    ]


@pytest.fixture
def small_site(tmp_path: Path) -> Path:
    """Four pages, with links of all kinds."""
    pytest.importorskip("myst_parser", reason="no sphinx: make site installs it")
    (tmp_path / "docs" / "reference").mkdir(parents=True)
    (tmp_path / "docs/reference/api.md").write_text(
        "# The API\n\n## Compile\n\n### `lampwork.compile`\n\nIt does.\n"
    )
    (tmp_path / "docs/tool.py").write_text("print('<x>')\n")
    (tmp_path / "README.md").write_text("# It\n\nSee [the part](docs/page.md#a-part).\n")
    (tmp_path / "docs/page.md").write_text(
        "# Page\n\n## A part\n\n`lampwork.compile(model)`, [a file](tool.py), [it](../README.md)\n"
    )
    (tmp_path / "docs/index.md").write_text(
        "# All\n\n## Pages\n\n[P](page.md) [It](../README.md) [API](reference/api.md)\n"
    )
    return tmp_path


def build(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "-b",
        "html",
        "-c",
        ROOT / "site",
        tree,
        tree / "build",
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_small_site_is_built(small_site: Path) -> None:
    done = build(small_site)
    assert done.returncode == 0, done.stderr
    page = (small_site / "build/docs/page.html").read_text()
    assert 'href="reference/api.html#lampwork-compile"' in page
    assert 'href="../files/docs/tool.py.html"' in page and 'href="../README.html"' in page
    assert "&lt;x&gt;" in (small_site / "build/files/docs/tool.py.html").read_text()
    assert "docs/index.html" in (small_site / "build/index.html").read_text()
    assert "searchbox" in page or "search.html" in page


def test_links_that_lead_nowhere_fail_the_build(small_site: Path) -> None:
    links = ["docs/gone.md", "docs/page.md#lost", "docs/absent.py"]
    with (small_site / "README.md").open("a") as file:
        file.write("".join(f"\n[x]({link})\n" for link in links))
    done = build(small_site)
    assert done.returncode == 1
    assert all(word in done.stderr for word in ("gone.md", "'lost'", "absent.py")), done.stderr


def test_an_orphan_fails_the_build(small_site: Path) -> None:
    (small_site / "docs/orphan.md").write_text("# Orphan\n")
    done = build(small_site)
    assert done.returncode == 1 and "orphan" in done.stderr


def test_broken_links_of_the_built_pages_are_found(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="no sphinx: make site installs it")
    (tmp_path / "b.html").write_text('<p id="here">')
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here"></a><a href="b.html#there"></a><a href="#"></a><img src="c.png">'
        '<a href="https://example.org/x"></a>'
    )
    assert load("links").broken(tmp_path) == ["a.html: b.html#there", "a.html: c.png"]
