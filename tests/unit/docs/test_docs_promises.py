"""What the pages promise in numbers of lines."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from docs_blocks import blocks_of

import lampwork
from lampwork.testing import check_backend

ROOT = Path(__file__).parents[3]


def template() -> str:
    """The source of the template backend."""
    block = next(
        b for b in blocks_of((ROOT / "docs/backends.md").read_text()) if "register_backend" in b.code
    )
    tree = ast.parse(block.code)
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    return "\n".join(block.code.splitlines()[found.lineno - 1 : found.end_lineno])


def test_the_template_backend_has_at_most_60_lines_and_passes_the_battery(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = template()
    assert len(source.splitlines()) <= 60
    space: dict[str, Any] = {"aten": torch.ops.aten, "No": lampwork.No, "Yes": lampwork.Yes}
    exec(source, space)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.transpose(-1, -2) / 8.0).softmax(-1) @ v

    inputs = tuple(torch.randn(2, 4, 16, 64) for _ in range(3))
    assert check_backend(space["DividedProducts"], programs=[(attention, inputs)]).ok
    assert "compiling" in capsys.readouterr().out


def test_add_and_div_become_one_operator_in_five_lines() -> None:
    tree = ast.parse((ROOT / "examples/cpp_operator/add_div.py").read_text())
    function = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "fuse_add_div")
    body = [node for node in function.body if not isinstance(node, ast.Expr)]  # without the docstring
    assert sum((node.end_lineno or 0) - node.lineno + 1 for node in body) <= 5
