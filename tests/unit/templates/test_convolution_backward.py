"""Gradients of convolutions: numbers, strides of the results, borders, tails, what is left to ATen."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch
from instruction_sets import INSTRUCTION_SETS
from same import assert_same
from scalar_target import SCALAR_TILES, native_on
from torch import Tensor

import lampwork
from lampwork.graph.layouts import same_strides
from lampwork.graph.spec import TensorSpec

_COUNT = int(os.environ.get("LAMPWORK_FUZZ", "12"))
backward = torch.ops.aten.convolution_backward


class Gradients:
    """The gradients that the mask asks for, as a function of (g, x, w)."""

    def __init__(
        self, rank: int, mask: tuple[bool, bool, bool] = (True, True, True), **settings: Any
    ) -> None:
        self.mask, self.rank = list(mask), rank
        self.groups = settings.get("groups", 1)
        self.steps = [
            list(settings.get(name, (default,) * rank))
            for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
        ]

    def __call__(self, g: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        found = backward(g, x, w, [g.shape[1]], *self.steps, False, [0] * self.rank, self.groups, self.mask)
        return tuple(each for each, wanted in zip(found, self.mask, strict=True) if wanted)

    def result(self, x: Tensor, w: Tensor) -> Tensor:
        return torch.ops.aten.convolution(x, w, None, *self.steps, False, [0] * self.rank, self.groups)


def operands(
    gradients: Gradients,
    x: tuple[int, ...],
    w: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    *,
    last: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    image, weight = torch.randn(x, dtype=dtype), torch.randn(w, dtype=dtype)
    g = torch.randn_like(gradients.result(image, weight))
    if last and len(x) == 4:
        image, g = (each.contiguous(memory_format=torch.channels_last) for each in (image, g))
    return g, image, weight


def compiled(gradients: Gradients, isa: str = "", **options: Any) -> Any:
    return lampwork.compile(
        lambda g, x, w: gradients(g, x, w), options={"strict": True, "isa": isa}, **options
    )


def dense(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Copies in row-major order, for the strides of a single element are not the same for all algorithms of torch."""
    return tuple(torch.empty(each.shape, dtype=each.dtype).copy_(each) for each in tensors)


def check(gradients: Gradients, args: tuple[Tensor, ...], isa: str = "", calls: int | None = None) -> None:
    ours = compiled(gradients, isa)
    with torch.no_grad():
        found = ours(*args)
        for mine, theirs in zip(found, gradients(*args), strict=True):
            assert same_strides(TensorSpec.of(mine), TensorSpec.of(theirs))
        assert_same(lambda *args: dense(gradients(*args)), dense(found), *args)
    if calls is not None:
        assert ours.stages.counts.get("ATen calls", 0) == calls


CASES: dict[str, tuple[Gradients, tuple[int, ...], tuple[int, ...]]] = {
    "3 x 3": (Gradients(2, padding=(1, 1)), (2, 24, 9, 11), (20, 24, 3, 3)),
    "unpadded": (Gradients(2), (2, 16, 7, 6), (40, 16, 3, 2)),
    "1 x 1": (Gradients(2), (2, 50, 7, 5), (33, 50, 1, 1)),
    "1 x 1 by 2": (Gradients(2, stride=(2, 2)), (2, 24, 7, 8), (16, 24, 1, 1)),
    "1 x 1 by 2 and 1": (Gradients(2, stride=(2, 1)), (1, 8, 5, 5), (9, 8, 1, 1)),
    "1 x 1 with padding": (Gradients(2, padding=(1, 2)), (2, 10, 5, 5), (9, 10, 1, 1)),
    "3 x 3 by 2": (Gradients(2, stride=(2, 2), padding=(1, 1)), (2, 17, 8, 12), (18, 17, 3, 3)),
    "5 x 5": (Gradients(2, padding=(2, 2)), (1, 9, 13, 6), (70, 9, 5, 5)),
    "dilated": (Gradients(2, padding=(2, 3), dilation=(2, 3)), (2, 19, 9, 11), (21, 19, 3, 3)),
    "groups": (Gradients(2, padding=(1, 1), groups=3), (2, 24, 7, 7), (30, 8, 3, 3)),
    "one pixel": (Gradients(2), (1, 12, 3, 3), (8, 12, 3, 3)),
    "a long line": (Gradients(2, padding=(0, 1)), (1, 8, 1, 500), (8, 8, 1, 3)),
    "more padding than input": (Gradients(2, padding=(3, 3)), (1, 16, 1, 2), (8, 16, 4, 4)),
    "line": (Gradients(1, padding=(1,)), (2, 16, 40), (24, 16, 3)),
    "depthwise": (Gradients(2, padding=(1, 1), groups=72), (2, 72, 9, 11), (72, 1, 3, 3)),
    "depthwise lines": (Gradients(1, dilation=(2,), groups=80), (2, 80, 300), (80, 1, 7)),
    "depthwise volumes": (Gradients(3, padding=(1, 0, 1), groups=67), (2, 67, 4, 5, 6), (67, 1, 3, 2, 3)),
    "few depthwise channels by 2": (
        Gradients(2, (False, True, True), stride=(2, 2), padding=(2, 2), groups=9),
        (2, 9, 9, 12),
        (9, 1, 5, 5),
    ),
    "volume": (Gradients(3, padding=(1, 1, 0)), (2, 16, 4, 5, 6), (12, 16, 3, 3, 2)),
}


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("name", sorted(CASES))
def test_numbers(name: str, isa: str) -> None:
    gradients, x, w = CASES[name]
    check(gradients, operands(gradients, x, w), isa, calls=0)


@pytest.mark.parametrize("name", ["3 x 3", "1 x 1", "dilated", "line"])
def test_without_vectors(name: str) -> None:
    gradients, x, w = CASES[name]
    with native_on(SCALAR_TILES):
        check(gradients, operands(gradients, x, w))


@pytest.mark.parametrize("name", ["3 x 3", "1 x 1 by 2", "groups", "volume"])
def test_row_major_and_double(name: str) -> None:
    gradients, x, w = CASES[name]
    check(gradients, operands(gradients, x, w, last=False), calls=0)
    check(gradients, operands(gradients, x, w, torch.float64), calls=0)


@pytest.mark.parametrize(
    "mask", [(True, False, False), (False, True, False), (True, True, False), (False, True, True)]
)
def test_only_what_is_asked_for(mask: tuple[bool, bool, bool]) -> None:
    gradients = Gradients(2, mask, padding=(1, 1))
    check(gradients, operands(gradients, (2, 16, 6, 6), (24, 16, 3, 3)), calls=0)


def test_what_is_not_expressed_is_called_alone() -> None:
    gradients = Gradients(2, stride=(2, 2), padding=(1, 1))
    args = operands(gradients, (2, 16, 7, 7), (24, 16, 3, 3))
    ours = compiled(gradients)
    with torch.no_grad():
        assert_same(gradients, ours(*args), *args)
    assert (ours.stages.counts["ATen calls"], ours.stages.counts["gemms"]) == (1, 1)


def test_other_numbers_of_images_are_one_version() -> None:
    gradients = Gradients(2, padding=(1, 1))
    ours = compiled(gradients, dynamic=True)
    with torch.no_grad():
        for images in (4, 2, 7):
            args = operands(gradients, (images, 16, 6, 6), (24, 16, 3, 3))
            assert_same(gradients, ours(*args), *args)


def test_threads_share_panels() -> None:
    gradients = Gradients(2, padding=(1, 1))
    args = operands(gradients, (2, 100, 12, 12), (130, 100, 3, 3))
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            check(gradients, args)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_where_it_is_read(value: float) -> None:
    gradients = Gradients(2)
    g, x, w = operands(gradients, (2, 16, 6, 6), (8, 16, 3, 3))
    g[0, 3, 2, 2] = x[1, 5, 4, 4] = value
    with torch.no_grad():
        for ours, theirs in zip(compiled(gradients)(g, x, w), gradients(g, x, w), strict=True):
            assert torch.equal(ours.isfinite(), theirs.isfinite())


@pytest.mark.parametrize("seed", range(_COUNT))
def test_any_convolution(seed: int) -> None:
    pick = random.Random(seed)
    torch.manual_seed(seed)
    rank = pick.choice((1, 2, 2, 2, 3))

    def each(*values: int) -> tuple[int, ...]:
        return tuple(pick.choice(values) for _ in range(rank))

    groups = pick.choice((1, 1, 1, 2, 3))
    inputs, outputs = (pick.choice((1, 3, 8, 16, 17, 40)) for _ in range(2))
    settings = {"stride": each(1, 1, 2, 3), "padding": each(0, 1, 1, 2), "dilation": each(1, 1, 1, 2)}
    gradients = Gradients(rank, groups=groups, **settings)
    kernel, sizes = each(1, 2, 3, 3, 5), each(9, 10, 12, 13)
    x, w = (pick.choice((1, 2, 3)), groups * inputs, *sizes), (groups * outputs, inputs, *kernel)
    dtype = pick.choice((torch.float32, torch.float32, torch.float64))
    check(gradients, operands(gradients, x, w, dtype, last=pick.random() < 0.6))


# --- weights that are inputs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("groups", [1, 2, 32])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_a_weight_that_is_an_input_is_packed_in_each_call(order: Any, groups: int, isa: str) -> None:
    def convolved(x: Tensor, w: Tensor) -> Tensor:
        return torch.conv2d(x, w, None, 1, 1, 1, groups).relu()

    ours = lampwork.compile(convolved, options={"strict": True, "isa": isa})
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(2, 32, 7, 9).contiguous(memory_format=torch.channels_last)
            w = torch.randn(64, 32 // groups, 3, 3).contiguous(memory_format=order)
            assert_same(convolved, ours(x, w), x, w)
    assert ours.stages.counts["ATen calls"] == 0


# --- layouts ----------------------------------------------------------------------------------------------------------


def test_a_chain_of_gradients_stays_channels_last() -> None:
    one, other = Gradients(2, (True, True, False), padding=(1, 1)), Gradients(2, (True, True, False))

    def chain(g: Tensor, x: Tensor, h: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        dh, dw = other(g, h, w)
        dx, dv = one(dh.relu(), x, v)
        return dx, dv, dw

    x, v, w = torch.randn(2, 16, 8, 8), torch.randn(24, 16, 3, 3), torch.randn(32, 24, 1, 1)
    h = one.result(x, v)
    args = (torch.randn_like(other.result(h, w)), x, h, v, w)
    ours = lampwork.compile(chain, options={"strict": True})
    with torch.no_grad():
        assert_same(chain, ours(*args), *args)
    # The three operands that come from outside, dx, and dv, whose product stores it in that order.
    assert ours.stages.counts["layout conversions"] == 5
    assert ours.stages.counts["gemms"] == 4 and ours.stages.counts["ATen calls"] == 0
    assert ours.stages.counts["kernel calls"] == 4 + 3 + 1 + 1  # the panels of v, and one for dx


@pytest.mark.parametrize("kernel", [(3, 3), (2, 2), (5, 7), (1, 2)])
@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_taps_side_by_side_are_transposed_in_registers(kernel: tuple[int, int], isa: str) -> None:
    gradients = Gradients(2, (True, True, False))
    args = operands(gradients, (2, 37, 9, 11), (19, 37, *kernel), last=False)
    check(gradients, args, isa, calls=0)
