"""Operands and results on other devices than the one that definitions run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx

from lampwork.lower import exprs as e
from lampwork.lower.arrays import Array
from lampwork.lower.context import Context
from lampwork.lower.registry import Lowering, NotExpressible

aten = torch.ops.aten

_CHOOSING = frozenset({"where", "masked_fill"})
"""Operators that are pointwise, and not all tagged so."""

_NUMBERS = frozenset({aten.full.default, aten.scalar_tensor.default})


def given(
    ctx: Context, target: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments as a rule takes them: pointwise operators take numbers that are tensors of the CPU, too.

    before: add(x, y)                                           x on cuda:0, y of no dimensions on the CPU
    after:  add(x, _to_copy(y, device=cuda:0)), or add(x, 2.0) if that is what y is
    """
    if not ctx.elsewhere or not (torch.Tag.pointwise in target.tags or target._opname in _CHOOSING):
        return args, kwargs
    return [_here(ctx, arg) for arg in args], {key: _here(ctx, value) for key, value in kwargs.items()}


def _here(ctx: Context, value: Any) -> Any:
    if not isinstance(value, Array) or value.shape or value.is_opaque:
        return value
    device = ctx.elsewhere.get(value.buffer.name)
    if device is None or device.type != "cpu":
        return value
    number = ctx.numbers.get(value.buffer.name)
    if number is None:
        return ctx.here(value)
    made = ctx.map((), e.const(number, value.dtype), hint="number")
    ctx.numbers[made.buffer.name] = number
    ctx.moved.add(made.buffer.name)
    return made


def note(ctx: Context, node: fx.Node, made: Lowering) -> None:
    """Remember the number that a tensor on another device is."""
    if node.target not in _NUMBERS or not isinstance(made, Array) or made.shape or made.is_opaque:
        return
    number = node.args[-1]
    if made.buffer.name in ctx.elsewhere and not isinstance(number, complex):
        ctx.numbers[made.buffer.name] = cast("bool | int | float", number)


def check_view(ctx: Context, made: Lowering, computes: bool) -> None:
    """Raises NotExpressible unless what a rule made on another device is but a view there."""
    arrays = [made] if isinstance(made, Array) else made
    if computes or any(array.strides is None or array.buffer.name not in ctx.elsewhere for array in arrays):
        raise NotExpressible("an operator on another device")
