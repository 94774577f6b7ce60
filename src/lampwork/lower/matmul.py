"""The matrix product family: linear, addmm, mm, bmm, matmul, … become `Gemm` definitions.

A Gemm reads its operands in place: transposed, sliced and expanded operands only have other index expressions. What its
template needs is an address affine in each of batch, m | n and k; an operand that has no strides, or whose leading
dimensions do not merge into one m, is copied first. Half types are summed in float32, and what is added or multiplied
within one operator is so too: the result is rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lampwork.graph.shapes_common import broadcast
from lampwork.graph.symbols import same_size
from lampwork.loops.ir.index import ZERO, Index, as_index, simplify
from lampwork.loops.ir.nodes import Axis, DType, Expr, Gemm, Load, Local
from lampwork.lower import exprs as e
from lampwork.lower.arrays import Array, at, read
from lampwork.lower.context import Context
from lampwork.lower.dtypes import FLOATS, HALVES, compute_dtype
from lampwork.lower.narrow import narrow_of
from lampwork.lower.reduce import reduce_value
from lampwork.lower.registry import NotExpressible, Registry
from lampwork.lower.views import expand_to, permute, reshape, swap
from lampwork.standard import math

rules = Registry()

_M, _N, _K = Index.var("m"), Index.var("n"), Index.var("k")


def _require(ctx: Context, *operands: Array) -> None:
    dtypes = {operand.dtype for operand in operands}
    if len(dtypes) != 1 or not dtypes <= ctx.products & FLOATS:
        raise NotExpressible(f"a matrix product of {', '.join(sorted(dtypes))}")


def _sum(dtype: DType) -> Expr:
    """The accumulator of a product of `dtype`."""
    return Local("acc", "i32" if dtype == "i8" else compute_dtype(dtype))


def _batch_axes(shape: Sequence[int]) -> tuple[Axis, ...]:
    return tuple(Axis(f"b{n}", as_index(size)) for n, size in enumerate(shape))


def row_digits(flat: Index, shape: Sequence[int]) -> list[Index]:
    """The row-major position `flat` in `shape` as one index a dimension; dimensions of size 1 get 0."""
    found: list[Index] = []
    rest = 1
    outermost = next((dim for dim, size in enumerate(shape) if size != 1), 0)
    for dim in reversed(range(len(shape))):
        size = shape[dim]
        if size == 1:
            found.append(ZERO)
            continue
        part = flat // rest
        found.append(part if dim == outermost else part % size)
        rest *= size
    return found[::-1]


def merges(array: Array, dims: int) -> bool:
    """Whether the first `dims` dimensions of a strided array lie in memory as one."""
    strides = array.strides
    if strides is None:
        return False
    inner: int | None = None
    for dim in reversed(range(dims)):
        if array.shape[dim] == 1:
            continue
        if inner is not None and not same_size(strides[dim], inner):
            return False
        inner = strides[dim] * array.shape[dim]
    return True


def _operand(ctx: Context, array: Array, rows: int) -> Array:
    """`array` such that its first `rows` dimensions merge into one; a copy if they do not as it lies."""
    return array if merges(array, rows) else ctx.materialise(array, "rows")


def _load(array: Array, point: Sequence[Index], extents: dict[str, Index]) -> Load:
    load = at(array, point)
    if all(position.is_flat for position in load.index):
        return load
    return Load(load.buffer, tuple(simplify(position, extents) for position in load.index))


def gemm(
    ctx: Context,
    a: Array,
    b: Array,
    out_shape: tuple[int, ...],
    *,
    batch: tuple[int, ...] = (),
    rows: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    epilogue: Expr | None = None,
    hint: str = "",
    dtype: DType | None = None,
) -> Array:
    """out = a @ b, as one Gemm.

    a: (batch..., rows..., K); `rows` become the axis m. b: (batch..., K, N). Both have all batch dimensions (expand
    them). out_shape: (batch..., rows..., N). `epilogue`: the value to store, over Local("acc"), b0…, m and n.
    `dtype`: that of out, if it is not that of a.
    """
    if dtype is None:
        dtype = "i32" if a.dtype == "i8" else a.dtype
    if 0 in out_shape:
        return ctx.map(out_shape, e.const(0, dtype), strides, hint)
    if ctx.in_bf16.products and a.dtype == "f32":
        a, b = ctx.narrowed(a), ctx.narrowed(b)
    depth = a.shape[-1]
    columns = b.shape[-1]
    count = prod(rows)
    b_axes = _batch_axes(batch)
    at_batch = [Index.var(axis.name) for axis in b_axes]
    at_row = row_digits(_M, rows)
    out = ctx.buffer(out_shape, dtype, strides, hint)
    value = e.cast(_sum(a.dtype) if epilogue is None else epilogue, dtype)
    extents = {axis.name: axis.extent for axis in b_axes}
    extents |= {"m": as_index(count), "n": as_index(columns), "k": as_index(depth)}
    if 0 in (depth, columns, count, *batch):
        # Eager's addmv of one number and a matrix without rows is that number.
        raise NotExpressible("a matrix product of no elements")
    ctx.emit(
        Gemm(
            out.buffer,
            b_axes,
            Axis("m", as_index(count)),
            Axis("n", as_index(columns)),
            Axis("k", as_index(depth)),
            _load(a, [*at_batch, *at_row, _K], extents),
            _load(b, [*at_batch, _K, _N], extents),
            (*at_batch, *at_row, _N),
            value,
        )
    )
    return out


def _dense(ctx: Context) -> tuple[int, ...]:
    return ctx.spec.strides


# --- linear -----------------------------------------------------------------------------------------------------------


@rules.lowers("linear")
def linear(ctx: Context, x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x (..., K) @ weight (N, K) transposed + bias (N)."""
    _require(ctx, x, weight, *([bias] if bias is not None else []))
    if weight.rank == 1:
        if x.rank == 1 and bias is None:
            return dot(ctx, x, weight)
        raise NotExpressible("linear with a weight of one dimension")
    rows = x.shape[:-1]
    x = _operand(ctx, x, len(rows))
    value: Expr = _sum(x.dtype)
    narrow = narrow_of(ctx, weight)
    if narrow is not None:
        weight = narrow.source
        if narrow.scale is not None:
            value = e.mul(value, at(expand_to(narrow.scale, (weight.shape[0], 1)), [_N, ZERO]))
    if bias is not None:
        value = e.add(value, e.cast(at(expand_to(bias, weight.shape[:1]), [_N]), value.dtype))
    return gemm(
        ctx,
        x,
        swap(ctx.strided(weight), 0, 1),
        ctx.spec.shape,
        rows=rows,
        strides=_dense(ctx),
        epilogue=value,
    )


# --- two matrices -----------------------------------------------------------------------------------------------------


_LONG_COLUMN = 32


@rules.lowers("mm")
def mm(ctx: Context, x: Array, other: Array) -> Array:
    """x @ other. A single long column is a row times x transposed: dot products with the rows of x, which stay as they
    lie, where a panel of the column would be mostly zeros."""
    _require(ctx, x, other)
    if other.shape[1] == 1 and 0 not in x.shape and x.shape[1] >= _LONG_COLUMN:
        column = reshape(ctx.strided(other), other.shape[:1])
        product = gemm(ctx, ctx.strided(column), swap(ctx.strided(x), 0, 1), x.shape[:1], rows=())
        return reshape(product, ctx.spec.shape)
    return gemm(
        ctx, ctx.strided(x), ctx.strided(other), ctx.spec.shape, rows=x.shape[:1], strides=_dense(ctx)
    )


@rules.lowers("_int_mm")
def int_mm(ctx: Context, x: Array, mat2: Array) -> Array:
    """The product of two matrices of int8, in int32."""
    if {x.dtype, mat2.dtype} != {"i8"} or "i8" not in ctx.products:
        raise NotExpressible(f"a matrix product of {x.dtype} and {mat2.dtype}")
    return gemm(ctx, ctx.strided(x), ctx.strided(mat2), ctx.spec.shape, rows=x.shape[:1], strides=_dense(ctx))


def _weighted(
    ctx: Context, added: Array, batch: int, rows: tuple[int, ...], alpha: float, beta: float, dtype: DType
) -> Expr:
    """beta * added + alpha * acc, with `added` broadcast to the node's shape.

    Raises:
        NotExpressible: a factor is no finite number: it matters then which product it goes into. Or alpha is 0: the
            dtype and the sizes decide whether eager reads the matrices, whose infinities make nan of 0, at all.
    """
    if not (math.isfinite(alpha) and math.isfinite(beta)) or alpha == 0:
        raise NotExpressible(f"a product with alpha={alpha}, beta={beta}")
    acc = _sum(dtype)
    if alpha != 1:
        acc = e.mul(acc, e.like(alpha, acc))
    if beta == 0:
        return acc
    point = [*(Index.var(f"b{n}") for n in range(batch)), *row_digits(_M, rows), _N]
    term = e.cast(at(expand_to(added, ctx.spec.shape), point), acc.dtype)
    return e.add(acc, term) if beta == 1 else e.fma(term, e.like(beta, term), acc)


@rules.lowers("addmm")
def addmm(ctx: Context, x: Array, mat1: Array, mat2: Array, *, beta: float = 1, alpha: float = 1) -> Array:
    _require(ctx, x, mat1, mat2)
    rows = mat1.shape[:1]
    value = _weighted(ctx, x, 0, rows, alpha, beta, mat1.dtype)
    return gemm(
        ctx,
        ctx.strided(mat1),
        ctx.strided(mat2),
        ctx.spec.shape,
        rows=rows,
        strides=_dense(ctx),
        epilogue=value,
    )


@rules.lowers("bmm")
def bmm(ctx: Context, x: Array, other: Array) -> Array:
    _require(ctx, x, other)
    return gemm(
        ctx,
        ctx.strided(x),
        ctx.strided(other),
        ctx.spec.shape,
        batch=x.shape[:1],
        rows=x.shape[1:2],
        strides=_dense(ctx),
    )


@rules.lowers("baddbmm")
def baddbmm(
    ctx: Context, x: Array, batch1: Array, batch2: Array, *, beta: float = 1, alpha: float = 1
) -> Array:
    _require(ctx, x, batch1, batch2)
    rows = batch1.shape[1:2]
    value = _weighted(ctx, x, 1, rows, alpha, beta, batch1.dtype)
    return gemm(
        ctx,
        ctx.strided(batch1),
        ctx.strided(batch2),
        ctx.spec.shape,
        batch=batch1.shape[:1],
        rows=rows,
        strides=_dense(ctx),
        epilogue=value,
    )


@rules.lowers("addbmm")
def addbmm(
    ctx: Context, x: Array, batch1: Array, batch2: Array, *, beta: float = 1, alpha: float = 1
) -> Array:
    """The sum over the batch is a product over batch and depth together."""
    _require(ctx, x, batch1, batch2)
    count, rows, depth = batch1.shape
    left = ctx.strided(reshape(permute(batch1, (1, 0, 2)), (rows, count * depth)))
    right = ctx.strided(reshape(batch2, (count * depth, batch2.shape[2])))
    value = _weighted(ctx, x, 0, (rows,), alpha, beta, left.dtype)
    return gemm(ctx, left, right, ctx.spec.shape, rows=(rows,), strides=_dense(ctx), epilogue=value)


# --- vectors ----------------------------------------------------------------------------------------------------------


@rules.lowers("dot", "vdot", "inner")
def dot(ctx: Context, x: Array, other: Array) -> Array:
    if x.rank != 1 or other.rank != 1:
        raise NotExpressible("inner product of matrices")
    _require(ctx, x, other)
    if x.dtype in HALVES:
        raise NotExpressible(f"inner product of {x.dtype}")
    return reduce_value(ctx, "sum", x.shape, [0], e.mul(read(x, x.shape), read(other, x.shape)))


@rules.lowers("mv")
def mv(ctx: Context, x: Array, vec: Array) -> Array:
    """A vector of n results: one row (the vector) times the transposed matrix."""
    _require(ctx, x, vec)
    return gemm(ctx, ctx.strided(vec), swap(ctx.strided(x), 0, 1), ctx.spec.shape, rows=())


@rules.lowers("addmv")
def addmv(ctx: Context, x: Array, mat: Array, vec: Array, *, beta: float = 1, alpha: float = 1) -> Array:
    _require(ctx, x, mat, vec)
    value = _weighted(ctx, x, 0, (), alpha, beta, mat.dtype)
    return gemm(ctx, ctx.strided(vec), swap(ctx.strided(mat), 0, 1), ctx.spec.shape, rows=(), epilogue=value)


@rules.lowers("outer", "ger")
def outer(ctx: Context, x: Array, vec2: Array) -> Array:
    column = reshape(x, (x.shape[0], 1))
    return ctx.result(
        e.mul(e.cast(read(column, ctx.spec.shape), ctx.dtype), e.cast(read(vec2, ctx.spec.shape), ctx.dtype))
    )


# --- matmul -----------------------------------------------------------------------------------------------------------


@rules.lowers("matmul", "linalg_matmul")
def matmul(ctx: Context, x: Array, other: Array) -> Array:
    """All of torch.matmul's forms: vectors, matrices, and batches that broadcast."""
    _require(ctx, x, other)
    if x.rank == 1 and other.rank == 1:
        return dot(ctx, x, other)
    if x.rank == 1 and other.rank == 2:
        return gemm(ctx, ctx.strided(x), ctx.strided(other), ctx.spec.shape, rows=())
    if other.rank == 1 and x.rank == 2:
        return mv(ctx, x, other)
    if x.rank == 2 and other.rank == 2:
        return mm(ctx, x, other)
    if x.rank == 1:
        left = reshape(x, (1, x.shape[0]))
        return _batched(ctx, left, other, drop=-2)
    if other.rank == 1:
        return _batched(ctx, x, reshape(other, (other.shape[0], 1)), drop=-1)
    if prod(other.shape[:-2]) == 1 and x.rank >= other.rank:
        rows = x.shape[:-1]
        left = _operand(ctx, x, len(rows))
        right = ctx.strided(reshape(other, other.shape[-2:]))
        return gemm(ctx, left, right, ctx.spec.shape, rows=rows, strides=_dense(ctx))
    return _batched(ctx, x, other)


def _batched(ctx: Context, x: Array, other: Array, drop: int | None = None) -> Array:
    """Batches broadcast to each other; `drop` is a matrix dimension (of size 1) that the result leaves out."""
    batch = broadcast([x.shape[:-2], other.shape[:-2]])
    rows, columns = x.shape[-2], other.shape[-1]
    left = expand_to(ctx.strided(x), (*batch, *x.shape[-2:]))
    right = expand_to(ctx.strided(other), (*batch, *other.shape[-2:]))
    shape = (*batch, rows, columns)
    out = gemm(
        ctx, left, right, shape, batch=batch, rows=(rows,), strides=_dense(ctx) if drop is None else None
    )
    return out if drop is None else reshape(out, ctx.spec.shape)
