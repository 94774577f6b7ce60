"""Any number of threads computes the same bits: every template and loops, of random shapes, with work for a thread in
each item."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from same import assert_same, flatten
from scalar_target import native_on
from torch import Tensor, nn

import lampwork
from lampwork.backends.native.compile import Artifacts, compile_program
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.graph.record import Recorder
from lampwork.runtime import Executable
from lampwork.runtime.program import CallKernel, Program

COUNT = int(os.environ.get("LAMPWORK_FUZZ", "4"))
THREADS = (1, 2, 3, 8)
EAGER = replace(host_isa(""), kernel_work=1, thread_work=1, pack_work=1)

Case = tuple[Callable[..., Any], tuple[Tensor, ...]]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def linear(pick: random.Random) -> Case:
    rows, depth, width = pick.choice([1, 2, 5, 17, 33, 130, 300]), pick.randint(1, 300), pick.randint(1, 400)
    layer = nn.Linear(depth, width, bias=pick.random() < 0.5).eval()
    return nn.Sequential(layer, pick.choice([nn.ReLU(), nn.GELU()])), (torch.randn(rows, depth),)


def product(pick: random.Random) -> Case:
    batch, m, k, n = pick.randint(1, 5), pick.randint(1, 70), pick.randint(1, 200), pick.randint(1, 130)
    a, b = torch.randn(batch, m, k), torch.randn(batch, k, n)
    return torch.matmul, (a, b.mT.contiguous().mT if pick.random() < 0.5 else b)


def convolution(pick: random.Random) -> Case:
    taps, stride = pick.choice([1, 3, 5]), pick.choice([1, 2])
    given, made = pick.choice([3, 16, 33, 64]), pick.choice([7, 32, 100])
    layer = nn.Conv2d(given, made, taps, stride, padding=taps // 2).eval()
    return layer, (torch.randn(pick.randint(1, 3), given, pick.randint(5, 30), pick.randint(5, 30)),)


def depthwise(pick: random.Random) -> Case:
    channels, taps = pick.choice([5, 32, 100]), pick.choice([3, 5])
    layer = nn.Conv2d(channels, channels, taps, pick.choice([1, 2]), taps // 2, groups=channels).eval()
    return layer, (torch.randn(pick.randint(1, 3), channels, pick.randint(5, 30), pick.randint(5, 30)),)


def attention(pick: random.Random) -> Case:
    heads, queries, keys = pick.randint(1, 4), pick.choice([1, 3, 100, 257]), pick.choice([100, 300, 2100])
    depth, causal = pick.choice([8, 33, 64]), pick.random() < 0.3
    shapes = ((1, heads, queries, depth), (1, heads, keys, depth), (1, heads, keys, depth))
    return lambda *x: F.scaled_dot_product_attention(*x, is_causal=causal), tuple(map(torch.randn, shapes))


def recurrent(pick: random.Random) -> Case:
    kind, units = pick.choice([nn.LSTM, nn.GRU, nn.RNN]), pick.choice([5, 32, 70, 128])
    net = kind(units, units, bidirectional=pick.random() < 0.5, batch_first=True).eval()
    return net, (torch.randn(pick.choice([1, 2, 3, 9]), pick.randint(1, 9), units),)


def reduction(pick: random.Random) -> Case:
    x, dim = torch.randn(pick.randint(1, 90), pick.randint(1, 3000)), pick.choice([0, 1, (0, 1)])
    return lambda x: (x.sum(dim), x.amax(dim), x.softmax(-1), x.cumsum(-1)), (x,)


def pointwise(pick: random.Random) -> Case:
    x = torch.randn(pick.randint(1, 90), pick.randint(1, 900))
    x[0, : x.shape[1] // 2] = -0.0
    return lambda x, y: (F.mish(x) * y, (x + y.exp()).T.contiguous()), (x, torch.randn(x.shape[1]))


@pytest.mark.parametrize("seed", range(COUNT))
@pytest.mark.parametrize(
    "draw",
    [linear, product, convolution, depthwise, attention, recurrent, reduction, pointwise],
    ids=lambda draw: draw.__name__,
)
def test_numbers_of_threads(draw: Callable[[random.Random], Case], seed: int) -> None:
    torch.manual_seed(seed)
    fn, inputs = draw(random.Random(seed))
    found: list[list[Tensor]] = []
    with native_on(EAGER), torch.no_grad():
        ours = lampwork.compile(fn, options={"strict": True})
        for threads in THREADS:
            torch.set_num_threads(threads)
            # Threads of a short call sleep in the first of these.
            found += [[each.clone() for each in flatten(ours(*inputs))] for _ in range(2)]
        assert_same(fn, ours(*inputs), *inputs)
    for results in found[1:]:
        for one, other in zip(found[0], results, strict=True):
            assert torch.equal(one.view(torch.int32), other.view(torch.int32))


@pytest.mark.parametrize(
    ("side", "channels", "groups"),
    [
        (28, 32, 1),  # two blocks of rows, of one size
        (28, 32, 32),
        (14, 128, 1),  # one block is two
        (56, 16, 1),  # seven are eight
    ],
)
def test_half_of_the_items_of_a_convolution_is_half_of_its_work(
    side: int, channels: int, groups: int
) -> None:
    layer = nn.Conv2d(channels, 32, 3, padding=1, groups=groups).eval()
    x = torch.randn(1, side, side, channels).permute(0, 3, 1, 2)
    with torch.no_grad(), Recorder() as recorder:
        given = recorder.input(x, "x")
        weight, bias = (recorder.input(each, name, bound=True) for name, each in layer.named_parameters())
        recorded = recorder.finish([F.conv2d(given, weight, bias, 1, 1, 1, groups)])
    program = compile_program(recorded.graph, recorded.mutations, host_isa(""), Artifacts())
    assert isinstance(program, Program)
    (call,) = (each for each in program.instructions if isinstance(each, CallKernel))
    half = replace(call, extent=call.extent // 2)
    instructions = tuple(half if each is call else each for each in program.instructions)
    bound = [each.tensor for each in recorded.bound]
    with torch.no_grad():
        run = Executable(replace(program, instructions=instructions), bound)
        wanted, got = layer(x), run.run([x])[0]
    done = ((got - wanted).abs() < 1e-4).all(1)
    rest = 32  # pixels: the tiles that no item divides
    assert call.extent % 2 == 0 and abs(int(done.sum()) - side**2 // 2) < rest
