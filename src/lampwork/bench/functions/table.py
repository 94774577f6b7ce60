"""The functions: operators one by one and short chains of them, each at three sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lampwork.bench.functions.function import Function
from lampwork.bench.workloads import small

SIZES = ("small", "medium", "large")
Inputs = Callable[[int], tuple[Tensor, ...]]
"""Index into SIZES -> tensors."""
Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]

VECTOR: Shapes = ((200,), (1 << 16,), (1 << 20,))
LONG: Shapes = ((200,), (1 << 16,), (1 << 22,))  # of what memory alone bounds
ROWS: Shapes = ((8, 25), (256, 256), (1024, 1024))
MANY: Shapes = ((8, 25), (256, 256), (2048, 2048))
FEW_LONG: Shapes = ((2, 100), (16, 4096), (64, 65536))
SHORT: Shapes = ((25, 8), (4096, 16), (65536, 32))
BLOCK: Shapes = ((2, 10, 10), (16, 64, 64), (16, 256, 256))
IMAGE: Shapes = ((1, 2, 10, 10), (1, 16, 64, 64), (4, 64, 64, 64))


def normal(shapes: Shapes, count: int = 1, dtype: torch.dtype = torch.float32) -> Inputs:
    """`count` tensors of standard normal numbers."""
    return lambda size: tuple(torch.randn(shapes[size]).to(dtype) for _ in range(count))


def whole(shapes: Shapes, count: int = 1, dtype: torch.dtype = torch.int64, low: int = -100) -> Inputs:
    """Integers from `low` up to 100."""
    return lambda size: tuple(torch.randint(low, 100, shapes[size], dtype=dtype) for _ in range(count))


def flags(shapes: Shapes, count: int = 1) -> Inputs:
    return lambda size: tuple(torch.randn(shapes[size]) > 0 for _ in range(count))


def beside(*parts: Inputs) -> Inputs:
    """The tensors of several."""
    return lambda size: tuple(x for part in parts for x in part(size))


def channels(shapes: Shapes, count: int) -> Inputs:
    """An image and `count` positive vectors as long as it has channels."""

    def make(size: int) -> tuple[Tensor, ...]:
        return torch.randn(shapes[size]), *(torch.rand(shapes[size][1]) + 0.5 for _ in range(count))

    return make


def widths(shapes: Shapes, count: int) -> Inputs:
    """Rows and `count` vectors as long as one."""
    return lambda size: (torch.randn(shapes[size]), *(torch.randn(shapes[size][-1]) for _ in range(count)))


def labels(shapes: Shapes) -> Inputs:
    """Rows and one of their columns for each."""
    return lambda size: (torch.randn(shapes[size]), torch.randint(0, shapes[size][1], shapes[size][:1]))


def tokens(size: int) -> tuple[Tensor, ...]:
    """Indices and the rows they choose from."""
    count, rows, width = ((8, 50, 25), (256, 1000, 256), (2048, 30000, 512))[size]
    return torch.randint(0, rows, (count,)), torch.randn(rows, width)


def messages(size: int) -> tuple[Tensor, ...]:
    """Rows, which of them each source goes to, and the sources."""
    rows, count, width = ((10, 25, 8), (1000, 5000, 64), (30000, 100000, 64))[size]
    return torch.randn(rows, width), torch.randint(0, rows, (count,)), torch.randn(count, width)


def scattered(size: int) -> tuple[Tensor, ...]:
    """Rows, the row that each element of a source goes to, and the source."""
    x, _, source = messages(size)
    return x, torch.randint(0, len(x), source.shape), source


def buckets(size: int) -> tuple[Tensor, ...]:
    """Values and the boundaries that they lie between."""
    return torch.randn(VECTOR[size]), torch.linspace(-3, 3, (8, 64, 1024)[size])


def bags(size: int) -> tuple[Tensor, ...]:
    """Bags of indices and the rows that they choose from."""
    count, length, rows, width = ((4, 5, 50, 25), (64, 32, 10000, 64), (512, 20, 100000, 128))[size]
    return torch.randint(0, rows, (count, length)), torch.randn(rows, width)


def channels_last(channels: int) -> Inputs:
    def make(size: int) -> tuple[Tensor, ...]:
        side = (6, 32, 128)[size]
        return (torch.randn(1, channels, side, side).contiguous(memory_format=torch.channels_last),)

    return make


def parted(dim: int, shapes: Shapes) -> Callable[[int], tuple[Tensor, ...]]:
    """Three tensors of different lengths along `dim`."""

    def make(size: int) -> tuple[Tensor, ...]:
        def shape(part: int) -> list[int]:
            found = list(shapes[size])
            found[dim] = found[dim] * part // 4 + (part == 1)
            return found

        return tuple(torch.randn(shape(part)) for part in (1, 2, 1))

    return make


Entry = tuple[str, Callable[..., Any], Inputs]

POINTWISE: Sequence[Entry] = (
    ("add", torch.add, normal(LONG, 2)),
    ("mul scalar", lambda x: x * 1.5, normal(LONG)),
    ("add row", torch.add, widths(MANY, 1)),
    ("add column", lambda x: x + x[:, :1], normal(MANY)),
    ("relu", torch.relu, normal(LONG)),
    ("neg abs", lambda x: -x.abs(), normal(LONG)),
    ("div", lambda x, y: x / (y * y + 1), normal(LONG, 2)),
    ("lerp", small.lerp, normal(LONG, 3)),
    ("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.5), normal(LONG, 3)),
    ("clamp", lambda x: x.clamp(-1, 1), normal(LONG)),
    ("where", lambda m, x: torch.where(m, x, -x), beside(flags(LONG), normal(LONG))),
    ("masked_fill", lambda x, m: x.masked_fill(m, -math.inf), beside(normal(LONG), flags(LONG))),
    ("sqrt", lambda x: torch.sqrt(x.abs()), normal(VECTOR)),
    ("rsqrt", lambda x: torch.rsqrt(x.abs() + 1e-5), normal(VECTOR)),
    ("exp", torch.exp, normal(VECTOR)),
    ("log", lambda x: torch.log(x.abs() + 0.1), normal(VECTOR)),
    ("sin", torch.sin, normal(VECTOR)),
    ("atan2", torch.atan2, normal(VECTOR, 2)),
    ("erf", torch.erf, normal(VECTOR)),
    ("pow 2", lambda x: x**2, normal(VECTOR)),
    ("pow 3", lambda x: x**3, normal(VECTOR)),
    ("pow 0.7", lambda x: (x.abs() + 0.1) ** 0.7, normal(VECTOR)),
    ("pow tensor", lambda x, y: (x.abs() + 0.1) ** y, normal(VECTOR, 2)),
    ("floor", torch.floor, normal(VECTOR)),
)
ACTIVATIONS: Sequence[Entry] = (
    ("sigmoid", torch.sigmoid, normal(VECTOR)),
    ("tanh", torch.tanh, normal(VECTOR)),
    ("gelu", F.gelu, normal(VECTOR)),
    ("gelu tanh", partial(F.gelu, approximate="tanh"), normal(VECTOR)),
    ("silu", F.silu, normal(VECTOR)),
    ("softplus", F.softplus, normal(VECTOR)),
    ("mish", F.mish, normal(VECTOR)),
    ("elu", F.elu, normal(VECTOR)),
    ("leaky relu", partial(F.leaky_relu, negative_slope=0.1), normal(VECTOR)),
    ("hardswish", F.hardswish, normal(VECTOR)),
    ("log sigmoid", F.logsigmoid, normal(VECTOR)),
    ("mish chain", small.mish, normal(VECTOR)),
    ("gelu chain", small.gelu_chain, normal(VECTOR, 2)),
    ("silu chain", small.silu_chain, normal(VECTOR, 2)),
    ("softplus chain", small.softplus_chain, normal(VECTOR, 2)),
    ("gated", lambda x: F.silu(x[:, ::2]) * x[:, 1::2], normal(((8, 26), (256, 256), (1024, 1024)))),
    ("glu", lambda x: F.glu(x, -1), normal(((8, 26), (256, 256), (1024, 1024)))),
)
REDUCTIONS: Sequence[Entry] = (
    ("sum", torch.sum, normal(LONG)),
    ("sum rows", lambda x: x.sum(1), normal(MANY)),
    ("sum columns", lambda x: x.sum(0), normal(MANY)),
    ("sum middle", lambda x: x.sum(1), normal(BLOCK)),
    ("sum short rows", lambda x: x.sum(1), normal(SHORT)),
    ("sum long columns", lambda x: x.sum(0), normal(SHORT)),
    ("sum few long rows", lambda x: x.sum(1), normal(FEW_LONG)),
    ("mean rows", lambda x: x.mean(1), normal(MANY)),
    ("mean pixels", lambda x: x.mean((2, 3)), normal(IMAGE)),
    ("var rows", lambda x: x.var(1), normal(MANY)),
    ("var columns", lambda x: x.var(0), normal(MANY)),
    ("std", torch.std, normal(LONG)),
    ("norm rows", lambda x: torch.linalg.vector_norm(x, dim=1), normal(MANY)),
    ("norm", torch.linalg.vector_norm, normal(LONG)),
    ("amax rows", lambda x: x.amax(1), normal(MANY)),
    ("amax columns", lambda x: x.amax(0), normal(MANY)),
    ("amax", torch.amax, normal(LONG)),
    ("max rows", lambda x: x.max(1)[0], normal(MANY)),
    ("argmax rows", lambda x: x.argmax(1), normal(MANY)),
    ("argmax columns", lambda x: x.argmax(0), normal(MANY)),
    ("argmax", torch.argmax, normal(LONG)),
    ("logsumexp rows", lambda x: x.logsumexp(1), normal(ROWS)),
    ("logsumexp columns", lambda x: x.logsumexp(0), normal(ROWS)),
    ("prod rows", lambda x: x.prod(1), normal(MANY)),
    ("sum int64 rows", lambda x: x.sum(1), whole(ROWS)),
    ("any rows", lambda x: x.any(1), flags(ROWS)),
    ("count", lambda x: (x > 0.5).sum(), normal(LONG)),
)
NORMS: Sequence[Entry] = (
    ("softmax", lambda x: x.softmax(-1), normal(ROWS)),
    ("softmax columns", lambda x: x.softmax(0), normal(ROWS)),
    ("softmax middle", lambda x: x.softmax(1), normal(BLOCK)),
    ("softmax short rows", lambda x: x.softmax(1), normal(SHORT)),
    ("log softmax", lambda x: x.log_softmax(-1), normal(ROWS)),
    ("masked softmax", small.masked_softmax, widths(ROWS, 1)),
    ("layer norm", small.layer_norm, widths(ROWS, 2)),
    ("rms norm", lambda x, w: F.rms_norm(x, (x.shape[-1],), w), widths(ROWS, 1)),
    ("rms formula", lambda x, w: x * torch.rsqrt(x.square().mean(-1, True) + 1e-6) * w, widths(ROWS, 1)),
    ("batch norm", lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b), channels(IMAGE, 4)),
    ("group norm", lambda x, w, b: F.group_norm(x, 2, w, b), channels(IMAGE, 2)),
    ("instance norm", lambda x: F.instance_norm(x), normal(IMAGE)),
    ("normalize", lambda x: F.normalize(x, dim=-1), normal(ROWS)),
)
COPIES: Sequence[Entry] = (
    ("cat rows", lambda x, y, z: torch.cat([x, y, z], 0), parted(0, MANY)),
    ("cat columns", lambda x, y, z: torch.cat([x, y, z], 1), parted(1, MANY)),
    ("stack first", lambda x, y: torch.stack([x, y]), normal(MANY, 2)),
    ("stack last", lambda x, y: torch.stack([x, y], -1), normal(ROWS, 2)),
    ("pad", lambda x: F.pad(x, (1, 1, 1, 1)), normal(IMAGE)),
    ("pad rows", lambda x: F.pad(x, (0, 7)), normal(ROWS)),
    ("pad reflect", lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), normal(IMAGE)),
    ("transpose", lambda x: x.t().contiguous(), normal(MANY)),
    ("swap heads", lambda x: x.transpose(0, 1).contiguous(), normal(BLOCK)),
    ("to channels last", lambda x: x.permute(0, 2, 3, 1).contiguous(), normal(IMAGE)),
    (
        "from channels last",
        lambda x: x.permute(0, 3, 1, 2).contiguous(),
        normal(((1, 10, 10, 2), (1, 64, 64, 16), (4, 64, 64, 64))),
    ),
    ("slice", lambda x: x[:, 1:-1].contiguous(), normal(MANY)),
    ("every other", lambda x: x[:, ::2].contiguous(), normal(MANY)),
    ("flip", lambda x: x.flip(-1), normal(MANY)),
    ("roll", lambda x: x.roll(3, -1), normal(MANY)),
    ("repeat", lambda x: x.repeat(2, 2), normal(ROWS)),
    ("tril", torch.tril, normal(MANY)),
    ("clone", torch.clone, normal(LONG)),
    ("embedding", F.embedding, tokens),
    (
        "index select columns",
        lambda x, i: x.index_select(1, i % x.shape[1]),
        beside(normal(ROWS), lambda s: (torch.randint(0, 999, (8 << 2 * s,)),)),
    ),
    (
        "gather",
        lambda x, i: x.gather(1, i),
        beside(normal(ROWS), lambda s: (torch.randint(0, 25, (ROWS[s][0], 25)),)),
    ),
    ("one hot", lambda i: F.one_hot(i, 64).float(), lambda s: (torch.randint(0, 64, (4 << 5 * s,)),)),
)
LOSSES: Sequence[Entry] = (
    ("mse", F.mse_loss, normal(LONG, 2)),
    ("l1", F.l1_loss, normal(LONG, 2)),
    ("smooth l1", F.smooth_l1_loss, normal(LONG, 2)),
    ("cross entropy", F.cross_entropy, labels(ROWS)),
    (
        "bce with logits",
        F.binary_cross_entropy_with_logits,
        lambda s: (torch.randn(VECTOR[s]), torch.rand(VECTOR[s])),
    ),
    ("kl div", lambda x, y: F.kl_div(x, y, reduction="batchmean", log_target=True), normal(ROWS, 2)),
    ("cosine", lambda x, y: F.cosine_similarity(x, y), normal(ROWS, 2)),
)
POOLS: Sequence[Entry] = (
    ("max pool 2", lambda x: F.max_pool2d(x, 2), normal(IMAGE)),
    ("max pool 3/2", lambda x: F.max_pool2d(x, 3, 2, 1), normal(IMAGE)),
    ("avg pool 2", lambda x: F.avg_pool2d(x, 2), normal(IMAGE)),
    ("avg pool 3/1", lambda x: F.avg_pool2d(x, 3, 1, 1), normal(IMAGE)),
    ("global avg pool", lambda x: F.adaptive_avg_pool2d(x, 1), normal(IMAGE)),
)
DTYPES: Sequence[Entry] = (
    ("compare", lambda x, y: x > y, normal(LONG, 2)),
    ("compare scalar", lambda x: x > 0.5, normal(LONG)),
    ("logical", lambda x, y: (x & ~y) | (x ^ y), flags(LONG, 2)),
    ("int64 add", lambda x, y: x + y, whole(LONG, 2)),
    ("int32 mul add", lambda x, y: x * y + 3, whole(LONG, 2, torch.int32)),
    ("int64 remainder", lambda x: x % 7, whole(VECTOR)),
    ("int64 floor divide", lambda x, y: x // y, beside(whole(VECTOR), whole(VECTOR, low=1))),
    ("uint8 to float", lambda x: x.float() / 255, whole(LONG, dtype=torch.uint8, low=0)),
    ("float to int64", lambda x: (x * 9).long(), normal(LONG)),
    ("int64 to float", lambda x: x.float(), whole(LONG)),
    ("bool to float", lambda x: x.float(), flags(LONG)),
    ("to bfloat16", lambda x: x.bfloat16(), normal(LONG)),
    ("from bfloat16", lambda x: x.float(), normal(LONG, dtype=torch.bfloat16)),
    ("to float16", lambda x: x.half(), normal(LONG)),
    ("bfloat16 add", lambda x, y: x + y, normal(LONG, 2, torch.bfloat16)),
    ("bfloat16 gelu", F.gelu, normal(VECTOR, dtype=torch.bfloat16)),
    ("bfloat16 softmax", lambda x: x.softmax(-1), normal(ROWS, dtype=torch.bfloat16)),
    ("bfloat16 sum rows", lambda x: x.sum(1), normal(ROWS, dtype=torch.bfloat16)),
    ("bfloat16 layer norm", lambda x: F.layer_norm(x, (x.shape[-1],)), normal(ROWS, dtype=torch.bfloat16)),
    ("float16 mul", torch.mul, normal(LONG, 2, torch.float16)),
    ("float16 silu", F.silu, normal(VECTOR, dtype=torch.float16)),
    ("float64 add", torch.add, normal(LONG, 2, torch.float64)),
    ("float64 exp", torch.exp, normal(VECTOR, dtype=torch.float64)),
    ("float64 tanh", torch.tanh, normal(VECTOR, dtype=torch.float64)),
    ("float64 sum rows", lambda x: x.sum(1), normal(ROWS, dtype=torch.float64)),
)
PLACES: Sequence[Entry] = (
    ("index add", lambda x, i, s: x.index_add(0, i, s), messages),
    ("index add to zeros", lambda x, i, s: torch.zeros_like(x).index_add_(0, i, s), messages),
    ("index put adds", lambda x, i, s: x.index_put((i,), s, accumulate=True), messages),
    ("scatter add", lambda x, i, s: x.scatter_add(0, i, s), scattered),
    ("scatter add rows", lambda x, i, s: x.scatter_add(0, i[:, None].expand_as(s), s), messages),
    ("scatter amax", lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), scattered),
    ("scatter value", lambda x, i, s: x.scatter(0, i, 1.0), scattered),
    ("bucketize", lambda x, b: torch.bucketize(x, b), buckets),
    ("searchsorted", lambda x, b: torch.searchsorted(b, x, side="right"), buckets),
    ("bag mean", lambda i, w: F.embedding_bag(i, w, mode="mean"), bags),
    ("bag max", lambda i, w: F.embedding_bag(i, w, mode="max"), bags),
    ("bag sum", lambda i, w: F.embedding_bag(i, w, mode="sum"), bags),
    ("cummax columns", lambda x: x.cummax(0)[1], normal(ROWS)),
    ("cumsum rows", lambda x: x.cumsum(1), normal(ROWS)),
    ("cumprod columns", lambda x: x.cumprod(0), normal(ROWS)),
    ("sort", lambda x: x.sort(-1)[0], normal(ROWS)),
    ("sort bfloat16", lambda x: x.sort(-1)[0], normal(ROWS, dtype=torch.bfloat16)),
    ("stable argsort int64", lambda x: x.argsort(stable=True), whole(ROWS)),
    ("topk", lambda x: x.topk(8)[0], normal(ROWS)),
    ("topk float16", lambda x: x.topk(8)[0], normal(ROWS, dtype=torch.float16)),
    (
        "bicubic channels last",
        lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
        channels_last(32),
    ),
    (
        "bilinear channels last",
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        channels_last(32),
    ),
)
FAMILIES: dict[str, Sequence[Entry]] = {
    "pointwise": POINTWISE,
    "activation": ACTIVATIONS,
    "reduction": REDUCTIONS,
    "norm": NORMS,
    "copy": COPIES,
    "loss": LOSSES,
    "pool": POOLS,
    "dtype": DTYPES,
    "place": PLACES,
}
# rows, inner, columns; a bmm has a batch before them.
MATMULS = (
    (2, 2, 2),
    (4, 4, 4),
    (8, 8, 8),
    (16, 16, 16),
    (32, 32, 32),
    (64, 64, 64),
    (1, 64, 64),
    (64, 64, 1),
)
BMMS = ((8, 4, 4, 4), (16, 8, 16, 8), (12, 32, 32, 32), (64, 16, 64, 16))


def functions() -> Iterator[Function]:
    """All of them, in the order of the table."""
    for family, entries in FAMILIES.items():
        for name, fn, inputs in entries:
            for index, size in enumerate(SIZES):
                yield Function(family, name, size, fn, partial(inputs, index))
    for m, k, n in MATMULS:
        yield product("matmul", (m, k), (k, n))
    for b, m, k, n in BMMS:
        yield product("bmm", (b, m, k), (b, k, n))
    yield Function(
        "product", "mlp 8x64", "small", small.mlp(), lambda: (torch.randn(8, 64),), 2 * 8 * 64 * 330
    )


def product(name: str, left: tuple[int, ...], right: tuple[int, ...]) -> Function:
    """Of two float32 tensors, neither constant."""
    flops = 2 * math.prod(left) * right[-1]
    title = f"{name} {'x'.join(map(str, left))}x{right[-1]}"
    inputs = lambda: (torch.randn(left), torch.randn(right))  # noqa: E731
    return Function("product", title, "small", torch.matmul, inputs, flops)
