"""Zero padding that the op behind it can do by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from lampwork.rewriting.apply.driver import Rewrite, Rule, as_rule
from lampwork.rewriting.language.functions import ops
from lampwork.rewriting.matching.match import Match
from lampwork.verdict import No, Verdict, Yes


class PadIntoConvolution(Rewrite):
    """
    before:  conv2d(constant_pad_nd(x, [1, 1, 2, 2], 0.0), w, b, [1, 1], [0, 0])
    after:   conv2d(x, w, b, [1, 1], [2, 1])
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.name = f"pad_into_conv{rank}d"
        self.convolution = getattr(torch.ops.aten, f"conv{rank}d").default

    def pattern(
        self, x: Tensor, pad: Any, w: Tensor, b: Any, stride: Any, padding: Any, dilation: Any, groups: Any
    ):
        padded = ops.constant_pad_nd(x, pad, 0)
        return self.convolution(padded, w, b, stride, padding, dilation, groups)

    def replacement(
        self, x: Tensor, pad: Any, w: Tensor, b: Any, stride: Any, padding: Any, dilation: Any, groups: Any
    ):
        own = list(padding) * (self.rank if len(padding) == 1 else 1)
        # constant_pad_nd counts from the last dimension.
        more = [pad[2 * i] if 2 * i < len(pad) else 0 for i in reversed(range(self.rank))]
        total = [p + q for p, q in zip(own, more, strict=True)]
        return self.convolution(x, w, b, stride, total, dilation, groups)

    def check(self, match: Match) -> Verdict:
        pad = cast("Sequence[int]", match["pad"])
        if any(p < 0 for p in pad):
            return No("the padding crops")
        if any(low != high for low, high in zip(pad[::2], pad[1::2], strict=True)):
            return No("the two sides are padded differently")
        if len(pad) > 2 * self.rank and any(pad[2 * self.rank :]):
            return No("the batch or the channels are padded")
        return Yes()


def padding_rules() -> tuple[Rule, ...]:
    """One for each rank."""
    return tuple(as_rule(PadIntoConvolution(rank)) for rank in (1, 2, 3))
