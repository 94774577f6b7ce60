"""The networks of the benchmark run, and their activations are alive to the last layer. Nothing here is timed."""

from __future__ import annotations

import pytest
import torch
from same import assert_same
from torch import Tensor

import lampwork
from lampwork.bench.measure import tensor_of
from lampwork.bench.models import WORKLOADS, load
from lampwork.bench.networks import (
    BasicBlock,
    ConvNeXt,
    Decoder,
    DenseNet,
    EfficientNet,
    MobileNetV3,
    RegNetY,
    ResNet,
    UNet,
    WaveEncoder,
)
from lampwork.bench.workloads.recurrent import Gru
from lampwork.bench.workloads.small import LARGE, SMALL
from lampwork.bench.workloads.transformers import bert
from lampwork.bench.workloads.workload import DTYPES, keep_alive

ALIAS = {"bert_8": "bert", "alexnet_32": "alexnet"}  # the same network with another batch


def other(x: Tensor) -> Tensor:
    """An input like `x`; one that differs by a tenth, or other tokens."""
    if x.is_floating_point():
        return x + 0.1 * torch.randn_like(x)
    return (x + torch.randint(1, 400, x.shape)) % 500


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name not in (*ALIAS, *SMALL, *LARGE)])
def test_activations_are_alive(name: str) -> None:
    workload = load(name)
    with torch.no_grad():
        first = tensor_of(workload.fn(*workload.inputs)).double()
        torch.manual_seed(1)
        second = tensor_of(workload.fn(*(other(x) for x in workload.inputs))).double()
    assert first.isfinite().all()
    # Other inputs, other outputs: by more than a hundredth of how far outputs differ from each other.
    assert 1e-3 < first.std() < 1e4
    assert (first - second).square().mean().sqrt() > 0.01 * first.std()


def test_a_workload_is_the_same_each_time() -> None:
    one, two = load("mobilenet_v3"), load("mobilenet_v3")
    with torch.no_grad():
        assert torch.equal(one.fn(*one.inputs), two.fn(*two.inputs))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_half_precision_rounds_weights_and_inputs(dtype) -> None:
    half, single = load("mlp", dtype=dtype), load("mlp")
    assert {p.dtype for p in half.fn.parameters()} == {x.dtype for x in half.inputs} == {DTYPES[dtype]}
    for ours, theirs in zip(half.fn.parameters(), single.fn.parameters(), strict=True):
        assert torch.equal(ours, theirs.to(DTYPES[dtype]))
    tokens = load("bert", dtype=dtype).inputs[0]
    assert tokens.dtype is torch.int64


def test_the_decoder_sees_what_it_wrote_and_nothing_behind_its_position() -> None:
    model = Decoder(vocabulary=50, width=32, inner=48, layers=2, heads=4, groups=2, length=8).eval()
    token, position, cache = torch.tensor([[7]]), torch.tensor([3]), model.cache()
    with torch.no_grad():
        want = model(token, position, cache)
        again = cache.clone()
        assert torch.equal(model(token, position, cache), want) and torch.equal(cache, again)
        cache[..., 4:, :] = 99.0
        assert torch.equal(model(token, position, cache), want)
        cache[..., 2, :] += 1.0
        assert not torch.equal(model(token, position, cache), want)


def narrow_decoder() -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    model = Decoder(vocabulary=50, width=32, inner=48, layers=2, heads=4, groups=2, length=8).eval()
    return model, (torch.tensor([[7]]), torch.tensor([3]), model.cache())


IMAGE = (2, 3, 64, 64)
NARROW = {
    "resnet18": lambda: (keep_alive(ResNet((1, 1, 1, 1), 10, BasicBlock)), (torch.randn(IMAGE),)),
    "resnext": lambda: (keep_alive(ResNet((1, 1, 1, 1), 10, groups=32, width=4)), (torch.randn(IMAGE),)),
    "regnet": lambda: (
        keep_alive(RegNetY((1, 1, 1, 1), (16, 32, 48, 64), classes=10)),
        (torch.randn(IMAGE),),
    ),
    "densenet": lambda: (keep_alive(DenseNet((2, 2, 2, 2), classes=10)), (torch.randn(IMAGE),)),
    "mobilenet_v3": lambda: (keep_alive(MobileNetV3(10)), (torch.randn(IMAGE),)),
    "efficientnet": lambda: (keep_alive(EfficientNet(10)), (torch.randn(IMAGE),)),
    "convnext": lambda: (keep_alive(ConvNeXt((1, 1, 1, 1), (16, 24, 32, 40), 10)), (torch.randn(IMAGE),)),
    "unet": lambda: (keep_alive(UNet((8, 12, 16, 20, 24), 5)), (torch.randn(IMAGE),)),
    "waveform": lambda: (keep_alive(WaveEncoder(32, 48)), (torch.randn(2, 1600),)),
    "gru": lambda: (Gru().eval(), (torch.randn(2, 5, 256),)),
    "bert": lambda: (bert(1), (torch.randint(0, 30522, (2, 9)),)),
    "decoder": narrow_decoder,
}


@pytest.mark.parametrize("name", NARROW)
def test_networks_compile_and_are_right(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = NARROW[name]()
    with torch.no_grad():
        assert_same(model, lampwork.compile(model)(*inputs), *inputs)


@pytest.mark.parametrize("name", [*SMALL, *LARGE])
def test_functions_compile_and_are_right(name: str) -> None:
    workload = load(name)
    with torch.no_grad():
        compiled = lampwork.compile(workload.fn)
        for _ in range(2):
            assert_same(workload.fn, compiled(*workload.inputs), *workload.inputs)
