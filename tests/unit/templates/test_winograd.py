"""Convolutions by minimal filtering: the transforms, and random convolutions against float64 on every machine."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gemm_support import axes_of, c, v
from instruction_sets import INSTRUCTION_SETS
from scalar_target import native_on, target_named
from torch import Tensor, nn

import lampwork
from lampwork.codegen.llvm.templates.prepack import prepack
from lampwork.graph.spec import contiguous_strides
from lampwork.loops.ir.nodes import Axis, Buffer, Gemm, Load, Local
from lampwork.loops.ir.printing import format_definitions
from lampwork.loops.ir.verify import verify_definitions
from lampwork.loops.ir.winograd import TRANSFORMS, Matrix
from lampwork.loops.reference.evaluate import evaluate_definitions

COUNT = int(os.environ.get("LAMPWORK_FUZZ", "6"))
MARK = "outputs at a time"


def product(matrix: Matrix, vector: list[Fraction]) -> list[Fraction]:
    return [sum((x * y for x, y in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]


@pytest.mark.parametrize("outputs", TRANSFORMS)
def test_the_transforms_filter_exactly(outputs: int) -> None:
    by, pick = TRANSFORMS[outputs], random.Random(outputs)
    inputs = [Fraction(pick.randint(-9, 9), pick.randint(1, 5)) for _ in range(by.points)]
    taps = [Fraction(pick.randint(-9, 9), pick.randint(1, 5)) for _ in range(3)]
    multiplied = zip(product(by.weights, taps), product(by.inputs, inputs), strict=True)
    found = product(by.results, [x * y for x, y in multiplied])
    assert found == [sum(inputs[i + k] * taps[k] for k in range(3)) for i in range(outputs)]


def unpadded(channels: int, outputs: int, size: int) -> Gemm:
    """y[m, n]: a convolution of x[size, size, channels] by w[outputs, 3, 3, channels]."""
    places, axes = size - 2, dict(r0=1, r1=size - 2, r2=size - 2, d0=3, d1=3, d2=channels)
    digits = {name: Axis(name, c(extent)) for name, extent in axes.items()}
    x = buffer("x", 1, size, size, channels)
    index = (v("r0"), v("r1") + v("d0"), v("r2") + v("d1"), v("d2"))
    return Gemm(
        buffer("y", places**2, outputs),
        (),
        *axes_of(("m", places**2), ("n", outputs), ("k", 9 * channels)),
        Load(x, index),
        Load(buffer("w", outputs, 9 * channels), (v("n"), v("k"))),
        (v("m"), v("n")),
        Local("acc", "f32"),
        (digits["r0"], digits["r1"], digits["r2"]),
        (digits["d0"], digits["d1"], digits["d2"]),
    )


def buffer(name: str, *shape: int) -> Buffer:
    return Buffer(name, "f32", tuple(map(c, shape)), tuple(map(c, contiguous_strides(shape))))


@pytest.mark.parametrize("outputs", TRANSFORMS)
def test_definitions_with_transformed_weights_mean_the_same(outputs: int) -> None:
    gemm = unpadded(16, 20, 20)
    inputs = {"x": torch.randn(1, 20, 20, 16).numpy(), "w": torch.randn(20, 144).numpy()}
    target = replace(target_named("scalar"), winograd=(outputs,))
    main, constant = prepack([gemm], [], frozenset({"w"}), target)
    assert main[0].outputs == outputs and MARK in format_definitions(main)
    verify_definitions([*constant, *main])
    found = evaluate_definitions([*constant, *main], inputs)["y"]
    np.testing.assert_allclose(found, evaluate_definitions([gemm], inputs)["y"], rtol=1e-3, atol=1e-3)


class Net(nn.Module):
    """A convolution of 3 x 3 taps and what follows it."""

    def __init__(self, pick: random.Random) -> None:
        super().__init__()
        self.channels = pick.choice((16, 32, 48, 64, 80))
        outputs = pick.choice((16, 17, 24, 33, 48, 64, 70))
        padding = (pick.choice((0, 1, 1, 1, 2)), pick.choice((0, 1, 1, 1, 3)))
        self.conv = nn.Conv2d(self.channels, outputs, 3, padding=padding, bias=pick.random() < 0.6)
        self.after = pick.choice(("none", "relu", "silu", "sum"))

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        y = self.conv(x)
        if self.after == "sum":
            return F.relu(y + other)
        return {"none": lambda x: x, "relu": F.relu, "silu": F.silu}[self.after](y)


def error(result: Tensor, exact: Tensor) -> float:
    return float((result.double() - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("outputs", TRANSFORMS)
@pytest.mark.parametrize("isa", [*INSTRUCTION_SETS, "scalar"])
@pytest.mark.parametrize("seed", range(COUNT))
def test_random_convolutions(seed: int, isa: str, outputs: int) -> None:
    pick = random.Random(seed)
    torch.manual_seed(seed)
    net = Net(pick).eval()
    x = torch.randn(pick.choice((1, 1, 2, 3)), net.channels, pick.randint(11, 30), pick.randint(11, 30))
    if pick.random() < 0.5:
        x = x.to(memory_format=torch.channels_last)
    elif pick.random() < 0.5:
        x = x[:, :, 1:, :-1]
    with torch.no_grad():
        other = torch.randn_like(net.conv(x))
        exact = net.double()(x.double(), other.double())
        eager = net.float()(x, other)
        with native_on(replace(target_named(isa), winograd=(outputs,))):
            fast = lampwork.compile(net, options={"numerics": "fast", "strict": True})
            result = fast(x, other)
    assert MARK in fast.stages.definitions
    assert result.shape == eager.shape and result.stride() == eager.stride()
    assert error(result, exact) <= 4 * error(eager, exact) + 1e-6


@pytest.mark.parametrize("outputs", TRANSFORMS)
@pytest.mark.parametrize("isa", [*INSTRUCTION_SETS, "scalar"])
@pytest.mark.parametrize("seed", range(COUNT))
def test_random_convolutions_of_open_sizes(seed: int, isa: str, outputs: int) -> None:
    pick = random.Random(seed)
    torch.manual_seed(seed)
    net = Net(pick).eval()
    target = replace(target_named(isa), winograd=(outputs,))
    options = {"numerics": "fast", "strict": True}
    fast = lampwork.compile(net, dynamic=True, options=options)
    # The first one decides; then smaller and larger ones, and those that are no whole tiles.
    for size in [
        (2, 16, 20),
        *((pick.randint(2, 4), pick.randint(3, 40), pick.randint(3, 40)) for _ in range(4)),
    ]:
        x = torch.randn(size[0], net.channels, *size[1:])
        with torch.no_grad():
            other = torch.randn_like(net.conv(x))
            exact = net.double()(x.double(), other.double())
            eager = net.float()(x, other)
            with native_on(target):
                result = fast(x, other)
        # Without padding, reads of open sizes are not proven to stay inside, and the convolution is ATen's.
        assert size != (2, 16, 20) or min(net.conv.padding) == 0 or MARK in fast.stages.definitions
        assert result.shape == eager.shape and result.stride() == eager.stride()
        assert error(result, exact) <= 4 * error(eager, exact) + 1e-6


def test_one_version_by_minimal_filtering_serves_all_sizes() -> None:
    conv = nn.Conv2d(32, 32, 3, padding=1).eval()
    fast = lampwork.compile(conv, dynamic=True, options={"numerics": "fast", "strict": True})
    with torch.no_grad():
        for size in ((2, 24, 24), (3, 40, 17), (5, 3, 2), (2, 64, 70)):
            x = torch.randn(size[0], 32, *size[1:])
            torch.testing.assert_close(fast(x), conv(x), rtol=1e-3, atol=1e-3)
    assert len(fast.entries) == 1 and MARK in fast.stages.definitions


def compiled(fn: Callable[..., Tensor], *args: Tensor, **options: object) -> str:
    with torch.no_grad():
        fast = lampwork.compile(fn, options={"numerics": "fast", "strict": True, **options})
        torch.testing.assert_close(fast(*args), fn(*args), rtol=1e-3, atol=1e-3)
    return fast.stages.definitions


X = torch.randn(1, 32, 24, 24)


def test_only_where_it_is_asked_for_and_pays() -> None:
    conv = nn.Conv2d(32, 32, 3, padding=1).eval()
    assert MARK in compiled(conv, X)
    assert MARK not in compiled(conv, X, numerics="eager")
    assert MARK not in compiled(conv, X[:, :, :4, :4]), "weights of a few pixels are better read once"


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(32, 32, 5, padding=2),
        nn.Conv2d(32, 32, (3, 1), padding=1),
        nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.Conv2d(32, 32, 3, dilation=2, padding=2),
        nn.Conv2d(32, 32, 3, padding=1, groups=2),
    ],
    ids=["5 x 5", "3 x 1", "strided", "dilated", "grouped"],
)
def test_others_are_convolved_as_ever(conv: nn.Conv2d) -> None:
    assert MARK not in compiled(conv.eval(), X)


def test_strides_that_dilation_follows_are_a_smaller_image() -> None:
    assert MARK in compiled(nn.Conv2d(32, 32, 3, stride=2, dilation=2).eval(), torch.randn(1, 32, 60, 60))


def test_other_weights_are_transformed_anew() -> None:
    conv = nn.Conv2d(32, 32, 3, padding=1).eval()
    fast = lampwork.compile(conv, options={"numerics": "fast", "strict": True})
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(X), conv(X), rtol=1e-4, atol=1e-4)
            conv.weight.mul_(-2)


def test_every_number_of_threads_gives_the_same_bits() -> None:
    conv = nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 200, 3)).eval()
    fast = lampwork.compile(conv, options={"numerics": "fast", "strict": True})
    before, results = torch.get_num_threads(), list[Tensor]()
    try:
        with torch.no_grad():
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                results.append(fast(X.repeat(2, 1, 1, 1)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
