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
    assert all(
        f"lampwork.{name}(" in pages["api.md"] for name in ("compile", "explain", "disable", "set_stance")
    )
    assert all(code in pages["codes.md"] for code in (*CODES, *RECOMPILES))
    assert all(f"| `{name}` |" in pages["operations.md"] for name in OPS)
    assert all(f"`{name.removeprefix('aten::')}`" in pages["rules.md"] for name in RULES)
    assert all(f". {step.name}\n" in pages["rules.md"] for step in default_passes())
