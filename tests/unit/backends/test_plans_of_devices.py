"""Programs of several devices: where their values are, and how kernels of an accelerator are launched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from devices import CPU, CUDA, GRID, compile_on, record_on, run_on_cpu
from torch.nn import functional as F

from lampwork.backends.native import compile as native
from lampwork.backends.native.compile import NativeBackend
from lampwork.backends.native.heap_values import in_heap
from lampwork.backends.native.memory_plan import kernel_step
from lampwork.backends.native.passes.merge_linears import MergeLinears
from lampwork.backends.native.print_program import format_program
from lampwork.backends.native.tasks import KernelTask
from lampwork.backends.protocol import CompileOptions
from lampwork.codegen.gpu.nvidia import describe as describe_card
from lampwork.codegen.llvm.isa.x86 import describe
from lampwork.codegen.target import DeviceFunction, MachineFunction
from lampwork.config import Config, current
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.symbols import Sizes
from lampwork.plugins.context import PassContext
from lampwork.runtime.arena import DEVICE_ALIGNMENT
from lampwork.runtime.program import CallAten, CallKernel, Launch, Program
from lampwork.transforms.split_constants import SplitConstants

OTHER = torch.device("cuda:1")
LARGE = torch.randn(200, 300)


def arena(program: Program, device: torch.device) -> list[tuple[int, int]]:
    """(first byte, bytes) of the arena's values on a device."""
    return [(v.offset, v.nbytes) for v in program.values if v.kind == "arena" and v.device == device]


def three_sums(x: torch.Tensor) -> torch.Tensor:
    a = x.softmax(1)
    b = (a @ a.t()).softmax(0)
    return (b @ a).softmax(1) @ a.t() + x.sum()


def test_values_know_their_devices() -> None:
    recorded = record_on(
        lambda x, y, z: (x.softmax(1) @ y.to(x.device), (y + 1) * 2, z * 3),
        [LARGE, LARGE.t(), LARGE],
        ["cuda:0", "cpu", "cuda:1"],
    )
    program = compile_on(recorded.graph)
    assert program.device == CUDA
    assert [value.device for value in program.values[:3]] == [CUDA, CPU, OTHER]
    assert [program.values[number].device for number in program.outputs] == [CUDA, CPU, OTHER]
    calls = [step for step in program.instructions if isinstance(step, CallAten)]
    made = {step.op: program.values[step.outs[0]].device for step in calls}
    assert made["aten::_to_copy.default"] == CUDA and made["aten::matmul.default"] == CUDA


def test_the_device_has_an_arena_of_its_own() -> None:
    program = compile_on(record_on(three_sums, [LARGE]).graph)
    here, there = arena(program, CPU), arena(program, CUDA)
    assert not here and program.arena_bytes == 0
    assert there and all(offset % DEVICE_ALIGNMENT == 0 for offset, _ in there)
    assert program.device_arena_bytes >= max(offset + nbytes for offset, nbytes in there)
    assert program.device_arena_bytes < sum(nbytes for _, nbytes in there)


def test_programs_of_the_cpu_are_as_they_were() -> None:
    program = compile_on(record_on(three_sums, [LARGE], ["cpu"]).graph)
    assert program.device is None and program.device_arena_bytes == 0
    assert all(value.device == CPU for value in program.values)
    assert program.arena_bytes > 0


def test_the_heap_is_for_values_of_the_cpu() -> None:
    program = compile_on(record_on(three_sums, [LARGE]).graph)
    shared = in_heap(program)
    assert arena(shared, CUDA) == arena(program, CUDA)
    assert not any(value.kind == "heap" for value in shared.values)


def test_the_constant_part_is_on_the_device_too() -> None:
    recorded = record_on(lambda x, w: x * (w + 1).t().contiguous(), [LARGE], bound=[LARGE.t()])
    for node in recorded.graph.nodes:
        if node.name in ("add", "t", "clone"):
            node.meta["constant"] = True
    program = compile_on(recorded.graph)
    assert program.constants is not None and program.constants.device == CUDA
    assert {value.device for value in (*program.values, *program.constants.values)} == {CUDA}
    (result,) = run_on_cpu(recorded, [LARGE], [LARGE.t()])
    torch.testing.assert_close(result, LARGE * (LARGE.t() + 1).t())


def test_programs_say_where_things_are() -> None:
    text = format_program(compile_on(record_on(three_sums, [LARGE]).graph))
    assert text.splitlines()[1].endswith("bytes on cuda:0")
    assert "input 0 on cuda:0" in text
    call = CallKernel(DeviceFunction(None, (32, 4), 8, Index.const(0)), (), launch=Launch((32, 4), 8, 64))
    program = Program((), (call,), (), 0, 0, 0, device=CUDA)
    assert "by 8 in blocks of 32 x 4 threads, 64 bytes shared" in format_program(program)


def task(code: Any, extent: Index) -> KernelTask:
    return KernelTask("k", code, (), (), frozenset(), extent, Index.const(1), 1)


def test_kernels_of_a_device_are_launched() -> None:
    n = Index.sym("n")
    code = DeviceFunction(None, (32, 4), 8, n * 4)
    step = kernel_step(task(code, n), ())
    assert not step.is_static and set().union(*(each.symbols() for each in step.numbers)) == {"n"}
    call = step.place(Sizes({"n": 100}), {})
    assert isinstance(call, CallKernel)
    assert call.code is code and call.extent == 100 and call.launch == Launch((32, 4), 8, 400)
    shared = kernel_step(task(code, Index.const(5)), ())
    assert not shared.is_static
    assert kernel_step(task(replace(code, shared=Index.const(0)), Index.const(5)), ()).is_static
    plain = kernel_step(task(MachineFunction(1, None), n), ())
    assert plain.place(Sizes({"n": 3}), {}).launch is None


def test_the_backend_takes_the_target_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []

    def device_target(device: torch.device, config: Config) -> Any:
        asked.append(device)
        return GRID

    monkeypatch.setattr(native, "device_target", device_target)

    def no_target(config: Config) -> Any:
        raise AssertionError("the CPU's target is asked for")

    graph = record_on(lambda x, y: x + y.to(x.device), [LARGE, LARGE], ["cuda:1", "cpu"]).graph
    program = NativeBackend(no_target).compile(
        graph, (), CompileOptions(replace(current(), mode="max-autotune"))
    )
    assert asked == [OTHER] and isinstance(program, Program) and program.device == OTHER
    graph = record_on(lambda x: x + 1, [LARGE], ["cpu"]).graph
    assert NativeBackend().compile(graph, (), CompileOptions(current())).device is None
    assert asked == [OTHER]


@pytest.mark.parametrize("where", ["cuda:0", "cpu"])
def test_writes_to_inputs(where: str) -> None:
    """In place where the input is on the main device, copied at the end elsewhere."""
    places = torch.tensor([1, 3])

    def write(cache: torch.Tensor, other: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, i, x * 2)
        other.add_(1)
        return cache.sum(0)

    inputs = [torch.randn(8, 5), torch.randn(3), torch.randn(2, 5), places]
    mine, reference = ([each.clone() for each in inputs] for _ in range(2))
    recorded = record_on(write, mine, ["cuda:0", "cpu", "cuda:0", where])
    results = run_on_cpu(recorded, mine)
    torch.testing.assert_close(results[0], write(*reference))
    torch.testing.assert_close(mine, reference)


LAYERS = {
    "linear layers": (
        lambda x, *w: sum(torch.tanh(F.linear(x, each)) for each in w),
        torch.randn(1, 16, 64, dtype=torch.float64),
        [torch.randn(64, 64, dtype=torch.float64) for _ in range(3)],
    ),
    "a convolution": (
        lambda x, w, b: F.conv2d(x, w, b, padding=1).relu(),
        torch.randn(1, 16, 9, 9),
        [torch.randn(16, 16, 3, 3), torch.randn(16)],
    ),
    "a pointwise convolution": (
        lambda x, w: F.conv2d(x, w).mean((2, 3)),
        torch.randn(2, 64, 7, 7),
        [torch.randn(32, 64, 1, 1)],
    ),
}


FOR_CARDS = {
    "channels-last-on-cards",
    "bias-behind-convolution",
    "gelu-in-product",
    "bias-behind-product",
    "known-masks",
}


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
@pytest.mark.parametrize("name", LAYERS)
def test_passes_are_for_the_cpu_or_for_cards(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "device_target", lambda device, config: describe_card(90))
    fn, x, weights = LAYERS[name]
    graph = record_on(fn, [x], [device], weights, [device] * len(weights)).graph
    ctx = PassContext()
    SplitConstants().run(graph, ctx)
    for each, _ in NativeBackend(lambda config: describe("avx512")).passes:
        each.run(graph, ctx)
    fired = ctx.hits.keys() - {MergeLinears.name}
    assert ctx.hits and (fired.isdisjoint(FOR_CARDS) if device == "cpu" else fired <= FOR_CARDS)


def test_tensors_of_rocm_are_left_to_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch for AMD cards says that their tensors are on CUDA devices, which no kernel of ours is for."""
    monkeypatch.setattr(torch.version, "hip", "6.4")
    x = torch.randn(5, 7)

    def normed(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2 + 1, 1)

    recorded = record_on(normed, [x])
    program = compile_on(recorded.graph)
    assert program.device is None and not any(isinstance(step, CallKernel) for step in program.instructions)
    torch.testing.assert_close(run_on_cpu(recorded, [x])[0], normed(x))
    monkeypatch.setattr(torch.version, "hip", None)
    assert compile_on(recorded.graph).device == CUDA
