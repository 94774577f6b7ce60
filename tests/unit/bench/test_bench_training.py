"""The bench of training: what it trains, measures and prints. Nothing asserts a time."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import nn

from lampwork.bench.__main__ import main
from lampwork.bench.compilers import COMPILERS, Compiler
from lampwork.bench.training import command
from lampwork.bench.training.command import Row
from lampwork.bench.training.measure import Alone, Step, Together, _compile, alone, together
from lampwork.bench.training.networks import Classified, Training, load


def training(seed: int = 0) -> Training:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(16), nn.Linear(16, 4))
    return Training("net", Classified(net), (torch.randn(5, 6), torch.tensor([0, 3, 1, 2, 0])))


def row(network: str, compiler: str, step: float, right: bool = True, failure: str = "", **fields) -> Row:
    one = Alone(0.5, 0.25, 100 << 20, fields.get("compiled", 3), fields.get("eager", 0))
    return Row(network, compiler, 1, one, Together(step, 1.5, 1e-7, 1e-7, right), failure)


ROWS = [
    row("net", "eager", 0.006),
    row("net", "lampwork", 0.002),
    row("net", "torch.compile", 0.003),
    row("other", "eager", 0.001),
    row("other", "lampwork", 0.002, compiled=0, eager=3),
    row("other", "torch.compile", 0.0001, right=False),
    row("third", "eager", 0.001),
    row("third", "lampwork", math.nan, failure="it broke"),
    row("third", "torch.compile", 0.001),
]


@pytest.mark.parametrize("name", ["mlp", "lstm", "cross_entropy", "contrastive", "attention"])
def test_what_is_trained_has_a_loss_of_parameters(name: str) -> None:
    found = load(name)
    loss = found.loss(*found.inputs)
    assert loss.shape == () and torch.isfinite(loss) and found.parameters
    loss.backward()
    assert all(p.grad is not None for p in found.parameters)
    assert torch.equal(load(name).inputs[0], found.inputs[0])


def test_a_step_trains() -> None:
    found = training()
    step = Step(found.loss, found)
    losses = step.trace(300)
    assert losses.shape == (300,) and losses.dtype is torch.float64
    assert losses[150:].mean() < losses[:150].mean() - 0.05
    again = training()
    assert torch.equal(Step(again.loss, again).trace(300), losses)


def test_gradients_of_a_function_are_traced() -> None:
    x = torch.randn(3, requires_grad=True)
    function = Training("f", lambda x: x.square().sum(), (x,))
    step = Step(function.loss, function)
    assert step.optimizer is None
    assert torch.equal(step.trace(2)[2:], 2 * x.detach().double())


def test_one_compiler_alone() -> None:
    threads = torch.get_num_threads()
    found = alone(training(), "lampwork", 1)
    torch.set_num_threads(threads)
    assert found.first_s > 0 and found.second_s > 0 and found.peak_bytes > 1 << 20
    assert found.compiled_backwards + found.eager_backwards in (0, 3)


@pytest.mark.parametrize("make", [training, lambda: load("contrastive")])
def test_compilers_take_turns(make) -> None:
    threads = torch.get_num_threads()
    found = together({"eager": make(), "lampwork": make()}, 1, steps=5, seconds=0)
    torch.set_num_threads(threads)
    assert found.keys() == {"eager", "lampwork"}
    for each in found.values():
        assert each.right and not each.failure and each.step_s > 0 and each.error < 1e-4
    assert found["eager"].error == found["eager"].eager_error


def test_a_wrong_compiler_is_seen_and_a_broken_one_does_not_stop_the_others(monkeypatch) -> None:
    def broken(job):
        raise RuntimeError("no such luck\nat all")

    monkeypatch.setitem(COMPILERS, "wrong", Compiler("wrong", lambda job: lambda *x: job.fn(*x) * 1.01))
    monkeypatch.setitem(COMPILERS, "broken", Compiler("broken", broken))
    found = together({name: training() for name in ("eager", "broken", "wrong")}, 1, steps=3, seconds=0)
    assert found["broken"].failure == "no such luck" and math.isnan(found["broken"].step_s)
    assert found["eager"].right and not found["wrong"].right


def test_the_best_of_the_others_is_right() -> None:
    assert command.ratio(ROWS[:3]) == 1.5  # torch.compile
    assert command.ratio(ROWS[3:6]) == 0.5  # eager: torch.compile is wrong
    assert math.isnan(command.ratio(ROWS[6:]))


def test_rows_and_tables() -> None:
    assert command.format_row(ROWS[1]) == (
        "1 thread  net                  lampwork       step     2.0000 ms  first   0.50 s  second   0.25 s  "
        "peak    100 MiB  loss 1.500000"
    )
    assert command.format_row(ROWS[4]).endswith("loss 1.500000  backward in eager")
    assert command.format_row(ROWS[5]).endswith("WRONG: error 1.00e-07, eager's 1.00e-07")
    assert command.format_row(ROWS[7]).endswith("failed: it broke")
    lines = command.format_tables(ROWS).splitlines()
    assert lines[0] == (
        "1 thread. Steps of the faster of the others over Lampwork's: 0.87 (geometric mean of 2); "
        "below 1.0: other 0.50; failed: third; backward in eager: other."
    )
    assert lines[4].startswith("| net | 6 | 2 | 3 | 1.50 | 0.50, 0.25 |")
    assert lines[5].endswith("| 1.500000 | 1.500000 | 1.500000 (wrong) |")
    assert lines[6].startswith("| third | 1 | failed | 1 |  |")


def test_rows_are_read_back() -> None:
    document = json.loads(json.dumps({"rows": [asdict(r) for r in ROWS[:6]]}))
    assert command.read(document) == ROWS[:6]


def test_the_command_writes_json_for_the_page(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    path = tmp_path / "training.json"
    assert main(["train", "mlp", "--compilers", "lampwork", "--seconds", "0", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "best/X" in printed and "failed" not in printed
    document = json.loads(path.read_text())
    assert [r["compiler"] for r in document["rows"]] == ["eager", "lampwork"]
    import pages
    import update_training

    page = tmp_path / "page.md"
    page.write_text("<!-- training:begin -->\n<!-- training:end -->\n")
    monkeypatch.setattr(update_training, "BENCHMARKS", page)
    monkeypatch.setattr(sys, "argv", ["update_training.py", str(path)])
    update_training.main()
    assert "| mlp |" in page.read_text()
    assert pages.BENCHMARKS.read_text().count("<!-- training:begin -->") == 1
    other = dict(document, machine=dict(document["machine"], cpu="another"))
    (tmp_path / "other.json").write_text(json.dumps(other))
    monkeypatch.setattr(sys, "argv", ["update_training.py", str(path), str(tmp_path / "other.json")])
    with pytest.raises(SystemExit, match="several machines"):
        update_training.main()


def test_a_process_that_fails_is_a_row_that_says_why(monkeypatch) -> None:
    monkeypatch.setattr(command, "answer", lambda *arguments, **keywords: "exit status -9")
    rows = command.run("mlp", ["eager", "lampwork"], 1, 2, 0.0, 1.0)
    assert [r.failure for r in rows] == ["exit status -9"] * 2


def test_an_unknown_name_is_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["train", "no_such_network"])
    assert "unknown network 'no_such_network'" in capsys.readouterr().err


def test_each_compiler_has_the_faster_step_of_an_optimizer() -> None:
    steps = {name: _compile(load("mlp"), name, 1).optimizer for name in ("eager", "lampwork")}
    compiled = {name for name, each in steps.items() if each and hasattr(each.step, "lampwork_algorithm")}
    assert compiled == {"lampwork"}
