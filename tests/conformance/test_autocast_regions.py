"""Regions of autocast inside and around compiled functions: nested, switched off, as decorators, of other dtypes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

import lampwork

torch.manual_seed(0)
W, X = torch.randn(32, 32), torch.randn(20, 32)
# Eager's cache of cast parameters, which is of those that want gradients, does not ask for the dtype.
LINEAR, SECOND = (nn.Linear(32, 32).requires_grad_(False) for _ in range(2))
NORM = nn.LayerNorm(32)
CONV, BATCH_NORM = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8).eval()
OTHER = {torch.bfloat16: torch.float16, torch.float16: torch.bfloat16}
Program = Callable[[torch.Tensor], Any]


def cast(dtype: torch.dtype, **options: bool) -> torch.autocast:
    return torch.autocast("cpu", dtype=dtype, **options)


class Wide(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


class AsItComes(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def programs(dtype: torch.dtype) -> dict[str, Program]:
    other = OTHER[dtype]

    def off_inside(x: torch.Tensor) -> Any:
        with cast(dtype):
            y = LINEAR(x)
            with cast(dtype, enabled=False):
                z = y.float() @ W
            return z, SECOND(z), y

    def nested(x: torch.Tensor) -> Any:
        with cast(dtype):
            y = LINEAR(x)
            with cast(other):
                z = SECOND(x)
            return y, z, LINEAR(y), y + z

    @cast(dtype)
    def decorated(x: torch.Tensor) -> Any:
        return SECOND(F.relu(LINEAR(x)))

    def calls_decorated(x: torch.Tensor) -> Any:
        return decorated(x), LINEAR(x)

    def without_cache(x: torch.Tensor) -> Any:
        with cast(dtype, cache_enabled=False):
            return LINEAR(x) + LINEAR(x), torch.is_autocast_cache_enabled()

    def entered_by_hand(x: torch.Tensor) -> Any:
        region = cast(dtype)
        region.__enter__()
        try:
            y = LINEAR(x)
        finally:
            region.__exit__(None, None, None)
        return y, LINEAR(x)

    def asked_about(x: torch.Tensor) -> Any:
        with cast(dtype):
            return (x @ W).dtype is dtype, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def left_by_an_exception(x: torch.Tensor) -> Any:
        y = x
        try:
            with cast(dtype):
                y = LINEAR(x)
                raise ValueError
        except ValueError:
            pass
        return y, LINEAR(x)

    def from_a_stack(x: torch.Tensor) -> Any:
        with contextlib.ExitStack() as stack:
            stack.enter_context(cast(dtype))
            return LINEAR(x)

    def in_a_loop(x: torch.Tensor) -> Any:
        results: list[torch.Tensor] = []
        for enabled in (True, False, True):
            with cast(dtype, enabled=enabled):
                results.append(LINEAR(x))
        return results

    def own_functions(x: torch.Tensor) -> Any:
        with cast(dtype):
            return Wide.apply(x, W), AsItComes.apply(x, W), Wide.apply(LINEAR(x), W)

    def mixed(x: torch.Tensor) -> Any:
        with cast(dtype):
            y = LINEAR(x)
            return (
                y.float().softmax(-1),
                F.softmax(y, -1),
                NORM(y),
                F.gelu(y),
                torch.cat([y, x]),
                y + x,
                F.mse_loss(y, x),
                y.sum(),
                y.exp(),
                torch.logsumexp(y, 0),
                y.norm(),
                torch.cumsum(y, 0),
            )

    def convolutions(x: torch.Tensor) -> Any:
        image = torch.ones(2, 8, 9, 9) * x[0, 0]
        with cast(dtype):
            return BATCH_NORM(CONV(image)), F.max_pool2d(F.relu(CONV(image)), 2), CONV(image).mean()

    def attention(x: torch.Tensor) -> Any:
        with cast(dtype):
            q = LINEAR(x).view(1, 20, 2, 16).transpose(1, 2)
            return F.scaled_dot_product_attention(q, q, q), (q @ q.mT).softmax(-1) @ q

    def in_place(x: torch.Tensor) -> Any:
        y = x.clone()
        with cast(dtype):
            y.add_(LINEAR(x))
            y[:2] = LINEAR(x)[:2]
        return y

    found = (off_inside, nested, decorated, calls_decorated, without_cache, entered_by_hand, asked_about)
    found += (
        left_by_an_exception,
        from_a_stack,
        in_a_loop,
        own_functions,
        mixed,
        convolutions,
        attention,
        in_place,
    )
    return {each.__name__: each for each in found}


DTYPES = pytest.mark.parametrize("dtype", list(OTHER), ids=["bf16", "f16"])


def compare(got: Any, wanted: Any) -> None:
    """Values as far as the narrowest type on their way goes, dtypes exactly."""
    for ours, eager in zip(tree_leaves(got), tree_leaves(wanted), strict=True):
        if not isinstance(eager, torch.Tensor):
            assert ours == eager
            continue
        assert ours.dtype is eager.dtype
        bound = 2e-2 * max(1.0, eager.double().abs().max().item())
        torch.testing.assert_close(ours.double(), eager.double(), rtol=2e-2, atol=bound)


@DTYPES
@pytest.mark.parametrize("name", programs(torch.bfloat16))
@torch.no_grad()
def test_regions(name: str, dtype: torch.dtype) -> None:
    """Outside of autocast, inside of one of the other dtype, and inside of one that is switched off."""
    program = programs(dtype)[name]
    compiled = lampwork.compile(program)
    for around in (contextlib.nullcontext(), cast(OTHER[dtype]), cast(dtype, enabled=False)):
        with around:
            compare(compiled(X), program(X))
        assert not torch.is_autocast_enabled("cpu")


@torch.no_grad()
def test_one_function_in_every_state() -> None:
    """A version for each dtype, and one without: they take turns."""
    compiled = lampwork.compile(LINEAR, options={"strict": True})
    for _ in range(2):
        for around in (contextlib.nullcontext, *(lambda d=dtype: cast(d) for dtype in OTHER)):
            with around():
                compare(compiled(X), LINEAR(X))
    assert len(compiled.entries) == 3
