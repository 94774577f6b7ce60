"""The bench of kernels: its limits, its cases and its tables. Nothing asserts a time."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch
from scalar_target import SCALAR

from lampwork.bench.__main__ import main
from lampwork.bench.kernels import command, runs
from lampwork.bench.kernels.case import Case, ours
from lampwork.bench.kernels.cases import attention, cases, conv, int8_linear, int8_product, linear, recurrent
from lampwork.codegen.llvm.isa.x86 import describe
from lampwork.codegen.llvm.jit import Jit
from lampwork.inspect.machine.limit_int8 import int8_loop
from lampwork.inspect.machine.limit_tiles import tile_loop
from lampwork.inspect.machine.limits import Limits, loops, measure_limits

LIMITS = Limits(1, 100.0, 10.0, 8.0, 30.0, 25.0, 90.0, 70.0, 1 << 25, 1 << 20)
KERNELS = [
    command.Kernel(
        "linear", "1x2x4", 1, "GFLOP/s", 50.0, 50.0, 1.5, "mkl", {"lampwork": 1e-6, "mkl": 1.5e-6}, True
    ),
    command.Kernel(
        "linear", "2x2x4", 1, "GFLOP/s", 25.0, 25.0, 0.5, "mkl", {"lampwork": 4e-6, "mkl": 2e-6}, False
    ),
]


def test_the_limit_is_that_of_the_smallest_cache_that_holds_a_kernel() -> None:
    assert LIMITS.bandwidth(1 << 18, 1 << 18) == 70.0
    assert LIMITS.bandwidth(1 << 20, 4) == 30.0
    assert LIMITS.bandwidth(1 << 22, 1 << 22) == 25.0
    assert LIMITS.bandwidth(1 << 26, 4) == 10.0
    assert LIMITS.bandwidth(1 << 26, 1 << 26) == 8.0


def test_every_limit_is_measured() -> None:
    found = measure_limits(1, seconds=0.001, large=1 << 20)
    assert found.threads == 1
    assert all(value > 0 for value in asdict(found).values())
    measure_limits(2, seconds=0.001, large=1 << 20)


@pytest.mark.parametrize("isa, instruction", [("avx512", "vfmadd"), ("avx2", "vfmadd"), ("sse4", "mulps")])
def test_the_loops_are_of_independent_vector_instructions(isa: str, instruction: str) -> None:
    target = describe(isa, host=False)
    text = Jit(target).assembly(loops(target))
    body = text.split("fma:")[1].split("read:")[0]
    assert body.count(instruction) == (24 if isa == "avx512" else 12)
    assert ("%zmm" in body) == (isa == "avx512")


@pytest.mark.parametrize("isa, chains", [("avx512", 24), ("avx2", 12), ("sse4", 12)])
def test_the_loop_of_int8_is_of_independent_dot_products(isa: str, chains: int) -> None:
    target = describe(isa, host=False)  # type: ignore[arg-type]
    text, operations = int8_loop(target, chains)
    assert Jit(target).assembly(text).count("pmaddwd") == chains
    assert operations == 2 * chains * target.vector_bytes // 2
    assert int8_loop(SCALAR, chains) == ("", 0)


def test_int8_counts_against_its_own_limit() -> None:
    found = command.measure(int8_product(2, 8, 4), replace(LIMITS, int8=200.0), 0.001)
    assert found.unit == "Gop/s" and found.right
    assert found.percent == pytest.approx(found.rate / 2)
    assert command.measure(int8_linear(2, 8, 4), LIMITS, 0.001).right
    assert ", 200 Gop/s of int8;" in command.format_limits(replace(LIMITS, int8=200.0))


def test_names_are_unique_and_every_case_has_an_amount() -> None:
    found = list(cases())
    assert len({(c.family, c.name) for c in found}) == len(found) > 100
    assert all((c.flops > 0) != (c.reads > 0 and c.writes > 0) for c in found)


def test_operations_are_counted() -> None:
    assert linear(2, 3, 4).flops == 48
    assert conv("3x3", 2, 8, 3, 2, 8, 1).flops == 2 * 4 * 4 * 8 * 2 * 9
    assert conv("depthwise", 8, 8, 3, 1, 4, 1, 8).flops == 2 * 4 * 4 * 8 * 9
    assert attention(2, 3, 4).flops == 2 * 2 * (2 * 3 * 3 * 4)
    assert recurrent("gru", 2, 3, 4).flops == 2 * 2 * 3 * 3 * (4 * 4 + 4 * 4)


@pytest.mark.parametrize(
    "case", [linear(2, 16, 24), conv("small", 4, 8, 3, 1, 8, 1), attention(2, 8, 16), recurrent("lstm", 1, 3, 8)],
    ids=lambda case: case.family,
)  # fmt: skip
def test_a_measurement(case: Case) -> None:
    found = command.measure(case, LIMITS, seconds=0.0)
    assert found.right and found.seconds.keys() == case.make().keys()
    assert found.fastest_peer != "lampwork"
    assert found.percent == pytest.approx(found.rate)  # of 100 GFLOP/s
    assert found.ratio == found.seconds[found.fastest_peer] / found.seconds["lampwork"]


def test_a_wrong_result_is_named() -> None:
    x = torch.randn(8)
    case = Case(
        "wrong",
        "8",
        lambda: {"lampwork": ours(torch.exp, x), "aten": lambda: torch.sin(x)},
        reads=32,
        writes=32,
    )
    found = command.measure(case, LIMITS, seconds=0.0)
    assert not found.right and command.format_kernel(found).endswith("WRONG")


def test_tables() -> None:
    text = command.format_tables([LIMITS], KERNELS)
    assert text == (
        "Limits of 1 thread: 100 GFLOP/s of float32 multiply-adds; from memory 10.0 GB/s read, 8.0 copied; in the "
        "shared cache 30 and 25, in a core's own 90 and 70.\n\n"
        "| family | shapes | of the fastest peer | below 1.0 |\n|---|---|---|---|\n| linear | 2 | 0.87 | 1 |\n\n"
        "| kernel | lampwork µs | rate | of the limit | fastest peer/X | peer |\n|---|---|---|---|---|---|\n"
        "| linear 1x2x4 | 1 | 50.0 GFLOP/s | 50 % | 1.50 | mkl |\n"
        "| linear 2x2x4 (wrong) | 4 | 25.0 GFLOP/s | 25 % | 0.50 | mkl |"
    )


def test_the_command_writes_json(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(runs, "measure_limits", lambda threads: LIMITS)
    path = tmp_path / "kernels.json"
    threads = torch.get_num_threads()
    assert main(["kernels", "--only", "^pointwise relu 4096$", "--seconds", "0", "--json", str(path)]) == 0
    torch.set_num_threads(threads)
    document = json.loads(path.read_text())
    assert [k["name"] for k in document["kernels"]] == ["relu 4096"] and document["limits"][0][
        "gflops"
    ] == 100.0
    assert "| pointwise relu 4096 |" in capsys.readouterr().out


def test_a_pattern_that_matches_nothing_is_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["kernels", "--only", "no such kernel"])
    assert "no kernel matches 'no such kernel'" in capsys.readouterr().err


def test_the_loop_of_tiles_is_of_independent_products() -> None:
    target = describe("amx")
    unit = target.unit("i8")
    assert unit is not None
    text, operations = tile_loop(target, unit)
    assert Jit(target).assembly(text).count("tdpbssd") == 4
    assert operations == 4 * 2 * 16 * 16 * 64
