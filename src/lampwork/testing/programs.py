"""The programs that the batteries run: small, deterministic, and together a tour of what a plug-in may meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lampwork.records import record

Make = Callable[[], tuple[Any, ...]]


@record
class Program:
    """A function or module, and what makes fresh inputs for it (equal ones each time). `exact`: its operators have one
    right answer, to the sign of a zero and the last bit of a denormal."""

    name: str
    fn: Callable[..., Any]
    inputs: Make
    exact: bool = False


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers, the same for the same arguments; small integers and booleans for such dtypes."""
    generator = torch.Generator().manual_seed(seed * 1009 + len(shape))
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(-9 if dtype.is_signed else 0, 9, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def _pointwise(x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(x * y + 0.5) - torch.relu(x) / (1 + y.abs())


def _branches(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Two chains that meet: parts of it are not convex if cut carelessly."""
    a = torch.relu(x @ y)
    b = torch.sigmoid(x - 1)
    return (a + b) @ y, torch.exp(-a.abs()) * b.sum(-1, keepdim=True)


def _reductions(x: Tensor) -> tuple[Tensor, ...]:
    return x.sum(0), x.mean(-1, keepdim=True), x.amax(1), x.softmax(-1), x.var(-1, unbiased=False)


def _views(x: Tensor) -> Tensor:
    return (x.transpose(0, 1).reshape(-1, 4)[1:] + x.unsqueeze(0).expand(2, -1, -1).sum((0, 1))[:4]).permute(
        1, 0
    )


def _several_outputs(x: Tensor) -> tuple[Tensor, ...]:
    values, indices = torch.topk(x, 2, dim=-1)
    first, second = torch.split(x, [3, 5], dim=1)
    return values * 2, indices, torch.relu(first), second.neg()


def _indexing(table: Tensor, rows: Tensor) -> Tensor:
    return F.embedding(rows, table).mean(1) + table[0]


def _masked(x: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep, x, x.new_tensor(-1.0)).masked_fill(~keep, float("-inf")).softmax(-1)


def _arguments_returned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x, y.view(-1), torch.relu(x)


def _same_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.relu(x + 1)
    return y, y


def _nothing(x: Tensor) -> Tensor:
    return x


def _constant(x: Tensor) -> Tensor:
    return torch.ones(3) * 2


def _scalars(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x * y - 1) + x


def _writes(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    x[0] = torch.relu(y[0])
    return x * 2


def _random(x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return F.dropout(torch.relu(x), 0.5, True) + torch.rand(x.shape[-1])


def _casts(x: Tensor, n: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return x.double() * n, (x + b).to(torch.int32), n / 2, x.half().float() + 1, b | (n > 0)


def _options(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Operators with an option that is not the default, beside one with the default."""
    return (
        torch.add(x, y, alpha=2) + torch.add(x, y),
        torch.sub(x, y, alpha=3) - torch.sub(x, y),
        torch.rsub(x, y, alpha=2),
        torch.addmm(x, x, y, beta=2, alpha=3) + torch.addmm(x, x, y),
        F.gelu(x, approximate="tanh") * F.gelu(x),
        torch.div(x, y, rounding_mode="floor") + torch.div(x, y, rounding_mode="trunc"),
        x.var(0, correction=0) + x.var(0, correction=2),
        x.sum(1, dtype=torch.float64),
        x.sum(0, keepdim=True) + x.sum(0),
        F.softplus(x, beta=2.0) + F.leaky_relu(x, 0.3) + F.elu(x, 0.5),
    )


def _whole(n: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    return n + m, n * 3 - 1, -n, n.abs(), torch.where(n > m, n, m), n.sum(0), n.t() + 1


def _tiny(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Operators that are rounded once, or not at all."""
    return x * y, -x, x + x, x.abs(), x / 2, x - y, torch.where(x > y, x, y), torch.cat([x, y]).t()


def _view_read_further(x: Tensor) -> tuple[Tensor, ...]:
    v = x.view(-1)
    return v, x.t(), v + 1, torch.relu(x.t())


def _result_read_further(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.relu(x + 1)
    v = y.view(-1)
    return y, v[1:], v * 2, y.t() + x.t(), v


def _one_place(x: Tensor) -> tuple[Tensor, ...]:
    """Views in which elements share a place."""
    row = (x + 1).sum(0, keepdim=True)
    wide, windows = row.expand(4, 8), torch.relu(x).unfold(1, 3, 1)
    return wide * 2 + x, windows * 0.5, wide, windows.sum(-1), row.expand(2, 1, 8).abs()


class _Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.second = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.gelu(self.norm(self.first(x)))) + x


class _Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class _Blocks(nn.Module):
    """Equal layers with weights of their own."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.relu(block(x)) + x
        return x


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.view(*t.shape[:2], 4, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        weights = (q @ k.transpose(-1, -2) / 2).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(x.shape)


def network() -> nn.Module:
    """Two linear layers, a layer norm and a GELU on 8 features."""
    return _Network().eval()


def blocks(count: int = 4) -> nn.Module:
    """`count` equal linear layers with a ReLU and a residual, on 8 features."""
    return _Blocks(count).eval()


def standard_programs() -> tuple[Program, ...]:
    """One for each kind of graph that a plug-in should survive."""
    conv, attention, mlp = _Convolutions().eval(), _Attention().eval(), network()
    return (
        Program("pointwise", _pointwise, lambda: (randn(4, 8), randn(4, 8, seed=1))),
        Program("broadcasting", _pointwise, lambda: (randn(4, 1, 8), randn(3, 1, seed=1))),
        Program("branches", _branches, lambda: (randn(8, 8), randn(8, 8, seed=1))),
        Program("reductions", _reductions, lambda: (randn(4, 8),)),
        Program("views", _views, lambda: (randn(4, 8),)),
        Program("several outputs", _several_outputs, lambda: (randn(4, 8),)),
        Program("indexing", _indexing, lambda: (randn(5, 8), torch.tensor([[0, 4], [2, 2]]))),
        Program(
            "masks", _masked, lambda: (randn(4, 8), randn(4, 8, dtype=torch.bool) | (torch.arange(8) == 0))
        ),
        Program("network", mlp, lambda: (randn(4, 8),)),
        Program("equal layers", blocks(), lambda: (randn(4, 8),)),
        Program("convolutions", conv, lambda: (randn(2, 3, 8, 8),)),
        Program("attention", attention, lambda: (randn(2, 6, 16),)),
        Program("random numbers", _random, lambda: (randn(4, 8),)),
        Program("options", _options, lambda: (randn(8, 8), randn(8, 8, seed=1))),
    )


def sharing_programs() -> tuple[Program, ...]:
    """Results that share memory, or whose elements do, and that other operators read."""
    return (
        Program("views of an argument", _view_read_further, lambda: (randn(4, 8),)),
        Program("views of a result", _result_read_further, lambda: (randn(4, 8),)),
        Program("elements in one place", _one_place, lambda: (randn(4, 8),)),
    )


def edge_programs() -> dict[str, tuple[Program, ...]]:
    """Programs by what they are about; the batteries make one check of each entry."""
    return {
        "aliasing": (
            Program("arguments returned", _arguments_returned, lambda: (randn(4), randn(2, 3))),
            Program("one result twice", _same_twice, lambda: (randn(4),)),
        ),
        "mutation": (Program("writes its input", _writes, lambda: (randn(4, 3), randn(4, 3, seed=1))),),
        "empty graphs": (
            Program("no operators", _nothing, lambda: (randn(3),)),
            Program("constants only", _constant, lambda: (randn(3),)),
            Program("no elements", _pointwise, lambda: (randn(0, 8), randn(0, 8))),
        ),
        "scalars": (Program("tensors of no dimensions", _scalars, lambda: (randn(), randn(seed=1))),),
        "dtypes": (
            Program(
                "mixed",
                _casts,
                lambda: (randn(4, 3), randn(4, 3, dtype=torch.int64), randn(4, 3, dtype=torch.bool)),
            ),
            *(
                Program(str(dtype).removeprefix("torch."), _pointwise, _pair(dtype))
                for dtype in (torch.float64, torch.float16, torch.bfloat16)
            ),
            *(Program(f"large {dtype}", _whole, _large_pair(dtype)) for dtype in (torch.int64, torch.int32)),
        ),
        "layouts": (
            Program("transposed", _pointwise, lambda: (randn(8, 4).t(), randn(4, 8, seed=1))),
            Program("strided", _pointwise, lambda: (randn(4, 16)[:, ::2], randn(4, 8, seed=1))),
            Program("expanded", _pointwise, lambda: (randn(1, 8).expand(4, 8), randn(4, 8, seed=1))),
            Program("with an offset", _pointwise, lambda: (randn(5, 8)[1:], randn(4, 8, seed=1))),
        ),
        "special numbers": (
            Program("nan, infinity, -0.0", _pointwise, _special_pair),
            Program("zeros and denormals", _tiny, _tiny_pair, exact=True),
        ),
    }


def _pair(dtype: torch.dtype) -> Make:
    return lambda: (randn(4, 8, dtype=dtype), randn(4, 8, seed=1, dtype=dtype))


def _special_pair() -> tuple[Tensor, Tensor]:
    x, y = randn(4, 8), randn(4, 8, seed=1)
    x[0, :5] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-42])
    y[0, :5] = torch.tensor([1.0, -2.0, 0.0, -0.0, 3e38])
    return x, y


def _large_pair(dtype: torch.dtype) -> Make:
    """Integers between those that float32, and for int64 float64, can hold."""
    base = (1 << 53) + 1 if dtype is torch.int64 else (1 << 24) + 1
    return lambda: (randn(4, 3, dtype=dtype) * 2 + base, randn(4, 3, seed=1, dtype=dtype) * 2 - base)


def _tiny_pair() -> tuple[Tensor, Tensor]:
    values = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 3e-42, -3e-42, 1.2e-38, -2.0], dtype=torch.float64)
    values = values.float()
    return values.repeat(8, 1), values.flip(0).repeat(8, 1).t().contiguous()
