"""Taps of a convolution that lie in the padding for all rows of a tile are left out, and the order of rows that makes
them many: random convolutions against float64 on every machine."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from instruction_sets import INSTRUCTION_SETS
from same import assert_same
from torch import Tensor, nn

import lampwork
from lampwork.backends.native.compile import Artifacts, compile_program
from lampwork.codegen.llvm.generator import LlvmGenerator
from lampwork.codegen.llvm.isa.x86 import describe
from lampwork.codegen.llvm.templates import compile as templates
from lampwork.codegen.llvm.templates.conv_plan import ConvPlan
from lampwork.graph.record import Recorder

COUNT = int(os.environ.get("LAMPWORK_FUZZ", "8"))
CONVOLVE: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class Net(nn.Module):
    """A convolution with much padding, and what its epilogue reads: by channel, by element, and by image."""

    def __init__(self, pick: random.Random) -> None:
        super().__init__()

        def each(*values: int) -> tuple[int, ...]:
            return tuple(pick.choice(values) for _ in range(self.rank))

        self.rank = pick.choice((1, 2, 2, 2, 3))
        self.groups = pick.choice((1, 1, 1, 2))
        self.channels = self.groups * pick.choice((8, 16, 17, 33))
        self.outputs = self.groups * pick.choice((8, 16, 24, 48, 65))
        kernel, stride, dilation = each(1, 2, 3, 5), each(1, 1, 2, 3), each(1, 1, 2)
        self.conv = CONVOLVE[self.rank](
            self.channels, self.outputs, kernel, stride, each(0, 1, 1, 2, 4), dilation, self.groups
        )
        self.ends = pick.choice(("nothing", "residual", "image"))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        y = self.conv(x)
        if self.ends == "residual":
            return F.relu(y + self.conv.weight.flatten()[0] * y.cos())
        return F.silu(y) * gate if self.ends == "image" else y


def case(seed: int, batch: int | None = None) -> tuple[Net, Tensor, Tensor]:
    """A network, and inputs that its windows fit."""
    pick = random.Random(seed)
    torch.manual_seed(seed)
    net = Net(pick).eval()
    conv = net.conv
    least = [
        max(1, 1 + (taps - 1) * dilation - 2 * padding)
        for taps, dilation, padding in zip(conv.kernel_size, conv.dilation, conv.padding, strict=True)
    ]
    sizes = [pick.choice((size, size + 1, size + 3, size + 6)) for size in least]
    images = batch or pick.choice((1, 2, 3, 5, 8, 17, 24, 33))
    x, gate = torch.randn(images, net.channels, *sizes), torch.randn(images, net.outputs, *[1] * net.rank)
    return net, x.to(memory_format=torch.channels_last) if net.rank == 2 else x, gate


def assert_exact(net: Net, got: Tensor, x: Tensor, gate: Tensor) -> None:
    """Held to float64 alone: oneDNN's float32 crashes on some windows that lie wholly in the padding."""
    exact = copy.deepcopy(net).double()(x.double(), gate.double())
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=3e-6 * float(exact.abs().max()))


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("seed", range(COUNT))
@torch.no_grad()
def test_random_paddings(seed: int, isa: str) -> None:
    for number in range(4):
        net, x, gate = case(100 * seed + number)
        compiled = lampwork.compile(net, options={"isa": isa, "strict": True})
        assert_exact(net, compiled(x, gate), x, gate)


@pytest.mark.parametrize("seed", range(COUNT))
@torch.no_grad()
def test_any_batch_on_two_threads(seed: int) -> None:
    net, *_ = case(seed)
    compiled = lampwork.compile(net, dynamic=True, options={"strict": True})
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for batch in (2, 9, 1, 32):
            _, x, gate = case(seed, batch)
            assert_exact(net, compiled(x, gate), x, gate)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@torch.no_grad()
def test_other_dtypes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for batch, padding in ((24, 1), (3, 2)):
        net = nn.Conv2d(16, 40, 3, padding=padding).to(dtype=dtype).eval()
        x = torch.randn(batch, 16, 4, 5).to(dtype=dtype, memory_format=torch.channels_last)
        assert_same(net, lampwork.compile(net, options={"strict": True})(x), x)


def finite_beside(taps: Callable[[Tensor], Tensor], x: Tensor, isa: str) -> Tensor:
    """Which results (y, x) of a 3 x 3 convolution are finite where some of its taps are not."""
    net = nn.Conv2d(x.shape[1], 48, 3, padding=1).eval()
    with torch.no_grad():
        taps(net.weight).fill_(float("nan"))
        found = lampwork.compile(net, options={"isa": isa, "strict": True})(x)
    return found.isfinite().all(0).all(0)


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_taps_in_the_padding_are_not_multiplied(isa: str) -> None:
    line = torch.randn(1, 16, 1, 32).to(memory_format=torch.channels_last)
    assert finite_beside(lambda w: w[:, :, 0], line, isa).all()
    assert finite_beside(lambda w: w[:, :, 2], line, isa).all()
    assert not finite_beside(lambda w: w[:, :, 1], line, isa).any()


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_a_pixel_of_all_images_is_a_tile(isa: str) -> None:
    """48 is a multiple of the rows of all tiles: a tap is multiplied only for the pixels that have an input there."""
    images = torch.randn(48, 16, 3, 4).to(memory_format=torch.channels_last)
    for y in range(3):
        for x in range(3):
            has_input = torch.zeros(5, 6, dtype=torch.bool)
            has_input[1:-1, 1:-1] = True
            found = finite_beside(lambda w, y=y, x=x: w[:, :, y, x], images, isa)
            assert torch.equal(found, ~has_input[y : y + 3, x : x + 4])


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_shapes_share_the_function_of_either_order(isa: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ConvPlan] = []
    emit = templates.emit_conv

    def noting(plan: ConvPlan, *args: Any, **keywords: Any) -> Any:
        made.append(plan)
        return emit(plan, *args, **keywords)

    monkeypatch.setattr(templates, "emit_conv", noting)
    fresh = LlvmGenerator(describe(isa))  # which has compiled nothing yet
    target = replace(describe(isa), generate=lambda _: fresh)
    for batch, channels, size in ((1, 16, 40), (1, 24, 9), (24, 16, 40), (24, 24, 9), (48, 16, 7)):
        pixels = torch.randn(batch, channels, size, size).to(memory_format=torch.channels_last)
        weight = torch.randn(48, channels, 3, 3)
        with Recorder() as recorder:
            x, w = recorder.input(pixels, "x", bound=False), recorder.input(weight, "w", bound=True)
            y = F.conv2d(x, w, padding=1)
        recorded = recorder.finish([y])
        compile_program(recorded.graph, recorded.mutations, target, Artifacts())
    assert ["%" in str(plan.gemm.index[0]) for plan in made] == [False, True]
