"""Random functions under every way to ask for their gradients, one after the other on one compiled function: values,
errors and the generator of random numbers are eager's. A few here, many with LAMPWORK_FUZZ (`make fuzz`); a failure
prints its seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any, cast

import gradient_uses
import pytest
import torch
from torch import Tensor

import lampwork

COUNT = max(1, int(os.environ.get("LAMPWORK_FUZZ", "240")) // 12)
SEED = int(os.environ.get("LAMPWORK_FUZZ_SEED", "0"))
ROUNDING = 1e-9


def side(seed: int, wrap: Callable[[Any], Any], device: str = "cpu") -> list[tuple[str, Any]]:
    """What each of some uses of one function gives."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    weight = (
        torch.randn(gradient_uses.WIDTH, gradient_uses.WIDTH, dtype=torch.float64).to(device).requires_grad_()
    )
    name, body = gradient_uses.body_of(rng, weight)
    function = wrap(body)
    seen: list[tuple[str, Any]] = []
    uses = list(gradient_uses.USES)
    if "checkpoint" in name:
        uses.remove(
            "weight_written"
        )  # docs/tour.md: what a checkpoint computes again is of the weights of forward
    for use in rng.choices(uses, k=8):
        for rows in rng.choice([(4, 4), (4, 4, 4), (4, 3)]):
            torch.manual_seed(rng.randrange(1000))
            x = torch.randn(rows, gradient_uses.WIDTH, dtype=torch.float64).to(device).requires_grad_()
            weight.grad = None
            label = f"{name}: {use} of {rows} rows"
            try:
                given = gradient_uses.USES[use](function, x, weight)
            except (RuntimeError, ValueError, ArithmeticError) as error:
                seen.append((label, (type(error), str(error).split("[")[0])))
                continue
            seen.append((label, given))
            seen.append((f"{label}, generator", torch.get_rng_state()))
            if device != "cpu":
                seen.append((f"{label}, generator of the device", torch.cuda.get_rng_state()))
    return seen


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    items = cast("list[Any]", value) if isinstance(value, (list, tuple)) else []
    return [tensor for item in items for tensor in tensors_in(item)]


def agree(mine: Any, eager: Any, largest: float) -> bool:
    """Whether two results are the same but for rounding, of which there is more where numbers are large."""
    if isinstance(eager, Tensor):
        same = isinstance(mine, Tensor) and mine.dtype is eager.dtype and mine.shape == eager.shape
        rounding = ROUNDING if eager.dtype is torch.float64 else 0
        return same and torch.allclose(mine, eager, rtol=rounding, atol=rounding * largest, equal_nan=True)
    if isinstance(eager, (list, tuple)):
        ours, theirs = cast("list[Any]", mine), cast("list[Any]", eager)
        pairs = zip(ours, theirs, strict=False)
        return len(ours) == len(theirs) and all(agree(a, b, largest) for a, b in pairs)
    return bool(mine == eager)


def compare(seed: int, device: str = "cpu") -> None:
    eager, mine = side(seed, lambda body: body, device), side(seed, lampwork.compile, device)
    for (label, want), (_, have) in zip(eager, mine, strict=True):
        numbers = [t.detach() for t in tensors_in(want) if t.is_floating_point() and t.numel()]
        sizes = [float(t.nan_to_num(0.0, 0.0, 0.0).abs().max()) for t in numbers]
        assert agree(have, want, max([1.0, *sizes])), f"seed {seed}, {label}:\n{have}\n{want}"


@pytest.mark.parametrize("seed", range(SEED, SEED + COUNT))
def test_gradients_are_eagers(seed: int) -> None:
    compare(seed)
