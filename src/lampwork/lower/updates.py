"""Elements put or added at places from data by kernels of the device, whose threads update memory in any order.

    before: y = index_add(x, 0, at, source * 2)
    after:  base[i0, i1] = x[i0, i1]
            y[at[i0], i1] onto base sum= source[i0, i1] * 2

What eager gives in an order of its own on a card stays its: sums of index_put and gradients of embeddings, which it
sorts, and whatever it is told to do in deterministic mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from lampwork import pristine
from lampwork.graph.shapes_common import wrap_dim
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import CombineOp, DType, Expr, Load, Map
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, axes_of, read
from lampwork.lower.context import Context
from lampwork.lower.dtypes import compute_dtype, highest, lowest
from lampwork.lower.embedding import indexed, position
from lampwork.lower.registry import NotExpressible, Registry

rules = Registry()

_COMBINED: frozenset[DType] = frozenset({"f64", "f32", "f16", "bf16", "i64", "i32"})
_REDUCTIONS: Mapping[str, CombineOp] = MappingProxyType(
    {"sum": "sum", "prod": "prod", "amax": "max", "amin": "min"}
)
_OLD_REDUCTIONS: Mapping[str, CombineOp] = MappingProxyType({"add": "sum", "multiply": "prod"})


def _check(ctx: Context, x: Array, op: CombineOp, *others: Array) -> None:
    if pristine.are_deterministic_algorithms_enabled():
        raise NotExpressible("updates in any order, in deterministic mode")
    if x.rank == 0 or 0 in x.shape or any(0 in other.shape for other in others):
        raise NotExpressible("nothing to write, or to write to")
    if x.dtype != ctx.dtype or (op != "put" and not _is_combined(ctx, x.dtype)):
        raise NotExpressible(f"a {op} of {x.dtype} in memory")


def _operation(known: Mapping[str, CombineOp], reduce: str) -> CombineOp:
    if reduce not in known:
        raise NotExpressible(f'a reduction by "{reduce}"')
    return known[reduce]


def _is_combined(ctx: Context, dtype: DType) -> bool:
    """Whether sums in memory are an instruction, or those of a wider type are and eager tries until it is done, too."""
    return dtype in _COMBINED and (dtype in ctx.atomics or dtype in ("f16", "bf16"))


def _base(ctx: Context, x: Array) -> Array:
    """A copy of what is updated, as eager's is."""
    return ctx.map(x.shape, Load(x.buffer, x.index), ctx.spec.strides, "base")


def _updated(
    ctx: Context, base: Array, shape: tuple[int, ...], place: Sequence[Index], value: Expr, op: CombineOp
) -> Array:
    """`base` after values for all points of `shape`, each at its place."""
    out = replace(base.buffer, name=ctx.unique(ctx.name))
    ctx.emit(Map(out, axes_of(shape), tuple(place), e.cast(value, out.dtype), base.buffer, op))
    return replace(base, buffer=out)


def _reduced(
    ctx: Context,
    x: Array,
    shape: tuple[int, ...],
    place: Sequence[Index],
    value: Expr,
    op: CombineOp,
    *,
    include_self: bool = True,
) -> Array:
    """x with values for all points of `shape` combined, in place of what is there where `include_self` is off."""
    base = _base(ctx, x)
    if not include_self:
        base = _updated(ctx, base, shape, place, e.const(_neutral(op, x.dtype), x.dtype), "put")
    return _updated(ctx, base, shape, place, value, op)


def _neutral(op: CombineOp, dtype: DType) -> float | int | bool:
    if op in ("sum", "prod"):
        return int(op == "prod")
    return lowest(dtype) if op == "max" else highest(dtype)


# --- whole rows -------------------------------------------------------------------------------------------------------


def _row(x: Array, dim: int, index: Array) -> list[Index]:
    """The place of a point of what is put at rows of x."""
    if index.rank > 1:
        raise NotExpressible("an index of rows of several dimensions")
    where = position(index, [AXES[dim]] if index.rank else [], x.shape[dim])
    return [*AXES[:dim], where, *AXES[dim + 1 : x.rank]]


def _rows(source: Array, x: Array, index: Array, dim: int) -> None:
    if source.dtype != x.dtype or source.rank != x.rank or index.dtype not in ("i64", "i32"):
        raise NotExpressible(f"an index of {index.dtype}, values of {source.dtype} or of other dimensions")
    if source.shape[dim] != (index.shape[0] if index.rank else 1):
        raise NotExpressible("as many rows as the data has")


@rules.lowers("index_add")
def index_add(
    ctx: Context, x: Array, dim: int, index: Array, source: Array, *, alpha: float | int | bool = 1
) -> Array:
    _check(ctx, x, "sum", index, source)
    dim = wrap_dim(dim, x.rank)
    _rows(source, x, index, dim)
    value: Expr = Load(source.buffer, source.index)
    if alpha != 1:
        wide = compute_dtype(x.dtype)
        value = e.cast(e.mul(e.cast(value, wide), e.const(alpha, wide)), x.dtype)
    return _reduced(ctx, x, source.shape, _row(x, dim, index), value, "sum")


@rules.lowers("index_reduce")
def index_reduce(
    ctx: Context, x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Array:
    op = _operation(_REDUCTIONS, reduce)
    _check(ctx, x, op, index, source)
    dim = wrap_dim(dim, x.rank)
    _rows(source, x, index, dim)
    value = Load(source.buffer, source.index)
    place = _row(x, dim, index)
    return _reduced(ctx, x, source.shape, place, value, op, include_self=include_self)


@rules.lowers("index_copy")
def index_copy(ctx: Context, x: Array, dim: int, index: Array, source: Array) -> Array:
    _check(ctx, x, "put", index, source)
    dim = wrap_dim(dim, x.rank)
    _rows(source, x, index, dim)
    return _reduced(ctx, x, source.shape, _row(x, dim, index), Load(source.buffer, source.index), "put")


# --- single elements --------------------------------------------------------------------------------------------------


def _element(x: Array, dim: int, index: Array) -> list[Index]:
    """The place of a point of `index`, which says where along `dim` its element goes."""
    if index.dtype not in ("i64", "i32") or index.rank != x.rank:
        raise NotExpressible(f"an index of {index.dtype} or of other dimensions")
    where = position(index, AXES[: index.rank], x.shape[dim])
    return [*AXES[:dim], where, *AXES[dim + 1 : x.rank]]


def _scattered(
    ctx: Context,
    x: Array,
    dim: int,
    index: Array,
    source: Array | float | int | bool,
    op: CombineOp,
    *,
    include_self: bool = True,
) -> Array:
    _check(ctx, x, op, index)
    if isinstance(source, Array):
        if source.dtype != x.dtype or source.rank != x.rank:
            raise NotExpressible("values of another dtype or of other dimensions")
        value: Expr = Load(source.buffer, source.index)
    else:
        value = e.const(source, x.dtype)
    place = _element(x, wrap_dim(dim, x.rank), index)
    return _reduced(ctx, x, index.shape, place, value, op, include_self=include_self)


@rules.lowers("scatter_add")
def scatter_add(ctx: Context, x: Array, dim: int, index: Array, source: Array) -> Array:
    return _scattered(ctx, x, dim, index, source, "sum")


@rules.lowers("scatter.src")
def scatter(ctx: Context, x: Array, dim: int, index: Array, source: Array) -> Array:
    return _scattered(ctx, x, dim, index, source, "put")


@rules.lowers("scatter.value")
def scatter_value(ctx: Context, x: Array, dim: int, index: Array, value: float) -> Array:
    return _scattered(ctx, x, dim, index, value, "put")


@rules.lowers("scatter.reduce", "scatter.value_reduce")
def scatter_by_old_names(
    ctx: Context, x: Array, dim: int, index: Array, source: Array | float, *, reduce: str
) -> Array:
    op = _operation(_OLD_REDUCTIONS, reduce)
    return _scattered(ctx, x, dim, index, source, op)


@rules.lowers("scatter_reduce.two")
def scatter_reduce(
    ctx: Context, x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Array:
    op = _operation(_REDUCTIONS, reduce)
    return _scattered(ctx, x, dim, index, source, op, include_self=include_self)


@rules.lowers("index_put")
def index_put(
    ctx: Context, x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False
) -> Array:
    """x[i, j, …] = values with index tensors that broadcast, as `lower.embedding.index_tensor` reads it."""
    if accumulate:
        raise NotExpressible("sums in an order of eager's")
    arrays = [index for index in indices if index is not None]
    _check(ctx, x, "put", *arrays, values)
    if values.dtype != x.dtype or any(index.dtype not in ("i64", "i32") for index in arrays):
        raise NotExpressible("values of another dtype, or a mask")
    whole, place = indexed(x, indices)
    return _reduced(ctx, x, whole, place, read(values, whole), "put")
