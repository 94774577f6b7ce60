"""Kernels that the block which comes last finishes: results of many sizes, on several streams at once, in graphs, and
bit for bit the same from run to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gpu
import lampwork

gpu.require()

on_gpu = pytest.mark.skipif(not gpu.ON_GPU, reason="no CUDA device")
HALVES = [torch.bfloat16, torch.float16]
LARGE = 1 if gpu.ON_GPU else 16  # what sizes are divided by


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=gpu.DEVICE).to(dtype)


def labels(x: Tensor) -> Tensor:
    found = torch.randint(0, x.shape[1], x.shape[:1], device=x.device)
    found[::7] = -100
    return found


def loss(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x, y)


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(-1), x.var(-1)


def total(x: Tensor) -> Tensor:
    return x.sum()


def lines(x: Tensor) -> Tensor:
    return x.sum(0)


def rows(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sum(-1), x.amax(-1)


Function = Callable[..., Any]


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize(
    "shape", [(1 << 20,), (3_000_000,), (123_457,), (2048, 2048), (7, 65536), (1, 1 << 20), (1, 999_424)]
)
def test_sums_of_all(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = numbers(*shape, dtype=dtype)
    gpu.assert_near(total, lampwork.compile(total)(x), (x,))
    largest: Function = lambda x: (x.amax(), x.mean(), x.amin())  # noqa: E731
    gpu.assert_near(largest, lampwork.compile(largest)(x), (x,))


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize(
    "shape", [(65536, 64), (262144, 16), (16384, 1024), (4096, 4096), (5000, 96), (99999, 3)]
)
def test_sums_of_columns(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = numbers(*shape, dtype=dtype)
    gpu.assert_near(lines, lampwork.compile(lines)(x), (x,))


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize(
    "shape", [(64, 262144), (2, 65536), (90, 32768), (16, 100_000), (3, 131_071), (60, 16384)]
)
def test_long_rows(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = numbers(*shape, dtype=dtype)
    for fn in (rows, moments):
        gpu.assert_near(fn, lampwork.compile(fn)(x), (x,))


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize(
    "shape",
    [(4096, 4096), (16384, 1024), (262144, 64), (64, 262144), (1000, 1000), (65536, 8), (4099, 257), (3, 10),
     (300, 50257), (1, 32768)],
)  # fmt: skip
def test_losses(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = numbers(shape[0], shape[1], dtype=dtype)
    given = x * 3, labels(x)
    gpu.assert_near(loss, lampwork.compile(loss)(*given), given)
    smooth: Function = lambda x, y: F.cross_entropy(x, y, reduction="sum", label_smoothing=0.1)  # noqa: E731
    gpu.assert_near(smooth, lampwork.compile(smooth)(*given), given)


def test_losses_with_gradients() -> None:
    x = numbers(2048, 512).requires_grad_()
    y = labels(x)

    def gradient(x: Tensor, y: Tensor) -> Tensor:
        return torch.autograd.grad(F.cross_entropy(x, y), x)[0]

    gpu.assert_near(gradient, lampwork.compile(gradient)(x, y), (x, y))


def test_rows_that_are_nothing_or_infinite() -> None:
    x = numbers(64, 32768)
    x[0], x[1, 5], x[2, 9], x[3, :16384] = -torch.inf, torch.nan, torch.inf, -torch.inf
    fn: Function = lambda x: (x.logsumexp(-1), x.amax(-1), x.mean(-1))  # noqa: E731
    torch.testing.assert_close(lampwork.compile(fn)(x), fn(x), equal_nan=True)
    y = torch.zeros(64, dtype=torch.int64, device=gpu.DEVICE)
    torch.testing.assert_close(lampwork.compile(loss)(x[4:], y[4:]), loss(x[4:], y[4:]))


def cases() -> dict[str, tuple[Function, tuple[Tensor, ...]]]:
    short, long = numbers(65536 // LARGE, 64, dtype=torch.bfloat16), numbers(64, 65536 // LARGE)
    return {
        "total": (total, (numbers((1 << 22) // LARGE),)),
        "columns": (lines, (numbers(65536 // LARGE, 64),)),
        "moments": (moments, (long,)),
        "losses": (loss, (short, labels(short))),
        "losses of long rows": (loss, (long, labels(long))),
    }


NAMES = ["total", "columns", "moments", "losses", "losses of long rows"]


def flat(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)


@pytest.mark.parametrize("name", NAMES)
def test_every_run_gives_the_same_bits(name: str) -> None:
    fn, args = cases()[name]
    compiled = lampwork.compile(fn)
    first = flat(compiled(*args))
    differ = torch.zeros((), dtype=torch.bool, device=gpu.DEVICE)
    for _ in range(200 if gpu.ON_GPU else 3):
        for one, other in zip(first, flat(compiled(*args)), strict=True):
            differ |= (one != other).any()
    assert not differ.item()


@on_gpu
@pytest.mark.parametrize("name", NAMES)
def test_two_streams_at_once(name: str) -> None:
    """Each counts on its own."""
    fn, args = cases()[name]
    others = tuple(x.flip(0).contiguous() for x in args)
    compiled = lampwork.compile(fn)
    wants = flat(compiled(*args)), flat(compiled(*others))
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    found: list[tuple[list[Tensor], list[Tensor]]] = []
    for _ in range(100):
        for stream, given, want in zip(streams, (args, others), wants, strict=True):
            with torch.cuda.stream(stream):
                found.append((flat(compiled(*given)), want))
    torch.cuda.synchronize()
    for got, want in found:
        for one, other in zip(got, want, strict=True):
            assert torch.equal(one, other)


@on_gpu
@pytest.mark.parametrize("name", NAMES)
def test_captured_and_replayed_on_two_streams(name: str) -> None:
    fn, args = cases()[name]
    given = [tuple(x.clone() for x in args), tuple(x.flip(0).contiguous() for x in args)]
    compiled = lampwork.compile(fn)
    wants = [flat(compiled(*each)) for each in given]
    torch.cuda.synchronize()
    graphs: list[tuple[torch.cuda.CUDAGraph, list[Tensor]]] = []
    for each in given:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = flat(compiled(*each))
        graphs.append((graph, results))
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(50):
        for stream, (graph, _) in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        compiled(*args)  # and a third one beside them
    torch.cuda.synchronize()
    for (_, results), want in zip(graphs, wants, strict=True):
        for one, other in zip(results, want, strict=True):
            assert torch.equal(one, other)
