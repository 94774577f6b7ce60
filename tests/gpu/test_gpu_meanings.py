"""Where kernels of a device mean otherwise than the CPU's: numbers, layouts, what eager chooses and refuses there."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gpu
import lampwork
from lampwork.testing.compare import difference

gpu.require()

ODD = torch.tensor([-0.0, 0.0, -math.inf, math.inf, math.nan, -3.0, 2.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("exponent", [0.5, -0.5, 1.5, 3.0, -1.0, -2.0])
def test_powers(dtype: torch.dtype, exponent: float) -> None:
    x, number = ODD.to(gpu.DEVICE, dtype), torch.tensor(exponent)
    gpu.check(lambda x: (x**exponent, x ** torch.tensor(exponent)), x)
    gpu.check(lambda x, n: x**n, x, number)
    gpu.check(lambda x, n: x**n, x, number.to(gpu.DEVICE, dtype).expand(7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("mode", ["trunc", "floor"])
def test_quotients(dtype: torch.dtype, mode: str) -> None:
    x = torch.arange(1, 400, device=gpu.DEVICE).to(dtype)
    gpu.check(lambda x: torch.div(x, 49.0, rounding_mode=mode), x)
    gpu.check(lambda x, y: torch.div(x, y, rounding_mode=mode), x, torch.full_like(x, 49.0))
    gpu.check(lambda x, n: torch.div(x, n, rounding_mode=mode), x, torch.tensor(49.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_bytes_of_floats(dtype: torch.dtype) -> None:
    x = torch.tensor([3.0, -1.0, 300.0, 3e9, -3e9, 0.5]).to(gpu.DEVICE, dtype)
    gpu.check(lambda x: x.to(torch.uint8) + 1, x)


def test_layouts_of_libraries() -> None:
    x = torch.randn(3, 4, 6, device=gpu.DEVICE)
    gpu.check(lambda x: torch.linalg.svd(x, full_matrices=False)[1] * 2, x)
    for mine, other in zip(lampwork.compile(factors)(x), factors(x), strict=True):
        assert mine.stride() == other.stride()
    for dims in ([2], [0], [1, 2], [0, 2]):
        gpu.check(lambda x, dims=dims: torch.fft.rfftn(x, dim=dims).real + 1, x)
        gpu.check(lambda x, dims=dims: torch.fft.fftn(x, dim=dims), x, kernels=0)


def factors(x: Tensor) -> tuple[Tensor, ...]:
    return (*torch.linalg.svd(x), torch.linalg.qr(x)[1], torch.linalg.inv(x @ x.mT))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(64, 192)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return y.transpose(1, 2).flatten(-2).square().mean()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_attention_is_trained(dtype: torch.dtype, masked: bool) -> None:
    torch.manual_seed(0)
    net = gpu.on_device(Attention()).to(dtype)
    x = torch.randn(2, 17, 64, device=gpu.DEVICE, dtype=dtype)
    mask = torch.zeros(17, 17, device=gpu.DEVICE, dtype=dtype).masked_fill(
        torch.ones(17, 17, device=gpu.DEVICE, dtype=torch.bool).triu(2), -math.inf
    )
    args = (x, mask) if masked else (x,)
    compiled = lampwork.compile(net)
    lampwork.reset_stats()
    want = torch.autograd.grad(net(*args), list(net.parameters()))
    for _ in range(3):
        got = torch.autograd.grad(compiled(*args), list(net.parameters()))
    assert lampwork.stats()["compiled_backwards"] >= 1, lampwork.stats()
    for mine, other in zip(got, want, strict=True):
        torch.testing.assert_close(mine, other, rtol=0.05, atol=1e-3 if dtype is torch.float32 else 1e-2)


def makes(x: Tensor) -> Tensor:
    return F.gelu(x + torch.ones(4)) * torch.arange(4)


def test_a_default_device_around_calls() -> None:
    x = torch.randn(3, 4, device=gpu.DEVICE)
    compiled = lampwork.compile(makes)
    lampwork.reset_stats()
    with torch.device(gpu.DEVICE):
        for _ in range(2):
            assert not difference(compiled(x), makes(x))
    gpu.assert_compiled(compiled, 2)


def test_a_default_device_before_calls() -> None:
    compiled = lampwork.compile(makes)
    torch.set_default_device(gpu.DEVICE)
    try:
        net = nn.Sequential(nn.Linear(4, 4), nn.GELU())
        x = torch.randn(3, 4)
        trained = lampwork.compile(lambda x: (net(x) * torch.ones(4)).sum())
        lampwork.reset_stats()
        for _ in range(2):
            assert not difference(compiled(x), makes(x))
            (got,) = torch.autograd.grad(trained(x), [net[0].weight])
        (want,) = torch.autograd.grad((net(x) * torch.ones(4)).sum(), [net[0].weight])
    finally:
        torch.set_default_device(None)
    torch.testing.assert_close(got, want)
    assert lampwork.stats()["compiled_calls"] == 4 and lampwork.stats()["compiled_backwards"] >= 1


def test_gradients_of_softmax_in_other_dtypes_raise_as_in_eager() -> None:
    y = torch.randn(3, 4, device=gpu.DEVICE).softmax(-1)

    def fn(grad: Tensor, y: Tensor) -> Tensor:
        return torch.ops.aten._softmax_backward_data(grad, y, -1, torch.float32)

    gpu.check(fn, y * 2, y)
    for grad in (y.double(), y.half()):
        errors: list[str] = []
        for call in (fn, lampwork.compile(fn)):
            try:
                call(grad, y)
                errors.append("")
            except RuntimeError as error:
                errors.append(str(error))
        assert errors[0] == errors[1]
