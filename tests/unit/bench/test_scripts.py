"""The scripts in benchmarks/ that write tables and compare checkouts. Nothing asserts a time."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from lampwork.bench.measure import Result

ROOT = Path(__file__).parents[3]


@pytest.fixture
def script(monkeypatch):
    """Imports a script of benchmarks/ by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))

    def load(name: str):
        spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


def test_figures_replace_what_is_between_the_markers(script, tmp_path) -> None:
    pages = script("pages")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a:begin -->\nold\n<!-- a:end -->\nafter\n")
    pages.put(page, "a", "new")
    assert page.read_text() == "before\n<!-- a:begin -->\nnew\n<!-- a:end -->\nafter\n"
    with pytest.raises(ValueError, match="needs <!-- b:begin --> and <!-- b:end --> once each"):
        pages.put(page, "b", "new")


def test_every_marker_is_on_its_page(script) -> None:
    pages = script("pages")
    for page, names in (
        (pages.README, ["bench"]),
        (pages.BENCHMARKS, ["bench", "kernels", "capture", "training"]),
    ):
        for name in names:
            assert page.read_text().count(f"<!-- {name}:begin -->") == 1
            assert page.read_text().count(f"<!-- {name}:end -->") == 1


def test_the_table_of_the_readme(script) -> None:
    table = script("update_readme").table
    rows = [
        Result("net", "lampwork", 1, 0.5, 0.004, 0.01, 2.5, right=True),
        Result("net", "lampwork", 2, 0.5, 0.002, 0.01, 5.0, right=True),
        Result("net", "openvino", 1, 2.0, 0.005, 0.01, 2.0, right=False),
        Result("other", "lampwork", 1, failure="it broke"),
    ]
    assert table(rows) == (
        "| model, f32 | eager ms | lampwork ms | eager/X | 2 threads: eager/X | first call s | openvino |\n"
        "|---|---|---|---|---|---|---|\n"
        "| net | 10 | 4 | 2.50 | 5.00 | 0.50 | 2.00 (wrong) |\n"
        "| other |  |  |  |  |  |  |"
    )


def test_figures_of_two_machines_do_not_mix(script, tmp_path, monkeypatch) -> None:
    update = script("update_readme")
    for name in ("one", "two"):
        about = {"cpu": name, "features": "", "torch": "2.13.0", "python": "3.11.7"}
        (tmp_path / name).write_text(json.dumps({"machine": about, "results": []}))
    monkeypatch.setattr(sys, "argv", ["update_readme.py", str(tmp_path / "one"), str(tmp_path / "two")])
    with pytest.raises(SystemExit, match="figures of several machines do not go into one table"):
        update.main()


def test_the_table_of_a_comparison(script) -> None:
    compare = script("compare_commits")
    samples = [compare.Sample(1.0, 0.5), compare.Sample(3.0, 0.1), compare.Sample(2.0, 0.2)]
    assert compare.median(samples) == compare.Sample(2.0, 0.2)
    rows = [
        compare.Row("net", 1, compare.Sample(1.0, 0.002), compare.Sample(0.5, 0.001)),
        compare.Row("op", 1, compare.Sample(1.0, 0.001), compare.Sample(2.0, 0.002)),
        compare.Row("bad", 1, failure="new: it broke"),
    ]
    assert compare.format_table(rows).splitlines()[2:] == [
        "| net | 1 | 1.000 | 0.500 | 0.500 | 2 | 1 | 0.500 |",
        "| op | 1 | 1.000 | 2.000 | 2.000 | 1 | 2 | 2.000 |",
        "| bad | 1 | failed: new: it broke | | | | | |",
        "| geometric mean | | | | 1.000 | | | 1.000 |",
    ]


def test_a_checkout_is_measured_with_its_own_compiler(script) -> None:
    compare = script("compare_commits")
    sample = compare.measure(ROOT, ROOT, "relu", 1, "f32", 0.01)
    assert isinstance(sample, compare.Sample) and sample.steady_s > 0 and sample.first_s > 0
    assert "unknown" in compare.measure(ROOT, ROOT, "unknown", 1, "f32", 0.01)


def test_what_is_no_checkout_is_refused(script, tmp_path, capsys) -> None:
    with pytest.raises(SystemExit):
        script("compare_commits").main([str(tmp_path), str(ROOT)])
    assert f"{tmp_path} has no src/lampwork" in capsys.readouterr().err


def test_the_table_of_threads(script) -> None:
    threads = script("threads")
    rows = [
        threads.Row("net", 0.004, 0.002, {"eager": 0.01, "openvino": 0.003}),
        threads.Row("other", 0.001, 0.001, {}),
    ]
    assert threads.format_table(rows).splitlines()[2:] == [
        "| net | 4 | 2 | 2.00 | openvino | 3 | 1.50 |",
        "| other | 1 | 1 | 1.00 |  | nan | nan |",
        "| geometric mean | | | 1.41 | | | 1.50 |",
    ]


def test_a_call_is_measured_on_each_number_of_threads(script) -> None:
    threads, seen, before = script("threads"), [], torch.get_num_threads()
    try:
        times = threads.in_turn(lambda: seen.append(torch.get_num_threads()), (1, 2), seconds=0.0)
    finally:
        torch.set_num_threads(before)
    assert len(times) == 2 and set(seen) == {1, 2}
