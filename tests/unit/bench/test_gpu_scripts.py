"""The scripts for GPUs in benchmarks/, on the CPU: what they report of code that is wrong. Nothing asserts a time."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

import lampwork
from lampwork.codegen.gpu.nvidia import describe

SCRIPTS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """Imports a script of benchmarks/ by name, and forgets it, since tests/support has a module `gpu` too."""
    names = (
        "gpu",
        "gpu_calls",
        "gpu_cases",
        "gpu_products",
        "gpu_sanitize",
        "gpu_smoke",
        "gpu_timing",
        "gpu_workloads",
    )
    before = {name: sys.modules.pop(name, None) for name in names}
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield importlib.import_module
    for name, module in before.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


def test_smoke_tells_what_is_wrong(script) -> None:
    smoke, cases = script("gpu_smoke"), script("gpu_cases")
    case = cases.cases()["add"]
    call = (torch.randn(5, 3), torch.randn(5, 3))
    other = lampwork.compile(lambda x, y: x + y * 1.001, dynamic=False)
    assert smoke.problem(case, other, call, "cpu").startswith("differs: result 0: error")
    same = lampwork.compile(lambda x, y: x + y, dynamic=False)
    assert smoke.problem(case, same, call, "cpu") == ""


def test_smoke_goes_on_after_a_process_has_died(script) -> None:
    smoke = script("gpu_smoke")
    lost, found = smoke.tried(["no such case", "sort"], "cpu")
    assert lost.name == "no such case" and "the process ended with 1" in lost.problems[0]
    assert "KeyError" in lost.problems[0]
    assert found.name == "sort" and found.calls == 1 and not found.problems
    text = smoke.summary([lost, found], 80).splitlines()
    assert text[0].startswith("no such case: the process ended") and len(text[0]) == 80
    assert text[1] == "1 of 2 functions right and compiled; 1 calls, 1 with a problem"


def test_products_that_are_wrong_are_said_to_be(script) -> None:
    products = script("gpu_products")
    card = describe(90, 132)
    for shape in products.shapes():
        assert products.variants_of(shape, card, False), shape
    for shape in products.wide():
        for every in (False, True):
            kinds = set(map(products.kind_of, products.variants_of(shape, card, every, not every)))
            assert kinds == {"wgmma", "mma.sync"}, shape
    shape = products.Shape("small", "bf16", 8, 16, 64, "bias")
    given = {
        name: torch.randn(size).bfloat16() for name, size in (("a", (8, 64)), ("w", (16, 64)), ("bias", 16))
    }
    got = shape.eager(given)
    assert products.error(shape, given, got) <= 1
    got[3, 5] += 0.25 * got[3, 5].abs() + 1
    off = products.error(shape, given, got)
    assert off > 1 and products.line(shape, "torch", 1.0, 1.0, off).endswith("WRONG")
    got[3, 5] = float("nan")
    assert products.error(shape, given, got) == float("inf")


def test_calls_are_measured_with_the_same_numbers(script, monkeypatch, capsys) -> None:
    calls = script("gpu_calls")
    three = calls.layouts((2, 3, 5, 4), torch.float64, "cpu")
    assert three.keys() == {"apart", "packed", "heads"}
    for name, strides in {
        "apart": (60, 4, 12, 1),
        "packed": (180, 4, 36, 1),
        "heads": (60, 20, 4, 1),
    }.items():
        for ours, first in zip(three[name], three["apart"], strict=True):
            assert ours.stride() == strides and torch.equal(ours, first)
    monkeypatch.setattr(sys, "argv", "gpu_calls.py --device cpu --tiny".split())
    calls.main()
    said = capsys.readouterr().out
    assert "bf16: with bias takes" in said and "vit_s bf16: apart" in said


def test_figures_are_written_and_failures_are_lines(script, monkeypatch, tmp_path, capsys) -> None:
    bench, timing = script("gpu"), script("gpu_timing")

    def broken(fn):
        raise RuntimeError("it broke")

    monkeypatch.setitem(timing.COMPILERS, "default", broken)
    path = tmp_path / "gpu.json"
    arguments = f"gpu.py functions small --device cpu --tiny --only gelu lstm --peers default --json {path}"
    monkeypatch.setattr(sys, "argv", arguments.split())
    bench.main()
    said = capsys.readouterr().out
    assert "gelu f32 default: failures: RuntimeError: it broke" in said
    rows = {f"{row['name']} {row['dtype']}": row for row in json.loads(path.read_text())["rows"]}
    assert set(rows) == {"gelu f32", "gelu bf16", "lstm cell of batch 4 f32"}
    assert rows["gelu f32"]["kernels"] == "1+0" and rows["gelu f32"]["bytes"] == 2 * 4 << 14
    assert set(rows["gelu bf16"]["ms"]) == {"eager", "ours"}
    assert set(rows["lstm cell of batch 4 f32"]["latency_us"]) == {"eager", "ours", "ours reduce"}
    assert not any("wrong" in row for row in rows.values())


CALLED = "called chain\ncalled a step with AdamW\n"
NO_ERRORS = "========= ERROR SUMMARY: 0 errors\n"


@pytest.mark.parametrize(
    ("output", "code", "said"),
    [
        (CALLED + NO_ERRORS, 0, ""),
        (CALLED + "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", 0, ""),
        (
            CALLED + "========= RACECHECK SUMMARY: 3 hazards displayed (1 error, 2 warnings)\n",
            99,
            "3 hazards",
        ),
        (
            CALLED + "========= Invalid __global__ read\n========= ERROR SUMMARY: 1 error\n",
            99,
            "Invalid __global__",
        ),
        ("called chain\nKeyError\n" + NO_ERRORS, 1, "ended with 1 after 1 of 2 functions"),
        (CALLED + NO_ERRORS, 1, "ended with 1"),
        ("what is this?\n", 255, "no summary; it ended with 255\nwhat is this?"),
        (NO_ERRORS, 77, "no CUDA device"),
    ],
)
def test_sanitizers_reports(script, output: str, code: int, said: str) -> None:
    found = script("gpu_sanitize").problem(output, code, 2)
    assert said in found and bool(said) == bool(found)


def test_sanitizer_calls_functions_of_each_family(script, capsys) -> None:
    sanitize, cases = script("gpu_sanitize"), script("gpu_cases")
    assert set(sanitize.TOOLS["memcheck"]) <= set(cases.cases())
    sanitize.work(["chain", "softmax"], "cpu")
    assert capsys.readouterr().out == "called chain\ncalled softmax\ncalled a step with AdamW\n"


def test_without_a_sanitizer_it_is_skipped_by_name(script, capsys, monkeypatch) -> None:
    sanitize = script("gpu_sanitize")
    monkeypatch.setattr(sanitize, "sanitizer", lambda: None)
    monkeypatch.setattr(sys, "argv", ["gpu_sanitize.py"])
    assert sanitize.main() == 0
    assert "skipped: compute-sanitizer is not on this machine" in capsys.readouterr().out


def test_a_sanitizer_is_started_for_each_tool(script, capsys, monkeypatch, tmp_path) -> None:
    """By a program in its place, that says what it was given."""
    sanitize = script("gpu_sanitize")
    program = tmp_path / "compute-sanitizer"
    program.write_text(
        '#!/bin/sh\necho "$@" >> "$0.log"\necho "========= ERROR SUMMARY: 2 errors"\nexit 99\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(sanitize, "sanitizer", lambda: str(program))
    monkeypatch.setattr(sys, "argv", ["gpu_sanitize.py", "--tools", "memcheck", "synccheck"])
    assert sanitize.main() == 1
    assert capsys.readouterr().out.count("ERROR SUMMARY: 2 errors") == 2
    lines = (tmp_path / "compute-sanitizer.log").read_text().splitlines()
    assert sorted(line.split()[:6] for line in lines) == [
        ["--tool", tool, "--error-exitcode", "99", "--kernel-name", "kns=lw_"]
        for tool in ("memcheck", "synccheck")
    ]
