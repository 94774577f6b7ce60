"""What a call on a GPU does beside computing: streams, graphs, threads, devices, memory, random numbers, errors."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gpu
import lampwork

gpu.require()

on_gpu = pytest.mark.skipif(not gpu.ON_GPU, reason="no CUDA device")


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=gpu.DEVICE, dtype=dtype)


def chain(x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(x * 2 + y).softmax(-1)


# --- first things -----------------------------------------------------------------------------------------------------


def test_one_kernel() -> None:
    compiled = gpu.check(lambda x, y: torch.sigmoid(x * 2 + y) * x, randn(1000, 33), randn(33))
    assert gpu.kernel_calls(compiled) == 1
    assert compiled(randn(7, 33), randn(33)).device.type == gpu.DEVICE


def test_rows_and_columns() -> None:
    gpu.check(lambda x: (x.softmax(-1), x.sum(0), x.mean(-1), x.var(0), x.amax()), randn(129, 1000))


def test_products_between_kernels() -> None:
    gpu.check(lambda x, w: (F.gelu(x @ w) @ w.t()).relu() + x, randn(33, 64), randn(64, 48))


def test_half_types() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        gpu.check(chain, randn(65, 130, dtype=dtype), randn(130, dtype=dtype))


# --- streams and graphs -----------------------------------------------------------------------------------------------


@on_gpu
def test_kernels_run_on_the_current_stream() -> None:
    x, y = randn(256, 256), randn(256, 256)
    compiled = gpu.check(chain, x, y)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # cycles: about a tenth of a second
        result = compiled(x, y)
        assert not side.query()
    assert torch.cuda.current_stream().query()
    side.synchronize()
    torch.testing.assert_close(result, chain(x, y))


@on_gpu
def test_no_synchronization() -> None:
    x, y = randn(64, 64), randn(64, 64)
    compiled = gpu.check(chain, x, y)
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    torch.cuda.set_sync_debug_mode("error")
    try:
        compiled(x, y)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


@on_gpu
def test_memory_of_temporaries_on_a_side_stream() -> None:
    """What a call on another stream still reads is not handed to anybody: the caller's input by `record_stream`, the
    call's own memory by itself."""

    def fn(x: Tensor) -> Tensor:
        y = (x * 2).softmax(-1)
        return (y @ y).softmax(-1).sum(0)

    x = randn(1024, 1024)
    compiled = gpu.check(fn, x)
    want = fn(x)
    side = torch.cuda.Stream()
    for _ in range(4):
        given = x.clone()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            got = compiled(given)
        given.record_stream(side)
        del given
        junk = [torch.full((1024, 1024), float("nan"), device="cuda") for _ in range(8)]
        torch.cuda.current_stream().wait_stream(side)
        torch.testing.assert_close(got, want)
        del junk


@on_gpu
def test_captured_by_a_cuda_graph() -> None:
    x, w = randn(64, 128), randn(128, 128)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return F.layer_norm(F.gelu(x @ w) + x, (128,)).softmax(-1)

    compiled = gpu.check(fn, x, w)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        compiled(x, w)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compiled(x, w)
    for _ in range(3):
        x.copy_(randn(64, 128))
        graph.replay()
        torch.testing.assert_close(result, fn(x, w))


def test_mode_reduce_overhead() -> None:
    x, y = randn(8, 64), randn(64)
    compiled = lampwork.compile(chain, mode="reduce-overhead")
    lampwork.reset_stats()
    for step in range(5):
        other = x + step
        torch.testing.assert_close(compiled(other, y), chain(other, y))
    gpu.assert_compiled(compiled, 5)


def test_threads() -> None:
    """Each compiles a function of its own and calls a shared one, on a stream of its own."""
    shared = lampwork.compile(chain)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            own = lampwork.compile(lambda x: (x * number).cumsum(-1))
            with torch.cuda.stream(torch.cuda.Stream()) if gpu.ON_GPU else contextlib.nullcontext():
                for step in range(20):
                    x, y = randn(33 + number, 64), randn(64)
                    torch.testing.assert_close(shared(x, y), chain(x, y))
                    torch.testing.assert_close(own(x), (x * number).cumsum(-1), rtol=1e-4, atol=1e-4)
        except BaseException as error:  # noqa: BLE001  (told to the test)
            failures.append(error)

    lampwork.reset_stats()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert lampwork.stats()["compiled_calls"] == 80, lampwork.stats()


# --- memory -----------------------------------------------------------------------------------------------------------


def test_writes_to_inputs() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2).add_(y)
        x[1:, 2:].relu_()
        y.copy_(x.exp())
        return x.t() * 2

    gpu.check(fn, randn(33, 33), randn(33, 33))


def test_out_arguments() -> None:
    def fn(x: Tensor, out: Tensor) -> Tensor:
        torch.add(x, 1, out=out)
        return out * 2

    gpu.check(fn, randn(33, 7), randn(33, 7))


def test_results_that_are_views() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        return x.t(), x[1:], y, y.view(-1), y[:, 0]

    x = randn(9, 8)
    compiled = gpu.check(fn, x)
    first, second, y, flat, column = compiled(x)
    assert (
        first.data_ptr() == x.data_ptr()
        and second.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    )
    assert flat.data_ptr() == y.data_ptr() == column.data_ptr()


def test_results_outlive_later_calls() -> None:
    compiled = lampwork.compile(chain)
    inputs = [(randn(33, 65), randn(65)) for _ in range(6)]
    results = [compiled(*each) for each in inputs]
    for each, result in zip(inputs, results, strict=True):
        torch.testing.assert_close(result, chain(*each))


def test_strides_and_empty_tensors() -> None:
    wide = randn(34, 66)
    for x, y in (
        (wide.t(), randn(34)), (wide[::2, 1:], randn(65)), (wide[3:, 3:], randn(63)),
        (wide[:1].expand(5, 66), randn(66)), (randn(0, 5), randn(5)), (randn(1, 1), randn(1)), (wide[1:, 1], randn()),
    ):  # fmt: skip
        want, compiled = (x * 2 + y).sum(-1), lampwork.compile(lambda x, y: (x * 2 + y).sum(-1))
        lampwork.reset_stats()
        torch.testing.assert_close(compiled(x, y), want, rtol=1e-5, atol=1e-4)
        gpu.assert_compiled(compiled, kernels=0)


# --- several devices --------------------------------------------------------------------------------------------------


def test_arguments_on_both_devices() -> None:
    def fn(x: Tensor, scale: Tensor, host: Tensor) -> tuple[Tensor, Tensor]:
        return torch.relu(x * scale + 1), torch.tanh(host * 2)

    gpu.check(fn, randn(33, 65), torch.tensor(1.5), torch.randn(7, 9))


def test_moves_inside_the_function() -> None:
    def fn(x: Tensor, host: Tensor) -> tuple[Tensor, ...]:
        here = host.to(gpu.DEVICE) * x
        there = (here + 1).cpu()
        return here.exp(), there * 2, (there * 2).to(gpu.DEVICE) + x

    gpu.check(fn, randn(8, 9), torch.randn(8, 9))


@on_gpu
def test_pinned_inputs() -> None:
    def fn(host: Tensor) -> Tensor:
        return host.to("cuda", non_blocking=True).softmax(-1)

    compiled = lampwork.compile(fn)
    lampwork.reset_stats()
    x = torch.randn(33, 65).pin_memory()
    torch.testing.assert_close(compiled(x), fn(x))
    gpu.assert_compiled(compiled)


def test_tensors_made_inside() -> None:
    def fn(x: Tensor) -> Tensor:
        places = torch.arange(x.shape[-1], device=x.device)
        return torch.where(places > 3, x, torch.zeros((), device=x.device)) + torch.full_like(x, 2)

    gpu.check(fn, randn(5, 9))


@on_gpu
def test_current_device() -> None:
    before = torch.cuda.current_device()
    compiled = gpu.check(chain, randn(8, 9), randn(9))
    with torch.cuda.device(torch.cuda.device_count() - 1):
        x, y = torch.randn(8, 9, device="cuda:0"), torch.randn(9, device="cuda:0")
        result = compiled(x, y)
        assert result.device == torch.device("cuda:0")
        torch.testing.assert_close(result, chain(x, y))
    assert torch.cuda.current_device() == before


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device at most")
def test_a_second_device() -> None:
    compiled = lampwork.compile(chain)
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        x, y = torch.randn(8, 9, device=device), torch.randn(9, device=device)
        result = compiled(x, y)
        assert result.device == x.device
        torch.testing.assert_close(result, chain(x, y))


def test_one_function_on_cpu_and_gpu() -> None:
    compiled = lampwork.compile(chain)
    lampwork.reset_stats()
    for device in ("cpu", gpu.DEVICE, "cpu", gpu.DEVICE):
        x, y = torch.randn(8, 9, device=device), torch.randn(9, device=device)
        result = compiled(x, y)
        assert result.device.type == torch.device(device).type
        torch.testing.assert_close(result, chain(x, y))
    gpu.assert_compiled(compiled, 4)


# --- breaks, random numbers, errors -----------------------------------------------------------------------------------


def test_item_breaks() -> None:
    def fn(x: Tensor) -> Tensor:
        if (x * 2).sum().item() > 0:
            return (x + 1).softmax(-1)
        return (x - 1).softmax(-1)

    gpu.check(fn, randn(5, 9).abs(), partial=True)


def test_nonzero_breaks() -> None:
    gpu.check(lambda x: (x * 2)[(x > 0).nonzero()[:, 0]].exp() + 1, randn(55), partial=True)


def test_random_numbers_are_eager_s() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return (
            F.dropout(x * 2, 0.3) + 1,
            torch.rand_like(x) * 2,
            torch.randn(7, device=x.device),
            torch.bernoulli(x.sigmoid()),
        )

    gpu.check(fn, randn(33, 65), calls=3)


def test_open_sizes_need_no_recompilation() -> None:
    compiled = lampwork.compile(chain, dynamic=True)
    lampwork.reset_stats()
    for rows, width in ((5, 33), (130, 9), (3, 1000), (7, 4097), (2, 2)):
        x, y = randn(rows, width), randn(width)
        torch.testing.assert_close(compiled(x, y), chain(x, y))
    gpu.assert_compiled(compiled, 5)
    assert lampwork.stats()["regions"] == 1, lampwork.stats()


def test_shapes_that_do_not_fit_raise_eager_s_error() -> None:
    x, y = randn(5, 9), randn(8)
    assert error_of(lampwork.compile(chain, options={"strict": False}), x, y) == error_of(chain, x, y) != ""


@on_gpu
def test_tensors_on_different_devices_raise_eager_s_error() -> None:
    for fn, x, y in (
        (chain, randn(5, 9), torch.randn(9)),
        (torch.matmul, randn(5, 9), torch.randn(9, 3)),
        (lambda x, y: F.linear(x * 2, y), torch.randn(5, 9), randn(3, 9)),
    ):
        compiled = lampwork.compile(lambda x, y: fn(x, y), options={"strict": False})
        assert error_of(compiled, x, y) == error_of(fn, x, y) != ""


def error_of(fn, *args: Tensor) -> str:
    try:
        fn(*args)
    except Exception as error:  # noqa: BLE001  (compared)
        return f"{type(error).__name__}: {error}"
    return ""


OUT_OF_RANGE = """
import torch, lampwork
table, rows = torch.randn(10, 4, device="cuda"), torch.tensor([1, 12], device="cuda")
result = lampwork.compile(lambda t, i: {program})(table, rows)
assert lampwork.stats()["compiled_calls"] == 1
print("no error", result.cpu())
"""


@on_gpu
@pytest.mark.parametrize("program", ["t[i] * 2", "t.index_select(0, i) + 1", "(t * 2)[:, 0][i].exp()"])
def test_an_index_out_of_range_is_a_device_side_assert(program: str) -> None:
    """And no number: the process it happens in cannot go on, so it is one of its own."""
    environment = {**os.environ, "LAMPWORK_STRICT": "1"}
    command = [sys.executable, "-c", OUT_OF_RANGE.format(program=program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode != 0 and "no error" not in done.stdout, done.stdout
    assert "device-side assert" in done.stderr, done.stderr[-2000:]


@on_gpu
def test_out_of_memory_is_torch_s_error() -> None:
    huge = randn(1).expand(1 << 40)
    compiled = lampwork.compile(lambda x: x * 2 + 1, options={"strict": False})
    with pytest.raises(torch.OutOfMemoryError):
        compiled(huge)
    gpu.check(chain, randn(8, 9), randn(9))
