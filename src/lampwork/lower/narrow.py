"""Constant matrices of float32 that were made of int8 ones: products read those instead, a quarter of the memory.

before:  %f = _to_copy(%w, float32), %d = mul(%f, %s), %y = linear(%x, %d)       w int8[N, K], s float32[N, 1]
after:   y[m, n] = acc * s[n],  acc = sum over k of x[m, k] * float32(w[n, k])   widened while it is multiplied
"""

from __future__ import annotations

import torch

from lampwork.lower.arrays import Array
from lampwork.lower.context import Context, Narrow
from lampwork.lower.registry import Lowering

aten = torch.ops.aten


def note(ctx: Context, target: object, args: list[object], made: Lowering) -> None:
    """Write down what the result `made` of a constant node was made of, if that is of use."""
    if not isinstance(made, Array) or made.dtype != "f32" or len(made.shape) != 2:
        return
    found: Narrow | None = None
    if target is aten._to_copy.default and isinstance(args[0], Array):
        found = Narrow(args[0]) if args[0].dtype == "i8" else None
    elif target is aten.mul.Tensor:
        for matrix, scale in (args[:2], args[1::-1]):
            if isinstance(matrix, Array) and isinstance(scale, Array):
                found = found or _scaled(ctx, matrix, scale)
    if found is not None and _lies_alike(found.source, made):
        ctx.narrow[made.buffer.name] = found


def narrow_of(ctx: Context, weight: Array) -> Narrow | None:
    """What a product may read in place of `weight`."""
    found = ctx.narrow.get(weight.buffer.name)
    if found is None or "i8" not in ctx.products or not _lies_alike(found.source, weight):
        return None
    return found


def _scaled(ctx: Context, matrix: Array, scale: Array) -> Narrow | None:
    found = ctx.narrow.get(matrix.buffer.name)
    if found is None or found.scale is not None or scale.dtype != "f32":
        return None
    if scale.shape not in ((matrix.shape[0], 1), (1, 1), ()) or not _lies_alike(found.source, matrix):
        return None
    return Narrow(found.source, scale)


def _lies_alike(a: Array, b: Array) -> bool:
    """Whether the elements of both lie at the same places of their buffers."""
    if a.strides is None or b.strides is None or a.is_opaque or b.is_opaque:
        return False
    return (a.shape, a.strides, a.offset) == (b.shape, b.strides, b.offset)
