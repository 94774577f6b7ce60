"""A captured graph leads to its program in the cache folder, past passes and backends; where something else has a say,
they run."""

from __future__ import annotations

import gc
import math
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lampwork
from lampwork import config, counters
from lampwork.backends.observer import Observer
from lampwork.cache import store
from lampwork.cache.key import read_key
from lampwork.compiled import training, transformed
from lampwork.config import Config
from lampwork.graph.printing import format_graph
from lampwork.literals import NAN_BITS, nan_of_bits
from lampwork.partitioning import compiling, kept, shortcut
from lampwork.partitioning.shortcut import Shortcut, _is_plain
from lampwork.plugins.registry import registry
from lampwork.serial.graph_texts import graph_text


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMPWORK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LAMPWORK_VERIFY", "")  # with checks the passes always run


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many nodes each graph had that passes ran over."""
    found: list[int] = []
    run = transformed.run_passes

    def counted(graph: Any, *given: Any, **named: Any) -> Any:
        found.append(len(graph.nodes))
        return run(graph, *given, **named)

    monkeypatch.setattr(transformed, "run_passes", counted)
    return found


def settle() -> None:
    """Wait until what was compiled is kept, and forget what is in memory."""
    for thread in threading.enumerate():
        if thread.name == "lampwork-keep":
            thread.join()
    compiling._cache = compiling._Cache()


def program(x: Tensor) -> Tensor:
    return torch.softmax(-(-x) * 2 + 0.0, -1).cumsum(0)


def run(**options: Any) -> Any:
    compiled = lampwork.compile(program, options=options)
    x = torch.arange(24.0).reshape(4, 6) / 7
    torch.testing.assert_close(compiled(x), program(x))
    settle()
    return compiled


def net() -> nn.Module:
    torch.manual_seed(1)
    layers = (
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 4),
        nn.LayerNorm(4),
    )
    return nn.Sequential(*layers).eval()


def entry() -> tuple[Any, bytes]:
    """The one entry of a graph."""
    found: Any = store()
    (row,) = found.local.rows("graph")
    key: Any = read_key(row.text)
    return key, found.get(key)


# --- hits -------------------------------------------------------------------------------------------------------------


def test_passes_do_not_run_again(passed: list[int]) -> None:
    run()
    assert len(passed) == 1
    before = counters.snapshot({})
    run()
    after = counters.snapshot({})
    assert len(passed) == 1
    assert after["backend_restored"] == before["backend_restored"] + 1
    assert after["backend_compiles"] == before["backend_compiles"]


def test_weights_are_no_part_of_it(passed: list[int]) -> None:
    x = torch.randn(2, 3, 4, 4)
    with torch.no_grad():
        lampwork.compile(net())(x)
        settle()
        other: Any = net()
        for weight in other.parameters():
            weight.mul_(-1.5).add_(0.25)
        compiled = lampwork.compile(other)
        torch.testing.assert_close(compiled(x), other(x), rtol=1e-4, atol=1e-5)
        assert len(passed) == 1
        other[1].running_mean.add_(3.0)
        torch.testing.assert_close(compiled(x), other(x), rtol=1e-4, atol=1e-5)


def test_graphs_that_passes_make_one_of_share_a_program(passed: list[int]) -> None:
    x = torch.ones(5)
    for fn in (lambda x: x.exp() + 1, lambda x: (-(-x)).exp() + 1, lambda x: (-(-x)).exp() + 1):
        assert torch.equal(lampwork.compile(fn)(x), fn(x))
        settle()
    found: Any = store()
    assert len(passed) == 2 and [len(found.local.rows(kind)) for kind in ("graph", "program")] == [2, 1]


def halves(x: Tensor) -> Tensor:
    return x.reshape(-1, 2).sum(-1) * (1 / x.shape[0])


def test_open_sizes_and_their_conditions(passed: list[int]) -> None:
    def conditions() -> list[str]:
        compiled: Any = lampwork.compile(halves, dynamic=True)
        for rows in (4, 8, 6):
            x = torch.randn(rows, 3)
            torch.testing.assert_close(compiled(x), halves(x))
        settle()
        assert len(compiled.entries) == 1
        return [str(each) for each in compiled.entries[0].region.conditions]

    first = conditions()
    count = len(passed)
    assert conditions() == first
    assert len(passed) == count
    with config.using(cache="off"):
        assert conditions() == first


# --- training ---------------------------------------------------------------------------------------------------------


def step(frozen: Sequence[int] = ()) -> tuple[Any, list[Tensor]]:
    """A training step of a network some of whose layers are frozen, and its gradients."""
    model = net().train()
    for number in frozen:
        model[number].requires_grad_(False)
    compiled = lampwork.compile(model)
    for _ in range(2):
        model.zero_grad()
        compiled(torch.arange(96.0).reshape(2, 3, 4, 4) / 100).square().sum().backward()
    settle()
    return compiled, [weight.grad for weight in model.parameters() if weight.grad is not None]


def open_step() -> tuple[Any, list[Tensor]]:
    """The same for all sizes."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4), nn.LayerNorm(4))
    compiled = lampwork.compile(model, dynamic=True)
    for rows in (3, 5, 4):
        model.zero_grad()
        x = torch.arange(8.0 * rows).reshape(rows, 8) / 100
        (compiled(x) * (1 / x.shape[0])).square().sum().backward()
    settle()
    return compiled, [weight.grad for weight in model.parameters() if weight.grad is not None]


@pytest.mark.parametrize("made", [step, open_step])
def test_training_steps(made: Callable[[], tuple[Any, list[Tensor]]], passed: list[int]) -> None:
    _, first = made()
    assert len(passed) >= 2
    passed.clear()
    compiled, second = made()
    assert not passed
    with config.using(cache="off"):
        other, without = made()
    for ours, theirs, plain in zip(second, first, without, strict=True):
        assert torch.equal(ours, theirs) and torch.equal(ours, plain)
    conditions = [
        [[str(each) for each in entry.region.conditions] for entry in each.entries]
        for each in (compiled, other)
    ]
    assert conditions[0] == conditions[1]


class Images(nn.Module):
    """What its forward saves is laid out as convolutions want it; its result is not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.one, self.two = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x).relu()).sigmoid()


def test_saved_tensors_are_laid_out_as_the_passes_leave_them(
    passed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    moved: list[int] = []
    lay_out = training.lay_out_saved

    def noted(halves: Any, results: Any, infer: Any) -> None:
        before = [graph_text(each.graph).nodes for each in halves.backwards.values()]
        lay_out(halves, results, infer)
        after = [graph_text(each.graph).nodes for each in halves.backwards.values()]
        texts.append("; ".join(after))
        moved.append(before != after)

    monkeypatch.setattr(training, "lay_out_saved", noted)
    grads: list[list[Tensor]] = []
    for _ in range(2):
        model = Images()
        compiled = lampwork.compile(model)
        for _ in range(3):
            model.zero_grad()
            compiled(torch.ones(2, 16, 24, 24)).square().sum().backward()
        settle()
        grads.append([weight.grad for weight in model.parameters() if weight.grad is not None])
        count = len(passed)
        passed.clear()
        assert (count > 0) == (len(grads) == 1)
    assert len(set(texts)) == 1 and all(moved) and len(texts) >= 2
    assert all(map(torch.equal, *grads))


def test_what_is_differentiated_makes_a_difference(passed: list[int]) -> None:
    """Another gradient mode, and other weights that stay as they are."""
    model = net().train()
    x = torch.ones(2, 3, 4, 4)

    def forward() -> None:
        with torch.no_grad():
            lampwork.compile(model)(x)
        settle()

    def halves(frozen: Sequence[int]) -> list[int]:
        passed.clear()
        step(frozen)
        return list(passed)

    forward()
    assert len(passed) == 1
    first = halves(())
    assert len(first) >= 2
    assert halves((4,)) and halves((0, 1))
    passed.clear()
    assert not halves(()) and not halves((4,)) and not halves((0, 1))
    forward()
    assert not passed


def test_stages_of_training_steps(passed: list[int]) -> None:
    (first, _), (second, _) = step(), step()
    passed.clear()
    for stages in (first.stages, second.stages):
        assert stages.trained or stages.halves
    assert second.stages.counts == first.stages.counts

    def graphs(stages: Any) -> list[str]:
        halves = [half for half in ("forward", "backward") if half in stages.halves]
        made = [each for half in ("", *halves) for each in stages.made(half)]
        return [format_graph(each.graph) for each in made]

    def hits(stages: Any) -> list[Any]:
        return [
            record.hits for half in stages.halves for each in stages.made(half) for record in each.records
        ]

    assert graphs(second.stages) == graphs(first.stages)
    assert len(passed) >= 2, "they run when somebody looks"
    assert hits(second.stages) == hits(first.stages)


def test_gradients_of_gradients(passed: list[int]) -> None:
    def twice() -> Tensor:
        x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
        compiled = lampwork.compile(lambda x: (x.sin() * x).exp().sum())
        (grad,) = torch.autograd.grad(compiled(x), x, create_graph=True)
        (found,) = torch.autograd.grad(grad.square().sum(), x)
        settle()
        return found

    first = twice()
    assert passed
    passed.clear()
    assert torch.equal(twice(), first) and not passed


# --- literals ---------------------------------------------------------------------------------------------------------


def with_literal(value: Any) -> None:
    def fn(x: Tensor) -> Tensor:
        scale = torch.full((2,), value) + 1
        return torch.where(x > 0, x * scale, x)

    x = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    with torch.no_grad():
        torch.testing.assert_close(lampwork.compile(fn)(x), fn(x), rtol=0, atol=0)
    settle()


def test_known_tensors_make_a_difference(passed: list[int]) -> None:
    values = (2.0, 2.5, 2, True, -0.0, 0.0, float("inf"))
    for number, value in enumerate(values):
        for _ in range(2):
            with_literal(value)
        assert len(passed) == number + 1, value


NANS = (math.nan, nan_of_bits(0xFFF8 << 48), nan_of_bits(NAN_BITS + 1))


@pytest.mark.parametrize("view", [False, True], ids=["sign", "bits"])
def test_each_nan_is_a_literal_of_its_own(view: bool, passed: list[int]) -> None:
    """`copysign` reads the sign of one, a view its bits."""

    def step(value: float) -> None:
        def fn(x: Tensor) -> Tensor:
            if view:
                return torch.full((40,), value, dtype=torch.float64).view(torch.int64) + x.long()
            return torch.copysign(x, value) * torch.copysign(x, torch.full((2,), value)[0])

        x = torch.ones(40) if view else torch.tensor([1.0, -2.0])
        with torch.no_grad():
            assert torch.equal(lampwork.compile(fn)(x), fn(x))
        settle()

    for _ in range(2):
        for value in NANS:
            step(value)
    assert len(passed) == len(NANS)


def test_nans_of_one_process_and_of_one_graph() -> None:
    def fn(x: Tensor, value: float) -> tuple[Tensor, ...]:
        return torch.copysign(x, value), torch.copysign(x, -math.nan), torch.copysign(x, math.nan)

    x = torch.tensor([1.0, -2.0])
    compiled = lampwork.compile(fn)
    for value in (*NANS, *NANS):
        for ours, theirs in zip(compiled(x, value), fn(x, value), strict=True):
            assert torch.equal(ours, theirs)


def test_values_of_known_tensors_are_in_the_key() -> None:
    """Not only the literals that they are computed of."""
    found: list[str] = []
    of = shortcut.shortcut

    def noted(graph: Any, *given: Any) -> Any:
        for change in (0, 1):
            for node in graph.nodes:
                if "known" in node.meta:
                    node.meta["known"] = node.meta["known"] + change
            way = of(graph, *given)
            assert way is not None
            found.append(way.key.parts["known"])
        return way

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformed, "shortcut", noted)
        with_literal(2.0)
    assert found == ["full=[2.0, 2.0] add=[3.0, 3.0]", "full=[3.0, 3.0] add=[4.0, 4.0]"]


# --- looking ----------------------------------------------------------------------------------------------------------


def compiled_net() -> Any:
    compiled = lampwork.compile(net())
    with torch.no_grad():
        compiled(torch.ones(2, 3, 4, 4))
    settle()
    return compiled


def test_stages_are_those_of_a_first_compilation(passed: list[int]) -> None:
    first, second = compiled_net(), compiled_net()
    assert len(passed) == 1
    assert second.stages.counts == first.stages.counts
    assert list(second.stages) == list(first.stages)
    assert len(passed) == 1, "nobody has looked yet"
    for stage in (
        "optimized",
        "partition",
        "definitions",
        "fusion",
        "kernels",
        "llvm",
        "assembly",
        "program",
    ):
        assert second.stages.text(stage) == first.stages.text(stage)
    assert len(passed) == 2, "they run once"
    mine, theirs = second.stages.text("passes"), first.stages.text("passes")
    assert [line.split(" nodes")[0] for line in mine.splitlines()] == [
        line.split(" nodes")[0] for line in theirs.splitlines()
    ]


LOOKS: list[Callable[[Any], Any]] = [
    lambda c: c.stages.steps(),
    lambda c: [str(node) for node in c.stages.compilation.graph.nodes],
    lambda c: [record.hits for record in c.stages.compilation.records],
    lambda c: [len(part.nodes) for part in c.stages.compilation.parts],
    lambda c: [str(node) for node in c.stages.compilation.inside.graph.nodes],
    lambda c: c.stages.compilation.inside.decisions,
    lambda c: c.stages.text("kernels"),
]


@pytest.mark.parametrize("look", LOOKS)
def test_whatever_is_looked_at_first(look: Callable[[Any], Any], passed: list[int]) -> None:
    first, second = compiled_net(), compiled_net()
    assert len(passed) == 1
    assert look(second) == look(first)
    assert len(passed) == 2


def test_reports_and_explanations() -> None:
    first, second = compiled_net(), compiled_net()
    assert len(str(lampwork.explain(second)).splitlines()) == len(str(lampwork.explain(first)).splitlines())


def rewrites(stages: Any) -> list[str]:
    """What each pass did, without how long it took."""
    return [line.rpartition(", ")[0] for line in stages.text("passes").splitlines() if " ms" in line]


def test_who_looks_spends_no_fuel(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = compiled_net().stages, compiled_net().stages
    monkeypatch.setenv("LAMPWORK_FUEL", "0")
    assert rewrites(second) == rewrites(first)
    assert any(" 0 rewrites" not in line for line in rewrites(first))


def test_what_is_registered_since_has_no_say(passed: list[int]) -> None:
    first, second = compiled_net().stages, compiled_net().stages
    mine = lampwork.rewrite("relu(x)", "maximum(x, 0)", name="mine")
    try:
        assert rewrites(second) == rewrites(first) and mine.hits == 0
    finally:
        mine.disable()
        registry().items.pop("mine", None)


def test_an_observer_that_knows_nothing_of_it_is_told_everything() -> None:
    told: list[str] = []

    class Every(Observer):
        def transforming(self, graph: Any, context: Any) -> None:
            told.append("transforming")

        def transformed(self, graph: Any, records: Any, backend_passes: Any) -> None:
            told.append(f"transformed {len(records) > 5}")

        def partitioned(self, parts: Any) -> None:
            told.append(f"partitioned {len(parts)}")

        def built(self, inside: Any) -> None:
            told.append("built")

    from lampwork.api import check_keywords, make_function
    from lampwork.compiled.pipeline import build_entry

    for _ in range(2):
        keywords = check_keywords()
        function = make_function(program, keywords)
        function.build = lambda region, owner, stages: build_entry(region, owner, Every(), keywords.backends)
        function.compiled(torch.ones(4, 6))
        settle()
    assert told == ["transforming", "transformed True", "partitioned 1", "built"] * 2


def test_stages_do_not_keep_a_function_alive() -> None:
    run()
    compiled = run()
    stages, gone = compiled.stages, weakref.ref(compiled)
    gc.disable()
    try:
        del compiled
        gc.collect()
        assert gone() is None and "softmax" in stages.text("optimized")
    finally:
        gc.enable()


# --- who else has a say -----------------------------------------------------------------------------------------------


OFF: dict[str, dict[str, Any]] = {
    "switches": {"passes": "-algebra"},
    "fuel": {"fuel": 1},
    "checks of graphs": {"verify": "graph"},
    "checks of numbers": {"verify": "numeric"},
    "a log of passes": {"logs": "passes"},
    "all logs": {"logs": "all"},
    "tuning": {"mode": "max-autotune", "tuning_seconds": 0.0},
}


@pytest.mark.parametrize("options", OFF.values(), ids=OFF.keys())
def test_options_that_passes_run_for(options: dict[str, Any], passed: list[int]) -> None:
    for _ in range(2):
        run(**options)
    assert len(passed) == 2


def test_a_dump_has_every_stage(passed: list[int], tmp_path: Path) -> None:
    for number in range(2):
        run(dump=str(tmp_path / str(number)))
    assert len(passed) == 2
    names = [sorted(path.name for path in (tmp_path / str(n)).rglob("*.txt")) for n in range(2)]
    assert names[0] == names[1] and "04-passes.txt" in names[1]


def test_fuel_of_the_process(passed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMPWORK_FUEL", "1000")
    for _ in range(2):
        run()
    assert len(passed) == 2


def test_registered_rewrites(passed: list[int]) -> None:
    """They may read anything, and their hits count."""
    run()
    mine = lampwork.rewrite("mul(x, 2)", "add(x, x)", name="double")
    try:
        for n in (1, 2):
            run()
            assert mine.hits == n
        assert len(passed) == 3
    finally:
        mine.disable()
        run()
        assert len(passed) == 3, "as before it was registered"
        registry().items.pop("double", None)


def test_backends_from_outside(passed: list[int]) -> None:
    class Relu:
        name = "relus"

        def supports(self, node: Any) -> bool:
            return node.target is torch.ops.aten.relu.default

        def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
            return lambda x: [x.relu()]

    backends: Any = [Relu(), "native"]
    for _ in range(2):
        lampwork.compile(lambda x: x.relu() + 1, backend=backends)(torch.ones(3))
        settle()
    assert len(passed) == 2


def test_what_a_node_has_beyond_the_key(passed: list[int]) -> None:
    """So that new meta data is in the key, or said to make no difference, or there is no key."""
    seen: list[Any] = []
    found = Shortcut.found

    def looked(self: Shortcut, later: Any) -> Any:
        seen.append(next(node for node in self.subject.graph.nodes if node.op == "call_function"))
        return found(self, later)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shortcut, "found", looked)
        run()
    (node,) = seen
    assert _is_plain(node)
    node.meta["mine"] = 1
    assert not _is_plain(node)


def test_operators_of_others(passed: list[int]) -> None:
    with torch.library._scoped_library("lampwork_shortcut_test", "DEF") as made:
        made.define("twice(Tensor x) -> Tensor")
        made.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        made._register_fake("twice", lambda x: x.new_empty(x.shape))
        for _ in range(2):
            compiled = lampwork.compile(lambda x: torch.ops.lampwork_shortcut_test.twice(x).exp())
            assert torch.equal(compiled(torch.zeros(3)), torch.ones(3))
            settle()
    assert len(passed) == 2


# --- keys -------------------------------------------------------------------------------------------------------------


def test_options_of_the_key() -> None:
    """A new option is in the key until somebody has thought about it."""
    names = {each.name for each in fields(Config)}
    assert not kept.NOT_IN_PASSES.keys() - names
    assert kept.NOT_IN_PASSES.items() <= kept.NOT_IN_CODE.items()
    shown = kept.options_text(config.current(), kept.NOT_IN_PASSES)
    assert all(f"{name}=" in shown for name in names - kept.NOT_IN_PASSES.keys())


@pytest.mark.parametrize("options", [{"memory_budget": 0.5}, {"numerics": "fast"}, {"fusion": False}])
def test_options_make_a_difference(options: dict[str, Any], passed: list[int]) -> None:
    run()
    run(**options)
    assert len(passed) == 2


def test_state_of_the_process_makes_a_difference(passed: list[int]) -> None:
    run()
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        run()
        assert len(passed) == 2
    finally:
        torch.backends.cuda.enable_flash_sdp(True)
    run()
    assert len(passed) == 2


READ = {
    "torch.get_default_dtype": "in the state of the key",
    "torch._C._get_flash_sdp_enabled": "in the state of the key",
    "torch._C._get_mkldnn_enabled": "in the state of the key",
    "torch.are_deterministic_algorithms_enabled": "in the state of the key",
    "torch._C._get_deterministic_algorithms": "in the state of the key",
    "time.perf_counter": "how long passes took",
    "ContextVar.get": "the options, which are in the key",
    "os.environ LAMPWORK_FUEL": "there is no key where it is set",
    "os.environ": "options, read anew, which are in the key",
}
"""What passes read of the process, and why that is no wrong hit."""
_PLAIN = (
    "torch._C._fx_",
    "torch._ops.",
    "torch._VariableFunctionsClass.",
    "torch._C.pybind11_detail_function_record",
)
"""Torch's graphs, the schemas of its operators, and operators themselves, on tiny tensors that passes make up."""


def test_flushed_denormals_make_a_difference(passed: list[int]) -> None:
    """What constants come to hangs on a flag of the thread's that nothing reads: the arithmetic itself goes by it."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU does not flush denormals")
    x = torch.full((32,), 1e300, dtype=torch.float64)

    def fn(x: Tensor) -> Tensor:
        return x * (torch.full((32,), 1e-200, dtype=torch.float64) * 1e-110)

    try:
        assert lampwork.compile(fn)(x)[0] == 0.0
        settle()
    finally:
        torch.set_flush_denormal(False)
    passed.clear()
    torch.testing.assert_close(lampwork.compile(fn)(x), fn(x), rtol=1e-12, atol=0.0)
    assert passed
    settle()
    passed.clear()
    assert lampwork.compile(fn)(x)[0] != 0.0
    assert not passed


def test_what_passes_read_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each C function of torch or of the system that passes call is known to read nothing beyond the key."""
    found: set[str] = set()
    run = transformed.run_passes

    def profile(frame: Any, event: str, arg: Any) -> None:
        if event == "c_call":
            module, name = getattr(arg, "__module__", None), getattr(arg, "__qualname__", str(arg))
            if module is None and name.startswith("ContextVar"):
                found.add(name)
            elif str(module).partition(".")[0] in (
                "torch",
                "posix",
                "time",
                "random",
                "_socket",
                "io",
                "_io",
            ):
                found.add(f"{module}.{name}")
            elif module == "builtins" and name in ("open", "input"):
                found.add(name)
        elif event == "call" and frame.f_code.co_qualname.startswith("_Environ.__getitem__"):
            found.add(f"os.environ {frame.f_locals['key']}")

    def watched(*given: Any, **named: Any) -> Any:
        sys.setprofile(profile)
        try:
            return run(*given, **named)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(transformed, "run_passes", watched)
    attends = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with torch.no_grad():
        lampwork.compile(net())(torch.ones(2, 3, 4, 4))
        lampwork.compile(attends)(torch.ones(2, 3, 8))
        lampwork.compile(nn.LSTM(4, 4).eval())(torch.ones(2, 3, 4))
        lampwork.compile(lambda x: torch.cat([x.sort()[0], x[:, :2]], 1).pow(2))(torch.ones(2, 3))
    for module, given in (
        (net(), torch.ones(2, 3, 4, 4)),
        (attends, torch.ones(2, 3, 8)),
        (Images(), torch.ones(2, 16, 8, 8)),
    ):
        compiled = lampwork.compile(module.train())
        for _ in range(2):
            compiled(given).square().sum().backward()
    assert "time.perf_counter" in found
    assert {name for name in found if not name.startswith(_PLAIN)} <= READ.keys()


# --- what is damaged --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-9],
        lambda content: content.replace(b'"calls":', b'"cells":'),
        lambda content: content.replace(b'[\\"program\\"', b'[\\"example\\"'),
        lambda content: content.replace(b'"results":[', b'"results":[null,'),
        lambda content: content.replace(b'"shape":[4,6],"strides":[6,1]', b'"shape":[4],"strides":[1]'),
        lambda content: content.replace(b'"demands":null', b'"demands":{"conditions":[],"derived":[]}'),
    ],
)
def test_damage_is_a_miss(damage: Callable[[bytes], bytes], passed: list[int]) -> None:
    run()
    key, content = entry()
    found: Any = store()
    assert damage(content) != content
    found.put(key, damage(content))
    run()
    assert len(passed) == 2
    assert entry()[1] == content
    run()
    assert len(passed) == 2


def test_a_program_that_is_gone(passed: list[int], tmp_path: Path) -> None:
    run()
    key, content = entry()
    with config.using(cache=str(tmp_path / "another")):
        found: Any = store()
        found.put(key, content)
        run()
        assert len(passed) == 2
        run()
        assert len(passed) == 2
