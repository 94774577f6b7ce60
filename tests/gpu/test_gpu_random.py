"""Random numbers inside generated kernels: eager's bit for bit, and the generator as eager leaves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gpu
import lampwork
from lampwork.graph import card_trial
from lampwork.graph.canonical_on_cards import proposed

gpu.require()

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SIZES = (1, 2, 3, 4, 6, 8, 255, 256, 1000, 2**18, 270336, 2**20 + 3, 2**20 + 6, 2**20 + 4, 2**24)
on_gpu = pytest.mark.skipif(not gpu.ON_GPU, reason="only a CUDA device draws so")


def ones(*shape: int, dtype: torch.dtype = torch.float32, **options: Any) -> Tensor:
    return torch.ones(*shape, dtype=dtype, device=gpu.DEVICE, **options)


def is_arithmetic(compiled: Callable[..., Any]) -> bool:
    """Whether the version that was compiled last draws nothing by ATen."""
    return "philox_words" in compiled.stages.graph


def check(
    fn: Callable[..., Any], *args: Any, arithmetic: bool = True, exact: bool = True, calls: int = 3
) -> None:
    """Results and states are equal in each bit, for several seeds, and further on in a stream. exact: False where other
    operators are not: then what is dropped is the same."""
    compiled = lampwork.compile(fn, options={"strict": True})
    for seed in range(calls):
        found = []
        for each in (fn, compiled):
            torch.manual_seed(2**40 * seed + seed)
            torch.rand(1000 * seed + 1, device=gpu.DEVICE)
            with torch.no_grad():
                first = each(*gpu.cloned(args))
                found.append(([first, each(*gpu.cloned(args))], gpu.random_states()))
        (want, states), (got, others) = found
        for a, b in zip(_flat(want), _flat(got), strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
            if exact:
                assert torch.equal(a, b), f"{int((a != b).sum())} of {a.numel()} elements differ"
            else:
                assert torch.equal(a == 0, b == 0)
                torch.testing.assert_close(a, b)
        assert all(map(torch.equal, states, others))
    if gpu.ON_GPU:
        assert is_arithmetic(compiled) == arithmetic, compiled.stages.graph


def _flat(values: Any) -> list[Tensor]:
    return [values] if isinstance(values, Tensor) else [each for value in values for each in _flat(value)]


# --- what is taken for granted ----------------------------------------------------------------------------------------


@on_gpu
@pytest.mark.parametrize("family", ["dropout", "bernoulli", "uniform", "randint"])
def test_the_device_draws_as_is_said(family: str) -> None:
    torch.rand(1, device="cuda")
    dtypes = (
        (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8) if family == "randint" else FLOATS
    )
    said = {
        str(dtype): card_trial.agrees(torch.cuda.current_device(), family, dtype, proposed)
        for dtype in dtypes
    }
    assert all(said.values()), said


# --- operators --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_dropout(size: int, dtype: torch.dtype) -> None:
    check(lambda x: F.dropout(x * 2, 0.3) + 1, ones(size, dtype=dtype))


@pytest.mark.parametrize("p", [1e-6, 0.1, 0.15, 0.5, 0.9, 1 - 1e-6])
def test_probabilities(p: float) -> None:
    check(lambda x: (F.dropout(x * 2, p), torch.bernoulli(x, p)), torch.randn(1001, 64, device=gpu.DEVICE))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_filling(size: int, dtype: torch.dtype) -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.rand_like(x)
        return (
            y * 2,
            torch.bernoulli(x, 0.3),
            F.dropout(x + y, 0.5, inplace=True),
            torch.empty_like(x).uniform_(),
        )

    check(fn, ones(size, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8], ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_whole_numbers(size: int, dtype: torch.dtype) -> None:
    high = 200 if dtype is torch.uint8 else 30000

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return torch.randint(0, high, x.shape, device=x.device, dtype=dtype), torch.randint_like(x, 3, 9)

    check(fn, ones(size, dtype=dtype))


LAYOUTS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "turned": (lambda x: F.dropout((x * 2).t(), 0.3), (64, 48)),
    "turned, odd": (lambda x: F.dropout((x * 2).t(), 0.3), (63, 49)),
    "channels last": (lambda x: F.dropout((x * 2).permute(0, 3, 1, 2), 0.3), (2, 8, 8, 12)),
    "with gaps": (lambda x: F.dropout((x * 2)[:, 1:40], 0.3), (65, 48)),
    "expanded": (lambda x: F.dropout((x * 2)[:, :1].expand(65, 9), 0.3), (65, 48)),
    "behind the start": (lambda x: F.dropout((x * 2).view(-1)[2:-2], 0.3), (65, 48)),
    "rand of a turned one": (lambda x: torch.rand_like((x * 2).t()), (65, 48)),
    "rows that softmax made": (lambda x: F.dropout(x.softmax(-1), 0.1), (300, 77)),
    "behind a product": (lambda x: F.dropout(x @ x.t(), 0.1), (65, 48)),
    "behind relu in place": (lambda x: F.dropout((x * 2).relu_(), 0.1), (65, 48)),
    "whole channels": (lambda x: F.dropout2d((x * 2).view(5, 13, 6, 8), 0.4), (65, 48)),
    "empty": (lambda x: F.dropout(x[:0] * 2, 0.4) + torch.rand_like(x)[:0], (65, 48)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str) -> None:
    fn, shape = LAYOUTS[name]
    check(
        fn,
        torch.randn(shape, device=gpu.DEVICE),
        exact=name not in ("rows that softmax made", "behind a product"),
    )


@on_gpu
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_inputs_wherever_they_lie(dtype: torch.dtype) -> None:
    """How many elements a thread of eager's takes follows from the address: each gets a version."""
    compiled = lampwork.compile(lambda x: F.dropout(x, 0.3), options={"strict": True})
    memory = ones(5000, dtype=dtype)
    for start in (0, 1, 2, 3, 4, 8, 6, 0, 2, 1):
        x = memory[start : start + 4096]
        torch.manual_seed(start)
        want = F.dropout(x, 0.3)
        torch.manual_seed(start)
        assert torch.equal(compiled(x), want), start
    assert is_arithmetic(compiled)


def test_among_operators_of_aten() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        a = F.dropout(x * 2, 0.1)
        b = torch.randn_like(a)
        c = F.dropout(a + b, 0.2) * torch.rand_like(x)
        return (
            a,
            b,
            c,
            torch.randperm(9, device=x.device),
            torch.bernoulli(c.clamp(0, 1)),
            F.dropout(c.relu(), 0.3),
        )

    check(fn, ones(333, 64))


def test_many_in_a_row() -> None:
    def fn(x: Tensor) -> Tensor:
        for layer in range(12):
            x = F.dropout(x.relu() + layer, 0.1) - x
        return x

    check(fn, ones(1024, 768, dtype=torch.bfloat16))


def test_open_sizes_are_eagers() -> None:
    compiled = lampwork.compile(lambda x: F.dropout(x * 2, 0.3), dynamic=True)
    for rows in (5, 300, 7):
        x = ones(rows, 64)
        torch.manual_seed(rows)
        want = F.dropout(x * 2, 0.3), *gpu.random_states()
        torch.manual_seed(rows)
        assert all(map(torch.equal, (compiled(x), *gpu.random_states()), want))


def test_large() -> None:
    """Beyond 2**31 bytes ATen fills in pieces, and is called."""
    if gpu.ON_GPU and torch.cuda.mem_get_info()[0] > 40 << 30:
        check(
            lambda x: F.dropout(x * 2, 0.3), ones(2**28 + 2, dtype=torch.float64), arithmetic=False, calls=1
        )
        check(lambda x: F.dropout(x * 2, 0.3), ones(2**29 - 4), calls=1)


# --- the generator ----------------------------------------------------------------------------------------------------


@on_gpu
def test_state_of_the_generator() -> None:
    compiled = lampwork.compile(lambda x: F.dropout(x * 2, 0.5) * torch.rand_like(x))
    x = ones(3000)
    torch.manual_seed(3)
    first = compiled(x)
    state = torch.cuda.get_rng_state()
    second = compiled(x)
    torch.cuda.set_rng_state(state)
    assert torch.equal(second, compiled(x)) and not torch.equal(first, second)
    torch.cuda.set_rng_state(state)
    with torch.random.fork_rng(devices=[torch.cuda.current_device()]):
        torch.manual_seed(3)
        assert torch.equal(first, compiled(x))
    assert torch.equal(second, compiled(x))
    offset = torch.cuda.default_generators[torch.cuda.current_device()].get_offset()
    compiled(x)
    assert torch.cuda.default_generators[torch.cuda.current_device()].get_offset() == offset + 8


@on_gpu
def test_generators_of_the_caller() -> None:
    fn = lambda x, g: torch.rand(x.shape, device=x.device, generator=g) + F.dropout(x * 2, 0.5)  # noqa: E731
    compiled, x = lampwork.compile(fn, options={"strict": False}), ones(3000)
    found = []
    for each in (fn, compiled):
        torch.manual_seed(1)
        mine = torch.Generator("cuda").manual_seed(7)
        found.append((each(x, mine), each(x, mine), mine.get_state(), *gpu.random_states()))
    assert all(map(torch.equal, *found))


@on_gpu
@pytest.mark.parametrize("warm", [True, False])
def test_captured_by_the_caller(warm: bool) -> None:
    """Each replay draws on, as eager's does."""

    def fn(x: Tensor) -> Tensor:
        return F.dropout(x * 2, 0.3) + torch.rand_like(x) + F.dropout(x.abs(), 0.5)

    x, found = ones(5000), []
    compiled = lampwork.compile(fn, options={"strict": True})
    compiled(x)
    for each in (fn, compiled):
        torch.manual_seed(5)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            if warm:
                each(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = each(x)
        results = []
        for seed in (None, None, 9, None):
            if seed is not None:
                torch.manual_seed(seed)
            graph.replay()
            results.append(y.clone())
        found.append([*results, each(x), *gpu.random_states()])
    for number, (a, b) in enumerate(zip(*found, strict=True)):
        assert torch.equal(a, b), number


@on_gpu
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_modes(mode: str | None) -> None:
    def fn(x: Tensor) -> Tensor:
        for _ in range(4):
            x = F.dropout((x @ x).softmax(-1), 0.2) + torch.rand_like(x)
        return x

    x = ones(64, 64)
    compiled = lampwork.compile(fn, mode=mode)
    torch.manual_seed(4)
    want = [fn(x) for _ in range(8)], gpu.random_states()
    torch.manual_seed(4)
    got = [compiled(x).clone() for _ in range(8)], gpu.random_states()
    assert all(map(torch.equal, got[1], want[1]))
    for number, (a, b) in enumerate(zip(got[0], want[0], strict=True)):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=str(number))


@on_gpu
def test_on_another_stream() -> None:
    compiled, x = lampwork.compile(lambda x: F.dropout(x * 2, 0.5)), ones(2**22)
    compiled(x)
    for _ in range(5):
        torch.manual_seed(8)
        want = F.dropout(x * 2, 0.5)
        torch.manual_seed(8)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            got = compiled(x)
        torch.cuda.current_stream().wait_stream(side)
        assert torch.equal(got, want)


# --- training ---------------------------------------------------------------------------------------------------------


def gradients(fn: Callable[[Tensor], Tensor], x: Tensor, seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    x = x.clone().requires_grad_()
    out = fn(x)
    (grad,) = torch.autograd.grad(
        out, x, torch.arange(out.numel(), device=x.device).view_as(out).to(out.dtype) / 999
    )
    return [out.detach(), grad, *gpu.random_states()]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("p", [0.1, 0.15, 0.5])
@pytest.mark.parametrize("shape", [(64, 768), (33, 35), (1, 6)], ids=str)
def test_gradients_of_dropout(shape: tuple[int, ...], p: float, dtype: torch.dtype) -> None:
    """Bit for bit: backward computes the mask again, and scales as eager's does. Where eager's forward and backward
    have two scales (0.15) its calls are ATen's, and the gradient may be rounded otherwise."""
    for fn in (lambda x: F.dropout(x * 2, p), lambda x: F.dropout(x * 2, p, inplace=True)):
        compiled = lampwork.compile(fn, options={"strict": True})
        for seed in range(2):
            x = torch.randn(shape, device=gpu.DEVICE).to(dtype)
            (out, grad, *states), (want, want_grad, *want_states) = (
                gradients(call, x, seed) for call in (compiled, fn)
            )
            assert torch.equal(out, want) and all(map(torch.equal, states, want_states)), seed
            if p == 0.15:
                torch.testing.assert_close(grad, want_grad)
            else:
                assert torch.equal(grad, want_grad), seed


def test_several_calls_before_one_backward() -> None:
    fn = lambda x: F.dropout(x * 1, 0.5)  # noqa: E731
    compiled, found = lampwork.compile(fn), []
    for each in (fn, compiled):
        torch.manual_seed(0)
        x = ones(500).requires_grad_()
        sum(each(x).sum() for _ in range(3)).backward()
        found.append(x.grad)
    assert torch.equal(*found)


def test_training_a_block() -> None:
    torch.manual_seed(0)
    layer = gpu.on_device(
        nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True, norm_first=True)
    )
    x, found = torch.randn(8, 16, 64, device=gpu.DEVICE), []
    compiled = lampwork.compile(layer, options={"strict": False})
    for each in (layer, compiled):
        torch.manual_seed(3)
        layer.zero_grad()
        each(x).square().mean().backward()
        found.append([*(p.grad.clone() for p in layer.parameters()), *gpu.random_states()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@on_gpu
def test_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints microseconds of eager and ours; nothing is asked of them."""
    lines = []
    for dtype in (torch.float32, torch.bfloat16):
        for name, fn in {
            "dropout": lambda x: F.dropout(x * 1.5, 0.1),
            "gelu, dropout, sum": lambda x: F.dropout(F.gelu(x), 0.1) + x,
            "rand": lambda x: torch.rand_like(x) + x,
        }.items():
            x, times = ones(2**24, dtype=dtype), []
            for each in (fn, lampwork.compile(fn)):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                for turn in range(30):
                    if turn == 10:
                        start.record()
                    each(x)
                end.record()
                torch.cuda.synchronize()
                times.append(start.elapsed_time(end) / 20 * 1e3)
            lines.append(f"{name}, {dtype}: eager {times[0]:.1f} us, ours {times[1]:.1f} us")
    with capsys.disabled():
        print("\n" + "\n".join(lines))
