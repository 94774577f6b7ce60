"""Layer norm, RMS norm, group norm and softmax written out by formula become the op that means them.

The native backend makes about the same loops of either (the op's are some percent faster); other backends run one op
in place of six, and attention is found by its softmax. Softmax without the maximum taken off stays: it overflows where
the op does not. So does logsumexp, whose op looks after infinities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx

from lampwork.graph.symbols import same_sizes
from lampwork.rewriting.apply.driver import Rewrite, Rule, as_rule
from lampwork.rewriting.language.combinators.either import either, maybe
from lampwork.rewriting.language.combinators.via import scaled
from lampwork.rewriting.language.functions import F, ops
from lampwork.rewriting.language.term import Term
from lampwork.rewriting.library.ranges import spec
from lampwork.rewriting.library.recognize import close
from lampwork.rewriting.matching.match import Match
from lampwork.standard import math
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten


def _mean(x: Any, dims: Any, scale: Any) -> Any:
    """The mean of `x`, or its sum times a number."""
    return either(x.mean(dims, True), scaled(x.sum(dims, True), scale))


def _over_root(value: Any, v: Any, eps: float) -> Term:
    return either(value / ops.sqrt(v + eps), value * ops.rsqrt(v + eps))


class LayerNormFormula(Rewrite):
    """The variance may be `var` without Bessel's correction, or the mean of the squares of what is centred.

    before:  %c = sub(%x, mean(%x, [2], True)), %v = mean(pow(%c, 2), [2], True),
             %y = div(%c, sqrt(add(%v, 1e-05)))
    after:   %y = layer_norm(%x, [768], eps=1e-05)

    With a weight inside:
    before:  %y = div(mul(%g, %c), sqrt(add(%v, 1e-05)))
    after:   %y = mul(%g, layer_norm(%x, [768], eps=1e-05))
    """

    def pattern(self, x: Tensor, dims: Any, scale: float, scale2: float, eps: float, g: Any):
        centred = aten.sub.Tensor(x, _mean(x, dims, scale))
        variance = either(x.var(dims, correction=0, keepdim=True), _mean(centred**2, dims, scale2))
        return _over_root(maybe("mul", centred, g, name="weighted"), variance, eps)

    def replacement(self, match: Match, x: Tensor, eps: float, g: Any):
        normed = F.layer_norm(x, _normed_shape(match), None, None, float(eps))
        return normed * g if match.has("weighted") else normed

    def check(self, match: Match) -> Verdict:
        return _normed(match, "scale", "scale2")


def _normed(match: Match, *scales: str) -> Verdict:
    """Whether the last dimensions are normalized. `scales`: what their sums are multiplied with to be means."""
    x, eps = match.spec("x"), match["eps"]
    if not x.dtype.is_floating_point:
        return No(f"the tensor is {x.dtype}")
    shape = _normed_shape(match)
    if not shape or any(type(size) is not int or size < 1 for size in shape):
        return No(f"the dimensions {match['dims']} of {x} are not its last, of known sizes")
    for scale in (match[name] for name in scales if match[name] is not None):
        if not close(scale * math.prod(shape), 1.0, torch.float64):
            return No(f"a sum times {scale} is no mean over the dimensions {match['dims']} of {x}")
    return Yes() if eps >= 0 else No(f"epsilon is {eps}")


def _normed_shape(match: Match) -> list[int]:
    """The sizes of the dimensions `dims` of `x`, none if they are not its last ones."""
    shape, dims = match.spec("x").shape, match["dims"] or []
    first = len(shape) - len(dims)
    return list(shape[first:]) if sorted(dims) == list(range(first, len(shape))) else []


class RmsNormFormula(Rewrite):
    """
    before:  %v = mean(pow(%x, 2), [2], True), %y = mul(%x, rsqrt(add(%v, 1e-06)))
    after:   %y = rms_norm(%x, [768], eps=1e-06)
    """

    def pattern(self, x: Tensor, dims: Any, scale: float, eps: float):
        return _over_root(x, _mean(x**2, dims, scale), eps)

    def replacement(self, match: Match, x: Tensor, eps: float):
        return F.rms_norm(x, _normed_shape(match), None, float(eps))

    def check(self, match: Match) -> Verdict:
        return _normed(match, "scale")


class WeightIntoLayerNorm(Rewrite):
    """
    before:  %n = layer_norm(%x, [768], eps=1e-05), %y = mul(%n, %g)
    after:   %y = layer_norm(%x, [768], %g, eps=1e-05)
    """

    def pattern(self, x: Tensor, shape: Any, eps: Any, g: Tensor):
        return F.layer_norm(x, shape, None, None, eps) * g

    def replacement(self, x: Tensor, shape: Any, eps: Any, g: Tensor):
        return F.layer_norm(x, shape, _as_parameter(g, shape), None, eps)

    def check(self, match: Match) -> Verdict:
        return match.only_use() and _parameter(match["g"], match["shape"], match.root)


class WeightIntoRmsNorm(Rewrite):
    """
    before:  %n = rms_norm(%x, [768], eps=1e-06), %y = mul(%n, %g)
    after:   %y = rms_norm(%x, [768], %g, eps=1e-06)
    """

    def pattern(self, x: Tensor, shape: Any, eps: Any, g: Tensor):
        return F.rms_norm(x, shape, None, eps) * g

    def replacement(self, x: Tensor, shape: Any, eps: Any, g: Tensor):
        return F.rms_norm(x, shape, _as_parameter(g, shape), eps)

    def check(self, match: Match) -> Verdict:
        return match.only_use() and _parameter(match["g"], match["shape"], match.root)


class BiasIntoLayerNorm(Rewrite):
    """
    before:  %n = layer_norm(%x, [768], %g, eps=1e-05), %y = add(%n, %b)
    after:   %y = layer_norm(%x, [768], %g, %b, 1e-05)
    """

    def pattern(self, x: Tensor, shape: Any, g: Any, eps: Any, b: Tensor):
        return F.layer_norm(x, shape, g, None, eps) + b

    def replacement(self, x: Tensor, shape: Any, g: Any, eps: Any, b: Tensor):
        return F.layer_norm(x, shape, g, _as_parameter(b, shape), eps)

    def check(self, match: Match) -> Verdict:
        return match.only_use() and _parameter(match["b"], match["shape"], match.root)


def _parameter(node: fx.Node, shape: Sequence[int], result: fx.Node) -> Verdict:
    """Whether `node` has one number for each normalized element, and the product or sum changed nothing else."""
    found = spec(node)
    if found.dtype is not spec(result).dtype:
        return No(f"{node.name} is {found.dtype}")
    extra = len(found.shape) - len(shape)
    if extra < 0 or not same_sizes(found.shape[extra:], tuple(shape)):
        return No(f"{node.name} is {found}, not one number for each of {list(shape)}")
    if any(type(s) is not int or s != 1 for s in found.shape[:extra]):
        return No(f"{node.name} is {found}, more than one number for each of {list(shape)}")
    if extra > len(spec(result).shape) - len(shape):
        return No(f"{node.name} is {found}, of more dimensions than what it scales")
    return Yes()


def _as_parameter(t: Tensor, shape: Sequence[int]) -> Tensor:
    return t if len(t.shape) == len(shape) else t.view(list(shape))


class GroupNormFormula(Rewrite):
    """A layer norm of the channels of each group.

    before:  %v = view(%x, [4, 8, 6272]), %n = layer_norm(%v, [6272], eps=1e-05), %y = view(%n, [4, 64, 28, 28])
    after:   %y = group_norm(%x, 8, eps=1e-05)
    """

    def pattern(self, x: Tensor, grouped: Any, shape: Any, eps: Any, back: Any):
        normed = F.layer_norm(aten.view.default(x, grouped), shape, None, None, eps)
        return aten.view.default(normed, back)

    def replacement(self, x: Tensor, grouped: Any, eps: Any):
        return F.group_norm(x, grouped[1], None, None, eps)

    def check(self, match: Match) -> Verdict:
        x, grouped = match.spec("x"), match["grouped"]
        if not same_sizes(x.shape, match.root.meta["val"].shape):
            return No("the result has another shape")
        if len(x.shape) < 3 or any(type(s) is not int for s in x.shape):
            return No(f"{x} has no fixed channels")
        if len(match["shape"]) != len(grouped) - 2 or grouped[0] != x.shape[0] or x.shape[1] % grouped[1]:
            return No(f"{grouped} are no groups of the channels of {x}")
        return match.only_use()


class WeightIntoGroupNorm(Rewrite):
    """
    before:  %n = group_norm(%x, 8, eps=1e-05), %y = mul(%n, view(%g, [1, 64, 1, 1]))
    after:   %y = group_norm(%x, 8, %g, eps=1e-05)
    """

    def pattern(self, x: Tensor, groups: Any, eps: Any, g: Tensor):
        return F.group_norm(x, groups, None, None, eps) * g

    def replacement(self, x: Tensor, groups: Any, eps: Any, g: Tensor):
        return F.group_norm(x, groups, _channels(g), None, eps)

    def check(self, match: Match) -> Verdict:
        return match.only_use() and _one_a_channel(match["g"], match.root)


class BiasIntoGroupNorm(Rewrite):
    """
    before:  %n = group_norm(%x, 8, %g, eps=1e-05), %y = add(%n, view(%b, [1, 64, 1, 1]))
    after:   %y = group_norm(%x, 8, %g, %b, 1e-05)
    """

    def pattern(self, x: Tensor, groups: Any, g: Any, eps: Any, b: Tensor):
        return F.group_norm(x, groups, g, None, eps) + b

    def replacement(self, x: Tensor, groups: Any, g: Any, eps: Any, b: Tensor):
        return F.group_norm(x, groups, g, _channels(b), eps)

    def check(self, match: Match) -> Verdict:
        return match.only_use() and _one_a_channel(match["b"], match.root)


def _channels(t: Tensor) -> Tensor:
    return t.view([math.prod(t.shape)])


def _one_a_channel(node: fx.Node, result: fx.Node) -> Verdict:
    found, whole = spec(node), spec(result)
    if found.dtype is not whole.dtype:
        return No(f"{node.name} is {found.dtype}")
    rank = len(whole.shape)
    expected = (whole.shape[1], *([1] * (rank - 2)))
    if tuple(found.shape) not in (expected, (1, *expected)):
        return No(f"{node.name} is {found}, not one number for each channel of {whole}")
    return Yes()


def _less_maximum(x: Tensor, d: int) -> Tensor:
    return x - cast(Tensor, either(x.amax([d], True), x.max(d, True)[0]))


class SoftmaxFormula(Rewrite):
    """
    before:  %e = exp(sub(%x, amax(%x, [2], True))), %y = div(%e, sum(%e, [2], True))
    after:   %y = softmax(%x, 2)
    """

    def pattern(self, x: Tensor, d: int):
        powers = ops.exp(_less_maximum(x, d))
        return powers / powers.sum([d], True)

    def replacement(self, x: Tensor, d: int):
        return ops.softmax(x, d)

    def check(self, match: Match) -> Verdict:
        return _floating(match) and match.only_use()


class LogSoftmaxFormula(Rewrite):
    """
    before:  %z = sub(%x, amax(%x, [2], True)), %y = sub(%z, log(sum(exp(%z), [2], True)))
    after:   %y = log_softmax(%x, 2)
    """

    def pattern(self, x: Tensor, d: int):
        centred = _less_maximum(x, d)
        return centred - ops.log(ops.exp(centred).sum([d], True))

    def replacement(self, x: Tensor, d: int):
        return ops.log_softmax(x, d)

    def check(self, match: Match) -> Verdict:
        return _floating(match) and match.only_use()


def _floating(match: Match) -> Verdict:
    dtype = match.spec("x").dtype
    return Yes() if dtype.is_floating_point else No(f"the tensor is {dtype}")


def normalization_rules() -> tuple[Rule, ...]:
    """All of them, in the order in which they are tried."""
    return tuple(
        map(
            as_rule,
            (
                LayerNormFormula,
                RmsNormFormula,
                WeightIntoLayerNorm,
                WeightIntoRmsNorm,
                BiasIntoLayerNorm,
                GroupNormFormula,
                WeightIntoGroupNorm,
                BiasIntoGroupNorm,
                SoftmaxFormula,
                LogSoftmaxFormula,
            ),
        )
    )
