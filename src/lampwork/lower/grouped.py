"""Products whose rows are in groups, each with a matrix of its own: what a mixture of experts computes of its tokens,
sorted by expert.

    y[ends[g - 1]:ends[g]] = x[ends[g - 1]:ends[g]] @ w[g]        for each group g, ends[-1] being 0

They become a `Gemm` with groups. Ends that do not ascend within the rows are eager's: it takes them as slices.
"""

from __future__ import annotations

import torch

from lampwork.graph.grouped_trial import multiplies_groups
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import Axis, Gemm, Load, Local
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, at
from lampwork.lower.context import Context
from lampwork.lower.dtypes import FLOATS, compute_dtype
from lampwork.lower.matmul import bmm
from lampwork.lower.registry import NotExpressible, Registry

rules = Registry()

_G, _M, _N, _K = (Index.var(name) for name in "gmnk")


@rules.lowers("_grouped_mm")
def grouped_mm(
    ctx: Context,
    x: Array,
    mat2: Array,
    offs: Array | None = None,
    bias: Array | None = None,
    out_dtype: torch.dtype | None = None,
) -> Array:
    """torch's operator, of rows in groups; rows past the last end are undefined there."""
    if bias is not None or out_dtype not in (None, ctx.spec.dtype):
        raise NotExpressible("a grouped product with a bias or of another dtype")
    if (x.rank, mat2.rank) == (3, 3) and offs is None:
        return bmm(ctx, x, mat2)
    if (x.rank, mat2.rank) != (2, 3) or offs is None:
        raise NotExpressible("a grouped product whose groups are of columns, or of what is summed")
    return _of_rows(ctx, x, mat2, offs)


@rules.lowers("transformers::grouped_mm_fallback")
def grouped_mm_fallback(ctx: Context, input: Array, weight: Array, offs: Array) -> Array:
    """The operator that the library of this name takes for all CPUs and dtypes, of which rows past the last end are 0.
    It is another project's, so it is asked first what it does."""
    if not multiplies_groups(torch.ops.transformers.grouped_mm_fallback.default):
        raise NotExpressible("an operator that does not do what it did")
    return _of_rows(ctx, input, weight, offs)


def _of_rows(ctx: Context, x: Array, weight: Array, offs: Array) -> Array:
    """x (S, K), weight (G, K, N) and offs (G,), the ends -> (S, N)."""
    dtype = x.dtype
    if weight.dtype != dtype or dtype not in ctx.grouped & ctx.products & FLOATS:
        raise NotExpressible(f"a grouped product of {x.dtype} and {weight.dtype}")
    if offs.dtype not in ("i32", "i64"):
        raise NotExpressible(f"ends of groups of {offs.dtype}")
    rows, depth = x.shape
    groups, _, columns = weight.shape
    if 0 in (rows, depth, groups, columns):
        raise NotExpressible("a grouped product of no elements")
    x, weight, ends = ctx.strided(x), ctx.strided(weight), _checked(ctx, offs, rows)
    spec = ctx.spec
    out = ctx.buffer(spec.shape, dtype, spec.strides)
    sums = e.cast(Local("acc", compute_dtype(dtype)), dtype)
    ctx.emit(
        Gemm(
            out.buffer,
            (),
            Axis("m", as_index(rows)),
            Axis("n", as_index(columns)),
            Axis("k", as_index(depth)),
            at(x, [_M, _K]),
            at(weight, [_G, _K, _N]),
            (_M, _N),
            sums,
            group=Axis("g", as_index(groups)),
            ends=at(ends, [_G]),
        )
    )
    return out


def _checked(ctx: Context, ends: Array, rows: int) -> Array:
    """The ends, of which a kernel has seen that they ascend from 0 to the number of rows."""
    here = at(ends, [AXES[0]])
    later = e.test("gt", e.index_value(AXES[0]), e.const(0, "i64"))
    before = Load(ends.buffer, at(ends, [AXES[0] - 1]).index, later)
    low, high = e.test("le", before, here), e.test("le", here, e.const(rows, here.dtype))
    return ctx.map(ends.shape, ctx.or_eager(here, e.test("and", low, high)), hint="ends")
