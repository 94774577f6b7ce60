"""Tables and summaries of results that are written out here, and what the command accepts. Nothing is timed."""

from __future__ import annotations

import json
import math

import pytest
import torch

from lampwork.bench import __main__ as command
from lampwork.bench import summary
from lampwork.bench.compilers import COMPILERS, Job, UnsupportedPrecision
from lampwork.bench.machine import machine, where
from lampwork.bench.measure import Result, accuracy
from lampwork.bench.models import load
from lampwork.bench.summary import Ratio, format_summary, geometric_mean, summarize
from lampwork.bench.tables import format_row, format_tables
from lampwork.bench.workloads.workload import Workload


def result(model: str, compiler: str, run_ms: float, first_s: float = 1.0, **fields) -> Result:
    fields = {"eager_s": 0.01, "speedup": 10 / run_ms, "right": True, "peak_bytes": 300 << 20, **fields}
    return Result(model, compiler, fields.pop("threads", 1), first_s, run_ms / 1e3, **fields)


RESULTS = [
    result("net", "eager", 10.0, 0.1, peak_bytes=200 << 20),
    result("net", "lampwork", 4.0, 0.5),
    result("net", "openvino", 2.0, 4.0),
    result("net", "onnxruntime", 1.0, 6.0, right=False, error=1.0, eager_error=1e-7),
    result("op", "eager", 10.0, 0.1, peak_bytes=300 << 20),
    result("op", "lampwork", 1.0, 0.125),
    result("op", "openvino", 20.0, 2.0),
    Result("op", "onnxruntime", 1, failure="no such operator"),
    result("net", "lampwork", 1.0, dtype="bf16", right=False, error=0.5, eager_error=0.01),
]


def test_the_summary_counts_the_fastest_right_peer_of_each_model() -> None:
    single, half = summarize(RESULTS)
    assert single.title == "f32, 1 thread"
    assert single.fastest == (Ratio("net", "openvino", 0.5), Ratio("op", "eager", 10.0))
    assert single.below == (Ratio("net", "openvino", 0.5),)
    assert set(single.peers) == {"eager", "openvino"}  # onnxruntime is wrong once and fails once
    assert single.peers["openvino"] == (pytest.approx(math.sqrt(0.5 * 20)), 2)
    assert single.first_ratios == (Ratio("net", "openvino", 8.0), Ratio("op", "openvino", 16.0))
    assert single.memory == {"net": 1.5, "op": 1.0}
    assert half.wrong == ("net",) and half.fastest == () and half.first_calls == {}


def test_a_summary_by_speedup_divides_by_eager_of_the_same_process() -> None:
    rows = [
        result("net", "lampwork", 4.0, speedup=3.0),
        result("net", "openvino", 2.0, speedup=2.0),
    ]
    assert summarize(rows)[0].fastest[0].value == 0.5
    assert summarize(rows, by="speedup")[0].fastest[0].value == 1.5


def test_the_text_of_a_summary() -> None:
    single, half = summarize(RESULTS)
    assert format_summary(single) == (
        "Summary, f32, 1 thread\n\n"
        "* 2 models right.\n"
        "* Against the fastest peer of each: 2.24 (geometric mean of 2), from 0.50 (net, openvino) to 10.00 (op, "
        "eager).\n"
        "* Below 1.0: net 0.50 (openvino).\n"
        "* Against each peer (geometric mean, models): eager 5.00 (2), openvino 3.16 (2).\n"
        "* First call: 0.25 s (geometric mean), at most 0.50 s (net); the quickest peer that compiles takes 11.3 "
        "times as long.\n"
        "* Peak memory of runs: 1.22 of eager's (geometric mean), at most 1.50 (net)."
    )
    assert format_summary(half) == "Summary, bf16, 1 thread\n\n* 0 models right, 1 wrong (net)."


def test_geometric_mean() -> None:
    assert geometric_mean([0.5, 8.0]) == pytest.approx(2.0)
    assert math.isnan(geometric_mean([]))


def test_tables_name_precision_and_threads_and_say_what_is_wrong() -> None:
    text = format_tables(RESULTS)
    assert text.startswith(
        "Speed-up over eager, f32, 1 thread\n\n"
        "| model | eager | lampwork | openvino | onnxruntime |\n"
        "|---|---|---|---|---|\n"
        "| net | 10 ms | 2.50 | 5.00 | 10.00 (wrong) |\n"
        "| op | 10 ms | 10.00 | 0.50 | failed |\n\n"
        "First call, seconds, f32, 1 thread\n"
    )
    assert "Peak memory of runs, MiB, bf16, 1 thread\n\n| model | lampwork |" in text
    assert format_row(RESULTS[7]).endswith("failed: no such operator")
    assert "WRONG: error 1.00e+00" in format_row(RESULTS[3])


def test_the_sentence_above_a_table() -> None:
    about = {"cpu": "A CPU", "features": "avx2 avx512f", "torch": "2.13.0", "python": "3.11.7"}
    assert where(about) == "Measured on A CPU (avx2 avx512f), torch 2.13.0, Python 3.11.7."
    assert set(machine()) == {"cpu", "cpus", "features", "python", "torch"}


def test_the_command_reads_files_of_results(tmp_path, capsys) -> None:
    path = tmp_path / "bench.json"
    rows = [json.loads(json.dumps({name: getattr(r, name) for name in r.__slots__})) for r in RESULTS[:3]]
    path.write_text(json.dumps({"machine": machine(), "results": rows}))
    assert command.main(["summary", str(path)]) == 0
    assert "Below 1.0: net 0.50 (openvino)" in capsys.readouterr().out
    assert summary.main([str(path), "--ours", "openvino"]) == 0
    assert "from 2.00 (net, lampwork)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv, message",
    [
        (["no_such_model"], "unknown model 'no_such_model'"),
        (["mlp", "--dtype", "int4"], "invalid choice: 'int4'"),
        (["mlp", "--compilers", "gcc"], "invalid choice: 'gcc'"),
    ],
)
def test_what_the_command_refuses(argv: list[str], message: str, capsys) -> None:
    with pytest.raises(SystemExit):
        command.main(argv)
    assert message in capsys.readouterr().err


def test_a_precision_that_a_peer_lacks_is_a_failure_that_says_so() -> None:
    found = command.run("mlp", "onnxruntime", 1, "bf16")
    assert found.failure == "ONNX Runtime has no bfloat16 kernels for CPUs" and found.dtype == "bf16"
    with pytest.raises(UnsupportedPrecision, match="no bfloat16 kernels"):
        COMPILERS["onnxruntime"].compile(Job(torch.relu, (torch.zeros(1),), dtype="bf16"))


def test_accuracy_in_half_precision_is_against_float64_of_the_rounded_weights() -> None:
    workload = load("mlp", dtype="bf16")
    with torch.no_grad():
        output = workload.fn(*workload.inputs)
        error, eager_error, right = accuracy(workload, output)
        assert error == eager_error > 1e-5 and right
        assert not accuracy(workload, output + 4 * eager_error)[2]
        single = workload.to(torch.float32)
        assert accuracy(workload, single.fn(*single.inputs))[0] < eager_error / 20


def test_a_workload_to_another_precision_is_a_copy() -> None:
    workload = load("mlp")
    wide = workload.to(torch.float32)
    assert isinstance(wide, Workload) and wide.fn is not workload.fn
    assert wide.inputs[0] is not workload.inputs[0] and torch.equal(wide.inputs[0], workload.inputs[0])


def test_the_command_measures_in_a_process_of_its_own(tmp_path, capsys) -> None:
    path = tmp_path / "bench.json"
    argv = ["relu", "--compilers", "lampwork", "--threads", "1", "--dtype", "bf16", "--json", str(path)]
    assert command.main(argv) == 0
    (row,) = json.loads(path.read_text())["results"]
    assert (row["model"], row["dtype"], row["right"], row["failure"]) == ("relu", "bf16", True, "")
    assert "Speed-up over eager, bf16, 1 thread" in capsys.readouterr().out
