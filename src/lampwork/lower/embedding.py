"""Elements chosen by index tensors: embedding, gather, index_select, index.

An index is checked against its range where it is read; the caller then reruns in eager, which raises its own error.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lampwork.graph.shapes_common import broadcast, wrap_dim
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Expr
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, at
from lampwork.lower.context import Context
from lampwork.lower.registry import NotExpressible, Registry
from lampwork.lower.views import expand_to, reshape

rules = Registry()


def _check_result(ctx: Context, *indices: Array) -> None:
    """Raises NotExpressible where the result has no elements and the indices do: nothing would look at them."""
    if 0 in ctx.spec.shape and not any(0 in index.shape for index in indices):
        raise NotExpressible("a result without elements, whose indices are checked all the same")


def position(indices: Array, point: Sequence[Index], size: int, *, wrap: bool = False) -> Index:
    """The index that `indices` hold at `point`, checked against `size`; `wrap`: negative ones count from the end."""
    if indices.dtype not in ("i64", "i32", "i16", "i8"):
        raise NotExpressible(f"indices of dtype {indices.dtype}")
    value: Expr = e.cast(at(indices, point), "i64")
    if wrap:
        value = e.where(e.test("lt", value, e.const(0, "i64")), e.add(value, e.const(size, "i64")), value)
    return Index.indirect(value, size)


@rules.lowers("embedding")
def embedding(
    ctx: Context,
    weight: Array,
    indices: Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Array:
    _check_result(ctx, indices)
    row = position(indices, AXES[: indices.rank], weight.shape[0])
    return ctx.result(at(weight, [row, AXES[indices.rank]]))


@rules.lowers("one_hot")
def one_hot(ctx: Context, indices: Array, num_classes: int = -1) -> Array:
    if indices.dtype != "i64" or num_classes < 1 or 0 in indices.shape:
        raise NotExpressible("as many classes as the data has, or nothing to encode")
    index = e.cast(at(indices, AXES[: indices.rank]), "i64")
    known = e.test(
        "and", e.test("ge", index, e.const(0, "i64")), e.test("lt", index, e.const(num_classes, "i64"))
    )
    place = e.index_value(AXES[indices.rank])
    return ctx.result(e.cast(e.test("eq", place, e.require(index, known)), "i64"))


@rules.lowers("index_select")
def index_select(ctx: Context, x: Array, dim: int, index: Array) -> Array:
    if x.rank == 0:
        raise NotExpressible("index_select of a tensor without dimensions")
    _check_result(ctx, index)
    dim = wrap_dim(dim, x.rank)
    place = position(index, [AXES[dim]] if index.rank else [], x.shape[dim])
    return ctx.result(at(x, [*AXES[:dim], place, *AXES[dim + 1 : x.rank]]))


@rules.lowers("gather")
def gather(ctx: Context, x: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    if x.rank == 0 or index.rank == 0:
        raise NotExpressible("gather of a tensor without dimensions")
    dim = wrap_dim(dim, x.rank)
    place = position(index, AXES[: index.rank], x.shape[dim])
    return ctx.result(at(x, [*AXES[:dim], place, *AXES[dim + 1 : x.rank]]))


@rules.lowers("take")
def take(ctx: Context, x: Array, index: Array) -> Array:
    flat = reshape(x, (prod(x.shape),))
    return ctx.result(at(flat, [position(index, AXES[: index.rank], flat.shape[0], wrap=True)]))


@rules.lowers("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(ctx: Context, x: Array, indices: Sequence[Array | None]) -> Array:
    """x[i, j, …] with index tensors that broadcast; None is a whole dimension.

    Indexed dimensions that lie side by side are replaced where they lie, others come first.
    """
    _check_result(ctx, *(index for index in indices if index is not None))
    _, place = indexed(x, indices)
    return ctx.result(at(x, place))


def indexed(x: Array, indices: Sequence[Array | None]) -> tuple[tuple[int, ...], list[Index]]:
    """The shape of `index_tensor` of x, and where its element at AXES lies in x."""
    given = [dim for dim, index in enumerate(indices) if index is not None]
    arrays = [index for index in indices if index is not None]
    shape = broadcast([index.shape for index in arrays])
    adjacent = given == list(range(given[0], given[0] + len(given)))
    start = given[0] if adjacent else 0
    point = AXES[start : start + len(shape)]
    places = {
        dim: position(expand_to(index, shape), point, x.shape[dim], wrap=True)
        for dim, index in zip(given, arrays, strict=True)
    }
    rest = iter([*AXES[:start], *AXES[start + len(shape) :]])
    kept = [x.shape[dim] for dim in range(x.rank) if dim not in places]
    whole = (*kept[:start], *shape, *kept[start:])
    return whole, [places[dim] if dim in places else next(rest) for dim in range(x.rank)]
