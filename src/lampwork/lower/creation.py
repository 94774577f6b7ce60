"""Tensors made of nothing but numbers and positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lampwork.graph.symbols import is_integer
from lampwork.loops.ir.nodes import DType, Expr
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array
from lampwork.lower.context import Context
from lampwork.lower.dtypes import FLOATS, compute_dtype
from lampwork.lower.pointwise import Number, operand
from lampwork.lower.registry import Registry

rules = Registry()


@rules.lowers("full", "new_full")
def full(ctx: Context, *args: Any, **_: Any) -> Array:
    return ctx.result(operand(ctx, args[-1], ctx.dtype))


@rules.lowers("scalar_tensor")
def scalar_tensor(ctx: Context, value: Number, **_: Any) -> Array:
    return ctx.result(operand(ctx, value, ctx.dtype))


@rules.lowers("zeros", "empty.memory_format", "empty_strided", "new_empty_strided")
def zeros(ctx: Context, *_: Any, **__: Any) -> Array:
    return ctx.result(e.const(0, ctx.dtype))


@rules.lowers("ones")
def ones(ctx: Context, size: Sequence[int], **_: Any) -> Array:
    return ctx.result(e.const(1, ctx.dtype))


@rules.lowers("eye", "eye.m")
def eye(ctx: Context, *_: Any, **__: Any) -> Array:
    return ctx.result(e.test("eq", e.index_value(AXES[0]), e.index_value(AXES[1])))


def _arange(ctx: Context, start: Number, step: Number) -> Array:
    """start + i*step; floats in f64, rounded once, and an integer range of truncated bounds. (Eager adds fractions to
    the rounded start of each vector.)"""
    if ctx.dtype not in FLOATS:
        return ctx.result(e.index_value(AXES[0] * _whole(step) + _whole(start)))
    position = e.index_value(AXES[0], "f64")
    value = e.add(e.const(start, "f64"), e.mul(e.const(step, "f64"), position))
    return ctx.result(value)


def _whole(number: Number) -> int:
    return number if is_integer(number) else int(number)


@rules.lowers("arange")
def arange(ctx: Context, end: Number, **_: Any) -> Array:
    return _arange(ctx, 0, 1)


@rules.lowers("arange.start")
def arange_start(ctx: Context, start: Number, end: Number, **_: Any) -> Array:
    return _arange(ctx, start, 1)


@rules.lowers("arange.start_step")
def arange_step(ctx: Context, start: Number, end: Number, step: Number = 1, **_: Any) -> Array:
    return _arange(ctx, start, step)


@rules.lowers("linspace")
def linspace(ctx: Context, start: Number, end: Number, steps: int, **_: Any) -> Array:
    """From the nearer end, so that both ends are exact."""
    dtype = compute_dtype(ctx.dtype) if ctx.dtype in FLOATS else "f64"
    return ctx.result(spaced(start, end, steps, dtype))


def spaced(start: Number, end: Number, steps: int, dtype: DType) -> Expr:
    """The i0-th of `steps` numbers from `start` to `end`, counted from the nearer end."""
    if steps == 1:
        return e.const(start, dtype)
    distance = e.div(e.sub(e.const(end, dtype), e.const(start, dtype)), e.const(max(steps - 1, 1), dtype))
    ahead: Expr = e.fma(distance, e.index_value(AXES[0], dtype), e.const(start, dtype))
    behind = e.fma(distance, e.index_value(AXES[0] - (steps - 1), dtype), e.const(end, dtype))
    first_half = e.test("lt", e.index_value(AXES[0]), e.const(steps // 2, "i64"))
    return e.where(first_half, ahead, behind)
