"""Packed sequences: what the batch sizes of `torch.nn.utils.rnn.PackedSequence` say about where the elements lie.

Batch sizes are data, so they are checked where a kernel reads them; the caller then reruns in eager, which raises its
own error.
"""

from __future__ import annotations

from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Scan
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, at, axes_of
from lampwork.lower.context import Context
from lampwork.lower.reduce import reduce_value
from lampwork.lower.registry import NotExpressible
from lampwork.records import record
from lampwork.standard import functools


@record
class PackedSequence:
    """How the elements of a packed sequence lie. Of the axes of a Recurrence: step t has count(t) elements, from
    start(t) on, out of `total`; the last one of an element b of the batch is last(b)."""

    total: int
    count: Array
    start: Array
    last: Array


def packed_sequence(ctx: Context, batch_sizes: Array, total: int, batch: int) -> PackedSequence:
    """What the batch sizes say, checked: they start with the batch, never grow, and sum up to all elements."""
    if batch_sizes.dtype != "i64" or batch_sizes.rank != 1 or 0 in batch_sizes.shape:
        raise NotExpressible("batch sizes that are no row of int64")
    steps = batch_sizes.shape[0]
    t, shape = AXES[0], (steps,)
    size = at(batch_sizes, (t,))
    sums = ctx.buffer(shape, "i64", None, "sums")
    ctx.emit(Scan(sums.buffer, (), axes_of(shape)[0], sums.index, "sum", size))
    end, place = at(sums, (t,)), e.index_value(t)
    is_first, is_last = (e.test("eq", place, e.index_value(n)) for n in (0, steps - 1))
    whole, one = e.const(batch, "i64"), e.const(1, "i64")
    before = at(batch_sizes, (t - 1,), e.test("gt", place, e.const(0, "i64")))
    checks = (
        e.test("ge", size, e.where(is_first, whole, one)),
        e.test("le", size, e.where(is_first, whole, before)),
        e.test("eq", e.where(is_last, end, e.const(total, "i64")), e.const(total, "i64")),
    )
    right = functools.reduce(lambda x, y: e.test("and", x, y), checks)
    count = ctx.map(shape, e.require(size, right), hint="count")
    start = ctx.map(shape, e.sub(end, size), hint="start")
    b = AXES[0]
    longer = e.test("gt", at(count, (AXES[1],)), e.index_value(b))
    lengths = reduce_value(ctx, "sum", (batch, steps), [1], e.cast(longer, "i64"), dtype="i64")
    step = Index.indirect(e.sub(at(lengths, (b,)), one), steps)
    last = ctx.map((batch,), e.add(at(start, (step,)), e.index_value(b)), hint="last")
    return PackedSequence(total, count, start, last)
