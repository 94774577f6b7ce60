"""The bench of small functions: its table, its measurements and its texts. Nothing asserts a time."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lampwork.bench.__main__ import main
from lampwork.bench.functions import command
from lampwork.bench.functions.function import Function
from lampwork.bench.functions.peers import contenders
from lampwork.bench.functions.table import FAMILIES, SIZES, functions
from lampwork.bench.kernels import runs
from lampwork.inspect.machine.limits import Limits

LIMITS = Limits(1, 100.0, 10.0, 8.0, 30.0, 25.0, 90.0, 70.0, 1 << 25, 1 << 20)


def _row(name: str, size: str, ratio: float, right: bool = True) -> command.Row:
    seconds = {"lampwork": 1e-6, "eager": ratio * 1e-6}
    return command.Row(
        "copy", name, size, "8", "float32", 1, "GB/s", 5.0, 7.0, ratio, "eager", seconds, {}, (), right
    )


def test_titles_are_unique_and_every_function_has_three_sizes() -> None:
    titles = [f.title for f in functions()]
    assert len(set(titles)) == len(titles) > 400
    entries = sum(map(len, FAMILIES.values()))
    assert all(sum(t.endswith(size) for t in titles) >= entries for size in SIZES)


@pytest.mark.parametrize("family", FAMILIES)
def test_small_functions_are_right(family: str) -> None:
    """One of each family, as the bench compares them."""
    function = next(f for f in functions() if f.family == family and f.size == "small")
    row = command.measure(function, LIMITS, ("eager",), seconds=0.0, sample=0.0)
    assert row.right and row.fastest_peer == "eager"
    assert row.seconds.keys() == {"lampwork", "eager"}
    assert row.ratio == row.seconds["eager"] / row.seconds["lampwork"]


def test_a_result_is_compared_with_float64() -> None:
    function = Function("f", "exp", "small", torch.exp, lambda: (torch.linspace(-1, 1, 9),))
    (x,) = function.inputs()
    assert command.agrees(function, (x,), torch.exp(x))
    assert not command.agrees(function, (x,), torch.exp(x) + 1e-3)
    assert not command.agrees(function, (x,), torch.exp(x).double())
    infinite = replace(function, fn=lambda x: torch.log(x.relu()))
    assert command.agrees(infinite, (x,), torch.log(x.relu()))
    assert not command.agrees(infinite, (x,), torch.zeros(9))


def test_integers_are_compared_exactly() -> None:
    function = Function("f", "add", "small", lambda x: x + 1, lambda: (torch.arange(4),))
    (x,) = function.inputs()
    assert command.agrees(function, (x,), x + 1)
    assert not command.agrees(function, (x,), x)


def test_a_peer_without_code_is_named() -> None:
    def refused(x: Tensor) -> Tensor:
        return x.float() + 1

    found = contenders(refused, (torch.ones(4, dtype=torch.bfloat16),), ("eager", "onnxruntime"), 1)
    assert found.calls.keys() == {"lampwork", "eager"}
    assert found.failures.keys() == {"onnxruntime"}


def test_the_summary_names_what_is_below() -> None:
    rows = [_row("a", "small", 4.0), _row("a", "large", 1.0), _row("b", "small", 1.0, right=False)]
    assert command.format_summary(rows) == (
        "Against the fastest peer of each: 1.59 (geometric mean of 3), 2 below 1.05: copy a large 1.00 (eager), "
        "copy b small 1.00 (eager). Wrong: copy b small.\n\n"
        "| family | functions | small | large | below 1.05 |\n|---|---|---|---|---|\n| copy | 3 | 2.00 | 1.00 | 2 |"
    )
    table = command.format_tables([LIMITS], rows).splitlines()
    assert table[-1] == "| copy b small (wrong) | float32 8 | 1 | 5.0 GB/s | 7 % | 1.00 | 1 |"


def test_the_command(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(runs, "measure_limits", lambda threads: LIMITS)
    file = tmp_path / "functions.json"
    asked = ["--only", "^product matmul 2x2x2", "--peers", "eager", "--seconds", "0", "--json", str(file)]
    assert main(["functions", *asked]) == 0
    assert "product matmul 2x2x2 small" in capsys.readouterr().out
    (row,) = json.loads(file.read_text())["rows"]
    assert command.Row(**row).unit == "GFLOP/s"
    with pytest.raises(SystemExit):
        main(["functions", "--only", "no such function"])
