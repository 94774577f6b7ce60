"""Rewrites of ops that move no data, and of casts: chains become one op, or none.

An op that does nothing by itself goes in the pass remove-noops. Where a chain comes to nothing the rewrite of the chain
sees to it, so that nothing of the kind appears while these run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lampwork.graph.dims import slice_bounds
from lampwork.graph.shapes_views import view_strides
from lampwork.graph.symbols import same_sizes
from lampwork.rewriting.apply.driver import Rewrite, Rule, as_rule, rule
from lampwork.rewriting.casts import is_lossless
from lampwork.rewriting.matching.match import Match
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten


class PermutePermute(Rewrite):
    """
    before:  permute(permute(x, [0, 2, 1]), [1, 0, 2])
    after:   permute(x, [2, 0, 1])
    """

    def pattern(self, x: Tensor, inner: Any, outer: Any):
        return x.permute(inner).permute(outer)

    def replacement(self, x: Tensor, inner: Sequence[int], outer: Sequence[int]):
        dims = [inner[d] % x.ndim for d in outer]
        return x if dims == list(range(x.ndim)) else x.permute(dims)


class ViewView(Rewrite):
    """
    before:  view(view(x, [2, 6]), [3, 4])
    after:   view(x, [3, 4])
    """

    def pattern(self, x: Tensor, inner: Any, outer: Any):
        return aten.view.default(aten.view.default(x, inner), outer)

    def replacement(self, x: Tensor, outer: Sequence[int]):
        return x if same_sizes(x.shape, tuple(outer)) else aten.view.default(x, outer)

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

    def pattern(self, x: Tensor, inner: Any, outer: Any):
        return x.expand(inner).expand(outer)

    def replacement(self, x: Tensor, outer: Sequence[int]):
        return x if same_sizes(x.shape, tuple(outer)) else x.expand(outer)

    def check(self, match: Match) -> Verdict:
        return No("the outer shape is relative to the inner") if -1 in match["outer"] else Yes()


class SliceOfSlice(Rewrite):
    """
    before:  slice(slice(x, 0, 2, 10), 0, 1, 4)
    after:   slice(x, 0, 3, 6)
    """

    def pattern(self, x: Tensor, dim: Any, a: Any, b: Any, c: Any, d: Any):
        return aten.slice.Tensor(aten.slice.Tensor(x, dim, a, b), dim, c, d)

    def replacement(self, x: Tensor, dim: int, a: int | None, b: int | None, c: int | None, d: int | None):
        first, end = slice_bounds(x.shape[dim], a, b)
        start, stop = slice_bounds(end - first, c, d)
        return aten.slice.Tensor(x, dim, first + start, first + stop)


class CastOfCast(Rewrite):
    """A cast through a dtype that holds every value of the source.

    before:  _to_copy(_to_copy(x, dtype=float32), dtype=bfloat16) of x: float16
    after:   _to_copy(x, dtype=bfloat16)
    """

    def pattern(self, x: Tensor, middle: Any, last: Any):
        return aten._to_copy.default(aten._to_copy.default(x, dtype=middle), dtype=last)

    def replacement(self, x: Tensor, last: torch.dtype):
        return x if x.dtype is last else aten._to_copy.default(x, dtype=last)

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
