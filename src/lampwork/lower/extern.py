"""The fallback: a node without a rule becomes a call of its ATen operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from lampwork.errors import LoweringError
from lampwork.graph.spec import TensorSpec, contiguous_strides
from lampwork.graph.symbols import SymbolicFloat, SymbolicInt
from lampwork.loops.ir.index import ZERO
from lampwork.loops.ir.nodes import Buffer, Extern, FloatOfBits, View
from lampwork.lower.arrays import Array, as_view
from lampwork.lower.context import Context
from lampwork.lower.dtypes import LOOP_DTYPES


def qualified_name(target: torch._ops.OpOverload) -> str:
    """ "aten::add.Tensor"; the default overload is spelt out: "aten::relu.default"."""
    name = target.name()
    return name if "." in name.split("::", 1)[-1] else f"{name}.default"


def call(
    ctx: Context,
    target: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    opaque: bool = False,
    mutates: tuple[int, ...] = (),
) -> Array | tuple[Array, ...]:
    """outs = target(*args, **kwargs), one out for each spec of the node at hand. Arrays without strides are copied."""
    val = ctx.val
    specs: tuple[TensorSpec | None, ...] = val if isinstance(val, tuple) else (val,)
    outs = tuple(
        _out(ctx, spec, opaque=opaque, hint=str(n) if isinstance(val, tuple) else "")
        for n, spec in enumerate(specs)
        if isinstance(val, tuple) or spec is not None
    )
    buffers = tuple(out.buffer for out in outs)
    emit(ctx, target, args, buffers, kwargs, mutates)
    return outs if isinstance(val, tuple) else (outs[0] if outs else ())


def emit(
    ctx: Context,
    target: str,
    args: Sequence[Any],
    outs: tuple[Buffer, ...],
    kwargs: Mapping[str, Any] | None = None,
    mutates: tuple[int, ...] = (),
) -> None:
    """outs = target(*args, **kwargs), into buffers that are there."""
    encoded = tuple(_encode(ctx, arg) for arg in args)
    named = tuple((key, _encode(ctx, value)) for key, value in (kwargs or {}).items())
    ctx.emit(
        Extern(outs, target, encoded, named, mutates, ctx.name, ctx.random, ctx.raises, ctx.called_because)
    )


def fallback(
    ctx: Context,
    target: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    opaque: bool = False,
) -> Array | tuple[Array, ...]:
    """A node as a call of its own operator.

    An operator whose result may alias an argument is replaced by its copying twin (`diagonal` by `diagonal_copy`): the
    argument's memory may be reused after its last use, which an alias would not be counted as.
    """
    schema = target._schema  # pyright: ignore[reportPrivateUsage]
    written = tuple(
        n
        for n, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    if written:
        return _mutating(ctx, target, args, kwargs, written)
    aliases = any(ret.alias_info is not None for ret in schema.returns)
    if not aliases or _all_opaque(args):
        return call(ctx, qualified_name(target), args, kwargs, opaque=opaque)
    name, _, overload = qualified_name(target).partition("::")[2].partition(".")
    twin = getattr(torch.ops.aten, f"{name}_copy", None)
    if target.namespace == "aten" and twin is not None and overload in twin.overloads():
        val = ctx.val
        ctx.val = tuple(map(_dense, val)) if isinstance(val, tuple) else _dense(val)
        copies = call(ctx, f"aten::{name}_copy.{overload}", args, kwargs, opaque=opaque)
        ctx.val = val
        return copies
    raise LoweringError(
        f"{qualified_name(target)} may return an alias of its argument and has no copying twin"
    )


def waited(ctx: Context, pending: Array, given: Sequence[Any]) -> Array | tuple[Array, ...]:
    """What a collective gives, when it is there. It reads what it was `given` until then, which so keeps its memory."""
    operands: list[Array] = []
    for value in given:
        several = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
        operands += [item for item in several if isinstance(item, Array)]
    return call(ctx, "lampwork::wait.default", (pending, operands))


def _dense(spec: TensorSpec | None) -> TensorSpec | None:
    return None if spec is None else replace(spec, strides=contiguous_strides(spec.shape))


def _mutating(
    ctx: Context,
    target: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    written: tuple[int, ...],
) -> Array | tuple[Array, ...]:
    if any(n >= len(args) or not isinstance(args[n], Array) for n in written):
        raise LoweringError(f"{qualified_name(target)} writes to an argument that is no positional tensor")
    for n in written:
        if cast(Array, args[n]).strides is None:
            raise LoweringError(f"{qualified_name(target)} writes to a tensor that has no strides")
    val, ctx.val = ctx.val, None
    call(ctx, qualified_name(target), args, kwargs, mutates=written)
    ctx.val = val
    results = tuple(cast(Array, args[n]) for n in written)
    return results if isinstance(val, tuple) else results[0]


def _out(ctx: Context, spec: TensorSpec | None, *, opaque: bool, hint: str) -> Array:
    if opaque or spec is None or spec.dtype not in LOOP_DTYPES:
        out = ctx.opaque(hint)
    else:
        out = ctx.buffer(spec.shape, LOOP_DTYPES[spec.dtype], spec.strides, hint)
    if spec is not None and spec.device != ctx.device:
        ctx.elsewhere[out.buffer.name] = spec.device
    return out


def _encode(ctx: Context, value: Any) -> Any:
    if isinstance(value, SymbolicInt):
        return value.as_scalar()
    if isinstance(value, SymbolicFloat):
        return FloatOfBits(value.as_scalar())
    if isinstance(value, Array):
        if value.is_opaque:
            return View(value.buffer, (), (), ZERO)
        return as_view(ctx.strided(value))
    if isinstance(value, list):
        return [_encode(ctx, item) for item in cast(list[Any], value)]
    if isinstance(value, tuple):
        return tuple(_encode(ctx, item) for item in cast(tuple[Any, ...], value))
    return value


def _all_opaque(values: Sequence[Any]) -> bool:
    arrays = [value for value in values if isinstance(value, Array)]
    return bool(arrays) and all(array.is_opaque for array in arrays)
