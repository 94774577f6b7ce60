"""Code for AArch64, run by an emulator: every kind of kernel, held to eager's results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from emulated_machine import MISSING, EmulatedMachine, Job
from torch import Tensor

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"no {MISSING} here")


@dataclass(frozen=True, slots=True)
class Case:
    """`ulps`: how far results may be from eager's, in units of the last place of their dtype at the largest one."""

    fn: Callable[..., Any]
    inputs: Sequence[Tensor]
    bound: Sequence[Tensor] = ()
    ulps: float = 4
    only: tuple[str, ...] = field(default=("aarch64",))


def _random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(*shape, generator=generator).to(dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    low = 0 if dtype is torch.uint8 else -100
    return torch.randint(low, 100, shape, generator=generator).to(dtype)


def _special(dtype: torch.dtype) -> Tensor:
    """Numbers of all magnitudes, and the limits."""
    limits = torch.finfo(dtype)
    some = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 1e-3, -1e-3, 3.0, 20.0, -20.0, 100.0, -100.0, 1e4, -1e4]
    ends = [float("inf"), float("-inf"), float("nan"), limits.max, limits.min, limits.tiny, -limits.tiny]
    rare = [limits.tiny / 4, -limits.tiny / 4, limits.smallest_normal, limits.eps]
    spread = (_random(37, seed=5).double() * 10 ** _random(37, seed=6).double()).tolist()
    return torch.tensor([*some, *ends, *rare, *spread], dtype=dtype)


UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv "
    "lgamma digamma sigmoid sqrt rsqrt reciprocal floor ceil round trunc frac sign abs neg isnan isinf signbit"
).split()
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "softplus": F.softplus,
    "mish": F.mish,
    "elu": F.elu,
    "hardswish": F.hardswish,
    "logsigmoid": F.logsigmoid,
}
BINARY = "add sub mul div pow atan2 fmod remainder hypot copysign logaddexp maximum minimum fmax fmin".split()


def _all(names: Sequence[str]) -> Callable[..., tuple[Tensor, ...]]:
    return lambda *x: tuple(getattr(torch, name)(*x) for name in names)


def _of_activations(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(fn(x) for fn in ACTIVATIONS.values())
