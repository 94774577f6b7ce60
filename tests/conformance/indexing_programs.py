"""Random programs that index and write through views, with indices and overlaps that eager may refuse."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

SIZES = (0, 1, 1, 2, 3, 5, 8, 17)


@dataclass(frozen=True)
class Program:
    """`source` defines run(x, w, i, j); `inputs()` makes equal arguments each time."""

    source: str
    inputs: Callable[[], list[torch.Tensor]]

    def function(self) -> Callable[..., Any]:
        names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        exec(compile(self.source, "<indexing program>", "exec"), names)  # noqa: S102
        return names["run"]


def generate(seed: int) -> Program:
    """The program of a seed."""
    rng = random.Random(seed)
    shape = tuple(rng.choice(SIZES) for _ in range(rng.choice((1, 2, 2, 3))))
    table = (rng.choice(SIZES), rng.choice(SIZES))
    many = rng.choice(SIZES)
    bad = rng.random() < 0.35
    steps = [_step(rng, len(shape)) for _ in range(rng.randint(1, 4))]
    body = "\n".join(f"    {line}" for step in steps for line in step.split("\n"))
    source = f"def run(x, w, i, j):\n    y = x.clone()\n    out = []\n{body}\n    return x, y, out\n"

    def inputs() -> list[torch.Tensor]:
        values = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        limits = (max(shape[0], 1), max(table[0], 1))

        def indices(limit: int) -> torch.Tensor:
            low, high = (-limit - 1, limit + 1) if bad else (0, limit)
            dtype = values.choice((torch.int64, torch.int64, torch.int32))
            return torch.tensor([values.randrange(low, high) for _ in range(many)], dtype=dtype)

        return [
            torch.randn(shape, generator=generator),
            torch.randn(table, generator=generator),
            indices(limits[0]),
            indices(limits[1]),
        ]

    return Program(source, inputs)


def _step(rng: random.Random, rank: int) -> str:
    a, b, c = (rng.randrange(0, 4) for _ in range(3))
    n = rng.randrange(1, 4)
    dim = rng.randrange(rank)
    full = "(slice(None),) * %d" % dim
    reads = [
        "y[i]",
        f"y[({full}) + (i,)]",
        f"y.index_select({dim}, i)",
        f"y.gather({dim}, i.long().view(-1, *([1] * {rank - 1})).expand(-1, *y.shape[1:]))",
        "y.take(i.long())",
        "F.embedding(j, w)",
        "F.embedding(j, w)[:2]",
        "F.embedding(j, w).t()",
        "F.embedding(j, w).sum(-1)",
        "w[j, 0]",
        "w[j][:, None] + w[j]",
        f"w[j].roll({a}, 0)",
        "torch.zeros_like(F.embedding(j, w))",
        "F.one_hot(i.long(), 5)",
        f"y.flip({dim}).narrow({dim}, 0, 1)",
        f"y.roll({a}, {dim})",
        f"F.pad(y, ({a}, {b - 1}), value=2.0)",
        f"F.pad(y[i], ({a}, {b}))",
        f"y.unfold({dim}, {n}, {n})",
        f"y.as_strided(({n}, {a}), ({b}, {c}))",
        f"y.as_strided(({n}, {a}), ({b}, {c}), {a})",
        f"torch.cat([y, y[i]], 0)[{a}:]",
        f"y.scatter(0, i.long().view(-1, *([1] * {rank - 1})).expand(-1, *y.shape[1:]), 3.0)",
        "y.index_add(0, i, y[i] * 2)",
        "y.index_fill(0, i.long(), 1.5)",
        "y.index_copy(0, i.long(), y[i])",
        "F.embedding_bag(j.long().view(1, -1), w)",
        "F.cross_entropy(w, j.long()[: w.shape[0]])",
        f"y.reshape(-1)[{a}:{a + n}].expand({n}, -1)",
        "j // i[:1]",
        "i % 3",
        "torch.bucketize(y, y.reshape(-1).sort().values)",
        f"torch.tril(y.reshape(-1).expand({n}, -1), {a})",
        f"y.diff(dim={dim})",
    ]
    writes = [
        f"y[{a}:].copy_(y[:-{a}])" if a else "y.copy_(y)",
        f"y[{a}:] += y[:-{n}]",
        f"y[..., {a}:] *= y[..., :{a}]",
        f"y[..., {a}:{a + 2}] = y[..., {b}:{b + 2}]",
        f"y[{a}::2].add_(y[{b}::2])",
        "y.add_(y.flip(0))",
        "y.mul_(y.transpose(0, -1))",
        "y[i] = 5.0",
        "y.index_put_((i.long(),), torch.ones(()), accumulate=True)",
        "y.index_add_(0, i, y[i])",
        f"y.as_strided(({n}, {a}), ({b}, {c})).add_(1)",
        f"y.unfold({dim}, {n}, 1).mul_(2)",
        f"y.reshape(-1)[:1].expand({n}).add_(1)",
        f"torch.add(y[{a}:], 1, out=y[: y.shape[0] - {a}])",
        f"y.narrow({dim}, 0, 1).copy_(y.narrow({dim}, -1, 1))",
        "x.mul_(2)",
        f"x[{a}:] = y[{a}:]",
        f"y.scatter_(0, i.long().view(-1, *([1] * {rank - 1})).expand(-1, *y.shape[1:]), y)",
        "y.view(-1).cumsum_(0)",
        "y.fill_(w.reshape(-1)[0])",
    ]
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(writes)
    read = rng.choice(reads)
    # Every third result is dropped: its errors are not.
    return f"out.append({read})" if kind < 0.8 else read
