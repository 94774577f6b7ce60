"""The committed reference pages are what the code generates."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from lampwork.capture.model.codes import CODES
from lampwork.compiled.recompiles import RECOMPILES
from lampwork.loops.ir.ops import OPS
from lampwork.lower.table import RULES
from lampwork.transforms.pipeline import default_passes

DOCS = Path(__file__).parents[3] / "docs"


def generator():
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "page",
    ["api.md", "options.md", "codes.md", "opcodes.md", "operations.md", "operators.md", "rules.md"],
)
def test_page_is_current(page: str) -> None:
    made = generator().PAGES[page]() + "\n"
    assert (DOCS / "reference" / page).read_text() == made, "the code has changed: run `make docs`"


def test_no_page_is_left_over() -> None:
    assert {p.name for p in (DOCS / "reference").iterdir()} == set(generator().PAGES)


def test_pages_name_everything() -> None:
    pages = {p.name: p.read_text() for p in (DOCS / "reference").iterdir()}
    assert all(f"\n### `lampwork.{name}`\n" in pages["api.md"] for name in generator().public_names())
    assert all(code in pages["codes.md"] for code in (*CODES, *RECOMPILES))
    assert all(f"| `{name}` |" in pages["operations.md"] for name in OPS)
    assert all(f"`{name.removeprefix('aten::')}`" in pages["rules.md"] for name in RULES)
    assert all(f". {step.name}\n" in pages["rules.md"] for step in default_passes())


def test_a_public_name_without_a_group_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    made = generator()
    groups = [(h, t, n.replace("compare ", "")) for h, t, n in made.API]
    monkeypatch.setattr(made, "API", groups)
    with pytest.raises(ValueError, match="in no group of API in docs/generate.py: compare"):
        made.api()


def test_docstrings_become_markdown() -> None:
    made = generator()
    text = """Do it: see *args and __init__.

    before:  %a = x
    after:   %b = x

Args:
    x: what
        it is: so.
    y: 1 * 2.

        f(x)

Then this.

    a = 1

    b = `2`
"""
    assert made.markdown_of(text) == [
        r"Do it: see \*args and \_\_init\_\_.",
        "", "```text", "before:  %a = x", "after:   %b = x", "```",
        "", "**Args:**", "", "* `x`: what", "  it is: so.", "* `y`: 1 * 2.",
        "", "* f(x)",
        "", "Then this.",
        "", "```text", "a = 1", "", "b = `2`", "```",
    ]  # fmt: skip
