"""Convolutions with a template: which ones, in which layout, and what is compiled for them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from graphkit import find, ops, record, run
from same import assert_same
from torch import nn

import lampwork
from lampwork.backends.native.passes.channels_last_convolution import ChannelsLastConvolution
from lampwork.codegen.llvm.isa.x86 import describe
from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.transforms.split_constants import SplitConstants

PASS = ChannelsLastConvolution(lambda options: describe("avx2"))
X = torch.randn(2, 16, 9, 7)


def apply(graph) -> PassContext:
    ctx = PassContext()
    for step in (SplitConstants(), PASS):
        step.run(graph, ctx)
        verify(graph)
    return ctx


def test_the_input_is_copied_once_and_the_result_put_back() -> None:
    a, b = torch.randn(8, 16, 3, 3), torch.randn(8, 16, 1, 1)
    graph = record(lambda x, a, b: (F.conv2d(x, a), F.relu(F.conv2d(x, b))), X, bound=[a, b])
    ctx = apply(graph)
    assert ctx.hits == {"channels-last-convolution": 2}
    assert ops(graph).count("clone") == 3  # of the input, and of each result
    assert find(graph, "relu").meta["val"].strides[1] == 1
    for ours, theirs in zip(run(graph, X, a, b), (F.conv2d(X, a), F.relu(F.conv2d(X, b))), strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_the_copy_stands_before_a_gradient_that_comes_before_the_convolution() -> None:
    a, b, grad = torch.randn(8, 16, 3, 3), torch.randn(8, 16, 1, 1), torch.randn(2, 8, 7, 5)

    def fn(x, grad, a, b):
        rest = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False])
        return torch.ops.aten.convolution_backward(grad, x, a, *rest)[1], F.conv2d(x, b)

    graph = record(fn, X, grad, a, b)
    ctx = apply(graph)
    assert ctx.hits == {"channels-last-convolution": 2}
    for ours, theirs in zip(run(graph, X, grad, a, b), fn(X, grad, a, b), strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "name",
    [
        "computed half weight",
        "unbatched",
        "transposed",
        "odd half groups",
        "mixed",
        "too many channels",
    ],
)
def test_convolutions_without_a_template_stay(name: str) -> None:
    w = torch.randn(16, 16, 3, 3)
    programs = {
        "computed half weight": lambda x, w: F.conv2d(x.half(), (w * x.mean()).half()),
        "unbatched": lambda x, w: F.conv2d(x[0], w),
        "transposed": lambda x, w: F.conv_transpose2d(x, w, stride=2),
        "odd half groups": lambda x, w: F.conv2d(
            x.repeat(1, 9, 1, 1).half(), w[:, :9].repeat(9, 1, 1, 1).half(), groups=16
        ),
        "too many channels": lambda x, w: F.conv2d(x.repeat(1, 513, 1, 1), w.repeat(1, 513, 1, 1)),
        "mixed": lambda x, w: F.conv2d(x, w, torch.ones(16)[: x.shape[0] * 0 + 16] * x.mean()),
    }
    graph = record(programs[name], X, bound=[w])
    before = ops(graph)
    ctx = apply(graph)
    if name == "mixed":
        assert ctx.hits == {"channels-last-convolution": 1}  # a bias may be computed
        return
    assert ops(graph) == before and not ctx.hits and ctx.refusals.total() == 1


def test_a_line_becomes_a_plane() -> None:
    w = torch.randn(8, 16, 5)
    x = X[:, :, :, 0]
    graph = record(lambda x, w: F.conv1d(x, w, padding=2, stride=2), x, bound=[w])
    apply(graph)
    assert "conv2d" in ops(graph) and "conv1d" not in ops(graph)
    torch.testing.assert_close(run(graph, x, w)[0], F.conv1d(x, w, padding=2, stride=2), rtol=1e-4, atol=1e-4)


class Chain(nn.Module):
    def __init__(self, *channels: int) -> None:
        super().__init__()
        pairs = zip(channels, channels[1:], strict=False)
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return x


def test_shapes_share_their_function_and_activations_keep_their_layout() -> None:
    net = Chain(16, 64, 128, 192, 256).eval()
    compiled = lampwork.compile(net, options={"strict": True, "isa": "avx2"})
    with torch.no_grad():
        assert_same(net, compiled(X), X)
    summary = compiled.stages.summary()
    # In at the start, and back to the user's order at the end.
    assert "4 gemms, 2 layout conversions, 0 ATen calls" in summary
    # One for the convolutions, one for packing, one kernel each for the two changes of layout.
    assert "4 distinct functions" in summary or "3 distinct functions" in summary
    assert str(compiled.stages.program).count("channels") == 0


def test_what_comes_and_goes_in_channels_last_order_is_not_converted() -> None:
    net = Chain(16, 64, 128).eval().to(memory_format=torch.channels_last)
    x = X.to(memory_format=torch.channels_last)
    compiled = lampwork.compile(net, options={"strict": True})
    with torch.no_grad():
        assert_same(net, compiled(x), x)
    assert compiled.stages.counts["layout conversions"] == 0


def test_no_nan_is_lost_and_zeros_of_the_padding_are_zeros() -> None:
    net = Chain(16, 32).eval()
    x = X.clone()
    x[0, 3, 4, 4] = float("nan")
    x[1, 2, 0, 0] = float("inf")
    with torch.no_grad():
        ours, theirs = lampwork.compile(net, options={"strict": True})(x), net(x)
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours.isinf(), theirs.isinf())


@pytest.mark.parametrize("isa", ["avx2", "sse4"])
def test_any_batch_height_and_width(isa: str) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 24, 1), nn.Conv2d(24, 8, 3, padding=1)
    )
    net = net.eval()
    compiled = lampwork.compile(net, dynamic=True, options={"strict": True, "isa": isa})
    with torch.no_grad():
        for shape in ((2, 3, 20, 30), (1, 3, 33, 17), (5, 3, 8, 8), (3, 3, 64, 20)):
            x = torch.randn(shape)
            assert_same(net, compiled(x), x)
    assert len(compiled.entries) <= 2


@pytest.mark.parametrize("dilation", [1, 2])
def test_a_single_channel_may_lie_with_any_stride(dilation: int) -> None:
    net = nn.Conv2d(1, 8, 3, dilation=dilation).to(memory_format=torch.channels_last).eval()
    x = torch.randn(2, 1, 9, 9)
    compiled = lampwork.compile(net, options={"strict": True})
    with torch.no_grad():
        assert_same(net, compiled(x), x)
    assert compiled.stages.counts["ATen calls"] == 0
