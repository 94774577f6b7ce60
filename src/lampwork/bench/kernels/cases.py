"""The shapes: products, convolutions, attention, recurrent layers, and what memory limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lampwork.approximation import quantize
from lampwork.bench.kernels.case import Call, Case, ours
from lampwork.bench.workloads.small import mish

ROWS = (1, 4, 8, 16, 32, 49, 128, 512)
# K, N: BERT's and GPT-2's layers, ResNet-50's classifier and a 1x1 convolution of it.
SIDES = ((768, 768), (768, 3072), (3072, 768), (768, 2304), (2048, 1000), (256, 1024))

# channels, filters, kernel, stride, size: every distinct shape of ResNet-50 but the first layer.
RESNET = (
    (64, 64, 1, 1, 56),
    (64, 64, 3, 1, 56),
    (64, 256, 1, 1, 56),
    (256, 64, 1, 1, 56),
    (256, 128, 1, 1, 56),
    (128, 128, 3, 2, 56),
    (128, 512, 1, 1, 28),
    (256, 512, 1, 2, 56),
    (512, 128, 1, 1, 28),
    (128, 128, 3, 1, 28),
    (512, 256, 1, 1, 28),
    (256, 256, 3, 2, 28),
    (256, 1024, 1, 1, 14),
    (512, 1024, 1, 2, 28),
    (1024, 256, 1, 1, 14),
    (256, 256, 3, 1, 14),
    (1024, 512, 1, 1, 14),
    (512, 512, 3, 2, 14),
    (512, 2048, 1, 1, 7),
    (1024, 2048, 1, 2, 14),
    (2048, 512, 1, 1, 7),
    (512, 512, 3, 1, 7),
)
# channels, kernel, stride, size: the depthwise layers of MobileNetV2 and V3.
DEPTHWISE = (
    (32, 3, 1, 112),
    (96, 3, 2, 112),
    (144, 3, 1, 56),
    (192, 3, 2, 28),
    (384, 3, 1, 14),
    (960, 3, 1, 7),
    (120, 5, 1, 28),
    (672, 5, 2, 14),
    (960, 5, 1, 7),
)
# filters, kernel, stride, padding: the first layers of ResNet, AlexNet, MobileNet, ConvNeXt, ViT.
FIRST = ((64, 7, 2, 3), (64, 11, 4, 2), (32, 3, 2, 1), (96, 4, 4, 0), (384, 16, 16, 0))
# name -> function of one tensor
POINTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "mish chain": mish,
    "softplus": F.softplus,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "pow 3": lambda x: x**3,
    "pow 0.7": lambda x: (x.abs() + 0.1) ** 0.7,
}
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(),
    "sum rows": lambda x: x.sum(1),
    "sum columns": lambda x: x.sum(0),
    "max rows": lambda x: x.amax(1),
    "var rows": lambda x: x.var(1),
}


def cases() -> Iterator[Case]:
    """All of them, in the order of the table."""
    for m in ROWS:
        for k, n in SIDES:
            yield linear(m, k, n)
    for m in ROWS:
        for k, n in SIDES[:3]:
            yield int8_product(m, k, n)
            yield int8_linear(m, k, n)
    for c, f, kernel, stride, size in RESNET:
        yield conv(f"{c}-{f} {kernel}x{kernel}/{stride} {size}", c, f, kernel, stride, size, kernel // 2)
    for c, kernel, stride, size in DEPTHWISE:
        name = f"depthwise {c} {kernel}x{kernel}/{stride} {size}"
        yield conv(name, c, c, kernel, stride, size, kernel // 2, c)
    for f, kernel, stride, padding in FIRST:
        yield conv(f"first 3-{f} {kernel}x{kernel}/{stride} 224", 3, f, kernel, stride, 224, padding)
    for length in (128, 256, 512, 1024, 2048, 4096):
        yield attention(12, length, 64)
    for rows in (8, 64, 256, 1024):
        yield experts(rows, 512, 1024, 16)
    for rows, width in ((512, 768), (1536, 128), (197, 384), (12 * 512, 512)):
        yield _moving("softmax", f"{rows}x{width}", partial(torch.softmax, dim=-1), (rows, width))
        yield _moving("layer norm", f"{rows}x{width}", partial(_layer_norm, width), (rows, width))
    for size in (1 << 12, 1 << 16, 1 << 20):
        for name, fn in POINTWISE.items():
            yield _moving("pointwise", f"{name} {size}", fn, (size,))
    for shape in ((128, 512), (1024, 1024)):
        for name, fn in REDUCTIONS.items():
            yield _moving("reduction", f"{name} {shape[0]}x{shape[1]}", fn, shape)
    for batch, length, width in ((1, 64, 256), (4, 64, 256), (16, 32, 512)):
        yield recurrent("lstm", batch, length, width)
        yield recurrent("gru", batch, length, width)


def linear(m: int, k: int, n: int) -> Case:
    """float32[m, k] by a constant [n, k], with a bias. MKL is what `F.linear` calls here."""

    def make() -> dict[str, Call]:
        layer = nn.Linear(k, n).requires_grad_(False)
        x = torch.randn(m, k)
        ops: Any = torch.ops.mkldnn
        packed = ops._reorder_linear_weight(layer.weight, m)
        return {
            "lampwork": ours(layer, x),
            "mkl": lambda: F.linear(x, layer.weight, layer.bias),
            "onednn": lambda: ops._linear_pointwise(x, packed, layer.bias, "none", [], ""),
        }

    return Case("linear", f"{m}x{k}x{n}", make, flops=2 * m * k * n)


def experts(rows: int, k: int, n: int, groups: int) -> Case:
    """float32[rows, k], in groups, each by a matrix [n, k] of its own. ATen's is a call of MKL for each."""

    def make() -> dict[str, Call]:
        x, weight = torch.randn(rows, k), torch.randn(groups, n, k).transpose(1, 2)
        chosen = torch.randint(groups, (rows,), generator=torch.Generator().manual_seed(0))
        ends = torch.bincount(chosen, minlength=groups).cumsum(0).int()
        grouped_mm: Any = torch.ops.aten._grouped_mm
        call = partial(grouped_mm, offs=ends)
        return {"lampwork": ours(call, x, weight), "aten": lambda: call(x, weight)}

    return Case("experts", f"{rows}x{k}x{n} of {groups}", make, flops=2 * rows * k * n)


def int8_product(m: int, k: int, n: int) -> Case:
    """int8[m, k] by a constant [n, k], in int32. ATen's is oneDNN's."""

    def make() -> dict[str, Call]:
        int_mm: Any = torch.ops.aten._int_mm
        x, weight = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((m, k), (n, k)))
        layer = _Product(weight.clone())
        return {"lampwork": ours(layer, x), "aten": lambda: int_mm(x, weight.t())}

    return Case("int8", f"{m}x{k}x{n}", make, flops=2 * m * k * n, int8=True)


class _Product(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Buffer(weight)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.aten._int_mm(x, self.weight.t())


def int8_linear(m: int, k: int, n: int) -> Case:
    """A linear layer that rounds its rows to int8, against the same in eager."""

    def make() -> dict[str, Call]:
        model = nn.Sequential(nn.Linear(k, n).requires_grad_(False))
        layer = quantize(model).model
        x = torch.randn(m, k)
        return {"lampwork": ours(layer, x), "aten": lambda: layer(x)}

    return Case("int8 linear", f"{m}x{k}x{n}", make, flops=2 * m * k * n, int8=True)


def conv(
    name: str, c: int, f: int, kernel: int, stride: int, size: int, padding: int, groups: int = 1
) -> Case:
    """float32[1, c, size, size]. ATen's is oneDNN's convolution, in both layouts."""

    def make() -> dict[str, Call]:
        layer = nn.Conv2d(c, f, kernel, stride, padding, groups=groups).requires_grad_(False)
        x = torch.randn(1, c, size, size)
        last = x.contiguous(memory_format=torch.channels_last)
        weight = layer.weight.contiguous(memory_format=torch.channels_last)
        return {
            "lampwork": ours(layer, x),
            "aten": lambda: layer(x),
            "onednn channels_last": lambda: F.conv2d(
                last, weight, layer.bias, stride, padding, groups=groups
            ),
        }

    out = (size + 2 * padding - kernel) // stride + 1
    return Case("conv", name, make, flops=2 * out * out * f * (c // groups) * kernel * kernel)


def attention(heads: int, length: int, width: int) -> Case:
    """float32[1, heads, length, width] of queries, keys and values."""

    def make() -> dict[str, Call]:
        q, k, v = (torch.randn(1, heads, length, width) for _ in range(3))
        call = F.scaled_dot_product_attention
        return {"lampwork": ours(lambda q, k, v: call(q, k, v), q, k, v), "aten": lambda: call(q, k, v)}

    return Case("attention", f"{heads}x{length}x{width}", make, flops=4 * heads * length * length * width)


def recurrent(kind: str, batch: int, length: int, width: int) -> Case:
    """One layer, float32[batch, length, width]."""

    def make() -> dict[str, Call]:
        layer = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](width, width, batch_first=True)
        layer = layer.requires_grad_(False).eval()
        x = torch.randn(batch, length, width)
        return {"lampwork": ours(lambda x: layer(x)[0], x), "aten": lambda: layer(x)[0]}

    gates = {"lstm": 4, "gru": 3}[kind]
    return Case(
        "recurrent",
        f"{kind} {batch}x{length}x{width}",
        make,
        flops=4 * batch * length * width * width * gates,
    )


def _layer_norm(width: int, x: Tensor) -> Tensor:
    return F.layer_norm(x, (width,))


def _moving(family: str, name: str, fn: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Case:
    """What reads one tensor and writes its result."""

    def make() -> dict[str, Call]:
        x = torch.randn(shape)
        return {"lampwork": ours(fn, x), "aten": lambda: fn(x)}

    out = fn(torch.empty(shape, device="meta"))
    return Case(family, name, make, reads=4 * torch.Size(shape).numel(), writes=4 * out.numel())
