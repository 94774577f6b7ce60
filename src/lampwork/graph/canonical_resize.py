"""Compositions of torch's that ask for sizes as plain ints, which would fix those left open: resizing of images, and
`take_along_dim`."""

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


def _with_factors(target: Any, options: int, dims: int) -> Callable[..., Any]:
    """op(x, output size or None, `options` more, factors or None) by target(x, output size, …, a factor each).

    before: upsample_nearest2d.vec(x, None, [2.0, 2.0]) of (s0, 3, 8, 8)
    after:  upsample_nearest2d(x, [16, 16], 2.0, 2.0)
    """

    def handler(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor, wanted, *rest = args
        if not isinstance(tensor, TraceTensor) or len(args) != 3 + options or kwargs:
            return _composed(rec, op, args, kwargs)
        shape = tensor.spec.shape
        if not _is_open(tensor) or not all(size > 0 for size in shape[1:]):
            return _composed(rec, op, args, kwargs)
        factors = cast("Sequence[float] | None", rest[-1])
        if len(shape) != dims + 2:
            return _composed(rec, op, args, kwargs)
        if wanted is None and factors is not None and len(factors) == dims:
            wanted = [_resized(size, factor) for size, factor in zip(shape[2:], factors, strict=True)]
        if wanted is None or len(wanted) != dims or not all(size > 0 for size in wanted):
            return _composed(rec, op, args, kwargs)
        scales = (None,) * dims if factors is None else tuple(factors)
        # As a call of its own, which eager is asked about: it refuses some dtypes.
        with rec.again():
            return target(*to_torch((tensor, list(wanted), *rest[:options], *scales)))

    return handler


def _composed(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Torch's own composition."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd  # pyright: ignore
    with rec.again():
        return op._op_dk(key, *to_torch(args), **to_torch(kwargs))


def _is_open(tensor: TraceTensor) -> bool:
    return any(isinstance(size, SymbolicInt) for size in tensor.spec.shape)


def _take_along_dim(rec: Recorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """before: take_along_dim(x, places, dim)    after: gather(expand(x, ...), dim, expand(places, ...))"""
    tensor, places, *rest = args
    plain = all(isinstance(t, TraceTensor) for t in (tensor, places)) and len(rest) == 1 and not kwargs
    if not plain or rest[0] is None or not (_is_open(tensor) or _is_open(places)):
        return _composed(rec, op, args, kwargs)
    rank = len(tensor.spec.shape)
    if len(places.spec.shape) != rank or not -rank <= rest[0] < rank:
        return _composed(rec, op, args, kwargs)
    dim = rest[0] % rank
    sizes, wanted = list(tensor.spec.shape), list(places.spec.shape)
    pairs = enumerate(zip(sizes, wanted, strict=True))
    if not all(i == dim or a == b or a == 1 or b == 1 for i, (a, b) in pairs):
        return _composed(rec, op, args, kwargs)
    common = [b if a == 1 else a for a, b in zip(sizes, wanted, strict=True)]
    with rec.again():
        spread = tensor.expand(to_torch([*common[:dim], sizes[dim], *common[dim + 1 :]]))
        at = places.expand(to_torch([*common[:dim], wanted[dim], *common[dim + 1 :]]))
        return spread.gather(dim, at)


RESIZE: Mapping[Any, Callable[..., Any]] = {
    aten.size.default: _plain_sizes,
    aten.size.int: _plain_sizes,
    aten.take_along_dim.default: _take_along_dim,
    aten.upsample_nearest1d.vec: _with_factors(aten.upsample_nearest1d.default, 0, 1),
    aten._upsample_nearest_exact1d.vec: _with_factors(aten._upsample_nearest_exact1d.default, 0, 1),
    aten.upsample_linear1d.vec: _with_factors(aten.upsample_linear1d.default, 1, 1),
    aten.upsample_nearest2d.vec: _with_factors(aten.upsample_nearest2d.default, 0, 2),
    aten._upsample_nearest_exact2d.vec: _with_factors(aten._upsample_nearest_exact2d.default, 0, 2),
    aten.upsample_bilinear2d.vec: _with_factors(aten.upsample_bilinear2d.default, 1, 2),
    aten.upsample_bicubic2d.vec: _with_factors(aten.upsample_bicubic2d.default, 1, 2),
    aten.upsample_nearest3d.vec: _with_factors(aten.upsample_nearest3d.default, 0, 3),
    aten._upsample_nearest_exact3d.vec: _with_factors(aten._upsample_nearest_exact3d.default, 0, 3),
    aten.upsample_trilinear3d.vec: _with_factors(aten.upsample_trilinear3d.default, 1, 3),
}
