"""Models whose products are made of tiles, emulated or AMX's: one thread and two, after a fork, with open sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from children import failure
from emulated_tiles import emulated, has_emulation
from same import assert_same
from scalar_target import native_on
from torch import nn

import lampwork
from lampwork.codegen.llvm.isa import amx
from lampwork.codegen.llvm.isa.x86 import host_flags, host_isa

HAS_AMX = host_flags() >= amx.FLAGS and not amx.refusal()
STRICT = {"strict": True}


@pytest.fixture(
    params=[
        pytest.param("emulated", marks=pytest.mark.skipif(not has_emulation(), reason="no AVX512-BF16")),
        pytest.param("amx", marks=pytest.mark.skipif(not HAS_AMX, reason="no AMX")),
    ],
    autouse=True,
)
def machine(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.manual_seed(0)
    with native_on(emulated() if request.param == "emulated" else host_isa("amx")), torch.no_grad():
        yield


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(64, 4, 100, batch_first=True, activation="gelu")


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 48, 3, padding=1, bias=False),
        nn.BatchNorm2d(48),
        nn.Hardswish(),
        nn.Conv2d(48, 48, 3, padding=1, groups=2),
        nn.Conv2d(48, 40, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(40, 10),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "encoder": (encoder, (2, 21, 64)),
    "network": (network, (2, 3, 23, 31)),
}
NAMES = pytest.mark.parametrize("name", MODELS)


def made(name: str) -> tuple[nn.Module, torch.Tensor]:
    make, shape = MODELS[name]
    return make().bfloat16().eval(), torch.randn(*shape).bfloat16()


@NAMES
@pytest.mark.parametrize("threads", [1, 2])
def test_models(name: str, threads: int) -> None:
    model, x = made(name)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        compiled = lampwork.compile(model, options=STRICT)
        for _ in range(2):
            assert_same(model, compiled(x), x)
    finally:
        torch.set_num_threads(before)


@NAMES
def test_open_sizes(name: str) -> None:
    model, x = made(name)
    compiled = lampwork.compile(model, options=STRICT, dynamic=True)
    for batch in (x, x[:1], torch.cat([x, x, x])):
        assert_same(model, compiled(batch), batch)


def test_float32_under_autocast_and_by_request() -> None:
    model, x = encoder().eval(), torch.randn(2, 21, 64)
    with torch.autocast("cpu", torch.bfloat16):
        ours, eager = lampwork.compile(model, options=STRICT)(x), model(x)
    assert ours.dtype is eager.dtype
    torch.testing.assert_close(ours, eager, rtol=2e-2, atol=2e-2)


def test_int8_layers() -> None:
    model, x = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 40)).eval(), torch.randn(50, 64)
    report = lampwork.quantize(model, calibration=[x], weights="int8", activations="dynamic")
    assert report is not None
    assert_same(model, lampwork.compile(model, options=STRICT)(x), x)


def test_a_child_has_what_its_parent_was_granted() -> None:
    model, x = made("encoder")
    compiled = lampwork.compile(model, options=STRICT)
    compiled(x)

    def again() -> None:
        with torch.no_grad():
            assert_same(model, compiled(x), x)
            assert_same(model, lampwork.compile(model, options=STRICT)(x), x)

    assert not failure([("again", again)])
