"""Errors of a model's output against that of the model as it was: `(reference, output) -> float`, 0 if equal."""

from __future__ import annotations

from typing import Any

from lampwork.swapping.difference import compare, tensors_of


def max_relative_difference(reference: Any, output: Any) -> float:
    """The largest difference by the largest magnitude of the reference, of the output tensor where that is largest."""
    return max((difference.relative for difference in compare(reference, output)), default=0.0)


def top1_disagreement(reference: Any, output: Any) -> float:
    """The share of rows of the first output tensor whose largest entry along the last axis is another than it was."""
    before, after = (next(tensors_of(value))[1] for value in (reference, output))
    return float((before.argmax(-1) != after.argmax(-1)).double().mean())
