"""The times of a report: of calls that are made anyway, of nothing while somebody else profiles."""

import json

import pytest
import torch
from test_report_file import data_of
from torch import nn

import lampwork
from lampwork.api import function_of
from lampwork.cli import main
from lampwork.errors import ProfileError
from lampwork.inspect import report_data
from lampwork.inspect.explain import explanation_of
from lampwork.inspect.machine.limits import Limits
from lampwork.inspect.profile.watch import UNSEEN, Watch

LIMITS = Limits(1, 100.0, 10.0, 8.0, 30.0, 25.0, 90.0, 70.0, 1 << 25, 1 << 20, 0.0, 200.0)


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    """No measurement of the machine."""
    monkeypatch.setattr("lampwork.inspect.report.machine.limits_of_machine", lambda: LIMITS)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)

    def forward(self, x):
        return self.norm(self.linear(x)).sort().values.sin()


def small():
    return Small().eval(), torch.randn(4, 16)


def is_timed(region):
    """Whether it has all times, and they fit together; none is the other answer."""
    steps = [group.get("time") for group in region["groups"]]
    if "time" not in region:
        assert steps == [None] * len(steps) and "runs" not in region
        return False
    assert all(0 < step < 10 for step in steps) and {group["calls"] for group in region["groups"]} == {1}
    assert sum(steps) < region["time"] < 10 and region["runs"] >= 1
    return True


@torch.no_grad()
def test_explaining_a_function_calls_it_once_and_times_that():
    model, x = small()
    seen = []
    hook = model.linear.register_forward_hook(lambda *given: seen.append(given) and None)
    data = report_data(lampwork.explain(model)(x))
    assert len(seen) == 1
    hook.remove()
    timed = [region for region in data["regions"] if region.get("groups")]
    assert timed and all(map(is_timed, timed)) and {region["runs"] for region in timed} == {1}
    json.dumps(data, allow_nan=False)


@torch.no_grad()
def test_what_was_compiled_before_is_timed_too_and_constants_are_not():
    model, x = small()
    compiled = lampwork.compile(model)
    compiled(x)
    explanation = lampwork.explain(compiled)(x)
    (region,) = report_data(explanation)["regions"]
    assert is_timed(region) and region["constants"]
    with Watch() as watch:
        lampwork.compile(Small().eval())(torch.randn(5, 16))
    assert [len(times.steps) for times in watch.times().seen.values()] == [len(region["groups"])]


def test_both_halves_of_a_training_step_are_timed():
    compiled = lampwork.compile(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)))
    with Watch() as watch:
        for _ in range(4):
            compiled(torch.randn(5, 8)).sum().backward()
    assert {times.runs for times in watch.times().seen.values()} >= {3}
    (region,) = report_data(lampwork.explain(compiled)(torch.randn(5, 8)))["regions"]
    assert is_timed(region) and not is_timed(region["backward"])


@torch.no_grad()
def test_of_open_sizes_those_count_that_the_report_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sizes.py").write_text(
        "import torch, lampwork\n"
        "fn = lampwork.compile(lambda x: x.sin().sort().values, dynamic=True)\n"
        "for size in (5, 7, 5, 9, 5):\n"
        "    fn(torch.randn(size))\n"
    )
    assert main(["explain", "sizes.py"]) == 0
    (region,) = data_of((tmp_path / "report.html").read_text())["regions"]
    assert is_timed(region) and (region["hits"], region["runs"]) == (5, 3)


@torch.no_grad()
def test_a_region_in_parts_has_no_time_as_a_whole():
    lampwork.register_backend("of-function", lambda gm, inputs: gm.forward, supports=["cos"])
    fn = lampwork.compile(lambda x: x.sin().cos(), backend=["of-function", "native"])
    fn(torch.randn(9))
    (region,) = report_data(lampwork.explain(fn)(torch.randn(9)))["regions"]
    assert [part["backend"] for part in region["partition"]] == ["native", "of-function"]
    (kernel,) = region["groups"]
    assert kernel["time"] > 0 and "time" not in region


# --- one at a time ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_while_somebody_profiles_there_are_no_times():
    model, x = small()
    compiled = lampwork.compile(model)
    compiled(x)
    with lampwork.profile() as p:
        explanation = lampwork.explain(compiled)(x)
        compiled(x)
    data = report_data(explanation)
    (region,) = data["regions"]
    assert not is_timed(region) and "peak_gflops" not in data["machine"] and explanation.times.seen == {}
    assert all("least" not in group for group in region["groups"])
    p._limits = LIMITS
    assert [row.calls for row in p.rows if row.kind == "run"] == [2]


@torch.no_grad()
def test_a_profile_takes_over_from_a_watch():
    model, x = small()
    compiled = lampwork.compile(model)
    compiled(x)
    with Watch() as watch:
        compiled(x)
        with lampwork.profile() as p:
            compiled(x)
            compiled(x)
            with pytest.raises(ProfileError, match="a profile runs already"), lampwork.profile():
                pass
        compiled(x)
    (times,) = watch.times().seen.values()
    assert times.runs == 1
    p._limits = LIMITS
    assert [row.calls for row in p.rows if row.kind == "run"] == [2]


@torch.no_grad()
def test_a_watch_inside_of_another_sees_nothing_and_ends_nothing():
    model, x = small()
    compiled = lampwork.compile(model)
    compiled(x)
    with Watch() as outer:
        with Watch() as inner:
            compiled(x)
        compiled(x)
    assert inner.times().seen == {}
    assert [times.runs for times in outer.times().seen.values()] == [2]


def test_a_call_that_raises_leaves_no_watch_behind():
    def fn(x):
        raise ValueError("as told")

    with pytest.raises(ValueError, match="as told"):
        lampwork.explain(fn)(torch.ones(2))
    with lampwork.profile():
        pass


def test_a_script_that_profiles_itself_does_so_under_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profiles.py").write_text(
        "import torch, lampwork\n"
        "fn = lampwork.compile(lambda x: x.sin().sort().values)\n"
        "for _ in range(3):\n"
        "    fn(torch.ones(3))\n"
        "with lampwork.profile() as p:\n"
        "    fn(torch.ones(3))\n"
        "print(sum(len(thread.spans) > 0 for thread in p.threads), 'thread')\n"
    )
    assert main(["explain", "profiles.py"]) == 0
    assert capsys.readouterr().out == "1 thread\n"
    (region,) = data_of((tmp_path / "report.html").read_text())["regions"]
    assert is_timed(region) and (region["hits"], region["runs"]) == (4, 3)


# --- limits -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_limits_of_the_machine_and_of_each_step():
    data = report_data(lampwork.explain(nn.Linear(64, 64).eval())(torch.randn(64, 64)))
    assert data["machine"]["peak_gflops"] == {
        "float32": 100.0,
        "float16": 100.0,
        "float64": 50.0,
        "bfloat16": 200.0,
        "int8": 100.0,
    }
    assert (data["machine"]["peak_gbs"], data["machine"]["peak_cache_gbs"]) == (10.0, 90.0)
    (region,) = data["regions"]
    (gemm,) = region["groups"]
    assert gemm["bound"] == "arithmetic" and gemm["least"] == pytest.approx(gemm["flops"] / 100e9)
    data = report_data(lampwork.explain(torch.neg)(torch.randn(64, 64)))
    (kernel,) = data["regions"][0]["groups"]
    # In a core's own cache, half of it written.
    assert kernel["bound"] == "memory" and kernel["least"] == pytest.approx(2 * 4 * 64 * 64 / 70e9)


def test_an_explanation_without_times_says_nothing_of_them():
    explanation = explanation_of(function_of(lampwork.compile(torch.sin)))
    assert explanation.times is UNSEEN and repr(UNSEEN) == "Times(0 runs seen)"
    assert set(report_data(explanation)["machine"]) == {"cpu", "isa", "threads"}
