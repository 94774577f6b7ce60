"""Small functions, one of each kind that a generated kernel may be: what `gpu_smoke.py` tries one by one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)
MATRICES = ((33, 130), (4, 1), (1, 5), (0, 3), (65, 1024), (2, 5000))
SHAPES = (*MATRICES, (), (1,), (1000,), (3, 5, 7))

Call = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """`make()` gives the arguments of each call, on the default device. Each call is of a function compiled anew, or,
    if `dynamic`, of one that all calls share. `kernels`: at least so many must be generated. `exact`: whether a
    reference in double precision means anything."""

    fn: Callable[..., Any]
    make: Callable[[], Sequence[Call]]
    dynamic: bool = False
    kernels: int = 1
    exact: bool = True


def number(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers in the range of every dtype: floats about 0, integers from 0 on."""
    if dtype.is_floating_point:
        return torch.randn(tuple(shape)).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 100, tuple(shape)).to(dtype)


def tensors(
    *shapes: Sequence[int], count: int = 1, dtypes: Sequence[torch.dtype] = FLOATS[:1]
) -> Callable[[], list[Call]]:
    """A call for each shape and dtype, of `count` tensors of that shape."""
    return lambda: [tuple(number(s, d) for _ in range(count)) for s in shapes for d in dtypes]


def unary(x: Tensor) -> tuple[Tensor, ...]:
    p = x.abs() + 0.5
    first = (
        x.exp(),
        p.log(),
        p.sqrt(),
        p.rsqrt(),
        x.sin(),
        x.cos(),
        x.tanh(),
        x.sigmoid(),
        x.erf(),
        p.log1p(),
        x.neg(),
    )
    second = (
        F.gelu(x),
        F.gelu(x, approximate="tanh"),
        F.silu(x),
        F.softplus(x),
        F.elu(x),
        F.hardswish(x),
        F.mish(x),
    )
    third = (
        x.floor(),
        x.ceil(),
        x.trunc(),
        x.round(),
        x.sign(),
        p.reciprocal(),
        x.square(),
        x.expm1(),
        x.atan(),
        p**1.7,
    )
    return *first, *second, *third


def binary(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    z = y.abs() + 1
    return (
        x + y,
        x - y,
        x * y,
        x / z,
        torch.maximum(x, y),
        torch.minimum(x, y),
        torch.atan2(x, z),
        x % z,
        x // z,
        x + 1,
    )


def integers(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    z = y + 1
    return x + y, x * 3 - y, x // z, x % z, x & y, x | y, x ^ y, ~x, x << 1, x >> 2, x.clamp(3, 50), -x, x / z


def comparisons(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    masks = x < y, x <= y, x == y, x != y, x > 0.25, x.isnan(), x.isinf()
    return (
        *masks,
        masks[0] & masks[4],
        masks[0].logical_xor(masks[4]),
        torch.where(masks[0], x, y * 2),
        x.masked_fill(masks[4], -1.0),
    )


def casts(x: Tensor) -> tuple[Tensor, ...]:
    return tuple((x if x.dtype is torch.bool else x.abs()).to(dtype) for dtype in DTYPES)


def mixed(x: Tensor, i: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    return x * i, x + b, i / 2, h * x, h + 1, i * b, torch.where(b, h, 0.5)


def special(x: Tensor) -> tuple[Tensor, ...]:
    return (
        x.relu(),
        x.clamp(-1, 1),
        x.exp(),
        x.tanh(),
        x.nan_to_num(),
        x.sign(),
        torch.maximum(x, x.flip(0)),
        x.amax(),
    )


def special_calls() -> list[Call]:
    values = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1e-42, 3e38, 88.0, -104.0, 0.5]
    return [(torch.tensor(values).to(dtype),) for dtype in FLOATS]


def reductions(x: Tensor, dim: int | None) -> tuple[Tensor, ...]:
    if dim is None:
        return x.sum(), x.mean(), x.var(unbiased=False), x.prod(), x.square().sum().sqrt()
    named = x.sum(dim), x.mean(dim, keepdim=True), x.var(dim, unbiased=False), x.prod(dim), x.logsumexp(dim)
    return *named, x.norm(dim=dim), x.sum(dim, dtype=torch.float64)


def extremes(x: Tensor, dim: int | None) -> tuple[Tensor, ...]:
    if dim is None:
        return x.amax(), x.amin(), x.argmax(), (x > 0).any(), (x > -9).all()
    values, places = x.max(dim)
    return values, places, x.amin(dim), x.argmin(dim), (x > 1).any(dim), (x > -1).all(dim), (x > 0).sum(dim)


def per_dimension(
    *dims: int | None, shapes: Sequence[Sequence[int]], dtypes: Sequence[torch.dtype] = FLOATS[:1]
) -> Any:
    return lambda: [(number(s, d), dim) for s in shapes for d in dtypes for dim in dims]


def shared_sums(x: Tensor) -> tuple[Tensor, ...]:
    """Several reductions of one input, and what comes after them."""
    centred = x - x.mean(-1, keepdim=True)
    return (
        centred,
        centred.square().mean(-1),
        x / x.abs().amax(-1, keepdim=True).clamp_min(1e-3),
        x.sum((0, 1)),
    )


def softmaxes(x: Tensor) -> tuple[Tensor, ...]:
    return x.softmax(-1), x.log_softmax(-1), x.softmax(0), (x * 0.125 + 1).softmax(-1)


def norms(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    width = (x.shape[-1],)
    rms = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w
    return F.layer_norm(x, width, w, b), F.layer_norm(x + 1, width), F.rms_norm(x, width, w), rms


def norm_calls() -> list[Call]:
    return [
        (number((rows, width), d), number((width,), d), number((width,), d))
        for rows, width in ((7, 64), (3, 100), (130, 768), (2, 5000), (0, 16))
        for d in (torch.float32, torch.bfloat16)
    ]


def group_norm(x: Tensor, w: Tensor) -> Tensor:
    return F.relu(F.group_norm(x, 4, w, w))


def batch_norm(x: Tensor, m: Tensor, v: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, m, v.abs() + 0.5, w, b) + x)


def batch_norm_calls() -> list[Call]:
    image = number((2, 12, 9, 11))
    return [
        (x, *(number((12,)) for _ in range(4))) for x in (image, image.to(memory_format=torch.channels_last))
    ]


def cross_entropy(x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    return F.cross_entropy(x, labels), F.cross_entropy(x, labels, reduction="none", label_smoothing=0.1)


def joins(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    joined = (
        torch.cat([x, y + 1], 0),
        torch.cat([x, y, x], 1),
        torch.stack([x, y], -1),
        F.pad(x, (1, 2, 0, 3), value=2),
    )
    return (
        *joined,
        x.flip(0, 1) + 1,
        x.roll((1, -2), (0, 1)) + 1,
        x.repeat(2, 3) * 2,
        F.pad(x[None], (1, 1), "circular"),
    )


def views(x: Tensor) -> tuple[Tensor, ...]:
    a, b = x.chunk(2, 1)
    return (
        x.t() + 1,
        x.t().contiguous(),
        a * b,
        x[:, ::3] * 2,
        x.unsqueeze(1).expand(-1, 3, -1) + 1,
        x.view(-1)[1:] + 1,
    )


def permutes(x: Tensor) -> tuple[Tensor, ...]:
    return (
        x.permute(2, 0, 1).contiguous(),
        x.transpose(1, 2).reshape(x.shape[0], -1) + 1,
        x.permute(1, 2, 0).sum(-1),
    )


def strided_calls() -> list[Call]:
    x = number((34, 66))
    wide = number((4, 6, 10))
    return [
        (x.t(), x.t()), (x[::2, 1:65], number((17, 64))), (x[3:, 3:], x[3:, 3:].clone()),
        (number((1, 66)).expand(34, 66), x), (x.flip(0), x), (wide.permute(2, 0, 1), number((10, 4, 6))),
        (x, number((66,))), (x, number((34, 1))), (x, number(())), (number((5, 1, 7)), number((3, 1))),
    ]  # fmt: skip


def gathers(x: Tensor, rows: Tensor, places: Tensor) -> tuple[Tensor, ...]:
    found = x[rows], x.index_select(0, rows), x.gather(1, places), F.embedding(rows, x) + 1
    return (
        *found,
        x[rows, rows % x.shape[1]],
        x.take_along_dim(places, 1),
        F.one_hot(rows, 40).float(),
        x[rows].sum(0),
    )


def gather_calls() -> list[Call]:
    return [
        (number((40, width)), torch.randint(0, 40, (count,)), torch.randint(0, width, (40, 5)))
        for width, count in ((64, 17), (1, 1), (130, 0))
    ]


def scatters(x: Tensor, rows: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    places = rows[:, None].expand_as(y)
    return (
        x.index_add(0, rows, y),
        x.scatter_add(0, places, y),
        x.scatter(0, places, 2.0),
        x.index_fill(0, rows, 3.0),
    )


def scans(x: Tensor) -> tuple[Tensor, ...]:
    return x.cumsum(0), x.cumsum(-1) * 2, (x * 0.9).cumprod(-1), x.cummax(-1)[0]


def created(x: Tensor) -> tuple[Tensor, ...]:
    n, device = x.shape[-1], x.device
    grid = torch.arange(n, device=device)
    made = (
        torch.full_like(x, 3.0),
        torch.zeros(4, n, device=device),
        torch.linspace(0, 1, n, device=device) + x,
    )
    return *made, grid * 2, torch.tril(x), x.masked_fill(grid > n // 2, 0.0), torch.eye(3, device=device) * 2


def in_place(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2).add_(y)
    x[0] = y[1] + 1
    x[1:, 2:].relu_()
    y.copy_(x.exp())
    return x * 2


def out_argument(x: Tensor, out: Tensor) -> Tensor:
    torch.add(x, 1, out=out)
    return out * 2


def dropout(x: Tensor) -> tuple[Tensor, ...]:
    return F.dropout(x, 0.3) + 1, torch.rand_like(x) * 2, torch.randn(7, device=x.device) + 1


def linear_gelu(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return F.gelu(x @ w + b), F.linear(x, w.t(), b).relu() + x[:, :1], torch.addmm(b, x, w).tanh()


def linear_calls() -> list[Call]:
    return [
        (number((m, k), d), number((k, n), d), number((n,), d))
        for m, k, n in ((8, 64, 32), (1, 17, 5), (33, 100, 65))
        for d in (torch.float32, torch.bfloat16, torch.float16)
    ]


def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    scores = (q @ k.transpose(-1, -2) / 8).softmax(-1) @ v
    return (
        F.scaled_dot_product_attention(q, k, v, is_causal=True) + 1,
        scores,
        F.scaled_dot_product_attention(q, k, v),
    )


def sort_after(x: Tensor) -> tuple[Tensor, ...]:
    values, places = (x * 2).sort(-1)
    return values + 1, places, *(x + 1).topk(3, -1)


def transfers(x: Tensor) -> tuple[Tensor, ...]:
    host = (x + 1).cpu()
    return host * 2, host.to(x.device) + x, x * torch.tensor(2.0, device="cpu")


def complexes(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    z = torch.complex(x, y)
    return (z * z).real + 1, z.abs(), (z.conj() * z).real


def layer_module() -> nn.Module:
    layers = (
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return nn.Sequential(*layers, nn.Linear(8, 5), nn.LayerNorm(5)).eval()


def scalars(x: Tensor, y: Tensor, alpha: float, n: int) -> tuple[Tensor, ...]:
    return x * alpha + n, torch.add(x, y, alpha=alpha), x.sum() * y, x.clamp(max=alpha)


@functools.cache
def cases() -> dict[str, Case]:
    """By name, in the order in which they are tried: what others rest on comes first."""
    small, image, heads = SHAPES[:1], (2, 3, 10, 14), (2, 4, 19, 32)
    halves = (torch.float16, torch.bfloat16, torch.float64)
    return {
        "add": Case(lambda x, y: x + y, tensors(*SHAPES, count=2)),
        "chain": Case(lambda x, y: torch.sigmoid(x * 2 + y) * x - y.relu(), tensors(*SHAPES, count=2)),
        "chain of halves": Case(lambda x, y: F.gelu(x * 2 + y) * x, tensors((33, 130), (5,), count=2, dtypes=halves)),
        "strides and broadcasting": Case(lambda x, y: x * 2 + y, strided_calls),
        "unary": Case(unary, tensors(*SHAPES[:5], dtypes=FLOATS[:2])),
        "unary halves": Case(unary, tensors(*small, dtypes=FLOATS[2:])),
        "binary": Case(binary, tensors(*small, (0, 3), (), count=2, dtypes=FLOATS)),
        "integers": Case(integers, tensors(*small, (), count=2, dtypes=(torch.int64, torch.int32, torch.uint8))),
        "comparisons": Case(comparisons, tensors(*small, (0, 3), (), count=2, dtypes=FLOATS)),
        "casts": Case(casts, tensors(*small, dtypes=DTYPES)),
        "mixed dtypes": Case(
            mixed, lambda: [tuple(number((9, 7), DTYPES[i]) for i in (0, 8, 9, 3))]
        ),
        "special numbers": Case(special, special_calls),
        "sum of rows": Case(lambda x: x.sum(-1), tensors(*MATRICES)),
        "sum of columns": Case(lambda x: x.sum(0), tensors(*MATRICES)),
        "sum of all": Case(lambda x: (x * 2).sum(), tensors(*SHAPES, (1 << 20,))),
        "reductions": Case(reductions, per_dimension(0, -1, None, shapes=MATRICES[:3], dtypes=FLOATS)),
        "reductions of three": Case(reductions, per_dimension(0, 1, 2, shapes=((3, 5, 7), (8, 33, 64)))),
        "extremes": Case(extremes, per_dimension(0, -1, None, shapes=MATRICES[:3], dtypes=(*FLOATS, torch.int64))),
        "shared sums": Case(shared_sums, tensors((3, 5, 7), (4, 33, 130))),
        "softmax": Case(softmaxes, tensors(*MATRICES, dtypes=(torch.float32, torch.bfloat16))),
        "norms": Case(norms, norm_calls),
        "group norm": Case(group_norm, lambda: [(number((2, 8, 5, 7)), number((8,)))]),
        "batch norm": Case(batch_norm, batch_norm_calls),
        "cross entropy": Case(cross_entropy, lambda: [(number((9, n)), torch.randint(0, n, (9,))) for n in (5, 1000)]),
        "joins": Case(joins, tensors((33, 130), (5, 7), count=2, dtypes=(torch.float32, torch.bfloat16, torch.int64))),
        "views": Case(views, tensors((33, 130), (6, 4))),
        "permutes": Case(permutes, tensors((4, 33, 65), (3, 5, 7), dtypes=(torch.float32, torch.float16))),
        "gathers": Case(gathers, gather_calls),
        "scatters": Case(scatters, lambda: [(number((9, 5)), torch.tensor([1, 3, 8]), number((3, 5)))], kernels=0),
        "scans": Case(scans, tensors((7, 33), (3, 2000), (1, 1))),
        "created": Case(created, tensors((6, 33), (1, 5))),
        "in place": Case(in_place, tensors((6, 33), count=2)),
        "out=": Case(out_argument, tensors((6, 33), count=2)),
        "random": Case(dropout, tensors((33, 130), (5,)), exact=False),
        "scalars": Case(scalars, lambda: [(number((6, 5)), number(()), 0.5, 3)]),
        "linear gelu": Case(linear_gelu, linear_calls),
        "conv bn relu": Case(layer_module(), tensors(image, (1, 3, 7, 7))),
        "attention": Case(attention, tensors(heads, count=3, dtypes=(torch.float32, torch.float16))),
        "sort": Case(sort_after, tensors((5, 33))),
        "transfers": Case(transfers, tensors((5, 33))),
        "complex": Case(complexes, tensors((5, 33), count=2)),
        "dynamic chain": Case(lambda x, y: (x * 2 + y).tanh(), tensors(*MATRICES, (7, 9), count=2), dynamic=True),
        "dynamic softmax": Case(lambda x: (x + 1).softmax(-1).sum(0), tensors(*MATRICES, (7, 9)), dynamic=True),
        "dynamic norm": Case(lambda x: F.layer_norm(x, x.shape[-1:]), tensors(*MATRICES[:3], (7, 9)), dynamic=True),
    }  # fmt: skip
