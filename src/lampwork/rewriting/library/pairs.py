"""Pairs of pointwise ops that ATen has one kernel for.

The native backend fuses any number of pointwise ops by itself and gains nothing; a backend that calls ATen's kernels op
by op reads and writes memory half as often. So they are applied where they are asked for: `passes="+fuse-pairs"`.
"""

from __future__ import annotations

from torch import Tensor

from lampwork.rewriting.apply.driver import Rewrite, Rule, as_rule
from lampwork.rewriting.language.functions import ops
from lampwork.rewriting.matching.match import Match
from lampwork.verdict import No, Verdict, Yes


class AddDiv(Rewrite):
    """
    before:  %q = div(%y, %z), %a = add(%x, %q)
    after:   %a = addcdiv(%x, %y, %z)
    """

    def pattern(self, x: Tensor, y: Tensor, z: Tensor):
        return x + y / z

    def replacement(self, x: Tensor, y: Tensor, z: Tensor):
        return ops.addcdiv(x, y, z)

    def check(self, match: Match) -> Verdict:
        return _same_dtype(match, "x", "y", "z") and match.only_use()


class AddMul(Rewrite):
    """
    before:  %p = mul(%y, %z), %a = add(%x, %p)
    after:   %a = addcmul(%x, %y, %z)
    """

    def pattern(self, x: Tensor, y: Tensor, z: Tensor):
        return x + y * z

    def replacement(self, x: Tensor, y: Tensor, z: Tensor):
        return ops.addcmul(x, y, z)

    def check(self, match: Match) -> Verdict:
        return _same_dtype(match, "x", "y", "z") and match.only_use()


def _same_dtype(match: Match, *names: str) -> Verdict:
    dtypes = {match.spec(name).dtype for name in names}
    if len(dtypes) > 1 or not all(dtype.is_floating_point and dtype.itemsize >= 4 for dtype in dtypes):
        return No(f"the tensors are {', '.join(sorted(map(str, dtypes)))}")
    return Yes()


def pair_rules() -> tuple[Rule, ...]:
    """All of them, in the order in which they are tried."""
    return as_rule(AddDiv), as_rule(AddMul)
