"""The ways in which a graph may spell what a pattern calls.

A pattern is written with any op of torch; graphs have one spelling for each thing after the pass canonicalize, and any
before it. `spellings(call)` lists what to look for:

* the op itself: dimensions count from the front or the back, an int is a list of one, left-out arguments are defaults
* what moves elements alike: transpose, t, mT, movedim, permute; reshape, view, flatten, a copy and a view; narrow,
  slice, chunk, split; a cast by `.float()`, `to`, `_to_copy`, or no cast where the dtype is so already; contiguous
* products: mm, bmm, matmul, addmm, and linear with the transposed matrix
* formulas of the same values: pow(x, 2), x * x and square; sqrt, rsqrt, reciprocal and their powers; a - b and
  a + -b; masked_fill and where; amax and max over a dimension; ...

A call with a named rest of its arguments is looked for as it stands. A call whose overload is named ("mul.Tensor") is
not looked for as another formula: so a line of algebra can tell pow(x, 2) from x * x.
"""

from __future__ import annotations

from typing import Any

from lampwork.rewriting.language.term import PARTING, Call
from lampwork.rewriting.language.traverse import rest_of
from lampwork.rewriting.matching.equivalences.formulas import FORMULAS
from lampwork.rewriting.matching.equivalences.moves import MOVES, parts, takes_in
from lampwork.rewriting.matching.equivalences.parts import literal, own
from lampwork.standard import functools


@functools.lru_cache(maxsize=16384)
def spellings(term: Call) -> tuple[Any, ...]:
    """What a value may be in place of `term`: calls of the form "final", which match as they stand, and other terms.

    before:  rsqrt(x)
    after:   rsqrt(x), pow.Tensor_Scalar(x, -0.5), reciprocal(sqrt(x)), mul.Tensor(reciprocal(sqrt(x)), 1), ...
    """
    if term.form == "final":
        return (term,)
    if next(rest_of(term), None) is not None:
        # The rest are arguments of the op that is called, and no other's.
        return (own(term),)
    found: list[Any] = [own(term)]
    if term.name in MOVES:
        moves = list(MOVES[term.name](term))
        # A permutation by its dimensions, or a part by its bounds, takes in the call itself.
        found = moves if moves and takes_in(term, moves[0]) else [*found, *moves]
    if term.form == "any" and term.name in FORMULAS:
        found.extend(FORMULAS[term.name](term))
    if term.name == "getitem":
        source, index = next(iter(term.values.values()))
        number = literal(index)
        if isinstance(source, Call) and source.name in PARTING and isinstance(number, int):
            found.extend(parts(source, number))
    return tuple(found)
