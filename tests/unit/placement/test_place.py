"""lampwork.place: plans on simulated devices whose costs are known, real ones on CPUs; eager's answers on all."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from simulated_devices import SimulatedDevice, backwards
from torch import Tensor, nn
from torch.nn import functional as F

import lampwork
from lampwork.errors import GraphBreakError, OptionError
from lampwork.graph.interpret import run_graph
from lampwork.placement import Device
from lampwork.placement.execution import Copy, Fragment, Placing
from lampwork.placement.pieces import cut
from lampwork.placement.place import _seen, _served

MS = 1e-3


class Mixed(nn.Module):
    """What is quick on one kind of device, then what is quick on another."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 16, 3, padding=1)
        self.lstm = nn.LSTM(16, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        hidden, _ = self.lstm(F.relu(self.conv(x)).transpose(1, 2))
        return self.head(hidden[:, -1]) * scale


def mixed() -> tuple[Mixed, Tensor]:
    torch.manual_seed(0)
    return Mixed().eval(), torch.randn(2, 4, 10)


def cpu(**costs: object) -> SimulatedDevice:
    return SimulatedDevice("cpu", **costs)  # type: ignore[arg-type]


def far(**costs: object) -> SimulatedDevice:
    return SimulatedDevice("far", "far", **costs)  # type: ignore[arg-type]


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def eager(model: nn.Module, *args: object, **kwargs: object) -> Tensor:
    with torch.no_grad():
        return model(*args, **kwargs)


def where(placed: object) -> dict[str, str]:
    return {part.name: part.device for part in placed.plan.parts}  # type: ignore[attr-defined]


def test_each_part_runs_where_it_is_fast_if_copies_are_cheap() -> None:
    model, x = mixed()
    placed = lampwork.place(model, x, [cpu(ops={"conv1d": 4 * MS}), far(ops={"lstm": 8 * MS}, copy=0.2 * MS)])
    assert where(placed) == {"conv": "far", "lstm": "cpu", "head": "cpu"}
    close(placed(x), eager(model, x))
    plan = placed.plan
    # 0.1 ms for each of two calls (lstm and head are one), 0.2 ms to far and 0.1 ms back.
    assert plan.seconds == pytest.approx(0.5 * MS) and plan.predicted == pytest.approx(plan.seconds, rel=0.25)
    assert plan.singles[0].seconds == pytest.approx(4.1 * MS)
    assert plan.singles[1].seconds == pytest.approx(8.4 * MS)
    assert plan.won == (15, 15)
    assert [(c.source, c.target) for c in plan.copies] == [("cpu", "far"), ("far", "cpu")]
    assert plan.weight_bytes == {"far": 4 * sum(p.numel() for p in model.conv.parameters())}
    assert str(plan).startswith("placed on far and cpu: 500 us a call, 8.20 times as fast as cpu alone")


def test_one_device_runs_all_if_copies_are_dear() -> None:
    model, x = mixed()
    devices = [cpu(ops={"conv1d": 2 * MS}), far(ops={"lstm": 8 * MS}, copy=3 * MS)]
    placed = lampwork.place(model, x, devices)
    assert set(where(placed).values()) == {"cpu"}
    assert placed.plan.copies == () and placed.plan.weight_bytes == {}
    conv = placed.plan.parts[0]
    assert conv.seconds["far"] < conv.seconds["cpu"] and "but copies" in conv.why
    close(placed(x), eager(model, x))


def test_a_batch_of_one_may_be_faster_at_home() -> None:
    model, devices = nn.Linear(4, 10).eval(), [cpu(element=0.01 * MS), far(copy=0.5 * MS)]
    assert [lampwork.place(model, torch.randn(rows, 4), devices).plan.devices for rows in (1, 4, 32)] == [
        ("cpu",),
        ("cpu",),
        ("far",),
    ]


def test_what_is_fast_enough_far_away_runs_there_as_a_whole() -> None:
    model, x = mixed()
    home = cpu(ops={"conv1d": 3 * MS, "lstm": 3 * MS, "linear": 3 * MS})
    placed = lampwork.place(model, x, [home, far(copy=0.5 * MS)])
    assert set(where(placed).values()) == {"far"}
    assert len(placed.plan.copies) == 2 and placed.plan.devices == ("far",)
    before = placed._compiled(x)
    close(before, eager(model, x))


def test_a_part_without_a_kernel_stays_where_it_has_one_and_the_plan_says_why() -> None:
    model, x = mixed()
    home = cpu(ops={"conv1d": 3 * MS, "lstm": 3 * MS, "linear": 3 * MS})
    placed = lampwork.place(model, x, [home, far(missing=["lstm"])])
    assert where(placed)["lstm"] == "cpu" and where(placed)["conv"] == "far"
    part = placed.plan.parts[1]
    assert part.refused == {"far": "NotImplementedError: no kernel for lstm"}
    assert part.why == "far: NotImplementedError: no kernel for lstm"
    assert "far: lstm cannot run there" in str(placed)
    close(placed(x), eager(model, x))


def test_random_numbers_come_from_the_callers_generator_in_eagers_order() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(F.dropout(self.a(x), 0.5, training=True)) + torch.rand(4)

    model, x = Noisy().eval(), torch.randn(3, 4)
    state = torch.get_rng_state()  # and the report compares with eager's results for the same numbers
    placed = lampwork.place(model, x, [cpu(ops={"linear": 2 * MS}), far(copy=0.1 * MS)])
    assert torch.equal(torch.get_rng_state(), state)
    assert placed.plan.difference < 1e-5
    assert any("draws from the generator of cpu" in part.why for part in placed.plan.parts)
    for _ in range(4):
        torch.manual_seed(7)
        expected = eager(model, x)
        torch.manual_seed(7)
        close(placed(x), expected)


def test_weights_that_do_not_fit_stay() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval(), torch.randn(2, 8)
    home = cpu(ops={"linear": 3 * MS})
    placed = lampwork.place(model, x, [home, far(free=4 * 72)])
    assert sorted(where(placed).values()) == ["cpu", "far"]
    assert "its weights, 576 bytes, do not fit" in str(placed)
    nowhere = lampwork.place(model, x, [home, far(free=100)])
    assert set(where(nowhere).values()) == {"cpu"}
    assert nowhere.plan.parts[0].refused == {"far": "its weights, 288 bytes, do not fit"}


def test_three_devices() -> None:
    model, x = mixed()
    near = SimulatedDevice("near", ops={"conv1d": 4 * MS, "linear": 4 * MS})
    home = cpu(ops={"conv1d": 4 * MS, "lstm": 4 * MS})
    placed = lampwork.place(model, x, [home, near, far(ops={"lstm": 6 * MS, "linear": 6 * MS})])
    assert where(placed) == {"conv": "far", "lstm": "near", "head": "cpu"}
    assert len(placed.plan.copies) == 2  # near and cpu share their memory
    close(placed(x), eager(model, x))


SIDES = [
    [cpu(ops={"conv1d": 2 * MS}), far(ops={"lstm": 4 * MS})],
    ["cpu:1 thread", "cpu:2 threads"],
    ["cpu"],
]


@pytest.mark.parametrize("devices", SIDES, ids=["simulated", "threads", "cpu"])
def test_other_sizes_changed_weights_and_keywords_give_eagers_answers(devices: list[object]) -> None:
    model, x = mixed()
    state = copy.deepcopy(model.state_dict())
    threads = torch.get_num_threads()
    placed = lampwork.place(model, {"x": x}, devices)  # type: ignore[arg-type]
    for _ in range(3):
        close(placed(x=x), eager(model, x))
    for rows in (1, 5, 0):
        other = torch.randn(rows, 4, 7)
        close(placed(other, scale=2.0), eager(model, other, scale=2.0))
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    with torch.no_grad():
        model.head.weight.mul_(-3)
        model.conv.bias.add_(1)
    close(placed(x=x), eager(model, x))
    model.head.weight = nn.Parameter(torch.randn(3, 8))
    close(placed(x=x), eager(model, x))
    assert torch.get_num_threads() == threads and not placed(x).requires_grad


def test_results_that_are_views_and_arguments_that_are_written_are_as_in_eager() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            out.add_(self.a(x))
            return x.t(), out, out.sum()

    model, x = Writing().eval(), torch.randn(3, 4)
    out = torch.zeros(3, 4)
    placed = lampwork.place(model, (x, out), [cpu(ops={"linear": 2 * MS}), far()])
    assert torch.equal(out, torch.zeros(3, 4))
    assert where(placed)["a"] == "far"
    mine, theirs = torch.ones(3, 4), torch.ones(3, 4)
    for _ in range(4):
        got, expected = placed(x, mine), eager(model, x, theirs)
        assert got[0].data_ptr() == x.data_ptr() and got[0].stride() == (1, 4) and got[1] is mine
        close(mine, theirs)
        close(got[2], expected[2])


def test_a_branch_that_the_plan_does_not_know_runs_at_home() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor, flag: bool) -> Tensor:
            return self.a(x) if flag else torch.tanh(self.b(x)) + 1

    model, x = Branching().eval(), torch.randn(3, 4)
    away = far()
    placed = lampwork.place(model, (x, True), [cpu(ops={"linear": 2 * MS}), away])
    assert set(where(placed).values()) == {"far"}
    close(placed(x, True), eager(model, x, True))
    copies = away.copies
    close(placed(x, False), eager(model, x, False))
    assert away.copies == copies


def test_a_function_with_nested_inputs_and_results() -> None:
    def fn(tree: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"out": tree["a"] @ tree["b"], "same": tree["a"]}

    tree = {"a": torch.randn(3, 4), "b": torch.randn(4, 2)}
    placed = lampwork.place(fn, (tree,), ["cpu"])
    got = placed(tree)
    close(got["out"], tree["a"] @ tree["b"])
    assert got["same"] is tree["a"] and placed.plan.parts[0].why == "the only device"


def test_factories_make_their_tensors_on_the_device_of_their_part() -> None:
    def fn(x: Tensor) -> Tensor:
        return x + torch.arange(4) * torch.zeros(4, device="cpu") + torch.ones_like(x)

    seen, _ = _seen(fn, (torch.randn(3, 4),), {})
    fragment = Fragment.of(seen.graph, [n for n in seen.graph.nodes if n.op == "call_function"])
    meta = Device("meta", torch.device("meta"))
    module = fragment.module(meta, torch.device("cpu"), seen.weights)
    assert [out.device.type for out in module(torch.empty(3, 4, device="meta"))] == ["meta"]


def test_devices_that_are_not_there() -> None:
    model, x = mixed()
    if not torch.cuda.is_available():
        placed = lampwork.place(model, x)
        assert [absent.name for absent in placed.plan.absent] == ["cuda"]
        assert "cuda is absent: " in str(placed)
        with pytest.raises(OptionError, match='none of the devices is there.*(\n.*)*add "cpu"'):
            lampwork.place(model, x, ["cuda"])
    for devices, message in [
        (["gpu"], "'gpu' is no device"),
        (["cpu:0 threads"], "'cpu:0 threads' is no device"),
        (["cpu:4"], "there is one CPU, and no cpu:4"),
        (["cpu:100000 threads"], "no more than 1024 threads are started"),
        ([3.5], "3.5 is no device"),
        (["cpu", "cpu"], "has one twice"),
        ([], "expected a list of names"),
        ("cpu", "expected a list of names"),
        (["meta"], "none of the devices is there: meta: "),
    ]:
        with pytest.raises(OptionError, match=message):
            lampwork.place(model, x, devices)  # type: ignore[arg-type]


def test_a_device_that_takes_no_tensor_is_absent() -> None:
    class Broken(Device):
        memory = "broken"

        def __init__(self) -> None:
            super().__init__("broken", torch.device("cpu"))

        def to(self, tensor: Tensor) -> Tensor:
            raise RuntimeError("link down")

    model, x = mixed()
    placed = lampwork.place(model, x, ["cpu", Broken()])
    assert "broken is absent: it takes no tensor: RuntimeError: link down" in str(placed)


def test_what_cannot_be_placed_is_refused_with_a_remedy() -> None:
    model, x = mixed()
    with pytest.raises(OptionError, match=r"training mode\n  fix: call model.eval"):
        lampwork.place(model.train(), x, ["cpu"])
    placed = lampwork.place(model.eval(), x, ["cpu"])
    model.train()
    with pytest.raises(OptionError, match="training mode"):
        placed(x)
    model.eval()
    with pytest.raises(OptionError, match="inputs do not fit the model, which raised TypeError"):
        lampwork.place(model, (x, 1.0, 2), ["cpu"])
    with pytest.raises(OptionError, match="computes nothing with tensors"):
        lampwork.place(lambda x: x, x, ["cpu"])
    with pytest.raises(OptionError, match="takes a function or a module"):
        lampwork.place(x, x, ["cpu"])  # type: ignore[arg-type]

    class Breaking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(GraphBreakError, match=r"place\(\) needs the model as one graph(.*\n)*.*fix: "):
        lampwork.place(Breaking().eval(), x, ["cpu"])

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return x * self.calls

    counting = Counting().eval()
    with pytest.raises(OptionError, match="writes to .*calls on each call"):
        lampwork.place(counting, x, ["cpu"])
    with pytest.raises(
        OptionError, match=r"the part conv runs on none.*no kernel for conv1d(.*\n)*.*add 'cpu'"
    ):
        lampwork.place(model, x, [far(missing=["conv1d"])])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("home", ["cpu", "cuda"])
def test_real_accelerators(home: str) -> None:
    model, x = mixed()
    model, x = model.to(home), x.to(home)
    placed = lampwork.place(model, x, ["cpu", "cuda"])
    for rows in (2, 5):
        other = torch.randn(rows, 4, 10, device=home)
        got = placed(other)
        assert got.device == other.device
        torch.testing.assert_close(got, eager(model, other), rtol=1e-3, atol=1e-3)
    plan = placed.plan
    assert len(plan.singles) == 2 and all(single.seconds for single in plan.singles)
    assert placed.plan.difference < 1e-3


@pytest.mark.parametrize("seed", range(6))
def test_any_assignment_gives_eagers_answers(seed: int) -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            seen = [x, y]
            for i, layer in enumerate(self.layers):
                seen.append(layer(seen[i]) * torch.tanh(seen[-1]) + torch.arange(4.0))
            seen[4] = seen[4].view(-1, 2, 2).transpose(0, 1).contiguous().view(2, -1) if len(x) else seen[4]
            looked = torch.as_strided(
                seen[3] * 2, (2, 3) if len(x) == 3 else (0,), (3, 2) if len(x) == 3 else (1,)
            )
            best, place = seen[3].max(-1)
            return seen[-1] @ seen[2].t(), best, place, seen[4].t(), looked, x[:, 1:]

    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model, rows = Skips().eval(), (0, 1, 3)[seed % 3]
    x = torch.randn(4, rows, generator=generator).t()
    y = torch.randn(rows, 8, generator=generator)[:, ::2]
    if rows == 3:
        x[0, 0], y[1, 1], y[2, 2] = float("nan"), float("inf"), -0.0
    devices = (cpu(), far(), SimulatedDevice("third", "third"))
    with torch.no_grad():
        seen, expected = _seen(model, (x, y), {})
        pieces = cut(seen.graph, {}, torch.device("cpu"))
        placing = Placing(seen.graph, seen.weights, tuple(pieces), devices, devices[0])
        assignment = tuple(0 if piece.pinned else rng.randrange(3) for piece in pieces)
        # By itself: where it fails, what is served falls back to eager.
        results = placing.execution(assignment)(*seen.inputs)
        reference = run_graph(seen.graph, [*seen.inputs, *seen.bound])
        torch.testing.assert_close(results, reference, rtol=1e-5, atol=1e-5, equal_nan=True)
        served = _served(model, placing, assignment)
        for _ in range(3):
            for got, want in zip(served(x, y), expected, strict=True):
                torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)
                assert got.stride() == want.stride() and got.dtype is want.dtype


def test_results_that_other_devices_lay_out_otherwise_are_taken_and_come_home_as_in_eager() -> None:
    x = torch.randn(4, 4)
    with torch.no_grad():
        seen, _ = _seen(lambda x: torch.tanh(x @ x).view(2, -1), (x,), {})
    view = [n for n in seen.graph.nodes if n.target is torch.ops.aten.view.default]
    module = Fragment.of(seen.graph, view).module(cpu(), torch.device("cpu"), seen.weights)
    assert torch.equal(module(backwards(x))[0], x.view(2, -1))
    home = Copy(cpu(), 0, 1, (4, 1)).of(backwards(x))
    assert home.stride() == (4, 1) and torch.equal(home, x)
    assert Copy(cpu(), 0, 1, (4, 1)).of(x) is x
