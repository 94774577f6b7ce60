"""Attention written out: two matrix products around a softmax become one `Attention`, whatever is done to the scores.

The scores are the first product with its epilogue: scaled, capped by a tanh, biased, masked. So what a user writes by
hand, or what flex_attention is given as functions of one score, needs memory for a block of scores at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lampwork.loops.fusion.work import Work
from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import (
    Attention,
    Axis,
    Const,
    Definition,
    Expr,
    Gemm,
    Load,
    Local,
    Map,
    Op,
    Reduce,
)
from lampwork.loops.ir.traverse import rewrite, walk_once
from lampwork.records import record
from lampwork.standard import math

Accepts = Callable[[Attention], bool]
"""Whether the target has a template for an attention, and it is faster than what it would stand for."""


@record
class _Softmax:
    """The numbers of the definitions that a softmax over the last dimension of `scores` consists of."""

    numbers: tuple[int, ...]
    scores: str
    point: tuple[Index, ...]
    safe: bool


def fold_attentions(work: Work, accepts: Accepts) -> None:
    """Each product of a softmax of scores, which only the softmax reads, becomes an Attention.

    before: s[m, n] = f(acc) where acc = sum(q * k); t = max s; p = exp(s - t); r = 1 / sum p; w = p * r; o = w @ v
    after:  o = attention(q, k, v) with the score f(acc)
    """
    for number, definition in work.alive():
        if not isinstance(definition, Gemm):
            continue
        softmax = _softmax(work, number, definition)
        if softmax is None:
            continue
        first = work.maker.get(softmax.scores)
        if first is None:
            continue  # an input
        what = f"fold {softmax.scores} and {definition.out.name} into an attention"
        names = softmax.scores, definition.out.name
        made = folded(work.definitions[first], definition, softmax)
        if isinstance(made, str):
            work.decide(what, False, made, *names)
        elif work.reads[first] & work.mutated or not accepts(made):
            reason = "two products are faster, or there is no template for it"
            work.decide(what, False, reason, *names)
        else:
            for each in (first, *softmax.numbers):
                work.remove(each)
            work.replace(number, made)
            work.decide(what, True, "scores exist a block at a time", *names)


def folded(first: Definition | None, second: Gemm, softmax: _Softmax) -> Attention | str:
    """The Attention that the product of scores, their softmax and its product with values are; or why there is none."""
    if not isinstance(first, Gemm) or not _is_plain(first) or not _is_plain(second):
        return "an operand is packed, or read under a mask"
    score = _score(first, second)
    if score is None:
        return "the product has an epilogue, or is rounded"
    e = Axis("e", second.n.extent)
    axes = (*first.batch, first.m, first.n)
    wanted = [axis.name for axis in axes]
    if e.name in (*wanted, first.k.name) or not _in_order(first.index, axes):
        return "the scores are laid out otherwise"
    renamed: dict[str, Index] = {second.n.name: Index.var(e.name)}
    for position, axis in zip(second.a.index, axes, strict=True):
        name = position.as_var()
        if name is None:
            if axis.extent.as_int() != 1:
                return "the weights are laid out otherwise"
            continue
        renamed[name] = Index.var(axis.name)
    if second.m.extent.as_int() == 1 and second.a.index[-2].as_int() == 0:
        renamed[second.m.name] = Index.const(0)
    elif second.a.index[-2].as_var() != second.m.name:
        return "the weights are read otherwise"
    if second.a.index[-1].as_var() != second.k.name:
        return "the weights are read otherwise"
    if any(axis.name not in renamed for axis in (*second.batch, second.m, second.k)):
        return "the values have a batch of their own"

    def move(index: Index) -> Index:
        return index.substitute(renamed)

    v = Load(second.b.buffer, tuple(map(move, second.b.index)))
    index = tuple(map(move, second.index))
    k = first.k
    closed = softmax.safe or _is_open(score)
    return Attention(
        second.out, first.batch, first.m, first.n, k, e, first.a, first.b, v, index, score, closed
    )


def _score(first: Gemm, second: Gemm) -> Expr | None:
    """The score, if both products are of one dtype and the second one is nothing but that. Scores of bf16 are not
    rounded, nor is what they are made of; float16 would be infinite where a float32 is not.

    before: bf16(f32(bf16(acc)) * 0.125)        after: acc * 0.125
    """
    dtype, acc = second.out.dtype, second.value
    if dtype != "bf16":
        return first.value if isinstance(acc, Local) and acc.dtype == first.out.dtype == dtype else None
    if {first.a.dtype, first.b.dtype, first.out.dtype, second.a.dtype, second.b.dtype} != {dtype}:
        return None
    if not isinstance(acc, Op) or acc.name != "cast" or not isinstance(acc.args[0], Local):
        return None
    score = rewrite(Op("cast", (first.value,), "f32"), {Op: _unrounded})
    return score if score.dtype == "f32" else None


def _unrounded(op: Op) -> Expr:
    """A float32 that was rounded to bf16, as it was."""
    half = op.args[0]
    if op.name != "cast" or op.dtype != "f32" or not isinstance(half, Op) or half.dtype != "bf16":
        return op
    return half.args[0] if half.name == "cast" and half.args[0].dtype == "f32" else op


def _in_order(index: Sequence[Index], axes: Sequence[Axis]) -> bool:
    """Whether an index is that of all axes in order; that of an axis of one point may be 0."""
    if len(index) != len(axes):
        return False
    return all(
        position.as_var() == axis.name or (position.as_int() == 0 and axis.extent.as_int() == 1)
        for position, axis in zip(index, axes, strict=True)
    )


def _is_plain(gemm: Gemm) -> bool:
    return (
        not gemm.packed
        and not gemm.turned
        and not gemm.rows
        and not gemm.depth
        and gemm.group is None
        and gemm.a.mask is None
        and gemm.b.mask is None
    )


def _is_open(value: Expr) -> bool:
    """Whether no score is -inf, but for sums that are."""
    closed = any(isinstance(node, Const) and node.value == -math.inf for node in walk_once(value))
    return not closed and not loads(value)


def _softmax(work: Work, number: int, gemm: Gemm) -> _Softmax | None:
    """The softmax that a product's left operand is, if nothing else reads any part of it."""
    weights = _map(work, gemm.a.buffer.name)
    if weights is None or work.readers_of(weights.out.name) != [number]:
        return None
    value, closed = _before_cast(weights.value, weights.out.dtype == "bf16"), None
    if isinstance(value, Op) and value.name == "where":
        closed, otherwise, value = value.args
        if not (isinstance(otherwise, Const) and otherwise.value == 0):
            return None
    if not isinstance(value, Op) or value.name != "mul":
        return None
    power, inverse = value.args
    if not isinstance(power, Load) or not isinstance(inverse, Load):
        return None
    powers, sums = _map(work, power.buffer.name), _reduce(work, inverse.buffer.name, "sum", "reciprocal")
    if powers is None or sums is None or sums.value != power or power.index != weights.index:
        return None
    shifted = powers.value.args[0] if isinstance(powers.value, Op) and powers.value.name == "exp" else None
    if not isinstance(shifted, Op) or shifted.name != "sub" or powers.index != weights.index:
        return None
    entry, top = shifted.args
    score = _before_cast(entry, entry.dtype == "f32")
    if not isinstance(score, Load) or not isinstance(top, Load):
        return None
    tops = _reduce(work, top.buffer.name, "max")
    if tops is None or tops.value != entry or score.index != weights.index or score.mask or top.mask:
        return None
    if top.index != tops.index or inverse != Load(sums.out, sums.index):
        return None
    axis = weights.index[-1].as_var()
    if any(tuple(over.name for over in each.over) != (axis,) for each in (tops, sums)):
        return None
    if closed is not None and closed != Op("eq", (top, Const(-math.inf, top.dtype)), "bool"):
        return None
    parts = [work.maker[each.out.name] for each in (tops, powers, sums, weights)]
    t, p, s, w = parts
    read_by = {
        score.buffer.name: {t, p},
        top.buffer.name: {p, w} if closed is not None else {p},
        power.buffer.name: {s, w},
        inverse.buffer.name: {w},
    }
    if any(set(work.readers_of(name)) != readers for name, readers in read_by.items()):
        return None
    if not all(work.is_internal(name) for name in (*read_by, weights.out.name)):
        return None
    return _Softmax(tuple(parts), score.buffer.name, weights.index, closed is not None)


def _before_cast(value: Expr, wanted: bool) -> Expr:
    """What is converted, if a conversion is what is wanted."""
    return value.args[0] if wanted and isinstance(value, Op) and value.name == "cast" else value


def _map(work: Work, name: str) -> Map | None:
    """The Map that makes a buffer, point by point of its shape."""
    number = work.maker.get(name)
    made = None if number is None else work.definitions[number]
    if not isinstance(made, Map) or made.onto is not None:
        return None
    names = [axis.name for axis in made.axes]
    places = [position.as_var() for position in made.index if position.as_int() != 0]
    sizes = [
        size for position, size in zip(made.index, made.out.shape, strict=True) if position.as_int() != 0
    ]
    return made if places == names and sizes == [axis.extent for axis in made.axes] else None


def _reduce(work: Work, name: str, op: str, finish: str | None = None) -> Reduce | None:
    """The Reduce that makes a buffer; `finish`: the operation that its result is of, if any."""
    number = work.maker.get(name)
    made = None if number is None else work.definitions[number]
    if not isinstance(made, Reduce) or made.op != op:
        return None
    if finish is None:
        return made if made.finish is None else None
    return made if isinstance(made.finish, Op) and made.finish.name == finish else None
