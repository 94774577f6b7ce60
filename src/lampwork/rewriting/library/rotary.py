"""Rotary embeddings: pieces that are cut out, negated and put together again become one read at another index.

A concatenation or a stack chooses between its pieces for each element. The element that is wanted lies in the same
tensor, half a row away or next to it, and its sign can be the table's: so a row is two reads, two products and a sum.
For 8 heads of 64 in float32 and 128 tokens on one core: halves 7.0 -> 3.7 us, pairs 88 -> 8.8 us, products of halves
10.0 -> 6.1 us, products of pairs 45 -> 9.1 us.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.symbols import same_size, same_sizes
from lampwork.rewriting import schema
from lampwork.rewriting.apply.driver import Rewrite, Rule, as_rule
from lampwork.rewriting.apply.edit import Editor
from lampwork.rewriting.language.term import Call, Term, call
from lampwork.rewriting.library.ranges import spec
from lampwork.rewriting.matching.match import Match
from lampwork.rewriting.matching.values import is_constant
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten


class RotateHalf(Rewrite):
    """rotate_half of transformers, times a table of sines.

    before:  %c = cat([neg(slice(%x, 3, 32, 64)), slice(%x, 3, 0, 32)], 3), %y = mul(%c, %sin)
    after:   %y = mul(roll(%x, [32], [3]), mul(%sin, [-1, ..., 1, ...]))
    """

    def pattern(self, low: Term, high: Term, dim: Any, table: Term) -> Call:
        return call("mul", call("cat", [call("neg", high), low], dim), table)

    def check(self, match: Match) -> Verdict:
        refusal = _joined(match)
        return refusal if refusal is not None else _fits(match, match["low"], (match["table"],))

    def replacement(self, match: Match, editor: Editor) -> fx.Node:
        source = cast(fx.Node, _halves(match["low"], match["high"]))
        signs = _signs(editor, source, alternating=False)
        table = editor.call(aten.mul.Tensor, match["table"], signs)
        return editor.call(aten.mul.Tensor, _rolled(editor, source), table)


class RotateHalves(Rewrite):
    """The same with products of the halves, by tables of half a row.

    before:  %s = sub(mul(%low, %cos), mul(%high, %sin)), %a = add(mul(%high, %cos), mul(%low, %sin)),
             %y = cat([%s, %a], 3)
    after:   %y = add(mul(%x, cat([%cos, %cos])), mul(roll(%x, [32], [3]), cat([neg(%sin), %sin])))
    """

    def pattern(self, low: Term, high: Term, dim: Any, cos: Term, sin: Term) -> Call:
        return call("cat", [low * cos - high * sin, high * cos + low * sin], dim)

    def check(self, match: Match) -> Verdict:
        refusal = _joined(match)
        return refusal if refusal is not None else _fits(match, match["low"], (match["cos"], match["sin"]))

    def replacement(self, match: Match, editor: Editor) -> fx.Node:
        source = cast(fx.Node, _halves(match["low"], match["high"]))
        cos, sin = cast(fx.Node, match["cos"]), cast(fx.Node, match["sin"])
        last = len(spec(cos).shape) - 1
        tables = [[cos, cos], [editor.call(aten.neg.default, sin), sin]]
        cosines, sines = (editor.call(aten.cat.default, table, last) for table in tables)
        straight = editor.call(aten.mul.Tensor, source, cosines)
        turned = editor.call(aten.mul.Tensor, _rolled(editor, source), sines)
        return editor.call(aten.add.Tensor, straight, turned)


class RotatePairs(Rewrite):
    """rotate_every_two of GPT-J, times a table of sines.

    before:  %s = stack([neg(%odd), %even], 4), %v = view(%s, [1, 8, 64, 64]), %y = mul(%v, %sin)
    after:   %y = mul(where([True, False, ...], next of %x, previous of %x), mul(%sin, [-1, 1, ...]))
    """

    def pattern(self, even: Term, odd: Term, dim: Any, shape: Any, table: Term) -> Call:
        stacked = call("stack", [call("neg", odd), even], dim)
        return call("mul", call("view.default", stacked, shape), table)

    def check(self, match: Match) -> Verdict:
        source = _pairs(match["even"], match["odd"])
        if isinstance(source, No):
            return source
        verdict = _merged(match)
        return verdict if isinstance(verdict, No) else _fits(match, match["even"], (match["table"],))

    def replacement(self, match: Match, editor: Editor) -> fx.Node:
        source = _flat(editor, _pairs(match["even"], match["odd"]), match["even"])
        signs = _signs(editor, source, alternating=True)
        table = editor.call(aten.mul.Tensor, match["table"], signs)
        return editor.call(aten.mul.Tensor, _neighbours(editor, source), table)


class RotatePairsByProducts(Rewrite):
    """The same with products of the even and odd elements, by tables of half a row, as Llama's first code has it.

    before:  %s = sub(mul(%even, %cos), mul(%odd, %sin)), %a = add(mul(%even, %sin), mul(%odd, %cos)),
             %y = stack([%s, %a], 4)
    after:   %r = add(mul(%x, %cos2), mul(where([True, False, ...], next of %x, previous of %x), %sin2)),
             %y = view(%r, [1, 8, 64, 32, 2])
    """

    def pattern(self, even: Term, odd: Term, dim: Any, cos: Term, sin: Term) -> Call:
        return call("stack", [even * cos - odd * sin, even * sin + odd * cos], dim)

    def check(self, match: Match) -> Verdict:
        source = _pairs(match["even"], match["odd"])
        if isinstance(source, No):
            return source
        if match["dim"] % len(spec(match.root).shape) != len(spec(match.root).shape) - 1:
            return No("the pairs are not stacked along the last dimension")
        return _fits(match, match["even"], (match["cos"], match["sin"]))

    def replacement(self, match: Match, editor: Editor) -> fx.Node:
        source = _flat(editor, _pairs(match["even"], match["odd"]), match["even"])
        cos, sin = cast(fx.Node, match["cos"]), cast(fx.Node, match["sin"])
        cosines = _interleaved(editor, cos, cos)
        sines = _interleaved(editor, editor.call(aten.neg.default, sin), sin)
        straight = editor.call(aten.mul.Tensor, source, cosines)
        turned = editor.call(aten.mul.Tensor, _neighbours(editor, source), sines)
        rows = editor.call(aten.add.Tensor, straight, turned)
        if not spec(rows).is_contiguous:
            # As the stack is; it is computed as it is written.
            rows = editor.call(aten.clone.default, rows, memory_format=torch.contiguous_format)
        return editor.call(aten.view.default, rows, list(spec(match.root).shape))


# --- where the pieces come from ---------------------------------------------------------------------------------------


def _joined(match: Match) -> No | None:
    """A refusal, unless the two halves of one row are put together to a row again."""
    source = _halves(match["low"], match["high"])
    if isinstance(source, No):
        return source
    rank = len(spec(source).shape)
    if match["dim"] % rank != rank - 1:
        return No("the halves are not put together along the last dimension")
    return None


def _halves(low: fx.Node, high: fx.Node) -> fx.Node | No:
    """The tensor that `low` and `high` are the first and second half of, along the last dimension."""
    if any(node.op != "call_function" or node.target is not aten.slice.Tensor for node in (low, high)):
        return No(f"{low.name} and {high.name} are no halves")
    (x, dim, start, end, step), (y, dim2, start2, end2, step2) = map(schema.bound_args, (low, high))
    size = spec(x).shape[-1]
    last = len(spec(x).shape) - 1
    if x is not y or (dim, dim2, step, step2) != (last, last, 1, 1) or type(size) is not int or size % 2:
        return No(f"{low.name} and {high.name} are no halves of one tensor")
    if (start or 0, end, start2) != (0, size // 2, size // 2) or end2 is None or end2 < size:
        return No(f"{low.name} and {high.name} are no halves of {x.name}")
    return x


def _pairs(even: fx.Node, odd: fx.Node) -> fx.Node | No:
    """The tensor whose elements at even and odd places are `even` and `odd`; a last dimension of 2 may hold them."""
    nothing = No(f"{even.name} and {odd.name} are no pairs of one tensor")
    if even.op != "call_function" or odd.op != "call_function" or even.target is not odd.target:
        return nothing
    first, second = schema.bound_args(even), schema.bound_args(odd)
    if not first or first[0] is not second[0] or not isinstance(first[0], fx.Node):
        return nothing
    x = first[0]
    shape = spec(x).shape
    last = len(shape) - 1
    if even.target is aten.select.int:
        found = (first[1], second[1], first[2], second[2]) == (last, last, 0, 1) and same_size(shape[-1], 2)
        return x if found and type(shape[-2]) is int else nothing
    if even.target is not aten.slice.Tensor or type(shape[-1]) is not int or shape[-1] % 2:
        return nothing
    (_, dim, start, end, step), (_, dim2, start2, end2, step2) = first, second
    whole = end is not None and end >= shape[-1] - 1 and end2 is not None and end2 >= shape[-1]
    if (dim, dim2, start or 0, start2, step, step2) != (last, last, 0, 1, 2, 2) or not whole:
        return nothing
    return x


def _merged(match: Match) -> Verdict:
    """Yes if the stack is along a new last dimension, which the view then merges."""
    even = spec(match["even"]).shape
    if match["dim"] % (len(even) + 1) != len(even):
        return No("the pairs are not stacked along the last dimension")
    merged = (*even[:-1], even[-1] * 2)
    return Yes() if same_sizes(match["shape"], merged) else No("the pairs are not merged into rows")


def _fits(match: Match, half: fx.Node, tables: Sequence[fx.Node]) -> Verdict:
    """Yes if the tables are known or shared by rows, so that making them ready is no work for each element. `half`:
    a piece of the rows."""
    root = spec(match.root)
    rows = (*spec(half).shape[:-1], spec(half).shape[-1] * 2)
    if not same_sizes(root.shape, rows) and not same_sizes(root.shape, (*spec(half).shape, 2)):
        return No("the rows are broadcast")
    if root.dtype not in (torch.float32, torch.float64) or any(
        spec(t).dtype is not root.dtype for t in tables
    ):
        return No(f"tables and rows are not of one type, float32 or float64: {root.dtype}")
    for table in tables:
        shape = spec(table).shape
        if not shape or same_size(shape[-1], 1):
            return No(f"{table.name} is no table of rows")
        own = (*(1 for _ in range(len(rows) - len(shape))), *shape)
        shared = any(same_size(a, 1) and not same_size(b, 1) for a, b in zip(own, rows, strict=True))
        if not shared and not is_constant(table):
            return No(f"{table.name} is another one for each row")
    return match.only_use()


# --- what stands in their place ---------------------------------------------------------------------------------------


def _rolled(editor: Editor, x: fx.Node) -> fx.Node:
    shape = spec(x).shape
    return editor.call(aten.roll.default, x, [shape[-1] // 2], [len(shape) - 1])


def _flat(editor: Editor, source: Any, even: fx.Node) -> fx.Node:
    shape = spec(even).shape
    return editor.reshape(source, (*shape[:-1], shape[-1] * 2))


def _neighbours(editor: Editor, x: fx.Node) -> fx.Node:
    """Each element's other of its pair: the next for those at even places, the previous for the others."""
    last = len(spec(x).shape) - 1
    size = spec(x).shape[-1]
    following = editor.call(aten.slice.Tensor, x, last, 1, size)
    preceding = editor.call(aten.slice.Tensor, x, last, 0, size - 1)
    following = editor.call(aten.constant_pad_nd.default, following, [0, 1])
    preceding = editor.call(aten.constant_pad_nd.default, preceding, [1, 0])
    signs = _signs(editor, x, alternating=True)
    is_even = editor.call(aten.lt.Scalar, signs, 0)
    return editor.call(aten.where.self, is_even, following, preceding)


def _signs(editor: Editor, x: fx.Node, *, alternating: bool) -> fx.Node:
    """-1 and 1, for the first and second half of a row of `x`, or in turn."""
    size = spec(x).shape[-1] // 2
    options = {"dtype": spec(x).dtype, "device": spec(x).device}
    minus, plus = (editor.call(aten.full.default, [size], sign, **options) for sign in (-1.0, 1.0))
    if alternating:
        return _interleaved(editor, minus, plus)
    return editor.call(aten.cat.default, [minus, plus])


def _interleaved(editor: Editor, a: fx.Node, b: fx.Node) -> fx.Node:
    shape = spec(a).shape
    stacked = editor.call(aten.stack.default, [a, b], len(shape))
    return editor.call(aten.view.default, stacked, [*shape[:-1], shape[-1] * 2])


def rotary_rules() -> tuple[Rule, ...]:
    """All of them, in the order in which they are tried."""
    return tuple(map(as_rule, (RotateHalf(), RotateHalves(), RotatePairs(), RotatePairsByProducts())))
