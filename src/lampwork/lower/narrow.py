"""Arrays of float32 that were made of int8 ones: products read those instead, a quarter of the memory.

before:  %f = _to_copy(%w, float32), %d = mul(%f, %s), %y = linear(%x, %d)       w int8[N, K], s float32[N, 1]
after:   y[m, n] = acc * s[n],  acc = sum over k of x[m, k] * float32(w[n, k])   widened while it is multiplied

Where both are, as in a convolution of numbers that were rounded to int8, the product is one of int8, summed in int32:

before:  %d = mul(_to_copy(%w, float32), %s), %y = conv2d(_to_copy(%x, float32), %d)     x int8, w int8, s [N, 1, 1, 1]
after:   y[m, n] = float32(acc) * s[n],  acc = sum over k of x[m, k] * w[n, k]
"""

from __future__ import annotations

from dataclasses import replace

import torch

from lampwork.lower import exprs as e
from lampwork.lower.arrays import Array, as_view, read
from lampwork.lower.context import Context, Narrow
from lampwork.lower.registry import Lowering

aten = torch.ops.aten


def note(ctx: Context, target: object, args: list[object], made: Lowering) -> None:
    """Write down what the result `made` of a node was made of, if that is of use."""
    if not isinstance(made, Array) or made.dtype != "f32" or len(made.shape) < 2:
        return
    found: Narrow | None = None
    if target is aten._to_copy.default and isinstance(args[0], Array):
        found = Narrow(args[0]) if args[0].dtype == "i8" else None
    elif target is aten.mul.Tensor and made.buffer.name in ctx.fixed:
        for matrix, scale in (args[:2], args[1::-1]):
            if isinstance(matrix, Array) and isinstance(scale, Array):
                found = found or _scaled(ctx, matrix, scale)
    if found is not None and _lies_alike(found.source, made):
        ctx.narrow[made.buffer.name] = found


def narrow_of(ctx: Context, weight: Array) -> Narrow | None:
    """What a product may read in place of `weight`."""
    found = ctx.narrow.get(weight.buffer.name)
    if found is None or weight.buffer.name not in ctx.fixed:
        return None
    return found if "i8" in ctx.products and _lies_alike(found.source, weight) else None


def bytes_of(ctx: Context, array: Array) -> Narrow | None:
    """What a view of float32 was made of, as the same view of int8. One with a scale (for each index of the first
    dimension) may have other dimensions of size 1 only."""
    found = ctx.narrow.get(array.buffer.name)
    if found is None or "i8" not in ctx.products:
        return None
    if found.scale is not None and not _has_rows_of(array, found.source):
        return None
    return Narrow(replace(array, buffer=found.source.buffer), found.scale)


def _has_rows_of(view: Array, array: Array) -> bool:
    if view.strides is None or array.strides is None or view.rank < 1:
        return False
    lie = [
        [(size, stride) for size, stride in zip(each.shape, strides, strict=True) if size != 1]
        for each, strides in ((view, view.strides), (array, array.strides))
    ]
    return lie[0] == lie[1] and view.shape[0] == array.shape[0] and view.offset == array.offset


def _scaled(ctx: Context, matrix: Array, scale: Array) -> Narrow | None:
    found = ctx.narrow.get(matrix.buffer.name)
    if (
        found is None
        or scale.dtype != "f32"
        or scale.strides is None
        or not _lies_alike(found.source, matrix)
    ):
        return None
    ones = (1,) * (len(matrix.shape) - 1)
    if scale.shape not in ((matrix.shape[0], *ones), (1, *ones), ()):
        return None
    if found.scale is not None:
        # A scale of the quantization, and one of a batch norm.
        shape = (matrix.shape[0], *ones)
        if ctx.standalone:
            value = e.mul(read(found.scale, shape), read(scale, shape))
            scale = ctx.map(shape, value, hint="scale", reads=[found.scale, scale])
        else:
            scale = ctx.call_once(
                "aten::mul.Tensor", (as_view(found.scale), as_view(scale)), shape, "f32", "scale"
            )
    return Narrow(found.source, scale)


def _lies_alike(a: Array, b: Array) -> bool:
    """Whether the elements of both lie at the same places of their buffers, which are alike."""
    if a.strides is None or b.strides is None or a.is_opaque or b.is_opaque:
        return False
    if (a.buffer.shape, a.buffer.strides, a.index) != (b.buffer.shape, b.buffer.strides, b.index):
        return False
    return (a.shape, a.strides, a.offset) == (b.shape, b.strides, b.offset)
