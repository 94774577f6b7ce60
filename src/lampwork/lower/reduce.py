"""Reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from lampwork.graph.shapes_common import broadcast, wrap_dim
from lampwork.graph.symbols import same_size
from lampwork.loops.ir.expr import move
from lampwork.loops.ir.index import ZERO
from lampwork.loops.ir.nodes import DType, Expr, Local, ReduceOp
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, AXIS_NAMES, Array, read
from lampwork.lower.context import Context, count, keep
from lampwork.lower.dtypes import FLOATS, LOOP_DTYPES, compute_dtype, sum_dtype
from lampwork.lower.registry import NotExpressible, Registry, Rule
from lampwork.standard import math

_LARGEST_ORDER = torch.finfo(torch.float32).max

rules = Registry()

Finish = Callable[[Expr], Expr]


def normal_dims(dim: int | Sequence[int] | None, rank: int) -> list[int]:
    """Dimensions counted from the front, sorted; None and [] are all of them."""
    if dim is None:
        return list(range(rank))
    dims = [dim] if isinstance(dim, int) else list(dim)
    if rank == 0:
        return []
    return sorted(wrap_dim(d, rank) for d in dims) or list(range(rank))


def value_of(x: Array, dtype: DType) -> Expr:
    """The element (i0, i1, …) of x in `dtype`."""
    return e.cast(read(x, x.shape), dtype)


def _term(ctx: Context, x: Array) -> Expr:
    """The element of x as what is added up: eager converts it to the dtype of the result before it does to that of
    sums."""
    return e.cast(value_of(x, ctx.dtype), sum_dtype(ctx.dtype))


def reduce_value(
    ctx: Context,
    op: ReduceOp,
    shape: tuple[int, ...],
    dims: Sequence[int],
    value: Expr,
    *,
    finish: Finish | None = None,
    dtype: DType | None = None,
    hint: str = "",
    strides: tuple[int, ...] | None = None,
) -> Array:
    """`op` over `dims` of an expression over (i0, i1, …) of `shape`, without those dimensions; `finish` is applied to
    the result, which is then converted to `dtype`."""
    accumulated: DType = "i64" if op in ("argmax", "argmin") else value.dtype
    out = dtype or accumulated

    def finished(acc: Expr) -> Expr:
        return e.cast(finish(acc) if finish is not None else acc, out)

    if count(shape, dims) == 1:
        return _one_element(ctx, shape, dims, value, finished, position=op in ("argmax", "argmin"), hint=hint)
    local = Local("acc", accumulated)
    expression = finished(local)
    return ctx.reduce(
        op,
        shape,
        dims,
        value,
        out,
        finish=None if expression == local else expression,
        hint=hint,
        strides=strides,
    )


def _one_element(
    ctx: Context,
    shape: tuple[int, ...],
    dims: Sequence[int],
    value: Expr,
    finished: Finish,
    *,
    position: bool,
    hint: str,
) -> Array:
    """The reduction of single elements: each is its own sum and extremum, at position 0."""
    kept = [dim for dim in range(len(shape)) if dim not in dims]
    mapping = {AXIS_NAMES[dim]: AXES[n] for n, dim in enumerate(kept)}
    mapping.update((AXIS_NAMES[dim], ZERO) for dim in dims)
    element = e.const(0, "i64") if position else move(value, mapping, {})
    return ctx.map(tuple(shape[dim] for dim in kept), finished(element), hint=hint)


def result_of(
    ctx: Context,
    op: ReduceOp,
    x: Array,
    dims: Sequence[int],
    value: Expr,
    keepdim: bool,
    finish: Finish | None = None,
) -> Array:
    """A reduction of x that is the node's only result."""
    strides = ctx.spec.strides
    if keepdim:
        strides = tuple(stride for dim, stride in enumerate(strides) if dim not in dims)
    out = reduce_value(ctx, op, x.shape, dims, value, finish=finish, dtype=ctx.dtype, strides=strides)
    return keep(out, x.shape, dims) if keepdim else out


# --- sums -------------------------------------------------------------------------------------------------------------


@rules.lowers("sum")
def sum_all(ctx: Context, x: Array, *, dtype: torch.dtype | None = None) -> Array:
    return sum_dim(ctx, x, None, False, dtype=dtype)


@rules.lowers("sum.dim_IntList")
def sum_dim(
    ctx: Context,
    x: Array,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Array:
    dims = normal_dims(dim, x.rank)
    if ctx.dtype == "bool":
        return result_of(ctx, "any", x, dims, value_of(x, "bool"), keepdim)
    return result_of(ctx, "sum", x, dims, _term(ctx, x), keepdim)


@rules.lowers("mean")
def mean_all(ctx: Context, x: Array, *, dtype: torch.dtype | None = None) -> Array:
    return mean_dim(ctx, x, None, False, dtype=dtype)


@rules.lowers("mean.dim")
def mean_dim(
    ctx: Context,
    x: Array,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Array:
    dims = normal_dims(dim, x.rank)
    value = value_of(x, sum_dtype(ctx.dtype))  # of halves eager divides the sum in float32, too
    return result_of(ctx, "sum", x, dims, value, keepdim, lambda acc: divided(acc, count(x.shape, dims)))


def divided(value: Expr, number: float) -> Expr:
    return e.div(value, e.like(number, value)) if number != 1 else value


@rules.lowers("prod")
def prod_all(ctx: Context, x: Array, *, dtype: torch.dtype | None = None) -> Array:
    return _prod(ctx, x, list(range(x.rank)), False)


@rules.lowers("prod.dim_int")
def prod_dim(
    ctx: Context, x: Array, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Array:
    return _prod(ctx, x, normal_dims(dim, x.rank), keepdim)


def _prod(ctx: Context, x: Array, dims: Sequence[int], keepdim: bool) -> Array:
    """A product. One that is no finite number is eager's to make: which partial products overflow, or become 0 and so
    NaN times infinity, depends on the order."""
    if ctx.dtype == "bool":
        return result_of(ctx, "all", x, dims, value_of(x, "bool"), keepdim)
    if ctx.dtype == "f16":
        raise NotExpressible("partial products that overflow, where the whole does not")
    finish = (lambda acc: e.require(acc, e.test("isfinite", acc))) if ctx.dtype in FLOATS else None
    return result_of(ctx, "prod", x, dims, _term(ctx, x), keepdim, finish)


# --- any, all ---------------------------------------------------------------------------------------------------------


def _truth(op: ReduceOp) -> Rule:
    def rule(ctx: Context, x: Array, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Array:
        if isinstance(dim, (list, tuple)) and not dim:
            raise NotExpressible("a reduction over no dimensions")
        return result_of(ctx, op, x, normal_dims(dim, x.rank), value_of(x, "bool"), keepdim)

    return rule


rules.lowers("any", "any.dim", "any.dims")(_truth("any"))
rules.lowers("all", "all.dim", "all.dims")(_truth("all"))


# --- extrema ----------------------------------------------------------------------------------------------------------


def _extremum(
    ctx: Context, op: ReduceOp, x: Array, dims: Sequence[int], keepdim: bool, *, hint: str = ""
) -> Array:
    if x.dtype == "bool":
        op, value = ("any" if op == "max" else "all"), value_of(x, "bool")
    else:
        value = value_of(x, sum_dtype(x.dtype))
    _require_elements(x, dims)
    out = reduce_value(ctx, op, x.shape, dims, value, dtype=x.dtype, hint=hint)
    return keep(out, x.shape, dims) if keepdim else out


def _position(
    ctx: Context, op: ReduceOp, x: Array, dims: Sequence[int], keepdim: bool, *, hint: str = ""
) -> Array:
    _require_elements(x, dims)
    if x.dtype == "bool":
        raise NotExpressible("the position of an extremum of bool")
    out = reduce_value(ctx, op, x.shape, dims, value_of(x, sum_dtype(x.dtype)), hint=hint)
    return keep(out, x.shape, dims) if keepdim else out


def _require_elements(x: Array, dims: Sequence[int]) -> None:
    if count(x.shape, dims) == 0:
        raise NotExpressible("an extremum of no elements")


def _extremum_rules(name: str, op: ReduceOp, position: ReduceOp) -> None:
    @rules.lowers(f"a{name}")
    def over_dims(ctx: Context, x: Array, dim: int | Sequence[int] = (), keepdim: bool = False) -> Array:
        return _extremum(ctx, op, x, normal_dims(dim, x.rank), keepdim)

    @rules.lowers(name)
    def over_all(ctx: Context, x: Array) -> Array:
        return _extremum(ctx, op, x, list(range(x.rank)), False)

    @rules.lowers(f"{name}.dim")
    def with_position(ctx: Context, x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
        dims = normal_dims(dim, x.rank)
        wanted = ctx.wanted
        values = _extremum(ctx, op, x, dims, keepdim, hint="values") if 0 in wanted else ctx.nothing()
        indices = _position(ctx, position, x, dims, keepdim, hint="indices") if 1 in wanted else ctx.nothing()
        return values, indices

    @rules.lowers(f"arg{name}")
    def only_position(ctx: Context, x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
        return _position(ctx, position, x, normal_dims(dim, x.rank), keepdim)

    del over_dims, over_all, with_position, only_position


_extremum_rules("max", "max", "argmax")
_extremum_rules("min", "min", "argmin")


@rules.lowers("aminmax")
def aminmax(ctx: Context, x: Array, *, dim: int | None = None, keepdim: bool = False) -> tuple[Array, Array]:
    dims = normal_dims(dim, x.rank)
    low = _extremum(ctx, "min", x, dims, keepdim, hint="min") if 0 in ctx.wanted else ctx.nothing()
    high = _extremum(ctx, "max", x, dims, keepdim, hint="max") if 1 in ctx.wanted else ctx.nothing()
    return low, high


# --- moments ----------------------------------------------------------------------------------------------------------


def mean_value(
    ctx: Context, x: Array, dims: Sequence[int], dtype: DType, *, finish: Finish | None = None
) -> Array:
    """The mean over `dims` in `dtype`, with those dimensions of size 1; `finish` is applied to it."""
    n = count(x.shape, dims)

    def finished(acc: Expr) -> Expr:
        value = e.div(acc, e.like(n, acc))
        return value if finish is None else finish(value)

    mean = reduce_value(ctx, "sum", x.shape, dims, value_of(x, dtype), finish=finished, hint="mean")
    return keep(mean, x.shape, dims)


def squared_distance(x: Array, mean: Array) -> Expr:
    """(x - mean)**2 at (i0, i1, …) of x."""
    centred = e.sub(value_of(x, mean.dtype), read(mean, x.shape))
    return e.product(centred, centred)


def variance(
    ctx: Context,
    x: Array,
    mean: Array,
    dims: Sequence[int],
    *,
    correction: float = 0,
    finish: Finish | None = None,
    dtype: DType | None = None,
    hint: str = "var",
) -> Array:
    """sum((x - mean)**2) / (n - correction) over `dims`, without them; then `finish`."""
    # In this order a correction that is no number gives 0, as eager has it.
    divisor = max(0, count(x.shape, dims) - correction)

    def finished(acc: Expr) -> Expr:
        value = e.div(acc, e.like(divisor, acc))
        return value if finish is None else finish(value)

    return reduce_value(
        ctx, "sum", x.shape, dims, squared_distance(x, mean), finish=finished, dtype=dtype, hint=hint
    )


def _finite(ctx: Context, value: Expr) -> Expr:
    """A moment, required not to be infinite.

    Eager keeps running moments, mostly in double precision. A variance that overflows here need not do so there, and
    what becomes of a mean after an infinity depends on eager's order: eager makes these results itself.
    """
    return ctx.or_eager(value, e.test("not", e.test("isinf", value)))


def _moments(root: bool, with_mean: bool) -> Rule:
    def rule(
        ctx: Context,
        x: Array,
        dim: Sequence[int] | int | None = None,
        *,
        correction: float | None = None,
        keepdim: bool = False,
    ) -> Array | tuple[Array, Array]:
        dims = normal_dims(dim, x.rank)
        dtype = compute_dtype(x.dtype)
        mean = mean_value(ctx, x, dims, dtype)
        spread = variance(
            ctx,
            x,
            mean,
            dims,
            correction=1 if correction is None else correction,
            finish=(lambda v: e.op("sqrt", _finite(ctx, v))) if root else (lambda v: _finite(ctx, v)),
            dtype=x.dtype,
            hint="std" if root else "var",
        )
        spread = keep(spread, x.shape, dims) if keepdim else spread
        if not with_mean:
            return spread
        average = reduce_value(
            ctx,
            "sum",
            x.shape,
            dims,
            value_of(x, dtype),
            finish=lambda acc: _finite(ctx, divided(acc, count(x.shape, dims))),
            dtype=x.dtype,
            hint="average",
        )
        return spread, keep(average, x.shape, dims) if keepdim else average

    return rule


rules.add("var.correction", _moments(root=False, with_mean=False))
rules.add("std.correction", _moments(root=True, with_mean=False))
rules.add("var_mean.correction", _moments(root=False, with_mean=True))
rules.add("std_mean.correction", _moments(root=True, with_mean=True))


# --- norms ------------------------------------------------------------------------------------------------------------


@rules.lowers("linalg_vector_norm")
def vector_norm(
    ctx: Context,
    x: Array,
    ord: float = 2,
    dim: Sequence[int] | int | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Array:
    if ctx.dtype not in FLOATS:
        raise NotExpressible("a norm of integers")
    dims = normal_dims(dim, x.rank)
    wide = compute_dtype(LOOP_DTYPES[dtype] if dtype is not None else ctx.dtype)
    value = value_of(x, wide)
    size = e.op("abs", value)
    if (
        ord != 0
        and (x.rank or not (isinstance(dim, int) or dim))
        and all(same_size(x.shape[dim], 1) for dim in dims)
    ):
        # One element is its own norm, of whatever order: torch takes no power of it, but for the one of a tensor
        # without dimensions that is asked for one.
        kept = ctx.map(x.shape, e.cast(size, ctx.dtype), hint="abs")
        return kept if keepdim else select_kept(kept, [dim for dim in range(x.rank) if dim not in dims])
    if ord == 2:
        return result_of(ctx, "sum", x, dims, e.product(value, value), keepdim, lambda acc: e.op("sqrt", acc))
    if ord == 1:
        return result_of(ctx, "sum", x, dims, size, keepdim)
    if ord == 0:
        return result_of(ctx, "sum", x, dims, e.cast(e.test("ne", value, e.like(0, value)), wide), keepdim)
    if math.isnan(ord) or _LARGEST_ORDER < abs(ord) < math.inf:
        raise NotExpressible(f"a norm of order {ord}, which float32 does not have")
    if math.isinf(ord):
        _require_elements(x, dims)
        return result_of(ctx, "max" if ord > 0 else "min", x, dims, size, keepdim)
    power = e.op("pow", size, e.like(ord, size))
    return result_of(ctx, "sum", x, dims, power, keepdim, lambda acc: e.op("pow", acc, e.like(1 / ord, acc)))


@rules.lowers("norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", "norm.ScalarOpt_dtype")
def norm(
    ctx: Context,
    x: Array,
    p: float | None = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Array:
    return vector_norm(ctx, x, 2 if p is None else p, dim, keepdim, dtype=dtype)


@rules.lowers("logsumexp")
def logsumexp(ctx: Context, x: Array, dim: int | Sequence[int], keepdim: bool = False) -> Array:
    dims = normal_dims(dim, x.rank)
    wide = compute_dtype(ctx.dtype)
    _require_elements(x, dims)

    def finite(acc: Expr) -> Expr:
        return e.where(e.test("isinf", acc), e.like(0, acc), acc)

    value = value_of(x, wide)
    top = keep(reduce_value(ctx, "max", x.shape, dims, value, finish=finite, hint="max"), x.shape, dims)
    total = reduce_value(ctx, "sum", x.shape, dims, e.op("exp", e.sub(value, read(top, x.shape))), hint="sum")
    total = keep(total, x.shape, dims)
    shape = total.shape
    result = ctx.map(
        shape, e.cast(e.add(e.op("log", read(total, shape)), read(top, shape)), ctx.dtype), hint="log"
    )
    if keepdim:
        return result
    kept = [dim for dim in range(x.rank) if dim not in dims]
    return select_kept(result, kept)


def select_kept(array: Array, kept: Sequence[int]) -> Array:
    """The array without the dimensions (of size 1) that are not in `kept`."""
    names = {AXIS_NAMES[dim]: AXES[n] for n, dim in enumerate(kept)}
    names.update((AXIS_NAMES[dim], ZERO) for dim in range(array.rank) if dim not in kept)
    strides = None if array.strides is None else tuple(array.strides[dim] for dim in kept)
    index = tuple(position.substitute(names) for position in array.index)
    return Array(array.buffer, tuple(array.shape[dim] for dim in kept), index, strides, array.offset)


# --- losses -----------------------------------------------------------------------------------------------------------


def _loss(
    ctx: Context, x: Array, target: Array, reduction: int, function: Callable[[Expr, Expr], Expr]
) -> Array:
    """`reduction`: 0 none, 1 mean, 2 sum, of function(x, target) over their broadcast shape."""
    dtype = compute_dtype(ctx.dtype)
    shape = broadcast((x.shape, target.shape))
    value = function(e.cast(read(x, shape), dtype), e.cast(read(target, shape), dtype))
    if reduction == 0:
        return ctx.result(value)
    dims = list(range(len(shape)))
    n = count(shape, dims)
    return reduce_value(
        ctx,
        "sum",
        shape,
        dims,
        value,
        finish=(lambda acc: e.div(acc, e.like(n, acc))) if reduction == 1 else None,
        dtype=ctx.dtype,
    )


@rules.lowers("mse_loss")
def mse_loss(ctx: Context, x: Array, target: Array, reduction: int = 1) -> Array:
    def square(a: Expr, b: Expr) -> Expr:
        distance = e.sub(a, b)
        return e.product(distance, distance)

    return _loss(ctx, x, target, reduction, square)


@rules.lowers("l1_loss")
def l1_loss(ctx: Context, x: Array, target: Array, reduction: int = 1) -> Array:
    return _loss(ctx, x, target, reduction, lambda a, b: e.op("abs", e.sub(a, b)))


@rules.lowers("smooth_l1_loss")
def smooth_l1_loss(ctx: Context, x: Array, target: Array, reduction: int = 1, beta: float = 1.0) -> Array:
    def smooth(a: Expr, b: Expr) -> Expr:
        distance = e.op("abs", e.sub(a, b))
        near = e.div(e.mul(e.mul(e.like(0.5, a), distance), distance), e.like(beta, a))
        return e.where(e.test("lt", distance, e.like(beta, a)), near, e.sub(distance, e.like(0.5 * beta, a)))

    if beta == 0:
        return l1_loss(ctx, x, target, reduction)
    return _loss(ctx, x, target, reduction, smooth)


@rules.lowers("huber_loss")
def huber_loss(ctx: Context, x: Array, target: Array, reduction: int = 1, delta: float = 1.0) -> Array:
    def huber(a: Expr, b: Expr) -> Expr:
        distance = e.op("abs", e.sub(a, b))
        near = e.mul(e.mul(e.like(0.5, a), distance), distance)
        far = e.mul(e.like(delta, a), e.sub(distance, e.like(0.5 * delta, a)))
        return e.where(e.test("le", distance, e.like(delta, a)), near, far)

    return _loss(ctx, x, target, reduction, huber)
