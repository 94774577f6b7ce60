"""Calls of every operator that has an ONNX form, with what the runtimes have to make of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Sample = tuple[Callable[..., Any], tuple[Tensor, ...]]


def _x(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(*shape, generator=generator)


def _positive(*shape: int) -> Tensor:
    return _x(*shape).abs() + 0.1


def _ids(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(high))


SPECIAL = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, 1.5, -1.5, 2.5, 88.0, -104.0, 1e-40, 3e38])
MASK = _x(2, 1, 5, 5) > -0.5

POINTWISE: dict[str, Sample] = {
    name: (fn, (_positive(3, 4) if name in ("log", "sqrt", "rsqrt", "pow_half") else _x(3, 4),))
    for name, fn in {
        "relu": torch.relu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "exp": torch.exp,
        "log": torch.log,
        "sqrt": torch.sqrt,
        "rsqrt": torch.rsqrt,
        "neg": torch.neg,
        "abs": torch.abs,
        "erf": torch.erf,
        "sin": torch.sin,
        "cos": torch.cos,
        "reciprocal": torch.reciprocal,
        "floor": torch.floor,
        "ceil": torch.ceil,
        "round": torch.round,
        "sign": torch.sign,
        "silu": F.silu,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
        "elu": lambda x: F.elu(x, 0.5),
        "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.7),
        "relu6": F.relu6,
        "clamp": lambda x: x.clamp(-0.5, 0.5),
        "clamp_min": lambda x: x.clamp(min=-0.5),
        "clamp_max": lambda x: x.clamp(max=0.5),
        "hardsigmoid": F.hardsigmoid,
        "hardswish": F.hardswish,
        "mish": F.mish,
        "add_number": lambda x: x + 2,
        "add_alpha": lambda x: torch.add(x, x[0], alpha=3),
        "sub_number": lambda x: x - 2.5,
        "rsub": lambda x: 1 - x,
        "mul_number": lambda x: x * 0.125,
        "div_number": lambda x: x / 3,
        "pow_2": lambda x: x**2,
        "pow_3": lambda x: x**3,
        "pow_half": lambda x: x**0.5,
        "where_numbers": lambda x: torch.where(x > 0, x, 0.5),
        "masked_fill": lambda x: x.masked_fill(x < 0, -1e9),
        "to_double_less": lambda x: x > 0.25,
        "isnan": torch.isnan,
        "isinf": torch.isinf,
        "logic": lambda x: ((x > 0) & (x < 1)) | ~(x > -1),
        "compare": lambda x: (x >= 0.5) ^ (x != 0),
        "bool_to_float": lambda x: (x > 0).float() * 2,
    }.items()
}

BINARY: dict[str, Sample] = {
    "add": (lambda x, y: x + y, (_x(3, 4), _x(4))),
    "mul_transposed": (lambda x, y: x * y.t(), (_x(3, 4), _x(4, 3))),
    "div": (torch.div, (_x(3, 4), _positive(3, 1))),
    "maximum": (torch.maximum, (_x(3, 4), _x(3, 4) + 0.1)),
    "minimum": (torch.minimum, (_x(3, 4), _x(4))),
    "pow": (torch.pow, (_positive(3, 4), _x(4))),
    "scalar_tensor": (lambda x, y: x * y, (_x(3, 4), torch.tensor(2.0))),
    "where": (lambda x, y: torch.where(x > 0, x, y), (_x(3, 4), _x(4))),
    "int_compare": (lambda x, i: torch.where(i > 2, x, 0.0), (_x(3, 4), _ids(5, 3, 4))),
}

SHAPES: dict[str, Sample] = {
    "view": (lambda x: torch.relu(x.view(2, 6)) + 1, (_x(3, 4),)),
    "permute": (lambda x: torch.relu(x.permute(2, 0, 1)) + 1, (_x(3, 3, 4),)),
    "transpose": (lambda x: torch.relu(x).transpose(0, -1) * 2, (_x(2, 3, 4),)),
    "unsqueeze_squeeze": (lambda x: torch.relu(x.unsqueeze(1)).squeeze(1) + 1, (_x(3, 4),)),
    "expand": (lambda x: torch.relu(x.expand(2, 3, 4)) * 2, (_x(1, 4),)),
    "slice": (lambda x: torch.relu(x[1:, ::2]) * 2, (_x(5, 6),)),
    "slice_negative": (lambda x: torch.relu(x[-2:]) * 2, (_x(5, 6),)),
    "select": (lambda x: torch.relu(x[:, -1]) * 2, (_x(5, 6),)),
    "split": (lambda x: [torch.relu(p) for p in x.split(2, dim=1)], (_x(3, 5),)),
    "chunk": (lambda x: torch.mul(*x.chunk(2, dim=-1)), (_x(3, 6),)),
    "unbind": (lambda x: torch.add(*x.unbind(0)), (_x(2, 5),)),
    "cat": (lambda x, y: torch.cat([x, y], 1), (_x(3, 4), _x(3, 2))),
    "stack": (lambda x, y: torch.stack([x, y], -1), (_x(3, 4), _x(3, 4))),
    "repeat": (lambda x: torch.relu(x).repeat(2, 1, 3), (_x(3, 4),)),
    "roll": (lambda x: torch.roll(torch.relu(x), (2, -1), (1, 0)), (_x(3, 4),)),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1), value=0.5), (_x(3, 4),)),
    "embedding": (lambda w, i: F.embedding(i, w), (_x(10, 4), _ids(10, 2, 3))),
    "index_select": (lambda x, i: x.index_select(1, i), (_x(3, 5), _ids(5, 4))),
    "gather": (lambda x, i: x.gather(1, i), (_x(3, 5), _ids(5, 3, 2))),
    "index": (lambda x, i: x[i], (_x(6, 3), _ids(6, 2, 2))),
    "index_together": (lambda x, i, j: x[i, j], (_x(4, 6, 3), _ids(4, 5, 1), _ids(6, 2))),
    "index_together_negative": (lambda x, i: x[i, i], (_x(4, 4), torch.tensor([-1, 0, -4]))),
    "index_negative": (lambda x, i: x[:, i], (_x(3, 6), torch.tensor([-1, 0, -6]))),
    "clone": (lambda x: x.clone(), (_x(3, 4),)),
}

REDUCTIONS: dict[str, Sample] = {
    "mean": (lambda x: x.mean(-1), (_x(3, 4, 5),)),
    "mean_all": (lambda x: x.mean(), (_x(3, 4),)),
    "mean_keep": (lambda x: x.mean((0, 2), keepdim=True), (_x(3, 4, 5),)),
    "sum": (lambda x: x.sum(1), (_x(3, 4),)),
    "sum_all": (lambda x: x.sum(), (_x(3, 4),)),
    "amax": (lambda x: x.amax(1, keepdim=True), (_x(3, 4),)),
    "amin": (lambda x: x.amin((0, 1)), (_x(3, 4),)),
    "softmax": (lambda x: torch.softmax(x, -1), (_x(3, 4),)),
    "softmax_0": (lambda x: torch.softmax(x, 0), (_x(3, 4),)),
    "log_softmax": (lambda x: torch.log_softmax(x, 1), (_x(3, 4),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), (_x(3, 4), _x(4), _x(4))),
    "layer_norm_plain": (lambda x: F.layer_norm(x, (3, 4), eps=1e-3), (_x(2, 3, 4),)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w, 1e-6), (_x(3, 4), _x(4))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (_x(2, 4, 3, 3), _x(4), _x(4))),
    "batch_norm": (
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
        (_x(2, 4, 3, 3), _x(4), _positive(4), _x(4), _x(4)),
    ),
    "cumsum": (lambda x: x.cumsum(1), (_x(3, 4),)),
}

PRODUCTS: dict[str, Sample] = {
    "linear": (F.linear, (_x(3, 4), _x(5, 4), _x(5))),
    "linear_3d": (F.linear, (_x(2, 3, 4), _x(5, 4), _x(5))),
    "linear_1d": (F.linear, (_x(4), _x(5, 4), _x(5))),
    "linear_no_bias": (F.linear, (_x(2, 3, 4), _x(5, 4))),
    "linear_turned": (lambda x, w: F.linear(x, w.t()), (_x(2, 4), _x(4, 5))),
    "mm": (torch.mm, (_x(3, 4), _x(4, 5))),
    "bmm": (torch.bmm, (_x(2, 3, 4), _x(2, 4, 5))),
    "matmul_wide": (torch.matmul, (_x(2, 3, 4, 5), _x(3, 5, 6))),
    "mv": (torch.mv, (_x(3, 4), _x(4))),
    "addmm": (lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2), (_x(5), _x(3, 4), _x(4, 5))),
    "baddbmm": (torch.baddbmm, (_x(2, 3, 5), _x(2, 3, 4), _x(2, 4, 5))),
    "attention": (F.scaled_dot_product_attention, (_x(2, 3, 5, 4), _x(2, 3, 5, 4), _x(2, 3, 5, 4))),
    "attention_scale": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3),
        (_x(2, 3, 5, 4), _x(2, 3, 7, 4), _x(2, 3, 7, 4)),
    ),
    "attention_causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (_x(2, 3, 9, 4), _x(2, 3, 9, 4), _x(2, 3, 9, 4)),
    ),
    "attention_bool_mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        (_x(2, 3, 5, 4), _x(2, 3, 5, 4), _x(2, 3, 5, 4), MASK),
    ),
    "attention_hidden_rows": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        (_x(2, 3, 5, 4), _x(2, 3, 5, 4), _x(2, 3, 5, 4), MASK & (torch.arange(5) != 2)[:, None]),
    ),
    "attention_float_mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        (_x(2, 3, 5, 4), _x(2, 3, 5, 4), _x(2, 3, 5, 4), torch.where(MASK, 0.0, -math.inf)),
    ),
    "attention_groups": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (_x(2, 4, 5, 4), _x(2, 2, 5, 4), _x(2, 2, 5, 4)),
    ),
}

IMAGES: dict[str, Sample] = {
    "conv2d": (
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1),
        (_x(2, 3, 9, 9), _x(4, 3, 3, 3), _x(4)),
    ),
    "conv2d_groups": (
        lambda x, w: F.conv2d(x, w, groups=4, dilation=2),
        (_x(2, 4, 9, 9), _x(8, 1, 3, 3)),
    ),
    "conv2d_same": (lambda x, w: F.conv2d(x, w, padding="same"), (_x(2, 3, 9, 9), _x(4, 3, 3, 3))),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=1), (_x(2, 3, 9), _x(4, 3, 3))),
    "conv3d": (F.conv3d, (_x(1, 2, 5, 5, 5), _x(3, 2, 3, 3, 3))),
    "conv_transpose2d": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1),
        (_x(2, 4, 5, 5), _x(4, 3, 3, 3), _x(3)),
    ),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), (_x(2, 3, 9, 9),)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), (_x(2, 3, 9, 9),)),
    "avg_pool2d_inside": (
        lambda x: F.avg_pool2d(x, 2, padding=1, count_include_pad=False),
        (_x(2, 3, 8, 8),),
    ),
    "adaptive_1": (lambda x: F.adaptive_avg_pool2d(x, 1), (_x(2, 3, 7, 5),)),
    "adaptive_divides": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), (_x(2, 3, 9, 8),)),
    "adaptive_same": (lambda x: F.adaptive_avg_pool2d(x, (9, 8)) + 1, (_x(2, 3, 9, 8),)),
}

SAMPLES: dict[str, Sample] = POINTWISE | BINARY | SHAPES | REDUCTIONS | PRODUCTS | IMAGES

REFUSED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], str]] = {
    "no rule": (torch.special.bessel_j0, (_x(3),), "it has no rule"),
    "half": (torch.relu, (_x(3).half(),), "the dtype float16"),
    "complex": (torch.neg, (_x(3).to(torch.complex64),), "the dtype complex64"),
    "empty": (torch.relu, (_x(0, 3),), "a tensor without elements"),
    "float to int": (lambda x: x.long(), (_x(3),), "a cast from float to integer"),
    "integer power": (lambda x: x**3, (_ids(5, 3),), "an integer power"),
    "dropout": (lambda x: F.dropout(x, 0.5, True), (_x(3),), ""),
    "elu with scales": (torch.selu, (_x(3),), ""),
    "uneven windows": (lambda x: F.adaptive_avg_pool2d(x, 4), (_x(1, 1, 9, 9),), "windows of several sizes"),
    "ceiled pool": (lambda x: F.max_pool2d(x, 2, ceil_mode=True), (_x(1, 1, 9, 9),), "sizes rounded up"),
    "inner index": (lambda x, i: x[:, i, i], (_x(2, 4, 4), _ids(4, 2)), "several indices, not of the first"),
}
