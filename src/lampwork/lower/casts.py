"""Conversions and copies."""

from __future__ import annotations

from typing import Any

import torch

from lampwork.graph.devices import CPU
from lampwork.loops.ir.nodes import FLOAT8, Expr
from lampwork.lower import exprs as e
from lampwork.lower.arrays import Array, read
from lampwork.lower.context import Context
from lampwork.lower.dtypes import FLOATS, HALVES, LOOP_DTYPES
from lampwork.lower.pointwise import Operand, operand
from lampwork.lower.registry import NotExpressible, Registry

rules = Registry()


def _copied(ctx: Context, x: Array) -> Array:
    value: Expr = read(x, ctx.spec.shape)
    if value.dtype in FLOAT8 and ctx.dtype != value.dtype:
        value = e.cast(value, "f32")
    if ctx.device != CPU and ctx.dtype == "u8" and value.dtype in FLOATS:
        # Eager takes the byte from the int64; of an int32 the instructions of a device keep what does not fit at its
        # ends, whose bytes are others.
        value = e.cast(e.widened(value, "f32") if value.dtype in HALVES else value, "i64")
    return ctx.result(value)


@rules.lowers("clone")
def clone(ctx: Context, x: Array, *, memory_format: torch.memory_format | None = None) -> Array:
    return _copied(ctx, x)


@rules.lowers("_to_copy", "to.dtype", "to.dtype_layout", "to.other", "type_as", "contiguous", "to.device")
def convert(ctx: Context, x: Array, *_: Any, **options: Any) -> Array:
    """The tensor in the dtype and strides of the node. `to` and `contiguous` return what is right already as it is;
    the recorder leaves those out, and `_to_copy` and an explicit copy=True always copy."""
    return _copied(ctx, x)


@rules.lowers("copy")
def copy(ctx: Context, x: Array, src: Array, non_blocking: bool = False) -> Array:
    """`src` in the shape, dtype and strides of `x`."""
    return _copied(ctx, src)


@rules.lowers("fill.Scalar", "fill.Tensor", "full_like")
def fill(ctx: Context, x: Array, value: Operand, **_: Any) -> Array:
    return ctx.result(operand(ctx, value, ctx.dtype))


@rules.lowers("zero", "zeros_like", "empty_like", "new_zeros", "new_empty")
def zero(ctx: Context, x: Array, *_: Any, **__: Any) -> Array:
    """Memory whose contents do not matter is zeroed too: a Map of a constant disappears into its readers."""
    return ctx.result(e.const(0, ctx.dtype))


@rules.lowers("ones_like", "new_ones")
def ones(ctx: Context, x: Array, *_: Any, **__: Any) -> Array:
    return ctx.result(e.const(1, ctx.dtype))


@rules.lowers("view.dtype")
def view_dtype(ctx: Context, x: Array, dtype: torch.dtype) -> Array:
    if LOOP_DTYPES.get(dtype) == x.dtype:
        return x
    raise NotExpressible("bits read as another dtype")
