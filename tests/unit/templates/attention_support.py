"""What the tests of attention share: a case, drawn from a seed; running it compiled; what it is held to."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from scalar_target import native_on

import lampwork
from lampwork.codegen.target import Target

ROUNDING = {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


@dataclass(frozen=True)
class Case:
    """One call of attention: the operands as they lie, and how it is called."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | None = None
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    def call(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        return F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=self.is_causal, scale=self.scale, enable_gqa=self.enable_gqa
        )

    def exact(self) -> torch.Tensor:
        """The result in float64."""
        mask = self.mask
        if mask is not None and mask.dtype is not torch.bool:
            mask = mask.double()
        return self.call(self.q.double(), self.k.double(), self.v.double(), mask)

    def __str__(self) -> str:
        parts = [
            f"{n}: {tuple(x.shape)} {x.stride()}"
            for n, x in zip("qkv", (self.q, self.k, self.v), strict=True)
        ]
        mask = "none" if self.mask is None else f"{self.mask.dtype} {tuple(self.mask.shape)}"
        return f"{self.q.dtype}, {', '.join(parts)}, mask {mask}, causal {self.is_causal}, scale {self.scale}"


def everywhere(target: Target) -> Target:
    """The target, with attention of any size by the template."""
    return replace(target, tiled_scores=0)


def compiled(case: Case, target: Target, **options: object) -> torch.Tensor:
    """The case through the template."""
    with native_on(everywhere(target)), torch.no_grad():
        fn = lampwork.compile(case.call, **options)
        result = fn(case.q, case.k, case.v, case.mask)
        assert "softmax(score" in fn.stages.definitions, f"{case}: no template\n{fn.stages.definitions}"
    return result


def check(case: Case, target: Target) -> None:
    """Within twice eager's error against float64, in eager's layout."""
    result, exact = compiled(case, target), case.exact()
    eager = case.call(case.q, case.k, case.v, case.mask)
    assert result.dtype == eager.dtype and result.shape == eager.shape, str(case)
    assert result.stride() == eager.stride() or result.numel() == 0, (
        f"{case}: {result.stride()} {eager.stride()}"
    )
    scale = float(exact.nan_to_num(0, 0, 0).abs().max())
    error, own = ((x.double() - exact).abs().nan_to_num(0).max() for x in (result, eager))
    assert float(error) <= 2 * float(own) + 4 * scale * ROUNDING[result.dtype], (
        f"{case}: {error} against {own}"
    )
    assert torch.equal(result.isnan(), exact.isnan()), f"{case}: nan"


def draw(seed: int) -> Case:
    """A random call: sizes, layouts, masks, shared heads, dtypes."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    dtype = rng.choice([torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16])
    batch, groups, per = rng.choice([1, 1, 2, 3]), rng.choice([1, 2, 3]), rng.choice([1, 1, 2, 4])
    rows = rng.choice([1, 1, 2, 3, 5, 7, 8, 17, 33, 64, 97, 130, 200])
    columns = rng.choice([1, 2, 7, 16, 31, 64, 100, 193, 400, 450])
    depth = rng.choice([1, 3, 8, 16, 20, 33, 64, 64, 80, 96, 128, 256])
    width = rng.choice([depth, depth, depth, 1, 5, 24, 64])

    def operand(heads: int, length: int, size: int) -> torch.Tensor:
        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float32).to(dtype)

        layout = rng.choice(["heads", "tokens", "fused", "strided", "shared"])
        if layout == "heads":
            return normal(batch, heads, length, size)
        if layout == "tokens":
            return normal(batch, length, heads, size).transpose(1, 2)
        if layout == "fused":
            return normal(batch, length, 3, heads, size)[:, :, 1].transpose(1, 2)
        if layout == "strided":
            return normal(batch, heads, size, length).transpose(2, 3)
        return normal(batch, 1, length, size).expand(batch, heads, length, size)

    heads = groups * per
    q, k, v = operand(heads, rows, depth), operand(groups, columns, depth), operand(groups, columns, width)
    kind = rng.choice(["none", "none", "causal", "bool", "numbers"])
    mask = None
    if kind in ("bool", "numbers"):
        full = (batch, heads, rows, columns)
        shape = tuple(size if rng.random() < 0.6 else 1 for size in full)[rng.choice([0, 0, 2]) :]
        mask = torch.rand(shape, generator=generator) < 0.7
        if kind == "numbers":
            mask = torch.randn(shape, generator=generator).masked_fill(~mask, -math.inf).to(dtype)
        if mask.shape[-1] == columns and rng.random() < 0.5:
            mask = mask.contiguous()
    # A causal call whose scale is not positive has no template.
    scale = rng.choice([None, None, 0.3] if kind == "causal" else [None, None, 0.3, -0.2, 0.0])
    return Case(q, k, v, mask, kind == "causal", scale, per > 1)
