"""Calls at the edges of what operators take, one for each rule that random wrong calls showed to be missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from refused_calls import Call

ones = torch.ones


def _strided(shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    return torch.zeros(200).as_strided(shape, strides)


def _zeroed(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.view(-1)[::1] = 0
    return y


def _with(x: torch.Tensor, value: float, at: int) -> torch.Tensor:
    x.view(-1)[at] = value
    return x


def _causal(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, torch.ones_like(k), is_causal=True)


LAYOUTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "relu6 of nothing": (F.relu6, (_strided((2, 1, 0, 3), (0, 3, 3, 1)),)),
    "hardtanh of nothing": (F.hardtanh, (_strided((3, 0, 1), (1, 3, 3)),)),
    "nan_to_num of nothing": (torch.nan_to_num, (_strided((1, 0), (3, 3)),)),
    "nan_to_num of one row": (torch.nan_to_num, (_strided((1, 3), (9, 1)),)),
    "isinf of nothing": (torch.isinf, (_strided((0, 1), (20, 1)),)),
    "isinf of integers": (lambda x: torch.isinf(x.to(torch.int64)), (_strided((19, 1), (1, 20)),)),
    "isfinite of nothing": (torch.isfinite, (_strided((2, 1, 0, 3), (0, 3, 3, 1)),)),
    "flip of nothing": (torch.flipud, (_strided((6, 0, 9), (10, 10, 1)),)),
    "sort of nothing": (torch.sort, (_strided((5, 0, 5), (25, 5, 1)),)),
    "float() of nothing": (lambda x: x.float(memory_format=torch.channels_last), (ones(2, 3, 2, 0),)),
    "to() of a gap": (lambda x: x.to(memory_format=torch.contiguous_format), (_strided((3, 4), (1, 3)),)),
    "1 - x": (lambda x, y: x.__rsub__(y), (ones(5, 10, 5), ones(5, 10, 5).transpose(0, 2).contiguous().mT)),
    "a pad that cuts": (lambda x: F.pad(x, (0, -1)), (ones(1, 3),)),
    "rrelu": (lambda x: F.rrelu(x, 0.0, 1.0, True), (ones(20, 2).t(),)),
    "write to all of one element": (_zeroed, (ones(1),)),
    "write to all of one row": (_zeroed, (_strided((1, 3), (9, 1)),)),
    "copy of nothing": (lambda x: x.new_empty(x.shape).copy_(x), (_strided((0, 3, 3), (18, 6, 2)),)),
    "circular pad of nothing": (lambda x: F.pad(x, (0, -1), "circular"), (_strided((0, 3, 3), (18, 6, 2)),)),
    "expand to a negative size of nothing": (lambda x, n: x.expand(0, 5, n), (ones(1), -5)),
    "a pool over three dimensions, channels last": (
        lambda x: F.max_pool3d(x, 2, 1),
        (_strided((2, 3, 6, 5), (90, 1, 15, 3)),),
    ),
    "batch norm of nothing, evaluated": (
        lambda x, m, v: F.batch_norm(x, m, v),
        (_strided((1, 0), (0, 1)), ones(0), ones(0)),
    ),
    "roll of nothing": (lambda x: torch.roll(x, 0), (_strided((0, 1, 0, 0), (1, 0, 1, 1)),)),
    "convolution along one dimension, one channel": (F.conv1d, (ones(2, 1, 5), ones(4, 1, 3))),
    "convolution along one dimension, channels last": (
        lambda x, w: F.conv1d(x, w, padding=1),
        (_strided((2, 3, 5), (15, 1, 3)), _strided((4, 3, 3), (9, 1, 3))),
    ),
    "dropout of one image": (lambda x: F.dropout(x, 0.5), (_strided((1, 3, 4, 1), (1, 1, 3, 1)),)),
    "dropout of nothing": (lambda x: F.dropout(x, 0.5), (_strided((5, 0), (5, 1)),)),
    "empty_strided that overlaps": (lambda: torch.empty_strided((5, 5, 5), (2, 0, 1 << 20)), ()),
    "writes to a view of the operand that has a dimension more": (
        lambda x: x.unsqueeze(0).add_(x),
        (ones(3),),
    ),
    "writes to a view whose dimension of one has another stride": (
        lambda x: x.as_strided((1, 3), (1, 1)).addcmul_(x, x),
        (ones(1, 3),),
    ),
    "memory with gaps": (lambda: torch.empty_strided((2, 3), (30, 1)).fill_(1), ()),
    "new memory with gaps": (lambda x: x.new_empty_strided((2, 3), (30, 1)).fill_(1), (ones(1),)),
    "convolution of no images by another dtype": (
        lambda x, w: F.conv1d(x, w, padding=2),
        (ones(0, 3, 4), ones(3, 3, 3, dtype=torch.float16)),
    ),
    "convolution of no images": (
        lambda x, w: F.conv2d(x, w),
        (_strided((0, 1, 4, 4), (16, 16, 4, 1)), ones(1, 1, 1, 1)),
    ),
}
NUMBERS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "norm of one element": (torch.linalg.vector_norm, (torch.tensor([8.5]), 2**31)),
    "norm of one element along dim": (lambda x: torch.linalg.vector_norm(x, -2, 1), (ones(3, 1) * 1e30,)),
    "norm of a scalar along dim": (lambda x: torch.linalg.vector_norm(x, 1e30, 0), (torch.tensor(8.5),)),
    "minus int64's least": (lambda x: torch.sub(x, x, alpha=-(2**63)), (torch.ones(4),)),
    "a high power": (lambda x: x**2147483648, (torch.arange(5),)),
    "complex infinities times 1": (lambda x: (x * 1, x / 1), (torch.tensor([complex(math.inf, 2), 1 + 1j]),)),
    "norm of order nan": (torch.linalg.vector_norm, (ones(3), math.nan)),
    "norm of an order beyond float32": (torch.linalg.vector_norm, (ones(3) * 2, -1e300)),
    "logit with crossed bounds": (torch.logit, (torch.tensor([0.3, 0.5, math.nan]), True)),
    "logit of many with crossed bounds": (lambda x: torch.logit(x, 1.0), (torch.linspace(-1, 2, 250),)),
    "logit with nan": (torch.logit, (torch.tensor([0.3, 0.5]), math.nan)),
    "addmm times infinity": (
        lambda c, a, b: torch.addmm(c, a, b, alpha=math.inf),
        (ones(2, 2), ones(2, 3), -ones(3, 2)),
    ),
    "expand of a scalar": (lambda x: x.expand(-1, 5, 5), (torch.tensor(1.0),)),
    "arange of bools": (lambda: torch.arange(1, 1, dtype=torch.bool), ()),
    "arange beyond float16": (lambda: torch.arange(1e300, 1e301, 1e300, dtype=torch.bfloat16), ()),
    "arange down to int64's least": (lambda: torch.arange(1, -3, -(2**63)), ()),
    "cat of nothing": (lambda x, dim: torch.cat([x, x], dim), (ones(0), 2**40)),
    "an index beyond 32 bits": (lambda x, i: x[i], (ones(5, 5), ([0, 2**40],))),
    "an index of a list": (lambda x, i: x[i], (ones(5, 5), ([0, 7],))),
    "adaptive pool to nothing": (F.adaptive_avg_pool1d, (ones(2, 3, 4), 0)),
    "batch norm without channels": (lambda x, m, v: F.batch_norm(x, m, v), (ones(4)[:0:2], ones(0), ones(0))),
    "batch norm of nothing": (
        lambda x, m, v: F.batch_norm(x, m, v, training=True),
        (ones(0), ones(0), ones(0)),
    ),
    "slice to a float": (lambda x, end: torch.ops.aten.slice(x, 0, 0, end), (ones(6), -2.0)),
    "repeat by a float": (lambda x, n: torch.ops.aten.repeat(x, [n]), (ones(6), 2.0)),
    "addmv of no rows": (torch.addmv, (ones(1), ones(0, 10), ones(10))),
    "linear with a bias row": (F.linear, (ones(8), ones(8, 8), ones(1, 8))),
    "stable=None": (lambda x: torch.sort(x, stable=None, dim=0, descending=True), (ones(3, 2),)),
    "attention to expanded keys": (
        F.scaled_dot_product_attention,
        (ones(1, 3, 8), ones(4, 6, 8), ones(4, 6, 8)),
    ),
    "attention past an infinity, 3-d": (_causal, (ones(2, 3, 8), _with(ones(2, 6, 8), math.inf, -1))),
    "attention past a nan, 3-d": (_causal, (ones(2, 3, 8), _with(ones(2, 6, 8), math.nan, -1))),
    "attention past a nan": (_causal, (ones(1, 2, 3, 8), _with(ones(1, 2, 6, 8), math.nan, -1))),
    "grouped attention past a nan": (
        lambda q, k: F.scaled_dot_product_attention(q, k, ones(1, 2, 6, 8), is_causal=True, enable_gqa=True),
        (ones(1, 4, 3, 8), _with(ones(1, 2, 6, 8), math.nan, -1)),
    ),
    "attention behind a mask to a nan": (
        lambda q, k, m: F.scaled_dot_product_attention(q, k, ones(2, 6, 8), m),
        (ones(2, 3, 8), _with(ones(2, 6, 8), math.nan, -1), ones(3, 6).tril().bool()),
    ),
    "attention written out behind a mask to a nan": (
        lambda q, k, m: (q @ k.mT / 8**0.5).masked_fill(~m, -math.inf).softmax(-1) @ ones(2, 6, 8),
        (ones(2, 3, 8), _with(ones(2, 6, 8), math.nan, -1), ones(3, 6).tril().bool()),
    ),
    "causal attention written out to a nan": (
        lambda q, k: (
            (q @ k.mT / 8**0.5).masked_fill(~ones(6, 6).tril().bool(), -math.inf).softmax(-1) @ ones(2, 6, 8)
        ),
        (ones(2, 6, 8), _with(ones(2, 6, 8), math.nan, -1)),
    ),
    "causal attention with added numbers to a nan": (
        lambda q, k: (q @ k.mT / 8**0.5 + ones(6, 6).mul(-math.inf).triu(1)).softmax(-1) @ ones(2, 2, 6, 8),
        (ones(2, 2, 6, 8), _with(ones(2, 2, 6, 8), math.nan, -1)),
    ),
    "losses of lengths in a list": (
        lambda x, t: torch.ctc_loss(x, t, [5, 5], [3, 0]),
        (torch.linspace(-3, 0, 60).view(5, 2, 6), torch.arange(1, 5).repeat(2, 1)),
    ),
    "pinned": (lambda: torch.eye(0, pin_memory=True), ()),
    "None for a tensor": (torch.ops.aten.glu.default, (None, 1)),
    "sizes beyond memory": (lambda x, n: F.pad(x, (n, n)), (ones(2), 2**62)),
    "interpolate by a factor": (lambda x, s: F.interpolate(x, scale_factor=s), (ones(1, 2, 4, 4), 2.5)),
    "interpolate, area": (lambda x, n: F.interpolate(x, n, mode="area"), (ones(1, 2, 4, 4), 3)),
    "an unsqueezed convolution": (
        lambda x, w: F.conv3d(x, w, padding="same"),
        (ones(1, 1, 4, 4, 4), ones(2, 1, 1, 1, 1, 1)),
    ),
    "std of what overflows": (lambda x: x.std(0), (torch.tensor([1e30, 0.0, 1.0, 2.0, -3.0]),)),
    "std of all that overflows": (torch.std, (torch.tensor([1e30, 0.0, 1.0, 2.0, -3.0]),)),
    "std_mean of an infinity": (torch.std_mean, (torch.tensor([0.5, -math.inf, 1.0, 2.0]), 0)),
    "product of an infinity and small numbers": (
        torch.prod,
        (torch.tensor([-math.inf] + [0.3] * 124).view(5, 25),),
    ),
    "layer norm of large numbers": (lambda x: F.layer_norm(x, (64,)), (torch.full((2, 64), 1e20),)),
    "layer norm of a large number": (lambda x: F.layer_norm(x, (5,)), (torch.tensor([0.0, 1e30, 1, 2, 3]),)),
    "layer norm of an infinity": (lambda x: F.layer_norm(x, (5,)), (torch.tensor([0.0, math.inf, 1, 2, 3]),)),
    "instance norm of a large number": (F.instance_norm, (torch.tensor([[[0.0, 1e30, 1, 2, 3]]]),)),
    "group norm by infinite weights": (
        lambda x, w: F.group_norm(x, 2, w),
        (torch.arange(12.0).view(1, 4, 3), torch.tensor([1.0, math.inf, 1.0, 1.0])),
    ),
    "instance norm by infinite weights": (
        lambda x, w: F.instance_norm(x, weight=w),
        (torch.arange(12.0).view(1, 4, 3), torch.tensor([1.0, math.inf, 1.0, 1.0])),
    ),
    "group norm by other sizes": (
        lambda x: torch.ops.aten.native_group_norm(x, None, None, 2, 4, 3, 2, 1e-5),
        (ones(24),),
    ),
}


def calls() -> Iterator[Call]:
    for name, (fn, args) in (LAYOUTS | NUMBERS).items():
        yield Call(name, fn, args, {})
