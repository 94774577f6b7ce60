"""Rotary embeddings: pieces that are cut out, negated and put together again become one read at another index.

A concatenation or a stack chooses between its pieces for each element. The element that is wanted lies in the same
tensor, half a row away or next to it, and its sign can be the table's: so a row is two reads, two products and a sum.
For 8 heads of 64 in float32 and 128 tokens on one core: halves 7.0 -> 3.7 us, pairs 88 -> 8.8 us, products of halves
10.0 -> 6.1 us, products of pairs 45 -> 9.1 us.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, fx

from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import same_size, same_sizes
from lampwork.rewriting.apply.driver import Rewrite, Rule, as_rule
from lampwork.rewriting.apply.edit import Editor
from lampwork.rewriting.language.combinators.either import either
from lampwork.rewriting.language.functions import ops
from lampwork.rewriting.language.term import Leaf
from lampwork.rewriting.language.variables import tensor
from lampwork.rewriting.library.ranges import spec
from lampwork.rewriting.matching.match import Match
from lampwork.rewriting.matching.values import is_constant
from lampwork.verdict import No, Verdict

aten = torch.ops.aten


def _in_two(x: TensorSpec) -> bool:
    return bool(x.shape) and type(x.shape[-1]) is int and x.shape[-1] % 2 == 0


_ROWS = tensor(where=_in_two)
_PAIRS = tensor(shape=(..., None, 2), where=lambda x: len(x.shape) > 1 and type(x.shape[-2]) is int)
"""Rows with a dimension for their pairs."""


class RotateHalf(Rewrite):
    """rotate_half of transformers, times a table of sines.

    before:  %c = cat([neg(slice(%x, 3, 32, 64)), slice(%x, 3, 0, 32)], 3), %y = mul(%c, %sin)
    after:   %y = mul(roll(%x, [32], [3]), mul(%sin, [-1, ..., 1, ...]))
    """

    def pattern(self, table: Tensor, x: Tensor = _ROWS):
        low, high = _halves(x)
        return ops.cat([-high, low], -1) * table

    def check(self, match: Match) -> Verdict:
        return _fits(match, "table")

    def replacement(self, x: Tensor, table: Tensor):
        signs = ops.cat([_ones(x, -1.0), _ones(x, 1.0)])
        return _rolled(x) * (table * signs)


class RotateHalves(Rewrite):
    """The same with products of the halves, by tables of half a row.

    before:  %s = sub(mul(%low, %cos), mul(%high, %sin)), %a = add(mul(%high, %cos), mul(%low, %sin)),
             %y = cat([%s, %a], 3)
    after:   %y = add(mul(%x, cat([%cos, %cos])), mul(roll(%x, [32], [3]), cat([neg(%sin), %sin])))
    """

    def pattern(self, cos: Tensor, sin: Tensor, x: Tensor = _ROWS):
        low, high = _halves(x)
        return ops.cat([low * cos - high * sin, high * cos + low * sin], -1)

    def check(self, match: Match) -> Verdict:
        return _fits(match, "cos", "sin")

    def replacement(self, x: Tensor, cos: Tensor, sin: Tensor):
        last = cos.ndim - 1
        return x * ops.cat([cos, cos], last) + _rolled(x) * ops.cat([-sin, sin], last)


class RotatePairs(Rewrite):
    """rotate_every_two of GPT-J, times a table of sines.

    before:  %s = stack([neg(%odd), %even], 4), %v = view(%s, [1, 8, 64, 64]), %y = mul(%v, %sin)
    after:   %y = mul(where([True, False, ...], next of %x, previous of %x), mul(%sin, [-1, 1, ...]))
    """

    def pattern(self, table: Tensor, x: Tensor = _ROWS, pairs: Tensor = _PAIRS):
        return either(
            *(ops.stack([-odd, even], -1).flatten(-2) * table for even, odd in _even_and_odd(x, pairs))
        )

    def check(self, match: Match) -> Verdict:
        return _fits(match, "table")

    def replacement(self, match: Match, editor: Editor, table: Tensor):
        x = _rows(match, editor)
        return _neighbours(x) * (table * _alternating(x))


class RotatePairsByProducts(Rewrite):
    """The same with products of the even and odd elements, by tables of half a row, as Llama's first code has it.

    before:  %s = sub(mul(%even, %cos), mul(%odd, %sin)), %a = add(mul(%even, %sin), mul(%odd, %cos)),
             %y = stack([%s, %a], 4)
    after:   %r = add(mul(%x, %cos2), mul(where([True, False, ...], next of %x, previous of %x), %sin2)),
             %y = view(%r, [1, 8, 64, 32, 2])
    """

    def pattern(self, cos: Tensor, sin: Tensor, x: Tensor = _ROWS, pairs: Tensor = _PAIRS):
        return either(
            *(
                ops.stack([even * cos - odd * sin, even * sin + odd * cos], -1)
                for even, odd in _even_and_odd(x, pairs)
            )
        )

    def check(self, match: Match) -> Verdict:
        return _fits(match, "cos", "sin")

    def replacement(self, match: Match, editor: Editor, cos: Tensor, sin: Tensor):
        x = _rows(match, editor)
        cosines, sines = _interleaved(cos, cos, cos.shape), _interleaved(-sin, sin, sin.shape)
        rows = editor.build(x * cosines + _neighbours(x) * sines, match.values)
        if not spec(rows).is_contiguous:
            # As the stack is; it is computed as it is written.
            rows = editor.call(aten.clone.default, rows, memory_format=torch.contiguous_format)
        return editor.call(aten.view.default, rows, list(spec(match.root).shape))


# --- the pieces of a row ----------------------------------------------------------------------------------------------


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    pieces = x.chunk(2, -1)
    return pieces[0], pieces[1]


def _even_and_odd(x: Tensor, pairs: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    """The elements at even and at odd places of a row, which may have a dimension for its pairs."""
    return (x[..., ::2], x[..., 1::2]), (pairs[..., 0], pairs[..., 1])


_PIECES = (aten.slice.Tensor, aten.select.int)


def _row_shape(match: Match) -> tuple[int, ...]:
    """The shape of the rows that are turned."""
    if match.has("x"):
        return match.spec("x").shape
    shape = match.spec("pairs").shape
    return (*shape[:-2], shape[-2] * 2)


def _fits(match: Match, *tables: str) -> Verdict:
    """Yes if the tables are known or shared by rows, so that making them ready is no work for each element."""
    root, rows = spec(match.root), _row_shape(match)
    if not same_sizes(root.shape, rows) and not same_sizes(root.shape, (*rows[:-1], rows[-1] // 2, 2)):
        return No("the rows are broadcast")
    if root.dtype not in (torch.float32, torch.float64) or any(
        match.spec(t).dtype is not root.dtype for t in tables
    ):
        return No(f"tables and rows are not of one type, float32 or float64: {root.dtype}")
    for table in (cast(fx.Node, match[name]) for name in tables):
        shape = spec(table).shape
        if not shape or same_size(shape[-1], 1):
            return No(f"{table.name} is no table of rows")
        own = (*(1 for _ in range(len(rows) - len(shape))), *shape)
        shared = any(same_size(a, 1) and not same_size(b, 1) for a, b in zip(own, rows, strict=True))
        if not shared and not is_constant(table):
            return No(f"{table.name} is another one for each row")
    # Others may read the pieces, which are no work.
    return replace(match, nodes=tuple(n for n in match.nodes if n.target not in _PIECES)).only_use()


# --- what stands in their place ---------------------------------------------------------------------------------------


def _rolled(x: Tensor) -> Any:
    return ops.roll(x, [x.shape[-1] // 2], [x.ndim - 1])


def _rows(match: Match, editor: Editor) -> Any:
    return Leaf(editor.reshape(match["x"] or match["pairs"], _row_shape(match)))


def _neighbours(x: Tensor) -> Any:
    """Each element's other of its pair: the next for those at even places, the previous for the others."""
    last, size = x.ndim - 1, x.shape[-1]
    following = ops.constant_pad_nd(aten.slice.Tensor(x, last, 1, size), [0, 1])
    preceding = ops.constant_pad_nd(aten.slice.Tensor(x, last, 0, size - 1), [1, 0])
    return ops.where(_alternating(x) < 0, following, preceding)


def _alternating(x: Tensor) -> Any:
    """-1 and 1 in turn, for a row of `x`."""
    return _interleaved(_ones(x, -1.0), _ones(x, 1.0), (x.shape[-1] // 2,))


def _ones(x: Tensor, sign: float) -> Any:
    """For half a row of `x`."""
    return ops.full([x.shape[-1] // 2], sign, dtype=x.dtype, device=x.device)


def _interleaved(a: Any, b: Any, shape: tuple[int, ...]) -> Any:
    """Rows of the elements of `a` and `b`, of this shape, in turn."""
    return ops.stack([a, b], len(shape)).view([*shape[:-1], shape[-1] * 2])


def rotary_rules() -> tuple[Rule, ...]:
    """All of them, in the order in which they are tried."""
    return tuple(map(as_rule, (RotateHalf(), RotateHalves(), RotatePairs(), RotatePairsByProducts())))
