"""Convolutions as data: one reading of aten.conv1d/2d/3d, convolution and the padding="same" forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.spec import TensorSpec
from lampwork.records import record
from lampwork.rewriting.schema import bound_args

aten = torch.ops.aten

_PLAIN = {aten.conv1d.default: 1, aten.conv2d.default: 2, aten.conv3d.default: 3}
_PADDED = {aten.conv1d.padding: 1, aten.conv2d.padding: 2, aten.conv3d.padding: 3}
_TRANSPOSED = {
    aten.conv_transpose1d.default: 1,
    aten.conv_transpose2d.input: 2,
    aten.conv_transpose3d.input: 3,
}


@record
class Convolution:
    """A convolution over `rank` spatial dimensions; the lists have one entry for each."""

    node: fx.Node
    x: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int
    transposed: bool
    rank: int
    output_padding: list[int]

    @property
    def batched(self) -> bool:
        return len(spec(self.x).shape) == self.rank + 2


def spec(node: fx.Node) -> TensorSpec:
    return cast(TensorSpec, node.meta["val"])


def convolution(node: fx.Node) -> Convolution | None:
    """The convolution that `node` is; None if it is none, or pads its two sides differently."""
    target: Any = node.target
    if target in _PLAIN:
        x, w, b, stride, padding, dilation, groups = bound_args(node)
        rank, transposed = _PLAIN[target], False
    elif target in _PADDED:
        x, w, b, stride, text, dilation, groups = bound_args(node)
        rank, transposed = _PADDED[target], False
        padding = _padding_of(text, spec(w).shape[2:], _full(dilation, rank))
        if padding is None:
            return None
    elif target in _TRANSPOSED:
        x, w, b, stride, padding, _, groups, dilation = bound_args(node)
        rank, transposed = _TRANSPOSED[target], True
    elif target is aten.convolution.default:
        x, w, b, stride, padding, dilation, transposed, _, groups = bound_args(node)
        rank = len(spec(w).shape) - 2
    else:
        return None
    extra = bound_args(node)[5 if target in _TRANSPOSED else 7] if transposed else 0
    return Convolution(
        node,
        x,
        w,
        b,
        _full(stride, rank),
        _full(padding, rank),
        _full(dilation, rank),
        groups,
        transposed,
        rank,
        _full(extra, rank),
    )


def _full(value: int | Sequence[int], rank: int) -> list[int]:
    items = [value] if isinstance(value, int) else list(value)
    return items * rank if len(items) == 1 else items


def _padding_of(text: str, kernel: Sequence[int], dilation: Sequence[int]) -> list[int] | None:
    if text == "valid":
        return [0] * len(kernel)
    total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    return None if any(t % 2 for t in total) else [t // 2 for t in total]
