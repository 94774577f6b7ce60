"""Rewrites of ops that move no data, and of casts: chains become one op, or none.

An op that does nothing by itself goes in the pass remove-noops. Where a chain comes to nothing the rewrite of the chain
sees to it, so that nothing of the kind appears while these run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lampwork.graph.dims import slice_bounds
from lampwork.graph.shapes_views import view_strides
from lampwork.graph.symbols import same_sizes
from lampwork.rewriting.apply.driver import Rewrite, Rule, as_rule, rule
from lampwork.rewriting.casts import is_lossless
from lampwork.rewriting.language.term import Call, Leaf, Term, call
from lampwork.rewriting.matching.match import Match
from lampwork.verdict import No, Verdict, Yes


class PermutePermute(Rewrite):
    """
    before:  permute(permute(x, [0, 2, 1]), [1, 0, 2])
    after:   permute(x, [2, 0, 1])
    """

    def pattern(self, x: Term, inner: Any, outer: Any) -> Call:
        return call("permute", call("permute", x, inner), outer)

    def replacement(self, x: Leaf, inner: Sequence[int], outer: Sequence[int]) -> Term:
        n = x.ndim
        dims = [inner[d % n] % n for d in outer]
        return x if dims == list(range(n)) else call("permute", x, dims)


class ViewView(Rewrite):
    """
    before:  view(view(x, [2, 6]), [3, 4])
    after:   view(x, [3, 4])
    """

    def pattern(self, x: Term, inner: Any, outer: Any) -> Call:
        return call("view.default", call("view.default", x, inner), outer)

    def replacement(self, x: Leaf, outer: Sequence[int]) -> Term:
        return _unless_same(x, outer, "view.default")

    def check(self, match: Match) -> Verdict:
        # Where the inner view was possible and the outer one after it, one step may still be impossible.
        before, after = match.spec("x"), match.root.meta["val"]
        strides = view_strides(before, after.shape)
        if strides is None:
            return No("a single view cannot do it")
        return Yes() if strides == after.strides else No("a single view has other strides")


class ExpandExpand(Rewrite):
    """
    before:  expand(expand(x, [4, 3]), [2, 4, 3])
    after:   expand(x, [2, 4, 3])
    """

    def pattern(self, x: Term, inner: Any, outer: Any) -> Call:
        return call("expand", call("expand", x, inner), outer)

    def replacement(self, x: Leaf, outer: Sequence[int]) -> Term:
        return _unless_same(x, outer, "expand")

    def check(self, match: Match) -> Verdict:
        return No("the outer shape is relative to the inner") if -1 in match["outer"] else Yes()


def _unless_same(x: Leaf, shape: Sequence[int], op: str) -> Term:
    return x if same_sizes(x.shape, tuple(shape)) else call(op, x, list(shape))


class SliceOfSlice(Rewrite):
    """
    before:  slice(slice(x, 0, 2, 10), 0, 1, 4)
    after:   slice(x, 0, 3, 6)
    """

    def pattern(self, x: Term, dim: Any, a: Any, b: Any, c: Any, d: Any) -> Call:
        return call("slice.Tensor", call("slice.Tensor", x, dim, a, b), dim, c, d)

    def replacement(
        self, x: Leaf, dim: int, a: int | None, b: int | None, c: int | None, d: int | None
    ) -> Term:
        first, end = slice_bounds(x.shape[dim], a, b)
        start, stop = slice_bounds(end - first, c, d)
        return call("slice.Tensor", x, dim, first + start, first + stop)


class CastOfCast(Rewrite):
    """A cast through a dtype that holds every value of the source.

    before:  _to_copy(_to_copy(x, dtype=float32), dtype=bfloat16) of x: float16
    after:   _to_copy(x, dtype=bfloat16)
    """

    def pattern(self, x: Term, middle: Any, last: Any) -> Call:
        return call("_to_copy", call("_to_copy", x, dtype=middle), dtype=last)

    def replacement(self, x: Leaf, last: torch.dtype) -> Term:
        return x if x.dtype is last else call("_to_copy", x, dtype=last)

    def check(self, match: Match) -> Verdict:
        source, middle = match.spec("x").dtype, match["middle"]
        if not isinstance(middle, torch.dtype) or not isinstance(match["last"], torch.dtype):
            return No("no cast of the dtype")
        return Yes() if is_lossless(source, middle) else No(f"{middle} does not hold every {source}")


def view_rules() -> tuple[Rule, ...]:
    """All of them, in the order in which they are tried."""
    return (
        *map(as_rule, (PermutePermute(), ViewView(), ExpandExpand(), SliceOfSlice(), CastOfCast())),
        rule("squeeze.dim(unsqueeze(x, d:any), d)", "x"),
        rule("cat([x], ...)", "x"),
    )
