"""Resizing of images with sizes left open: torch's own composition computes the new sizes as plain ints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import SymbolicInt
from lampwork.graph.symnode import to_torch
from lampwork.graph.tracetensor import TraceTensor

if TYPE_CHECKING:
    from lampwork.graph.record import Recorder

aten = torch.ops.aten


def _plain_sizes(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """C++ that asks for sizes as plain ints gets them: the region is for these."""
    shape = cast(TensorSpec, args[0].spec).shape
    return [int(size) for size in shape] if len(args) == 1 else int(shape[args[1]])


def _resized(size: int, factor: float) -> int:
    """A size times a scale factor, rounded down. Only whole factors leave a symbol open."""
    if isinstance(size, SymbolicInt) and factor == int(factor):
        return size * int(factor)
    return int(float(int(size)) * factor)


def _with_factors(target: Any, options: int) -> Callable[..., Any]:
    """op(x, output size or None, `options` more, factors or None) by target(x, output size, …, a factor each).

    before: upsample_nearest2d.vec(x, None, [2.0, 2.0]) of (s0, 3, 8, 8)
    after:  upsample_nearest2d(x, [16, 16], 2.0, 2.0)
    """

    def handler(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor, wanted, *rest = args
        if not isinstance(tensor, TraceTensor) or len(args) != 3 + options or kwargs:
            return _composed(rec, op, args, kwargs)
        shape = tensor.spec.shape
        if not any(isinstance(size, SymbolicInt) for size in shape) or not all(
            size > 0 for size in shape[1:]
        ):
            return _composed(rec, op, args, kwargs)
        factors = cast("Sequence[float] | None", rest[-1])
        if wanted is None and factors is not None:
            wanted = [_resized(size, factor) for size, factor in zip(shape[2:], factors, strict=True)]
        if wanted is None or len(shape) != 4 or len(wanted) != 2 or not all(size > 0 for size in wanted):
            return _composed(rec, op, args, kwargs)
        scales = (None, None) if factors is None else tuple(factors)
        # As a call of its own, which eager is asked about: it refuses some dtypes.
        with rec.again():
            return target(*to_torch((tensor, list(wanted), *rest[:options], *scales)))

    return handler


def _composed(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Torch's own composition."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd  # pyright: ignore
    with rec.again():
        return op._op_dk(key, *to_torch(args), **to_torch(kwargs))


RESIZE: Mapping[Any, Callable[..., Any]] = {
    aten.size.default: _plain_sizes,
    aten.size.int: _plain_sizes,
    aten.upsample_nearest2d.vec: _with_factors(aten.upsample_nearest2d.default, 0),
    aten._upsample_nearest_exact2d.vec: _with_factors(aten._upsample_nearest_exact2d.default, 0),
    aten.upsample_bilinear2d.vec: _with_factors(aten.upsample_bilinear2d.default, 1),
    aten.upsample_bicubic2d.vec: _with_factors(aten.upsample_bicubic2d.default, 1),
}
