"""Long rows, each held by a cluster of blocks on cards of compute capability 9.0 and later: against eager, and double
precision."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gpu
import lampwork
from lampwork.loops.ir.grid import Grid
from lampwork.loops.ir.nodes import Kernel
from lampwork.loops.schedule import clusters
from lampwork.loops.schedule import grid as grids
from lampwork.loops.schedule.clusters import cluster_grid, cluster_variants

gpu.require()

on_gpu = pytest.mark.skipif(not gpu.ON_GPU, reason="no CUDA device")
HAS_CLUSTERS = gpu.ON_GPU and torch.cuda.get_device_capability() >= (9, 0)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Made = list[Grid]


@contextmanager
def noted(change: Callable[[Grid], Grid] = lambda grid: grid) -> Generator[Made]:
    """The grids of kernels for clusters, of all rows that these can hold, that are compiled here, each changed."""
    made: Made = []
    pays = clusters.pays

    def grid_of(kernel: Kernel, rows: int) -> Grid:
        made.append(change(cluster_grid(kernel, rows)))
        return made[-1]

    grids.cluster_grid = grid_of
    clusters.pays = lambda kernel: True
    try:
        yield made
    finally:
        grids.cluster_grid = cluster_grid
        clusters.pays = pays


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Of a matrix, fewer rows where no card computes with it."""
    if len(shape) == 2 and not gpu.ON_GPU:
        shape = (min(shape[0], 3), shape[1])
    return torch.randn(shape, device=gpu.DEVICE).to(dtype)


def places(x: Tensor) -> Tensor:
    return torch.randint(0, x.shape[1], (x.shape[0],), device=gpu.DEVICE)


def check(fn: Callable[..., Any], *args: Any, always: bool = True, held: bool = True) -> Callable[..., Any]:
    """As near to double precision as eager, by a kernel for clusters, unless not `held`. `always`: for no values the
    CPU calls eager."""
    compiled = lampwork.compile(lambda *given: fn(*given))
    lampwork.reset_stats()
    with noted() as made:
        for _ in range(2):
            gpu.assert_near(fn, compiled(*gpu.cloned(args)), args)
    if always or gpu.ON_GPU:
        gpu.assert_compiled(compiled, 2)
    assert not held or bool(made) == HAS_CLUSTERS
    return compiled


def softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def log_softmax(x: Tensor) -> Tensor:
    return x.log_softmax(-1)


def layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],))


def rms_norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],))


def chain(x: Tensor) -> tuple[Tensor, Tensor]:
    h = x + x.relu()
    return h, F.layer_norm(F.silu(h), (x.shape[-1],)).abs()


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(-1), x.var(-1)


FUNCTIONS = (softmax, log_softmax, layer_norm, rms_norm, chain, moments)
LENGTHS = (32776, 40000, 65536, 100001, 131080, 262144)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_lengths(fn: Callable[..., Any], length: int) -> None:
    """Whole turns and parts of one, of each dtype, few rows and more."""
    place = FUNCTIONS.index(fn) + LENGTHS.index(length)
    check(fn, numbers((1, 3, 17, 64)[place % 4], length, dtype=DTYPES[place % 3]))


@pytest.mark.parametrize("rows", [1, 2, 16, 17, 99, 132, 200])
def test_rows(rows: int) -> None:
    check(softmax, numbers(rows, 50000))


def test_weights_and_cross_entropy() -> None:
    x, w, b = numbers(32, 70000, dtype=torch.bfloat16), numbers(70000), numbers(70000)
    check(lambda x, w, b: F.layer_norm(x.float(), (70000,), w, b).bfloat16(), x, w, b)
    labels = places(x)
    labels[1] = -100
    check(F.cross_entropy, x.float(), labels, held=False)
    check(lambda x, y: F.cross_entropy(x, y, reduction="none"), x, labels)


def test_buffers_that_are_not_aligned() -> None:
    for dtype in DTYPES:
        x = numbers(3 * 66000 + 1, dtype=dtype)[1:].view(3, 66000)
        check(softmax, x)
        compiled = lampwork.compile(layer_norm)
        gpu.assert_near(layer_norm, compiled(x), (x,))


def test_infinities_and_nan() -> None:
    x = torch.randn(6, 70000, device=gpu.DEVICE)
    x[0, :40000], x[1], x[2, 7], x[3, 69999] = -torch.inf, -torch.inf, torch.nan, torch.inf
    x[4] += 1000
    for fn in (softmax, log_softmax, layer_norm, moments):
        check(fn, x, always=False)


def test_every_run_gives_the_same() -> None:
    """No block reads what another has yet to send, and none goes on before all have read."""
    x = numbers(64, 262144)
    for fn in (softmax, layer_norm):
        compiled = lampwork.compile(fn)
        first = compiled(x)
        for _ in range(60):
            assert torch.equal(compiled(x), first)


def test_all_grids() -> None:
    """Other sizes of clusters and blocks, those of 16 blocks too."""
    x = numbers(40, 131072)

    def of(number: int, change: Callable[[Grid], Grid]) -> tuple[Tensor, Made]:
        # Equal graphs are compiled once for equal options.
        with lampwork.config.using(tuning_seconds=1000.0 + number), noted(change) as made:
            return lampwork.compile(lambda x: softmax(x))(x), made

    got, made = of(0, lambda grid: grid)
    torch.testing.assert_close(got, softmax(x))
    assert bool(made) == HAS_CLUSTERS
    for number, variant in enumerate(cluster_variants(made[0]) if made else ()):
        got, (other,) = of(
            1 + number, lambda grid, to=variant: replace(grid, threads=to.threads, cluster=to.cluster)
        )
        name = f"threads {other.threads}, clusters of {other.cluster}"
        assert other == variant
        torch.testing.assert_close(got, softmax(x), msg=lambda text, name=name: f"{name}: {text}")


@on_gpu
def test_measured() -> None:
    x = numbers(64, 65536, dtype=torch.bfloat16)
    compiled = lampwork.compile(lambda x: layer_norm(x), mode="max-autotune-no-cudagraphs")
    for _ in range(2):
        gpu.assert_near(layer_norm, compiled(x), (x,))


@on_gpu
def test_streams_and_threads() -> None:
    """Clusters of several launches at the same time."""
    compiled = lampwork.compile(lambda x: rms_norm(x))
    given = [numbers(20, 140000) for _ in range(3)]
    want = [compiled(x) for x in given]
    failures: list[int] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                if not torch.equal(compiled(given[number]), want[number]):
                    failures.append(number)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@on_gpu
def test_captured_by_a_cuda_graph() -> None:
    x = numbers(9, 70000)
    compiled = check(softmax, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compiled(x)
    for _ in range(3):
        x.copy_(numbers(9, 70000))
        graph.replay()
        torch.testing.assert_close(result, softmax(x))


@on_gpu
def test_mode_reduce_overhead() -> None:
    compiled = lampwork.compile(lambda x: layer_norm(x), mode="reduce-overhead")
    for _ in range(4):
        x = numbers(5, 50000)
        torch.testing.assert_close(compiled(x), layer_norm(x), rtol=1e-4, atol=1e-4)


def test_gradients() -> None:
    def step(x: Tensor, labels: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (F.cross_entropy(x, labels) + F.layer_norm(x, (x.shape[-1],)).pow(2).mean()).backward()
        assert x.grad is not None
        return x.grad

    x = numbers(8, 50000)
    labels = places(x)
    torch.testing.assert_close(lampwork.compile(step)(x, labels), step(x, labels), rtol=1e-4, atol=1e-6)
