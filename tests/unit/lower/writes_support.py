"""Random functions that write to caches, a statement each, as text: what is compiled is read from source files."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

SHAPE = (3, 8, 4)


def _part(rng: random.Random) -> tuple[str, tuple[int, ...]]:
    """An index of a cache of SHAPE, and the shape of what it chooses."""
    kind = rng.randrange(8)
    i, j = rng.randrange(-3, 3), rng.randrange(8)
    start = rng.randrange(7)
    stop, step = rng.randrange(start + 1, 9), rng.choice((1, 1, 2))
    count = len(range(start, stop, step))
    return [
        (f"[{i}]", (8, 4)),
        (f"[{i}, {j}]", (4,)),
        (f"[:, {j}]", (3, 4)),
        (f"[:, {start}:{stop}:{step}]", (3, count, 4)),
        (f"[{i}, {start}:{stop}:{step}, 1:3]", (count, 2)),
        ("[:, at]", (3, 1, 4)),
        ("[at % 3, 2 - at]", (1, 4)),
        (f"[{i}, :, at]", (8, 1)),
    ][kind]


def _value(rng: random.Random, name: str, shape: tuple[int, ...]) -> str:
    """An expression of this shape, or of one that it broadcasts from."""
    size = f"torch.Size({shape})"
    return rng.choice(
        (
            f"x.sum().expand({size})",
            f"(x[:1, :1, :1] * 2).expand(1, 1, 1).reshape(1).expand({size})",
            f"{name}.mean().expand({size}) + 1",
            "3.5",
            f"torch.arange({_count(shape)}, dtype=torch.float32).reshape({size})",
        )
    )


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _statement(rng: random.Random) -> str:
    name = rng.choice(("a", "a", "b"))
    place, shape = _part(rng)
    return rng.choice(
        (
            f"{name}{place} = {_value(rng, name, shape)}",
            f"{name}{place} = {_value(rng, name, shape)}",
            f"{name}.index_copy_(1, at, x[:, :1] * {rng.randrange(1, 5)})",
            f"{name}[{rng.randrange(3)}].index_copy_(0, at, x[0, :1])",
            f"{name}.transpose(0, 1).index_copy_(1, at % 3, x[:1].transpose(0, 1) + 1)",
            f"{name}{place} += 1",
            f"{name}{place} *= {name}.sum()",
            f"{name}[0] = {name}[1]",
            f"{name}[:, :4] = {name}[:, 4:]",
            f"{name}.select(1, {rng.randrange(8)}).copy_(x[:, 0])",
            f"{name}.view(-1)[{rng.randrange(90)}:{rng.randrange(91, 96)}] = 0.25",
            f"{name}[at % 3] = x[1]",
            f"{name}.index_put_((at % 3, at), x[0, :1])",
            f"out.append({name}.sum(-1))",
            f"out.append({name} * 2)",
            f"out.append({name}.clone())",
            f"out.append({name}[:, 1:3])",
            f"out.append(torch.index_copy({name}, 1, at, x[:, :1]))",
            "out.append(table[at])",
            f"{name}.mul_(0.5)" if rng.random() < 0.3 else f"out.append({name}[1] + x[0])",
        )
    )


def source(seed: int) -> str:
    """def f(a, b, x, at, table): … for caches a and b."""
    rng = random.Random(seed)
    lines = ["def f(a, b, x, at, table):", "    out = []"]
    lines += [f"    {_statement(rng)}" for _ in range(rng.randrange(1, 7))]
    return "\n".join([*lines, "    return out", ""])


def arguments(seed: int) -> list[torch.Tensor]:
    """Caches of SHAPE, some laid out otherwise; what is written; a place; a table of eight rows."""
    rng = random.Random(seed)
    made = torch.Generator().manual_seed(seed)

    def cache() -> torch.Tensor:
        kind = rng.randrange(4)
        if kind == 0:
            return torch.randn(8, 3, 4, generator=made).transpose(0, 1)
        if kind == 1:
            return torch.randn(5, 9, 6, generator=made)[1:4, 1:, 1:5]
        return torch.randn(SHAPE, generator=made)

    at = torch.tensor([rng.randrange(3)], dtype=torch.int64)
    return [cache(), cache(), torch.randn(SHAPE, generator=made), at, torch.randn(8, 2, generator=made)]


def copied(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same, with the same strides, in memory of their own."""
    result: list[torch.Tensor] = []
    for value in values:
        base = value if value._base is None else value._base
        result.append(base.clone().as_strided(value.shape, value.stride(), value.storage_offset()))
    return result


def run(call: Callable[..., Any], values: list[torch.Tensor]) -> tuple[str, list[torch.Tensor]]:
    """The kind of error or "", then what came back and what the arguments are now."""
    try:
        with torch.no_grad():
            out = list(call(*values))
    except (IndexError, RuntimeError) as error:
        return type(error).__name__, values
    return "", [*out, *values]
