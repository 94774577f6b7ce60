"""CUDA graphs on a CUDA device: torch's captures with functions of eager PyTorch in the place of programs, and whole
compiled functions. `pytest -s` prints times."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lampwork
from lampwork.runtime.cuda_device import Cuda
from lampwork.runtime.cuda_graphs import Graphed, Pool
from lampwork.runtime.program import CallAten, Ref, Value

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Eager:
    """What `Graphed` asks of an executable, with a function in the place of a program."""

    def __init__(self, function: Callable[..., Sequence[Tensor]], bound: tuple[Tensor, ...] = ()) -> None:
        self.function, self.bound, self.stats = function, bound, {}

    def generation(self) -> int:
        return 1

    def run(self, given: Sequence[Tensor], scalars: tuple[int, ...] = ()) -> list[Tensor]:
        with torch.no_grad():
            return list(self.function(*given, *self.bound))


@pytest.fixture
def pool() -> Pool:
    return Pool(Cuda(torch.cuda.current_device()))


def graphed(
    pool: Pool,
    function: Any,
    n_inputs: int,
    bound: tuple[Tensor, ...] = (),
    writes: tuple[int, ...] = (),
    *,
    draws: bool = False,
) -> Any:
    values = tuple(Value("input", position=i) for i in range(n_inputs))
    region = SimpleNamespace(
        mutations=tuple((number, 99) for number in writes),
        apart=(),
        fresh_versions=(),
        state=None,
        recipe=None,
    )
    reads = CallAten("aten::cat.default", tuple(map(Ref, range(n_inputs))))
    calls = (reads, CallAten("aten::rand_like.default", (Ref(0),))) if draws else (reads,)
    program: Any = SimpleNamespace(values=values, n_inputs=n_inputs, instructions=calls, outputs=())
    return Graphed(Eager(function, bound), program, region, pool)  # type: ignore[arg-type]


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda")


def block(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = x
    for _ in range(10):
        y = torch.relu(y @ w) + x
    return y, y[1:]


def test_results(pool: Pool) -> None:
    w = randn(64, 64) / 8
    fast = graphed(pool, block, 1, (w,))
    kept = []
    for _ in range(10):
        x = randn(16, 64)
        got, part = fast([x])
        kept.append((got, part, block(x, w)[0]))
    for got, part, expected in kept:
        torch.testing.assert_close(got, expected)
        assert torch.equal(part, got[1:]) and part.data_ptr() == got[1:].data_ptr()
    assert fast.captures == 1 and fast.replays == 9 and fast.failure is None


def test_random_numbers_are_eagers(pool: Pool) -> None:
    def noisy(x: Tensor) -> list[Tensor]:
        return [nn.functional.dropout(x, 0.3), torch.rand_like(x), torch.randn_like(x)]

    fast = graphed(pool, noisy, 1, draws=True)
    x = randn(1000)
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        expected = [noisy(x) for _ in range(4)]
        state = torch.cuda.get_rng_state()
        torch.manual_seed(seed)
        for each in expected:
            assert all(torch.equal(a, b) for a, b in zip(fast([x]), each, strict=True))
        assert torch.equal(torch.cuda.get_rng_state(), state)
    assert fast.replays == 11


def test_written_inputs(pool: Pool) -> None:
    def step(cache: Tensor, x: Tensor) -> list[Tensor]:
        cache.add_(x)
        return [cache * 2]

    fast = graphed(pool, step, 2, writes=(0,))
    cache, mine = torch.zeros(100, device="cuda"), torch.zeros(100, device="cuda")
    for call in range(6):
        x = randn(100)
        assert torch.equal(fast([cache, x])[0], step(mine, x)[0])
        assert torch.equal(cache, mine) and cache._version == call + 1
    assert fast.replays == 5


@pytest.mark.parametrize("draws", [False, True])
def test_a_capture_that_fails(pool: Pool, draws: bool) -> None:
    w = randn(64, 64) / 8
    early = graphed(pool, block, 1, (w,))
    waits = graphed(pool, lambda x: [x * x.sum().item(), x.nonzero()], 1, draws=draws)
    fine = graphed(pool, block, 1, (w,))
    for _ in range(3):
        early([randn(8, 64)])
    for _ in range(4):
        x = randn(64)
        torch.testing.assert_close(waits([x])[0], x * x.sum())
        x = randn(8, 64)
        for each in (fine, early):
            torch.testing.assert_close(each([x])[0], block(x, w)[0])
    assert waits.failure is not None and waits.captures == 1
    assert fine.failure is None, fine.failure
    assert fine.replays >= 2 and early.replays >= 4
    # Torch's generator is not left in the midst of the capture that failed, nor its allocator of pinned memory.
    torch.manual_seed(5)
    expected = torch.rand(8, device="cuda")
    torch.manual_seed(5)
    assert torch.equal(torch.rand(8, device="cuda"), expected)
    noisy = graphed(pool, lambda x: [x + torch.rand_like(x)], 1, draws=True)
    for _ in range(3):
        noisy([x])
    assert noisy.failure is None, noisy.failure
    assert noisy.replays == 2
    pinned = torch.ones(1 << 20).pin_memory()
    assert torch.equal(pinned.cuda(non_blocking=True).cpu(), pinned)
    torch.cuda.synchronize()
    del fine, early, noisy, waits, each, pool
    gc.collect()


def test_streams_and_threads(pool: Pool) -> None:
    w = randn(64, 64) / 8
    fast, other = graphed(pool, block, 1, (w,)), graphed(pool, lambda x: [(x @ w).softmax(1)], 1)
    x = randn(32, 64)
    for _ in range(3):
        fast([x.clone()])
        other([x.clone()])
    wrong: list[int] = []
    inputs = [randn(32, 64) for _ in range(50)]  # what draws in the moment when a capture begins may raise
    torch.cuda.synchronize()

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for step, each in enumerate(inputs):
                mine = each.clone()
                same = torch.allclose(fast([mine])[0], block(mine, w)[0], atol=1e-4)
                same &= torch.allclose(other([mine])[0], (mine @ w).softmax(1), atol=1e-5)
                if not same:
                    wrong.append(step)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and (fast.failure, other.failure) == (None, None)
    assert fast.replays > 100


def test_inside_of_a_capture_of_the_users(pool: Pool) -> None:
    w = randn(64, 64) / 8
    fast = graphed(pool, block, 1, (w,))
    x = randn(16, 64)
    for _ in range(3):
        fast([x])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (got, _) = fast([x])
    x.copy_(randn(16, 64))
    graph.replay()
    torch.testing.assert_close(got, block(x, w)[0])
    assert fast.replays == 2


def test_memory_is_given_back() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    pool = Pool(Cuda(torch.cuda.current_device()))
    made = [graphed(pool, lambda x, k=k: [(x * k).exp() + 1], 1) for k in range(3)]
    for fast in made:
        for _ in range(3):
            fast([torch.ones(1 << 22, device="cuda")])
    shared = torch.cuda.memory_reserved() - before
    del made, fast, pool
    gc.collect()
    torch.cuda.empty_cache()
    print(f"\nthree graphs of 16 MB arrays: {shared >> 20} MB")
    assert torch.cuda.memory_reserved() <= before


def microseconds(call: Callable[[], Any], calls: int = 200) -> tuple[float, float]:
    """(of the host until the call returns, of all together)."""
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    host = time.perf_counter() - start
    torch.cuda.synchronize()
    return 1e6 * host / calls, 1e6 * (time.perf_counter() - start) / calls


def test_time_of_a_replay(pool: Pool) -> None:
    w = randn(64, 64) / 8
    fast = graphed(pool, block, 1, (w,))
    a, b = randn(16, 64), randn(16, 64)
    for x in (a, a, b, b):
        fast([x])
    host, total = microseconds(lambda: fast([a]))
    plain, all_plain = microseconds(lambda: block(a, w))
    print(
        f"\n30 operators: {host:.1f} us of the host, {total:.1f} in all; eager {plain:.1f}, {all_plain:.1f}"
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "layers": (
        lambda: nn.Sequential(
            *[nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU()) for _ in range(8)]
        ),
        lambda: randn(16, 256),
    ),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(128, 4, 256, batch_first=True),
        lambda: randn(2, 32, 128),
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU()
        ),
        lambda: randn(2, 3, 32, 32),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_compiled_functions(name: str) -> None:
    make, data = MODELS[name]
    torch.manual_seed(0)
    model = make().cuda().eval()
    fast, default = lampwork.compile(model, mode="reduce-overhead"), lampwork.compile(model)
    with torch.no_grad():
        kept = [(fast(x), model(x)) for x in (data() for _ in range(6))]
        for got, expected in kept:
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        (entry,) = fast.entries
        program = entry.served.program
        assert isinstance(program, Graphed), "not captured: see LAMPWORK_LOGS=program"
        assert program.failure is None and program.replays == 5, program.failure
        next(model.parameters()).mul_(1.5)
        for _ in range(3):
            x = data()
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
        x = data()
        rows = {"graphs": fast, "default": default, "eager": model}
        times = {label: microseconds(lambda call=call: call(x)) for label, call in rows.items()}
    print(f"\n{name}: " + ", ".join(f"{label} {h:.0f}/{t:.0f} us" for label, (h, t) in times.items()))
