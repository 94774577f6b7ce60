"""mode="reduce-overhead" on a CUDA device, on a device of the tests' own (fake_cuda.py): results are eager's whatever
is kept, written, drawn, moved or replaced between calls."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_cuda import FakeDevice
from torch import Tensor, nn

import lampwork
from lampwork import pristine
from lampwork.config import current
from lampwork.errors import GraphCaptureError
from lampwork.partitioning import chain
from lampwork.runtime import cuda_graphs
from lampwork.runtime.cuda_device import FAR, Cuda
from lampwork.runtime.cuda_graphs import FREE_CAPTURES, KEPT, Graphed, Pool, why_not
from lampwork.runtime.program import CallAten

CPU = torch.device("cpu")


class Setup:
    """All programs compiled with mode="reduce-overhead" are captured by `device`."""

    def __init__(self) -> None:
        self.device = FakeDevice()
        self.pool = Pool(self.device)
        self.made: list[Any] = []

    def graphed(self, executable: Any, program: Any, region: Any) -> Any:
        if current().mode != "reduce-overhead" or why_not(program, CPU) is not None:
            return executable
        made = Graphed(executable, program, region, self.pool)
        self.made.append(made)
        return made

    def compile(self, fn: Any, **options: Any) -> Any:
        return lampwork.compile(fn, mode="reduce-overhead", **options)

    @property
    def captures(self) -> int:
        return self.device.count("capture")

    @property
    def replays(self) -> int:
        return self.device.count("replay")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Setup:
    setup = Setup()
    monkeypatch.setattr(chain, "graphed", setup.graphed)
    return setup


def same(a: Any, b: Any) -> None:
    assert torch.equal(a, b) or torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert a.dtype == b.dtype and a.stride() == b.stride() and a.storage_offset() == b.storage_offset()
    assert a._is_view() == b._is_view() and a.requires_grad == b.requires_grad
    assert a._version == b._version if not a.is_inference() else b.is_inference()
    assert a.untyped_storage().nbytes() == b.untyped_storage().nbytes()


def scaled(x: Tensor) -> Tensor:
    return x * 2 + 1


def test_the_first_call_runs_the_second_captures(fake: Setup) -> None:
    fast = fake.compile(scaled)
    for calls in range(1, 6):
        x = torch.randn(3, 5)
        same(fast(x), scaled(x))
        assert (fake.captures, fake.replays) == ((0, 0) if calls == 1 else (1, calls - 1))
    assert fake.made[0].stats["replays"] == 4


def test_results_that_are_kept_stay(fake: Setup) -> None:
    fast = fake.compile(scaled)
    xs = [torch.randn(4) for _ in range(10)]
    ys = [fast(x) for x in xs]
    for x, y in zip(xs, ys, strict=True):
        same(y, scaled(x))
    assert len({y.data_ptr() for y in ys}) == len(ys)


def shared(x: Tensor, w: Tensor) -> Any:
    y = x * 3
    z = y.t() if x.dim() == 2 else y
    return (
        y,
        y[1:],
        x,
        x[:1],
        w,
        w.view(-1),
        z,
        (x + 1)[1:],
        y,
        x.expand(2, *x.shape),
        w.relu(),
        (x @ w).split(2),
    )


def test_memory_that_results_share(fake: Setup) -> None:
    fast = fake.compile(shared)
    w = torch.randn(5, 4)
    for _ in range(5):
        x = torch.randn(6, 5)
        expected, got = shared(x, w), fast(x, w)
        flat = [(*part[:-1], *part[-1]) for part in (expected, got)]
        for a, b in zip(*flat, strict=True):
            same(b, a)
        assert got[0] is got[8] and got[2] is x and got[4] is w
        storages = [[t.untyped_storage().data_ptr() for t in part] for part in flat]
        numbered = [[places.index(place) for place in places] for places in storages]
        assert numbered[0] == numbered[1]
    assert fake.replays == 4


@pytest.mark.parametrize("how", ["same", "new", "wandering"])
def test_inputs_that_are_written(fake: Setup, how: str) -> None:
    def step(cache: Tensor, x: Tensor) -> Tensor:
        cache[1:].copy_(cache[:-1].clone())
        cache[0] += x
        return cache.sum(0)

    fast = fake.compile(step)
    caches = [torch.randn(4, 3) for _ in range(3)]
    for call in range(12):
        cache = caches[0] if how == "same" else torch.randn(4, 3) if how == "new" else caches[call % 3]
        mine, x = cache.clone(), torch.randn(3)
        version, alias = cache._version, cache[0]
        same(fast(cache, x), step(mine, x))
        assert torch.equal(cache, mine) and torch.equal(alias, mine[0])
        assert cache._version - version == mine._version
    assert fake.replays == {"same": 11, "new": fake.replays, "wandering": 9}[how]


def test_an_input_that_is_written_and_one_in_the_same_memory(fake: Setup) -> None:
    def step(x: Tensor, y: Tensor) -> Tensor:
        z = y * 2
        x.add_(1)
        return z + x

    fast = fake.compile(step)
    base = torch.randn(8)
    for call in range(8):
        mine = base.clone()
        part = slice(0, 4) if call % 2 else slice(2, 6)
        same(fast(base[:4], base[part]), step(mine[:4], mine[part]))
        assert torch.equal(base, mine)


def test_inputs_that_move_are_copied_others_are_not(fake: Setup) -> None:
    fast = fake.compile(lambda a, b, c: a + b * c)
    a, b, c = torch.randn(3, 4), torch.randn(4), torch.randn(3, 1)
    fast(a, b, c)
    for _ in range(5):
        a, c = torch.randn(3, 4), torch.randn(3, 1)
        b.add_(1)
        same(fast(a, b, c), a + b * c)
    (graph,) = fake.made[0]._graphs.values()
    assert [number for number, _ in graph.copied] == [0, 2] and fake.captures == 1
    b = torch.randn(4)
    same(fast(a, b, c), a + b * c)
    assert fake.captures == 2 and fake.replays == 6


def test_views_of_what_was_written(fake: Setup) -> None:
    def f(x: Tensor) -> Any:
        x.mul_(2)
        y = x.view(-1)
        z = torch.zeros(3)
        z.add_(x.sum())
        return y, y[3:], z

    fast = fake.compile(f)
    memory = torch.randn(4, 3)
    for _ in range(4):
        mine, x = memory.clone(), memory.data  # with versions from 0 on
        for got, expected in zip(fast(x), f(mine), strict=True):
            same(got, expected)
            assert got.is_leaf  # raises where a view is older than what it is of
    assert fake.replays == 3


LAYOUTS = {
    "dense": lambda: torch.randn(4, 6),
    "transposed": lambda: torch.randn(6, 4).t(),
    "expanded": lambda: torch.randn(4, 1).expand(4, 6),
    "one": lambda: torch.randn(1).expand(4, 6),
    "columns": lambda: torch.randn(4, 50)[:, 3:9],
    "windows": lambda: torch.randn(30).as_strided((4, 6), (2, 1), 5),
    "empty": lambda: torch.randn(0, 6),
    "scalar": lambda: torch.randn(()),
    "half": lambda: torch.randn(4, 6).bfloat16(),
    "special": lambda: torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_inputs(fake: Setup, layout: str) -> None:
    fast = fake.compile(lambda x: (x * 2, x.sum()))
    for _ in range(4):
        x = LAYOUTS[layout]()
        for got, expected in zip(fast(x), (x * 2, x.sum()), strict=True):
            same(got, expected)
            assert torch.equal(got.signbit(), expected.signbit())
    assert fake.replays == 3


def test_weights_that_change(fake: Setup) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).eval()
    fast = fake.compile(model)
    x = torch.randn(40, 4)
    with torch.no_grad():
        for call in range(24):
            same(fast(x), model(x))
            if call % 4 == 3:  # twice each: in place, other memory, another parameter
                [
                    lambda: model[0].weight.mul_(2),
                    lambda: setattr(model[2].weight, "data", torch.randn(3, 8)),
                    lambda: model[2].bias.add_(1),
                    lambda: setattr(model[0].bias, "data", model[0].bias.data.clone()),
                    lambda: setattr(model[2], "bias", nn.Parameter(torch.randn(3))),
                ][call // 4 % 5]()
    assert fake.replays >= 12


def test_statistics_of_a_batch_norm(fake: Setup) -> None:
    mine, theirs = nn.BatchNorm1d(5), nn.BatchNorm1d(5)
    fast = fake.compile(mine)
    with torch.no_grad():
        for call in range(6):
            x = torch.randn(7, 5)
            same(fast(x), theirs(x))
            assert (
                torch.allclose(mine.running_var, theirs.running_var) and mine.num_batches_tracked == call + 1
            )
            assert mine.running_mean._version == theirs.running_mean._version
    assert fake.replays == 5


def test_random_numbers_are_eagers(fake: Setup) -> None:
    def noisy(x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5) + torch.rand_like(x)

    fast = fake.compile(noisy)
    x = torch.randn(40)
    torch.manual_seed(3)
    expected = [noisy(x) for _ in range(6)]
    torch.manual_seed(3)
    for y in expected:
        same(fast(x), y)
    assert fake.replays == 5
    torch.manual_seed(3)
    same(fast(x), expected[0])


def test_sizes_and_numbers(fake: Setup) -> None:
    def f(x: Tensor, k: float) -> Tensor:
        return x.relu() * k

    fast = fake.compile(f, dynamic=True)
    for call in range(40):
        x, k = torch.randn(2 + call % 3, 4), 0.5 + call % 2
        same(fast(x, k), f(x, k))
    assert fake.replays > 15
    before = fake.captures
    for call in range(40):
        same(fast(x, float(call)), f(x, float(call)))
    assert fake.captures - before <= 2


def test_a_program_keeps_few_graphs_and_captures_that_pay(fake: Setup) -> None:
    fast = fake.compile(lambda x: x.add_(1))
    xs = [torch.zeros(3) for _ in range(KEPT + 1)]
    for _ in range(10):
        for x in xs:
            fast(x)
            fast(x)
    assert all(torch.equal(x, torch.full((3,), 20.0)) for x in xs)
    assert len(fake.device.graphs) <= KEPT
    assert fake.captures <= FREE_CAPTURES + fake.replays // 16 + 1


def test_gradients(fake: Setup) -> None:
    model = nn.Linear(4, 3)
    fast = fake.compile(lambda x: model(x).tanh())
    for _ in range(4):
        x = torch.randn(5, 4, requires_grad=True)
        got = fast(x)
        (grad,) = torch.autograd.grad(got.sum(), x)
        (expected,) = torch.autograd.grad(model(x).tanh().sum(), x)
        assert torch.allclose(grad, expected, atol=1e-6)
    detached = fake.compile(lambda x: x.detach() * 2)
    for _ in range(4):
        x = torch.randn(3, requires_grad=True)
        same(detached(x), x.detach() * 2)


@pytest.mark.parametrize("other", [torch.no_grad, torch.inference_mode])
def test_graphs_serve_all_modes(fake: Setup, other: Any) -> None:
    def f(x: Tensor, c: Tensor) -> Any:
        c.add_(1)
        return x + c, x[1:]

    fast = fake.compile(f)
    with other():
        c = torch.zeros(3)
        for _ in range(4):
            x, mine = torch.randn(3), c.clone()
            for got, expected in zip(fast(x, c), f(x, mine), strict=True):
                same(got, expected)
            assert torch.equal(c, mine)
    with torch.no_grad():
        c = torch.zeros(3)
        for _ in range(4):
            x, mine = torch.randn(3), c.clone()
            for got, expected in zip(fast(x, c), f(x, mine), strict=True):
                same(got, expected)
            assert torch.equal(c, mine)


def test_somebody_else_captures(fake: Setup) -> None:
    fast = fake.compile(scaled)
    x = torch.randn(3)
    for _ in range(3):
        fast(x)
    before = list(fake.device.log)
    fake.device.capturing = True
    same(fast(x), scaled(x))
    assert fake.device.log == before
    fake.device.capturing = False
    fast(x)
    assert fake.replays == 3


def test_streams_wait_for_each_other(fake: Setup) -> None:
    fast, other = fake.compile(scaled), fake.compile(lambda x: x * 5)
    x = torch.randn(3)
    for _ in range(3):
        fast(x)
        other(x)
    fake.device.log.clear()
    fast(x)
    with fake.device.on_stream(7):
        other(x)
        fast(x)
    fast(x)
    assert fake.device.log == [
        ("replay", 0),
        ("wait", 7, 0),
        ("replay", 7),
        ("replay", 7),
        ("wait", 0, 7),
        ("replay", 0),
    ]


def test_captures_wait_for_replays(fake: Setup) -> None:
    fast, other = fake.compile(scaled), fake.compile(lambda x: x * 5)
    x = torch.randn(3)
    for _ in range(2):
        fast(x)
    other(x)
    fake.device.log.clear()
    with fake.device.on_stream(7):
        other(x)
    assert fake.device.log == [("wait", 7, 0), ("capture", 7), ("replay", 7)]


def test_threads(fake: Setup) -> None:
    fast = fake.compile(lambda x: (x * 2).cumsum(0))
    wrong: list[int] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with fake.device.on_stream(seed):
            for step in range(100):
                x = torch.randn(50, generator=generator)
                if not torch.equal(fast(x), (x * 2).cumsum(0)):
                    wrong.append(step)

    fast(torch.randn(50))
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and fake.replays > 390


def test_a_thread_runs_a_program_before_it_captures_it(fake: Setup) -> None:
    """Whatever ended threads did: the system gives their numbers to later ones."""
    fast = fake.compile(scaled)
    x = torch.zeros(3)
    for calls in (1, 1, 1, 2):
        thread = threading.Thread(target=lambda calls=calls: [fast(x) for _ in range(calls)])
        thread.start()
        thread.join()
        assert fake.captures == calls - 1


def test_memory_for_the_results_is_out(fake: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written has a new version all the same."""

    def step(cache: Tensor) -> Tensor:
        cache.add_(1)
        return cache * 2

    fast = fake.compile(step)
    cache = torch.zeros(3)
    for _ in range(3):
        fast(cache)

    def out_of_memory(sources: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(cuda_graphs, "_copies", out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            fast(cache)
    assert cache.tolist() == [4, 4, 4] and cache._version == 4
    assert fast(cache).tolist() == [10, 10, 10] and cache._version == 5
    assert fake.replays == 4


def test_a_capture_that_fails(fake: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    def f(c: Tensor) -> Tensor:
        c.add_(1)
        return c * 2

    fake.device.fails = RuntimeError("operation not permitted when stream is capturing")
    with lampwork.config.using(logs="program"):
        fast = fake.compile(f)
        c = torch.zeros(3)
        for call in range(5):
            mine = c.clone()
            same(fast(c), f(mine))
            assert torch.equal(c, mine) and c._version == call + 1
        told = [line for line in capsys.readouterr().err.splitlines() if "LW421" in line]
    assert fake.captures == 1 and fake.replays == 0 and len(told) == 1
    assert "operation not permitted" in told[0]
    assert isinstance(fake.made[0].failure, GraphCaptureError)


def test_an_interrupted_capture(fake: Setup) -> None:
    fast = fake.compile(scaled)
    x = torch.randn(3)
    fast(x)
    fake.device.fails = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        fast(x)
    fake.device.fails = None
    same(fast(x), scaled(x))
    assert fake.replays == 1


def test_a_call_that_fails(fake: Setup) -> None:
    def look_up(x: Tensor, i: Tensor) -> Tensor:
        return x[i] * 2

    fast = fake.compile(look_up)
    x, i = torch.randn(5), torch.tensor([1, 4])
    for _ in range(3):
        same(fast(x, i), look_up(x, i))
    with pytest.raises(IndexError):
        fast(x, torch.tensor([1, 5]))
    same(fast(x, i), look_up(x, i))


WAITING = {
    "a number": lambda x: x * x.sum().item(),
    "places": lambda x: x.nonzero() * 2,
    "a mask": lambda x: torch.masked_select(x, x > 0) + 1,
}


@pytest.mark.parametrize("what", WAITING)
def test_operators_that_wait_for_the_device(fake: Setup, what: str) -> None:
    fast = fake.compile(WAITING[what])
    for _ in range(4):
        x = torch.randn(5)
        same(fast(x), WAITING[what](x))


def test_devices_of_programs(kernels: Any) -> None:
    from runtime_programs import lerp_program

    program = lerp_program(kernels, torch.randn(3))
    assert why_not(program, CPU) is None
    assert why_not(program, torch.device("cuda", 0)) == "a part of it is on the CPU"
    assert program.device is None  # so nothing of the CPU is captured
    assert cuda_graphs.graphed("as it was", program, None) == "as it was"  # type: ignore[arg-type]


def test_memory_goes_with_the_function(fake: Setup) -> None:
    fast = fake.compile(scaled)
    for _ in range(3):
        fast(torch.randn(3))
    assert len(fake.device.graphs) == len(fake.device.memories) == 1
    fake.made.clear()
    fake.pool = Pool(fake.device)
    del fast
    lampwork.reset_stats()
    gc.collect()
    assert len(fake.device.graphs) == len(fake.device.memories) == 0


def test_programs_at_random(fake: Setup) -> None:
    """Calls at random of a function that writes, draws, and gives views; its inputs wander and are kept."""

    def f(x: Tensor, c: Tensor, w: Tensor) -> Any:
        y = x @ w
        c.mul_(0.5).add_(y.mean(0))
        return y, y[:, 1:], c, c + torch.rand(3), x[:1], w.relu()

    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    choose = random.Random(seed)
    fast = fake.compile(f)
    weights = [torch.randn(4, 3) for _ in range(2)]
    caches = [torch.randn(3) for _ in range(3)]
    inputs = [torch.randn(5, 4) for _ in range(3)]
    kept: list[tuple[Any, Any]] = []
    for step in range(150):
        x = choose.choice(inputs) if choose.random() < 0.7 else torch.randn(5, 4)
        c, w = choose.choice(caches[: 1 + step // 50]), choose.choice(weights[: 1 + step // 75])
        mine = c.clone()
        state = torch.get_rng_state()
        expected = f(x, mine, w)
        torch.set_rng_state(state)
        got = fast(x, c, w)
        for place, (a, b) in enumerate(zip(got, expected, strict=True)):
            assert torch.allclose(a, b, atol=1e-5), (step, place)
        assert torch.allclose(c, mine, atol=1e-6)
        kept = [*kept[-5:], (got[0], expected[0])]
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in kept)
    assert fake.replays > 60


class StubTorch:
    """What `Cuda` calls of torch, noted in `log`; `fails`: what a step of a capture raises; `began`: where the
    generator stood that each capture took; `pending`: errors that wait for whoever launches next."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.began: list[int] = []
        self.pending = 0
        self.default_generators = [StubGenerator(StubState(8))]
        self._C = self.cuda = self

    def __getattr__(self, name: str) -> Any:
        def note(*args: Any, **keywords: Any) -> None:
            self.log.append(name)
            if name == "capture_begin":
                state = self.default_generators[0].state
                self.began.append(state.offset)
                state.waits = True
            if name in self.fails:
                raise self.fails.pop(name)

        return note

    def zeros(self, *args: Any, **keywords: Any) -> None:
        if self.pending:
            self.pending -= 1
            raise RuntimeError("operation not permitted when stream is capturing")

    def current_stream(self, index: int) -> Any:
        return self

    def Stream(self, index: int) -> Any:  # noqa: N802
        return self

    def CUDAGraph(self) -> Any:  # noqa: N802
        return self

    @contextlib.contextmanager
    def stream(self, side: Any) -> Any:
        self.log.append("stream")
        yield
        self.log.append("stream ends")


def stubbed(monkeypatch: pytest.MonkeyPatch) -> tuple[Cuda, StubTorch]:
    stub = StubTorch()
    monkeypatch.setattr(Cuda, "_torch", stub)
    monkeypatch.setattr(pristine, "zeros", stub.zeros)
    return Cuda(0), stub


class StubState:
    def __init__(self, offset: int) -> None:
        self.offset, self.waits = offset, False


class StubGenerator:
    """Of the device, or a copy of its state; `begin` is what a capture does to it, which never ends."""

    def __init__(self, state: StubState) -> None:
        self.state = state

    def get_offset(self) -> int:
        return self.state.offset

    def set_offset(self, offset: int) -> None:
        assert not self.state.waits
        self.state.offset = offset

    def clone_state(self) -> StubGenerator:
        return StubGenerator(StubState(self.state.offset))

    def graphsafe_get_state(self) -> StubGenerator:
        return StubGenerator(self.state)

    def graphsafe_set_state(self, other: StubGenerator) -> None:
        self.state = other.state


@pytest.mark.parametrize("recorded", [None, 0, 1])
@pytest.mark.parametrize("current", [0, 1])
def test_who_captures_a_device(monkeypatch: pytest.MonkeyPatch, recorded: int | None, current: int) -> None:
    """Somebody who records its stream may have made another device the current one."""
    now = [current]

    @contextlib.contextmanager
    def device(index: int) -> Any:
        now[0], before = index, now[0]
        yield
        now[0] = before

    stub = SimpleNamespace(
        cuda=SimpleNamespace(device=device),
        _C=SimpleNamespace(
            _cuda_getDevice=lambda: now[0], _cuda_isCurrentStreamCapturing=lambda: now[0] == recorded
        ),
    )
    monkeypatch.setattr(Cuda, "_torch", stub)
    assert Cuda(1).is_capturing() == (recorded in (1, current)) and now == [current]


BEGINS = ["wait_stream", "stream", "_cuda_clearCublasWorkspaces", "capture_begin"]
RELEASED = ["_cuda_clearCublasWorkspaces", "reset", "_cuda_endAllocateToPool", "_cuda_releasePool"]
MEMORY = SimpleNamespace(id=(0, 1))


def test_order_of_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    device, stub = stubbed(monkeypatch)
    made = device.capture(
        MEMORY, lambda: stub.log.append("prepare"), lambda given: stub.log.append("run") or [], draws=True
    )
    assert made == (stub, None, []) and stub.began == [8]
    ends = ["prepare", "run", "capture_end", "stream ends", "wait_stream", "_cuda_clearCublasWorkspaces"]
    assert stub.log == [*BEGINS, *ends]


def test_what_draws_nothing_leaves_the_generator_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    device, stub = stubbed(monkeypatch)
    generator = stub.default_generators[0]
    state = generator.state
    device.capture(MEMORY, lambda: None, lambda given: [], draws=False)
    assert stub.began == [8 + FAR] and generator.state is state and not state.waits
    for step in ("capture_begin", "capture_end"):
        stub.fails[step] = RuntimeError("previous error during capture")
        with pytest.raises(RuntimeError, match="previous error"):
            device.capture(MEMORY, lambda: None, lambda given: [], draws=False)
        assert generator.state is state and not state.waits and device.epoch == 0


def divides(given: None) -> list[Tensor]:
    raise ZeroDivisionError


@pytest.mark.parametrize("step", ["capture_begin", "capture_end"])
def test_a_capture_that_torch_cannot_end(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    device, stub = stubbed(monkeypatch)
    generator = stub.default_generators[0]
    stub.fails = {step: RuntimeError("previous error during capture")}
    stub.pending = 1
    with pytest.raises(RuntimeError, match="previous error"):
        device.capture(MEMORY, lambda: None, lambda given: [], draws=True)
    assert stub.log == [*BEGINS, "capture_end", *RELEASED]
    assert (generator.state.waits, generator.get_offset(), device.epoch, stub.pending) == (False, 8, 1, 0)
    stub.log.clear()
    stub.fails = {"capture_end": RuntimeError("previous error during capture")}
    with pytest.raises(ZeroDivisionError):
        device.capture(MEMORY, lambda: None, divides, draws=True)
    assert stub.log == [*BEGINS, "capture_end", *RELEASED] and device.epoch == 2


def test_which_programs_draw() -> None:
    def program(*ops: str) -> Any:
        return SimpleNamespace(instructions=[CallAten(op, ()) for op in ops])

    assert not cuda_graphs.draws(program("aten::mm.default", "aten::add.Tensor"))
    assert cuda_graphs.draws(program("aten::mm.default", "aten::bernoulli.p"))
    assert cuda_graphs.draws(program("aten::native_dropout.default"))
    assert cuda_graphs.draws(program("lampwork::philox_state.default"))
    assert cuda_graphs.draws(program("mine::noise.default"))
