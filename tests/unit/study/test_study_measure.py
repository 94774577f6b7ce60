"""The study itself: architectures agree with eager, switches switch something off, and a run is a document."""

from __future__ import annotations

from types import MappingProxyType

import pytest
import torch

import lampwork
from lampwork import study
from lampwork.cli import main
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.errors import OptionError
from lampwork.study import measure
from lampwork.study.architectures import ARCHITECTURES, Architecture, Network
from lampwork.study.document import check
from lampwork.study.facts import explained, facts, marks
from lampwork.study.switches import switches

ALL = switches()


def tiny(name):
    architecture = ARCHITECTURES[name]
    network = architecture.build(tiny=True)
    return network, architecture.inputs(network, 2)


def fresh(inputs):
    """As the decoder writes to its cache."""
    return tuple(each.clone() for each in inputs)


@torch.no_grad()
def made(compiled, inputs):
    compiled(*fresh(inputs))
    return explained(compiled)


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_an_architecture_compiles_and_agrees_with_eager(name):
    network, inputs = tiny(name)
    compiled = lampwork.compile(network)
    torch.testing.assert_close(compiled(*fresh(inputs)), network(*fresh(inputs)), rtol=1e-4, atol=1e-5)
    found = facts(explained(compiled))
    assert found["fusion"]["steps"] == sum(found["fusion"]["kinds"].values()) > 0
    assert not found["representation"]["refusals"]
    assert (
        bool(found["representation"]["breaks"])
        == (name == "experts")
        == (found["representation"]["regions"] > 1)
    )
    assert 0 < found["work"]["bytes_read"] and found["work"]["eager_flops"] > 0


@torch.no_grad()
def test_networks_are_the_same_each_time():
    a, b = (ARCHITECTURES["convolutional"].build(tiny=True) for _ in range(2))
    assert all(
        torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )
    state = torch.get_rng_state()
    ARCHITECTURES["graph"].build(tiny=True)
    assert torch.equal(state, torch.get_rng_state())


# --- switches ---------------------------------------------------------------------------------------------------------

CSE = "common-subexpressions"
SHOWN = {
    "fusion": (
        "feed-forward",
        lambda a, b: a["fusion"]["steps"] < b["fusion"]["steps"] and not b["fusion"]["joined"],
    ),
    "rewrites": ("recurrent", lambda a, b: CSE in a["passes"] and CSE not in b["passes"]),
    "constants": ("state-space", lambda a, b: a["layout"]["constants"] > b["layout"]["constants"]),
    "packing": ("attention", lambda a, b: a["layout"]["constants_bytes"] > b["layout"]["constants_bytes"]),
    "channels-last": (
        "convolutional",
        lambda a, b: "conv" in a["fusion"]["kinds"] and "conv" not in b["fusion"]["kinds"],
    ),
    "merged-linears": ("decoder", lambda a, b: a["fusion"]["kinds"]["gemm"] < b["fusion"]["kinds"]["gemm"]),
    "attention": (
        "attention",
        lambda a, b: "attention" in a["fusion"]["kinds"] and "attention" not in b["fusion"]["kinds"],
    ),
    "products": (
        "feed-forward",
        lambda a, b: "gemm" in a["fusion"]["kinds"] and "gemm" not in b["fusion"]["kinds"],
    ),
    "arena": ("feed-forward", lambda a, b: a["arena_bytes"] < b["arena_bytes"]),
}
"""By switch: an architecture, and what differs there between with it and without."""


@pytest.mark.parametrize("name", SHOWN)
@torch.no_grad()
def test_a_switch_switches_something_off(name):
    architecture, differs = SHOWN[name]
    network, inputs = tiny(architecture)
    on, off = lampwork.compile(network), ALL[name].compile(network)
    with_it, without = made(on, inputs), made(off, inputs)
    assert marks(with_it) != marks(without)
    assert differs(facts(with_it), facts(without))
    torch.testing.assert_close(off(*fresh(inputs)), network(*fresh(inputs)), rtol=1e-4, atol=1e-5)


def test_the_other_switches_are_tested_apart():
    assert {*SHOWN, "threads", "wide-vectors", "exact-rounding"} == set(ALL)


def test_one_thread_is_one_for_the_call_alone():
    seen = []
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ALL["threads"].runs(lambda: seen.append(torch.get_num_threads()))()
        assert seen == [1] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def test_vectors_are_narrower_and_roundings_fewer():
    network, inputs = tiny("feed-forward")
    on = made(lampwork.compile(network), inputs).regions[0].stages.text("llvm")
    relaxed = made(ALL["exact-rounding"].compile(network), inputs).regions[0].stages.text("llvm")
    assert on != relaxed
    if host_isa("").name in ("avx512", "amx"):
        narrow = made(ALL["wide-vectors"].compile(network), inputs).regions[0].stages.text("llvm")
        assert "<16 x float>" in on and "<16 x float>" not in narrow and "<8 x float>" in narrow


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_quick_run_is_a_document_with_a_page(tmp_path, capsys):
    document = study.run(["feed-forward"], without=["fusion", "threads"], quick=True, threads=1, say=print)
    check(document)
    assert capsys.readouterr().out.startswith("feed-forward: 12 operators in 8 steps, ")
    (row,) = document["architectures"]
    assert list(row["switches"]) == ["fusion", "threads"] == [each["name"] for each in document["switches"]]
    assert row["columns"]["everything"]["speedup"] == 1 and row["columns"]["everything"]["agrees"]
    assert row["switches"]["fusion"]["changes_code"] and not row["switches"]["threads"]["changes_code"]
    assert row["symbols_when_open"] and row["reference"] == "float64"
    assert "feed-forward" in study.page(document)["study.md"]


def test_what_a_whole_run_measures_more(monkeypatch):
    small = MappingProxyType({"recurrent": Architecture("recurrent", "tiny", lambda: tiny("recurrent")[0])})
    monkeypatch.setattr("lampwork.study.study.ARCHITECTURES", small)
    document = study.run(without=[], threads=1, batch=2, seconds=0)
    check(document)
    (row,) = document["architectures"]
    assert {"time", "one_sample", "bfloat16"} <= row.keys() and not row.get("failure")
    assert sum(row["time"]["seconds"].values()) > 0
    assert row["bfloat16"]["everything"]["error"] > row["columns"]["everything"]["error"]


class Failing(Network):
    def example(self, batch):
        return (torch.zeros(batch),)

    def forward(self, x):
        raise ArithmeticError("out of luck")


def test_an_architecture_that_fails_is_a_row(monkeypatch, capsys):
    monkeypatch.setattr(
        "lampwork.study.study.ARCHITECTURES", {"failing": Architecture("failing", "bad luck", Failing)}
    )
    before = torch.get_num_threads()
    assert main(["study", "--quick", "--threads", "1"]) == 1
    out = capsys.readouterr().out
    assert "failing failed: eager: ArithmeticError: out of luck" in out
    assert "Could not be measured: failing" in out
    assert torch.get_num_threads() == before and torch.is_grad_enabled()


def test_a_switch_that_fails_is_a_column(monkeypatch):
    def fail(self, model):
        raise RuntimeError("no such machine")

    monkeypatch.setattr(measure.Switch, "compile", fail)
    row = measure.measure(
        ARCHITECTURES["recurrent"],
        [ALL["fusion"]],
        measure.Settings(1, 2, 0.0, tiny=True, alone=True),
        lambda _: None,
    )
    assert not row.get("failure")
    assert (
        "no such machine" in row["switches"]["fusion"]["failure"]
        and row["columns"]["everything"]["speedup"] == 1
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"only": ["encodr"]}, "no architecture of the study is called 'encodr'"),
        ({"without": ["fuson"]}, "did you mean 'fusion'"),
        ({"threads": 0}, "threads is 0, expected a number from 1 on"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"batch": 1.5}, "batch is 1.5"),
        ({"threads": True}, "threads is True"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_measured(given, says):
    with pytest.raises(OptionError, match=says):
        study.run(**given)


def test_the_command_names_what_there_is(capsys):
    with pytest.raises(SystemExit):
        main(["study", "--help"])
    shown = capsys.readouterr().out
    assert "state-space" in shown and "exact-rounding" in shown
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    assert "python -m lampwork.bench" in capsys.readouterr().out
