"""Words of Philox counters: random numbers that are expressions as any other, computed where they are read.

Of a key that was drawn (`random_words`), or of the streams that kernels of a CUDA device draw from (`philox_words`).
"""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.loops.ir.index import Index, simplify
from lampwork.loops.ir.nodes import Expr, Op
from lampwork.loops.ir.philox import WORDS
from lampwork.lower import exprs as e
from lampwork.lower.arrays import Array, at, axes_of, extents_of, read
from lampwork.lower.context import Context
from lampwork.lower.registry import Registry

rules = Registry()


@rules.lowers("lampwork::random_words")
def random_words(ctx: Context, key: Array, size: Sequence[int], stride: Sequence[int], part: int) -> Array:
    """Elements are counted in the order of rows, however they lie."""
    shape = ctx.spec.shape
    element = Index.const(0)
    for axis in axes_of(shape):
        element = element * axis.extent + Index.var(axis.name)
    value = Op("philox", (read(key, shape), e.index_value(element), e.const(part, "i64")), "i32")
    return ctx.map(shape, value, ctx.spec.strides)


@rules.lowers("lampwork::philox_words")
def philox_words(
    ctx: Context,
    state: Array,
    size: Sequence[int],
    stride: Sequence[int],
    order: Sequence[int],
    ahead: int,
    threads: int,
    width: int,
    words: int,
    part: int,
) -> Array:
    """A thread's number is the upper half of a counter, a place in its stream the lower half and one of four words."""
    shape = ctx.spec.shape
    element = Index.const(0)
    for axis, step in zip(axes_of(shape), order, strict=True):
        element = element + Index.var(axis.name) * step
    group = simplify(element // width, extents_of(shape))
    inside = simplify(element % width + (part + ahead), extents_of(shape))
    thread: Expr = e.index_value(group, "i32")
    turn: Expr = e.const(0, "i32")
    has_turns = simplify(group // threads, extents_of(shape)) != Index.const(0)
    if has_turns:
        # By hand: indices are of 64 bits, which a card divides in many instructions.
        turn = e.op("truncdiv", thread, e.const(threads, "i32"))
        thread = e.sub(thread, e.mul(turn, e.const(threads, "i32")))
    if not has_turns:
        counter: Expr = e.index_value(inside // WORDS, "i32")
        word: Expr = e.index_value(inside % WORDS, "i32")
    elif words % WORDS == 0:
        # Known bits: that elements side by side share a counter is seen by LLVM.
        counter = e.add(e.mul(turn, e.const(words // WORDS, "i32")), e.index_value(inside // WORDS, "i32"))
        word = e.index_value(inside % WORDS, "i32")
    else:
        place = e.add(e.mul(turn, e.const(words, "i32")), e.index_value(inside, "i32"))
        counter = e.op("shr", place, e.const(2, "i32"))
        word = e.op("and", place, e.const(WORDS - 1, "i32"))
    seed, offset = (at(state, (Index.const(i),)) for i in range(2))
    first = e.op("shr", offset, e.const(2, "i64"))
    counted = e.mul(e.add(first, e.cast(counter, "i64")), e.const(WORDS, "i64"))
    element_of = e.op("or", counted, e.cast(word, "i64"))
    return ctx.map(shape, Op("philox", (seed, element_of, e.cast(thread, "i64")), "i32"), ctx.spec.strides)
