"""A second target through all stages: kernels, networks and programs on a machine without vectors, against eager."""

from __future__ import annotations

from collections.abc import Iterator

import harness
import pytest
import torch
from same import assert_same
from scalar_target import SCALAR, SCALAR_TILES, native_on
from torch import Tensor, nn
from torch.nn import functional as F

import lampwork
from lampwork.bench import models
from lampwork.bench.architectures import ARCHITECTURES, build, inputs_of
from lampwork.bench.networks import MobileNetV2, ResNet
from lampwork.bench.workloads.workload import keep_alive
from lampwork.codegen.target import Target

TARGETS = [pytest.param(target, id=target.name) for target in (SCALAR, SCALAR_TILES)]


@pytest.fixture(autouse=True, params=TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    with native_on(request.param):
        yield request.param


def compiled_as(model, *inputs):
    """The compiled model after two calls, each as good as eager's."""
    compiled = lampwork.compile(model)
    with torch.no_grad():
        for _ in range(2):
            assert_same(model, compiled(*inputs), *inputs)
    return compiled


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).view(2, 5, 4, 8).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 32)


def test_products_are_what_the_target_has_templates_for(target: Target) -> None:
    compiled = compiled_as(nn.Sequential(nn.Linear(32, 50), nn.GELU(), nn.Linear(50, 7)), torch.randn(9, 32))
    counts = compiled.stages.counts
    assert (counts["gemms"], counts["ATen calls"]) == ((2, 0) if target is SCALAR_TILES else (0, 2))
    text = compiled.stages.llvm
    assert " x float>" not in text and "llvm.fma" not in text and "mask" not in text
    assert "%ymm" not in compiled.stages.assembly and "fmadd" not in compiled.stages.assembly


@pytest.mark.parametrize(
    "name",
    ["lerp", "mse", "triple_add", "gelu_chain", "masked_softmax", "residual_layer_norm", "mlp", "lstm"],
)
def test_workloads(name: str) -> None:
    workload = models.load(name)
    compiled_as(workload.fn, *workload.inputs)


@pytest.mark.parametrize(
    "make, shape",
    [
        (Attention, (2, 5, 32)),
        (lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), (2, 6, 32)),
        (lambda: keep_alive(ResNet((1, 1, 1, 1), classes=10)), (2, 3, 32, 32)),
        (lambda: keep_alive(MobileNetV2(classes=10)), (2, 3, 32, 32)),
    ],
    ids=["attention", "encoder", "resnet", "mobilenet"],
)
def test_networks(make, shape: tuple[int, ...]) -> None:
    compiled_as(make().eval(), torch.randn(shape))


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "vit"])
def test_architectures(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model, inputs = build(architecture), inputs_of(architecture)
    with torch.no_grad():
        assert_same(model, lampwork.compile(model)(**inputs), **inputs)


def test_sizes_that_stay_open() -> None:
    model = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 3)).eval()
    compiled = lampwork.compile(model, dynamic=True)
    with torch.no_grad():
        for rows in (7, 3, 65, 1):
            x = torch.randn(rows, 16)
            assert_same(model, compiled(x), x)


def test_gradients() -> None:
    model = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 3))
    twin = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 3))
    twin.load_state_dict(model.state_dict())
    x = torch.randn(5, 16)
    lampwork.compile(model)(x).square().sum().backward()
    twin(x).square().sum().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


HALVES = [torch.float16, torch.bfloat16, torch.float64, torch.int64]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x * 3 + y, (x > y).sum(), x.to(torch.float32).softmax(-1), torch.where(x > 0, x, y).amax(0)

    x, y = (torch.randn(6, 11).mul(4).to(dtype) for _ in range(2))
    for ours, theirs in zip(lampwork.compile(function)(x, y), function(x, y), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("file", ["torch_operators", "torch_layers", "torch_views"])
def test_conformance(file: str) -> None:
    path = next(path for path in harness.all_files() if path.stem == file)
    code, names = harness.load(path)
    wrong = {name: report.wrong for name in names[::3] if (report := harness.run(path, code, name)).wrong}
    assert not wrong, wrong
