"""Functions of float8 tensors: what is generated, what is called through ATen, and what eager refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
TYPES = (E4M3, E5M2)


def codes(dtype: torch.dtype, *shape: int) -> Tensor:
    """Tensors with every code, nan and infinities among them."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) * 37 % 256).to(torch.uint8).view(dtype).view(shape)


def spread(*shape: int, seed: int = 0) -> Tensor:
    """Numbers of all sizes, some of them too large, infinite and nan."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * torch.randn(shape, generator=generator).mul(5).exp2()
    x.view(-1)[:8] = torch.tensor([1e9, -1e9, torch.inf, -torch.inf, torch.nan, 460.0, -61000.0, 0.0])
    return x


def through(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda x: x.to(dtype)


Program = tuple[Callable[..., Any], tuple[Any, ...]]
ROWS, PLACES = (20, 33), torch.tensor([3, 0, 19, 3])


def generated(dtype: torch.dtype) -> dict[str, Program]:
    """Programs that are kernels alone, on every device."""
    x, y, wide = codes(dtype, *ROWS), codes(dtype, *ROWS).flip(0), spread(*ROWS)
    other = E5M2 if dtype is E4M3 else E4M3
    found: dict[str, Program] = {
        f"to {str(kind).removeprefix('torch.')}": (through(kind), (x,))
        for kind in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool)
    }
    found |= {
        f"from {str(kind).removeprefix('torch.')}": (through(dtype), (wide.to(kind),))
        for kind in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    }
    found |= {
        f"from {str(kind).removeprefix('torch.')}": (through(dtype), (torch.arange(-300, 900, 7).to(kind),))
        for kind in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
    }
    return found | {
        "to the other": (through(other), (x,)),
        "there and back": (lambda x: x.to(dtype).float() - x, (spread(*ROWS),)),
        "scaled": (lambda x: ((x / x.abs().amax(1, keepdim=True)) * 448).to(dtype), (torch.randn(ROWS),)),
        "a sum of rows": (lambda x: x.float().nan_to_num(0, 0, 0).sum(1), (x,)),
        "columns": (lambda x: x.float().amax(0), (x,)),
        "clone": (lambda x: x.clone(), (x,)),
        "transposed": (lambda x: x.t().contiguous(), (x,)),
        "a view of it": (lambda x: x[3:, ::2].t().reshape(-1).float() * 2, (x,)),
        "expanded": (lambda x: x[:1].expand(5, 33).contiguous(), (x,)),
        "cat": (lambda x, y: torch.cat([x, y[:, 4:]], 1), (x, y)),
        "stack": (lambda x, y: torch.stack([x, y]), (x, y)),
        "full": (lambda x: (torch.full((7,), 3.3, dtype=dtype, device=x.device), x.float() + 1), (x,)),
        "zeros and ones": (
            lambda x: (torch.zeros_like(x), torch.ones(5, dtype=dtype, device=x.device)),
            (x,),
        ),
        "of nothing": (lambda x: x[:0].clone(), (x,)),
    }


def chosen(dtype: torch.dtype) -> dict[str, Program]:
    """Programs that are kernels alone on the CPU. What nan is as an integer is the processor's."""
    x, y, wide = codes(dtype, *ROWS), codes(dtype, *ROWS).flip(0), spread(*ROWS)
    found: dict[str, Program] = {
        f"to {str(kind).removeprefix('torch.')}": (through(kind), (x,))
        for kind in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    }
    return found | {
        "where": (lambda c, x, y: torch.where(c > 0, x, y), (wide, x, y)),
        "index_select": (lambda x, i: x.index_select(0, i), (x, PLACES)),
        "index": (lambda x, i: x[i - 2], (x, PLACES)),
        "embedding": (lambda x, i: F.embedding(i, x).float() * 2, (x, PLACES)),
    }


def called(dtype: torch.dtype) -> dict[str, Program]:
    """Programs of which a part is ATen's."""
    x, y, wide = codes(dtype, *ROWS), codes(dtype, *ROWS).flip(0), spread(*ROWS)
    return {
        "eq": (lambda x, y: (x == y).float() + 1, (x, y)),
        "bytes": (lambda x: x.view(torch.uint8) ^ 1, (x,)),
        "of bytes": (lambda x: x.view(dtype).float() * 2, (x.view(torch.uint8),)),
        "flip": (lambda x: x.flip(0).float() * 2, (x,)),
        "a part written": (lambda x, w: x.clone().index_put_((PLACES[:2],), w[:2].to(dtype)), (x, wide)),
        "isnan": (lambda x: x.isnan().float() + 1, (x,)),
        "abs of what was made": (lambda w: w.to(dtype).t().abs().float(), (wide,)),
    }


def refused(dtype: torch.dtype) -> dict[str, Program]:
    """Programs that eager refuses on the CPU."""
    x, y, wide = codes(dtype, *ROWS), codes(dtype, *ROWS).flip(0), spread(*ROWS)
    return {
        "add": (lambda x, y: x + y, (x, y)),
        "add a number": (lambda x: x + 1, (x,)),
        "add a float": (lambda x, w: x + w, (x, wide)),
        "add what was made": (lambda w: w.to(dtype) + w.to(dtype), (wide,)),
        "neg": (lambda x: -x, (x,)),
        "mul": (lambda x: x * 2.0, (x,)),
        "sum": (lambda x: x.sum(), (x,)),
        "max": (lambda x: x.max(), (x,)),
        "gt": (lambda x: x > 0, (x,)),
        "relu": (lambda x: x.relu(), (x,)),
        "cat with a float": (lambda x, w: torch.cat([x, w]), (x, wide)),
        "masked_fill": (lambda x, w: x.masked_fill(w > 0, 1.0), (x, wide)),
        "gather": (lambda x: x.gather(0, torch.zeros(1, 33, dtype=torch.int64, device=x.device)), (x,)),
        "sort": (lambda x: x.sort(), (x,)),
        "triu": (lambda x: x.triu(), (x,)),
        "softmax": (lambda x: x.softmax(1), (x,)),
    }
