"""Convolutions on CUDA devices: their order in memory, and their biases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from devices import compile_on, record_on, run_on_cpu
from graphkit import find, ops
from torch import Tensor, nn

from lampwork.backends.native import compile as native
from lampwork.backends.native.artifacts import conversions
from lampwork.backends.native.compile import NativeBackend
from lampwork.backends.native.passes.bias_behind_convolution import BiasBehindConvolution
from lampwork.backends.native.passes.channels_last_on_cards import ChannelsLastOnCards
from lampwork.bench.networks import MobileNetV3, ResNet
from lampwork.codegen.gpu.nvidia import describe
from lampwork.config import Config
from lampwork.graph.recorded import Recorded
from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.runtime.program import CallAten, CallKernel
from lampwork.transforms.pipeline import run_passes
from lampwork.transforms.split_constants import SplitConstants

NAME = ChannelsLastOnCards.name
HALF = torch.bfloat16
MAKE = torch.Generator().manual_seed(0)


def random(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return (torch.randn(*shape, generator=MAKE) / 4).to(dtype)


X = random(2, 16, 9, 7)


def passed(
    fn: Callable[..., Any],
    inputs: Sequence[Tensor],
    bound: Sequence[Tensor] = (),
    devices: Sequence[str] = (),
    capability: int = 90,
) -> tuple[Recorded, PassContext]:
    """The graph after the passes for a card; its results are compared with those of eager."""
    recorded = record_on(fn, inputs, devices, bound)
    ctx = PassContext()
    steps = ChannelsLastOnCards(lambda device, config: describe(capability)), BiasBehindConvolution()
    for step in (SplitConstants(), *steps, SplitConstants()):
        step.run(recorded.graph, ctx)
        verify(recorded.graph)
    wanted = fn(*(each.double() if each.is_floating_point() else each for each in (*inputs, *bound)))
    eager = fn(*inputs, *bound)
    found = run_on_cpu(recorded, inputs, bound)
    both = [list(each) if isinstance(each, tuple) else [each] for each in (wanted, eager)]
    for ours, right, theirs in zip(found, *both, strict=True):
        assert ours.stride() == theirs.stride() and ours.dtype is theirs.dtype
        torch.testing.assert_close(ours.double(), right.double(), rtol=0.02, atol=0.02)
    return recorded, ctx


def is_last(node: Any) -> bool:
    return node.meta["val"].strides[1] == 1


def test_the_input_is_copied_once_and_weights_once_for_all() -> None:
    def fn(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return F.conv2d(x, a), F.relu(F.conv2d(x, b))

    recorded, ctx = passed(fn, [X], [random(8, 16, 3, 3), random(8, 16, 1, 1)])
    graph = recorded.graph
    assert ctx.hits == {NAME: 2}
    assert len(conversions(graph)) == 3  # the input, and each result
    (weight,) = [node for node in graph.nodes if node.meta.get("constant")]
    assert weight.target is torch.ops.aten.clone.default and is_last(weight)
    assert is_last(find(graph, "relu"))


def test_a_network_stays_in_this_order() -> None:
    def fn(x: Tensor, *weights: Tensor) -> Tensor:
        for weight in weights[:3]:
            x = F.relu(F.conv2d(x, weight, padding=1))
        x = F.max_pool2d(torch.cat([x, x + 1], 1), 2)
        x = F.conv2d(x, weights[3], groups=32)
        return F.adaptive_avg_pool2d(x, 1).flatten(1) @ weights[4]

    weights = [random(16, 16, 3, 3) for _ in range(3)]
    recorded, ctx = passed(fn, [X], [*weights, random(32, 1, 3, 3), random(32, 4)])
    assert ctx.hits == {NAME: 4} and len(conversions(recorded.graph)) == 1
    assert all(is_last(find(recorded.graph, name)) for name in ("cat", "max_pool2d"))


LAYERS: dict[str, tuple[Callable[..., Any], Tensor, Tensor]] = {
    "volumes": (lambda x, w: F.conv3d(x, w, padding=1), random(2, 4, 5, 4, 3), random(6, 4, 3, 3, 3)),
    "transposed": (lambda x, w: F.conv_transpose2d(x, w, stride=2), X, random(16, 8, 3, 3)),
    "depthwise": (lambda x, w: F.conv2d(x, w, groups=16, stride=2), X, random(32, 1, 3, 3)),
    "padded by name": (lambda x, w: F.conv2d(x, w, padding="same"), X, random(8, 16, 3, 3)),
    "one channel": (lambda x, w: F.conv2d(x, w), random(2, 1, 9, 7), random(8, 1, 3, 3)),
    "one pixel": (lambda x, w: F.relu(F.conv2d(x, w)), random(2, 16, 1, 1), random(8, 16, 1, 1)),
    "one image": (lambda x, w: F.relu(F.conv2d(x, w, stride=3)), random(1, 3, 9, 9), random(8, 3, 3, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("is_constant", [True, False])
def test_layers_are_converted(name: str, is_constant: bool) -> None:
    fn, x, weight = LAYERS[name]
    recorded, ctx = passed(fn, *([x], [weight]) if is_constant else ([x, weight], []))
    assert ctx.hits == {NAME: 1}
    (layer,) = [node for node in recorded.graph.nodes if "conv" in str(node.target)]
    assert is_last(layer) and any(is_last(operand) for operand in layer.args[:2])


REFUSED: dict[str, tuple[Callable[..., Any], Tensor, Tensor, str]] = {
    "double": (F.conv2d, X.double(), random(8, 16, 3, 3).double(), "most convolutions gain nothing"),
    "groups": (
        lambda x, w: F.conv2d(x, w, groups=4),
        X,
        random(8, 4, 3, 3),
        "a convolution in groups of several channels is slower so",
    ),
    "unbatched": (F.conv2d, X[0], random(8, 16, 3, 3), "most convolutions gain nothing"),
    "lines": (F.conv1d, X[:, :, 0].contiguous(), random(8, 16, 3), "most convolutions gain nothing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_layers_stay(name: str) -> None:
    fn, x, weight, reason = REFUSED[name]
    recorded, ctx = passed(fn, [x], [weight])
    assert not ctx.hits and ctx.refusals[NAME, reason] == 1 and "clone" not in ops(recorded.graph)


def test_what_is_in_the_minority_is_converted_with_the_rest() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w) + F.conv2d(x.double(), w.double()).bfloat16()

    _, ctx = passed(fn, [X], [random(8, 16, 3, 3)])
    assert ctx.hits == {NAME: 1}


def test_float32_follows_where_products_may_be_of_tf32() -> None:
    x, weight = random(2, 32, 9, 7, dtype=torch.float32), random(8, 32, 3, 3, dtype=torch.float32)
    few = random(2, 16, 9, 7, dtype=torch.float32), random(8, 16, 3, 3, dtype=torch.float32)
    conv: Any = torch.backends.cudnn.conv
    before = conv.fp32_precision
    try:
        conv.fp32_precision = "tf32"
        assert passed(F.conv2d, [x], [weight])[1].hits == {NAME: 1}
        assert not passed(F.conv2d, [x], [weight], capability=75)[1].hits
        # In the order of rows cuDNN keeps float32 for these: TF32 would be less exact than eager.
        assert not passed(F.conv2d, [few[0]], [few[1]])[1].hits
        conv.fp32_precision = "ieee"
        assert not passed(F.conv2d, [x], [weight])[1].hits
    finally:
        conv.fp32_precision = before


def test_the_cpu_is_left_alone() -> None:
    _, ctx = passed(F.conv2d, [X], [random(8, 16, 3, 3)], ["cpu"])
    assert ctx.hits[NAME] == 0


def test_gradients_read_what_the_convolution_reads() -> None:
    rest = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])

    def fn(x: Tensor, grad: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        dx, dw, _ = torch.ops.aten.convolution_backward(grad, x, weight, *rest)
        return dx, dw, F.relu(F.conv2d(x, weight))

    recorded, ctx = passed(fn, [X, random(2, 8, 7, 5)], [random(8, 16, 3, 3)])
    assert ctx.hits == {NAME: 2}
    backward, forward = find(recorded.graph, "convolution_backward"), find(recorded.graph, "conv2d")
    assert is_last(backward.args[0]) and backward.args[1] is forward.args[0]


@pytest.mark.parametrize("returned", ["wide", "itself", "both"])
def test_gradients_of_single_taps_lie_alike_in_both_orders(returned: str) -> None:
    """A caller sees which strides they have; nobody else does."""
    rest = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])

    def fn(x: Tensor, grad: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        dx, dw, _ = torch.ops.aten.convolution_backward(grad, x, weight, *rest)
        given = {"wide": (dw.float(),), "itself": (dw,), "both": (dw, dw.float())}
        return dx, *given[returned]

    assert passed(fn, [X, random(2, 8, 9, 7)], [random(8, 16, 1, 1)])[1].hits == {NAME: 1}


def test_a_bias_is_added_by_what_follows() -> None:
    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.relu(F.conv2d(x, w, b, padding=1)) * 2

    recorded, ctx = passed(fn, [X], [random(8, 16, 3, 3), random(8)])
    assert ctx.hits == {NAME: 1, BiasBehindConvolution.name: 1}
    assert find(recorded.graph, "conv2d").args[2] is None
    program = compile_on(recorded.graph)
    assert sum(isinstance(step, CallKernel) for step in program.instructions) == 2  # the input, and the rest


@pytest.mark.parametrize(
    ("fn", "shape", "weight", "hits"),
    [
        (F.conv1d, (2, 16, 9), (8, 16, 3), 1),
        (lambda x, w, b: F.conv2d(x, w, b, groups=16), (2, 16, 9, 7), (16, 1, 3, 3), 0),
        (lambda x, w, b: F.conv_transpose2d(x, w, b, groups=2), (2, 16, 9, 7), (16, 4, 3, 3), 1),
        (F.conv2d, (16, 9, 7), (8, 16, 3, 3), 1),
    ],
)
def test_which_biases_are_sums(
    fn: Callable[..., Any], shape: tuple[int, ...], weight: tuple[int, ...], hits: int
) -> None:
    channels = 16 if weight[1] == 1 else 8
    operands = [random(*each, dtype=torch.float64) for each in (weight, (channels,))]
    _, ctx = passed(fn, [random(*shape, dtype=torch.float64)], operands)
    assert ctx.hits[BiasBehindConvolution.name] == hits


@pytest.mark.parametrize(
    ("network", "dtype", "convolutions", "converted", "kernels"),
    [
        (ResNet, torch.bfloat16, 53, 53, 51),
        (ResNet, torch.float32, 53, 52, 50),
        (MobileNetV3, torch.bfloat16, 62, 62, 72),
        (MobileNetV3, torch.float32, 62, 0, 71),
    ],
    ids=["resnet of bf16", "resnet", "mobile of bf16", "mobile"],
)
def test_networks_are_converted_where_they_begin(
    network: type[nn.Module],
    dtype: torch.dtype,
    convolutions: int,
    converted: int,
    kernels: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "device_target", lambda device, config: describe(90))
    torch.manual_seed(0)
    model = network().eval().to(dtype)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
    state = {n: t.detach() for n, t in (*model.named_parameters(), *model.named_buffers()) if t.dim()}

    def fn(x: Tensor, *bound: Tensor) -> Tensor:
        return torch.func.functional_call(model, dict(zip(state, bound, strict=True)), (x,))

    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    with torch.no_grad():
        recorded = record_on(fn, [x], bound=list(state.values()))
        ctx = PassContext(backend_passes=NativeBackend().passes)
        run_passes(recorded.graph, Config(), ctx=ctx)
        program = compile_on(recorded.graph)
        ours = run_on_cpu(recorded, [x], list(state.values()))[0].double()
        theirs, right = model(x).double(), model.double()(x.double())
    assert ctx.hits[NAME] == converted and len(conversions(recorded.graph)) == (1 if converted else 0)
    calls = Counter(step.op for step in program.instructions if isinstance(step, CallAten))
    assert calls.pop("aten::conv2d.default") == convolutions and set(calls) == {"aten::linear.default"}
    assert sum(isinstance(step, CallKernel) for step in program.instructions) == kernels
    error, eagers, size = (each.square().mean().sqrt() for each in (ours - right, theirs - right, right))
    assert error <= 2 * eagers + 1e-6 * size
