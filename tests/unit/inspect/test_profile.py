"""`lampwork.profile`: what it measures, in which rows, and what it says when it is used wrongly."""

import json
import threading
import time

import pytest
import torch
from children import failure
from torch import nn
from torch.nn import functional as F

import lampwork
from lampwork.display.units import time_text
from lampwork.errors import ProfileError
from lampwork.inspect.machine.limits import Limits
from lampwork.inspect.profile import profile as module_function
from lampwork.inspect.profile.memory import memory_of
from lampwork.inspect.profile.rows import Row, grouped, least_seconds
from lampwork.inspect.profile.table import format_text
from lampwork.runtime.steps import StepFacts

LIMITS = Limits(1, 100.0, 10.0, 8.0, 30.0, 25.0, 90.0, 70.0, 1 << 25, 1 << 20, 0.0, 200.0)


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    """No measurement of the machine."""
    monkeypatch.setattr("lampwork.inspect.profile.session.limits_of_machine", lambda: LIMITS)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 128)
        self.second = nn.Linear(128, 64)

    def forward(self, x):
        return x + self.second(F.gelu(self.first(x))).sort().values


@pytest.fixture
def ready():
    """A compiled model and its input, called once."""
    model, x = lampwork.compile(Small().eval()), torch.randn(16, 64)
    with torch.no_grad():
        model(x)
    return model, x


@torch.no_grad()
def run(ready, calls=5):
    model, x = ready
    with lampwork.profile() as p:
        for _ in range(calls):
            model(x)
    return p


def row(p, **wanted):
    found = [row for row in p.rows if all(getattr(row, name) == value for name, value in wanted.items())]
    assert len(found) == 1, [(row.kind, row.name) for row in p.rows]
    return found[0]


def test_each_step_has_a_row_with_its_nodes_and_numbers(ready):
    p = run(ready)
    gelu = row(p, kind="gemm", nodes=("linear", "gelu"))
    assert gelu.calls == 5 and gelu.flops >= 5 * 2 * 16 * 64 * 128
    assert gelu.gflops and gelu.gbs and gelu.limit
    assert row(p, kind="aten").nodes == ("sort",)
    assert row(p, kind="run").calls == 5
    assert not [each for each in p.rows if each.kind == "eager"]


def test_all_rows_together_are_the_wall_clock(ready):
    p = run(ready)
    assert sum(each.seconds for each in p.rows) == pytest.approx(p.wall, rel=1e-6)
    assert p.wall > sum(each.seconds for each in p.rows if each.region) > 0


def test_eager_operators_are_told_apart(ready):
    model, x = ready
    with torch.no_grad(), lampwork.profile() as p:
        model(torch.cumsum(x, 0))
    assert row(p, kind="eager", name="aten::cumsum").calls == 1
    assert row(p, kind="aten").nodes == ("sort",)


@torch.no_grad()
def test_compilation_is_one_row():
    with lampwork.profile() as p:
        lampwork.compile(lambda x: x.sin() + 1)(torch.randn(3))
    (compiling,) = [each for each in p.rows if each.kind == "compile"]
    assert compiling.calls == 1 and p.wall / 10 < compiling.seconds < p.wall
    assert not [each for each in p.rows if each.kind == "eager" and each.name != "aten::randn"][2:]


def test_training_counts_forward_backward_and_autograd():
    model, x = Small(), torch.randn(16, 64)
    step = lampwork.compile(lambda x: model(x).sum())
    for _ in range(3):
        step(x).backward()
    with lampwork.profile() as p:
        step(x).backward()
    regions = {each.region for each in p.rows if each.region}
    assert any(name.endswith("backward") for name in regions) and len(regions) >= 2
    assert [each for each in p.rows if each.kind == "autograd"]
    assert sum(each.seconds for each in p.rows) == pytest.approx(p.wall, rel=1e-6)


def test_threads_are_measured_each(ready):
    model, x = ready

    def work():
        with torch.no_grad():
            for _ in range(3):
                model(x)

    with lampwork.profile() as p:
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(p.threads) == 3
    assert row(p, kind="aten").calls == 6


def test_a_process_may_fork_while_threads_are_profiled(ready):
    """The child's calls are right, and the profile that it took over ends there as well."""
    model, x = ready
    expected = model(x)
    ended = threading.Event()

    def work():
        with torch.no_grad():
            while not ended.is_set():
                torch.neg(x)

    def child():
        assert torch.equal(model(x), expected)
        p.__exit__(None, None, None)
        return None if p.rows else "no rows"

    threads = [threading.Thread(target=work) for _ in range(2)]
    with torch.no_grad(), lampwork.profile() as p:
        for thread in threads:
            thread.start()
        try:
            said = [failure([("child", child)], quiet_limit=20) for _ in range(6)]
        finally:
            ended.set()
            for thread in threads:
                thread.join()
    assert said == [""] * 6


def test_tables_by_kernel_module_and_line(ready):
    p = run(ready)
    assert "sort" in p.table() and "GFLOP/s" in str(p)
    lines = p.table("line")
    assert "test_profile.py" in lines and "Python, and what else is not compiled" in lines
    for by in ("kernel", "module", "line"):
        assert sum(each.seconds for each in grouped(p.rows, by)) == pytest.approx(p.wall, rel=1e-6)
    short = p.table(most=1)
    assert f"... and {len(p.rows) - 1} more: " in short
    with pytest.raises(ProfileError, match=r"no table by 'node'(.|\n)*'kernel', 'module', 'line'"):
        p.table("node")


def test_what_has_not_ended_shows_as_that():
    p = lampwork.profile()
    assert "not begun" in repr(p) and "not begun" in p._repr_html_()
    with p:
        assert "running" in repr(p) and "running" in p._repr_html_()


def test_the_dict_and_its_file_are_json(ready, tmp_path):
    p = run(ready)
    found = json.loads(json.dumps(p.to_dict()))
    assert found["format"] == 1 and found["threads"] == 1 and found["lost"] == 0
    assert sum(each["seconds"] for each in found["rows"]) == pytest.approx(found["wall"])
    assert all(len(held) == 4 for each in found["memory"].values() for held in each)
    p.save_numbers(tmp_path / "numbers.json")
    assert json.loads((tmp_path / "numbers.json").read_text()) == found


def test_the_trace_is_nested_in_each_thread(ready, tmp_path):
    p = run(ready)
    p.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [each for each in events if each["ph"] == "X"]
    assert {"region", "kernel", "operator"} <= {each["cat"] for each in spans}
    open_until = []
    for each in spans:
        end = each["ts"] + each["dur"]
        while open_until and open_until[-1] <= each["ts"] + 1e-6:
            open_until.pop()
        assert each["dur"] >= 0 and all(end <= other + 1e-3 for other in open_until)
        open_until.append(end)
    assert [each for each in events if each["ph"] == "C" and each["args"]["arena"] > 0]
    assert any(each.get("args", {}).get("nodes") == "sort" for each in spans)


def test_the_page_is_escaped(ready):
    p = run(ready)
    assert p.rows
    p._rows = (Row("<script>alert(1)</script>", "kernel", 1, 1.0),)
    page = p._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page and "<table>" in page


def test_torch_s_profiler_sees_kernels_and_regions(ready):
    model, x = ready
    with torch.no_grad(), torch.profiler.profile() as theirs:
        model(x)
    names = {event.name for event in theirs.events()}
    assert any(name.startswith("lampwork::gemm") for name in names)
    assert any(name.endswith("sort.default (sort)") for name in names) and "aten::add" not in names
    assert "lampwork::Small#0" in names


def test_ours_and_torch_s_at_a_time(ready):
    model, x = ready
    with torch.no_grad(), torch.profiler.profile() as theirs, lampwork.profile() as p:
        model(x)
    assert any(event.name.startswith("lampwork::gemm") for event in theirs.events())
    assert row(p, kind="gemm", nodes=("linear", "gelu")).calls == 1


def test_memory_of_each_step(ready):
    p = run(ready)
    (region,) = [name for name in p.memory if not name.endswith("constants")]
    held = p.memory[region]
    assert max(each.arena for each in held) >= 4 * 16 * 128
    assert all(each.fresh >= 4 * 16 * 64 for each in held[-1:])
    (program,) = [each for each in p.threads[0].programs if each.name == region]
    assert [each.index for each in memory_of(program)] == [step.index for step in program.steps()]


def test_a_profile_of_nothing_and_one_in_which_something_raised(ready):
    with lampwork.profile() as p:
        time.sleep(0.001)
    (only,) = p.rows
    assert only.kind == "outside" and only.seconds == pytest.approx(p.wall)
    model, x = ready
    with pytest.raises(ZeroDivisionError), torch.no_grad(), lampwork.profile() as p:
        model(x)
        1 / 0
    assert row(p, kind="aten").calls == 1
    assert run(ready).rows


def test_wrong_uses_say_what_to_do():
    p = lampwork.profile()
    with pytest.raises(ProfileError, match=r"has not begun(.|\n)*fix: run something"):
        str(p)
    with p:
        assert "running" in repr(p)
        with pytest.raises(ProfileError, match="has not ended"):
            p.table()
        with pytest.raises(ProfileError, match=r"runs already(.|\n)*fix: end it"), lampwork.profile():
            pass
        with pytest.raises(ProfileError, match="entered a second time"):
            p.__enter__()
    assert "lampwork profile of" in repr(p)
    with pytest.raises(ProfileError, match=r"cannot be written(.|\n)*fix: give the path"):
        p.save("/no/such/folder/trace.json")
    assert module_function is lampwork.profile


def test_the_limit_is_that_of_arithmetic_or_bytes():
    def step(flops, moved, dtype="float32"):
        return StepFacts(0, "k", "gemm", (), moved, 0, flops, dtype)

    assert least_seconds(step(10**11, 4), LIMITS) == pytest.approx(1.0)
    assert least_seconds(step(10**11, 4, "bfloat16"), LIMITS) == pytest.approx(0.5)
    assert least_seconds(step(4, 10**10), LIMITS) == pytest.approx(1.0)
    assert least_seconds(step(0, 0), LIMITS) is None
    # Of a dtype without a limit of its own the bytes are what is known.
    assert least_seconds(step(10**11, 10**10, "int64"), LIMITS) == pytest.approx(1.0)


def test_text_of_times_and_rows():
    assert [time_text(t) for t in (2.0, 0.1234, 0.000999, 5e-9)] == ["2 s", "123 ms", "999 us", "0.005 us"]
    rows = [Row("a", "kernel", 2, 0.5, flops=10**9), Row("b", "outside", 1, 0.5)]
    text = format_text(rows, 1.0)
    assert "50.0 %" in text and "2.0" in text and "GB/s" not in text
