"""Layer norm, RMS norm, group norm and softmax written out by formula become the op that means them.

The native backend makes about the same loops of either (the op's are some percent faster); other backends run one op
in place of six, and attention is found by its softmax. Softmax without the maximum taken off stays: it overflows where
the op does not. So does logsumexp, whose op looks after infinities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.symbols import same_sizes
from lampwork.rewriting.apply.driver import Rewrite, Rule, as_rule
from lampwork.rewriting.language.term import Call, Leaf, Term, call
from lampwork.rewriting.library.recognize import (
    is_number,
    mean_dims,
    mean_square_dims,
    spec,
    trailing_shape,
    variance_dims,
)
from lampwork.rewriting.matching.match import Match
from lampwork.rewriting.schema import bound_args
from lampwork.standard import math
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten

# The ways to divide by the square root of v + eps.
_ROOTS = ("div sqrt", "mul rsqrt", "div pow", "mul pow")


def _over_root(value: Term, v: Term, eps: Any, root: str) -> Call:
    shifted = call("add.Tensor", v, eps)
    match root:
        case "div sqrt":
            return call("div.Tensor", value, call("sqrt", shifted))
        case "mul rsqrt":
            return call("mul.Tensor", value, call("rsqrt", shifted))
        case "div pow":
            return call("div.Tensor", value, call("pow.Tensor_Scalar", shifted, 0.5))
        case _:
            return call("mul.Tensor", value, call("pow.Tensor_Scalar", shifted, -0.5))


class LayerNormFormula(Rewrite):
    """The variance may be `var` without Bessel's correction, or the mean of the squares of what is centred.

    before:  %c = sub(%x, mean(%x, [2], True)), %v = mean(pow(%c, 2), [2], True),
             %y = div(%c, sqrt(add(%v, 1e-05)))
    after:   %y = layer_norm(%x, [768], eps=1e-05)

    With a weight inside:
    before:  %y = div(mul(%g, %c), sqrt(add(%v, 1e-05)))
    after:   %y = mul(%g, layer_norm(%x, [768], eps=1e-05))
    """

    name = "layer_norm_formula"

    def __init__(self, root: str, weighted: bool) -> None:
        self.root, self.weighted = root, weighted

    def pattern(self, x: Term, m: Term, v: Term, eps: float, g: Any) -> Call:
        centred = call("sub.Tensor", x, m)
        if self.weighted:
            centred = call("mul.Tensor", g, centred)
        return _over_root(centred, v, eps, self.root)

    def replacement(self, x: Leaf, m: Leaf, eps: float, g: Any) -> Call:
        shape = trailing_shape(x.node, mean_dims(m.node, x.node) or [])
        normed = call("layer_norm", x, shape, None, None, float(eps))
        return call("mul.Tensor", normed, g) if self.weighted else normed

    def check(self, match: Match) -> Verdict:
        x = cast(fx.Node, match["x"])
        centred = next(n for n in match.nodes if n.target is aten.sub.Tensor)
        dims = mean_dims(match["m"], x)
        if dims is None:
            return No(f"{match['m'].name} is no mean of {x.name}")
        if variance_dims(match["v"], x, centred) != dims:
            return No(f"{match['v'].name} is not the variance of {x.name} over the dimensions {dims}")
        return _normed(x, dims, match["eps"])


class _PlainLayerNorm(LayerNormFormula):
    """Without a weight inside: the pattern has no variable for it."""

    def __init__(self, root: str) -> None:
        super().__init__(root, weighted=False)

    def pattern(self, x: Term, m: Term, v: Term, eps: float) -> Call:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().pattern(x, m, v, eps, None)

    def replacement(self, x: Leaf, m: Leaf, eps: float) -> Call:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().replacement(x, m, eps, None)


def _normed(x: fx.Node, dims: Sequence[int], eps: float) -> Verdict:
    if not spec(x).dtype.is_floating_point:
        return No(f"the tensor is {spec(x).dtype}")
    if trailing_shape(x, dims) is None:
        return No(f"the dimensions {list(dims)} of {spec(x)} are not its last, of known sizes")
    if not is_number(eps) or eps < 0:
        return No(f"epsilon is {eps}")
    return Yes()


class RmsNormFormula(Rewrite):
    """
    before:  %v = mean(pow(%x, 2), [2], True), %y = mul(%x, rsqrt(add(%v, 1e-06)))
    after:   %y = rms_norm(%x, [768], eps=1e-06)
    """

    name = "rms_norm_formula"

    def __init__(self, root: str) -> None:
        self.root = root

    def pattern(self, x: Term, v: Term, eps: float) -> Call:
        return _over_root(x, v, eps, self.root)

    def replacement(self, match: Match) -> Call:
        x = match["x"]
        shape = trailing_shape(x, mean_square_dims(match["v"], x) or [])
        return call("rms_norm", Leaf(x), shape, None, float(match["eps"]))

    def check(self, match: Match) -> Verdict:
        x, v = match["x"], match["v"]
        dims = mean_square_dims(v, x)
        if dims is None:
            return No(f"{v.name} is not the mean of the squares of {x.name}")
        return _normed(x, dims, match["eps"])


class WeightIntoNorm(Rewrite):
    """
    before:  %n = layer_norm(%x, [768], eps=1e-05), %y = mul(%n, %g)
    after:   %y = layer_norm(%x, [768], %g, eps=1e-05)
    """

    def __init__(self, norm: str) -> None:
        self.norm = norm
        self.name = f"weight_into_{norm}"

    def pattern(self, x: Term, shape: Any, eps: Any, g: Term) -> Call:
        normed = (
            call("rms_norm", x, shape, None, eps)
            if self.norm == "rms_norm"
            else call("layer_norm", x, shape, None, None, eps, ...)
        )
        return call("mul.Tensor", normed, g)

    def replacement(self, x: Leaf, shape: Any, eps: Any, g: Leaf) -> Call:
        weight = _as_parameter(g, shape)
        if self.norm == "rms_norm":
            return call("rms_norm", x, shape, weight, eps)
        return call("layer_norm", x, shape, weight, None, eps)

    def check(self, match: Match) -> Verdict:
        return match.only_use() and _parameter(match["g"], match["shape"], match.root)


class BiasIntoLayerNorm(Rewrite):
    """
    before:  %n = layer_norm(%x, [768], %g, eps=1e-05), %y = add(%n, %b)
    after:   %y = layer_norm(%x, [768], %g, %b, 1e-05)
    """

    def pattern(self, x: Term, shape: Any, g: Any, eps: Any, b: Term) -> Call:
        return call("add.Tensor", call("layer_norm", x, shape, g, None, eps, ...), b)

    def replacement(self, x: Leaf, shape: Any, g: Any, eps: Any, b: Leaf) -> Call:
        return call("layer_norm", x, shape, g, _as_parameter(b, shape), eps)

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


def _as_parameter(node: Leaf, shape: Sequence[int]) -> Term:
    return node if len(node.shape) == len(shape) else call("view.default", node, list(shape))


class GroupNormFormula(Rewrite):
    """A layer norm of the channels of each group.

    before:  %v = view(%x, [4, 8, 6272]), %n = layer_norm(%v, [6272], eps=1e-05), %y = view(%n, [4, 64, 28, 28])
    after:   %y = group_norm(%x, 8, eps=1e-05)
    """

    def pattern(self, x: Term, grouped: Any, shape: Any, eps: Any, back: Any) -> Call:
        normed = call("layer_norm", call("view.default", x, grouped), shape, None, None, eps, ...)
        return call("view.default", normed, back)

    def replacement(self, x: Leaf, grouped: Any, eps: Any) -> Call:
        return call("group_norm", x, grouped[1], None, None, eps)

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

    def pattern(self, x: Term, groups: Any, eps: Any, g: Term) -> Call:
        return call("mul.Tensor", call("group_norm", x, groups, None, None, eps, ...), g)

    def replacement(self, x: Leaf, groups: Any, eps: Any, g: Leaf) -> Call:
        return call("group_norm", x, groups, _channels(g), None, eps)

    def check(self, match: Match) -> Verdict:
        return match.only_use() and _one_a_channel(match["g"], match.root)


class BiasIntoGroupNorm(Rewrite):
    """
    before:  %n = group_norm(%x, 8, %g, eps=1e-05), %y = add(%n, view(%b, [1, 64, 1, 1]))
    after:   %y = group_norm(%x, 8, %g, %b, 1e-05)
    """

    def pattern(self, x: Term, groups: Any, g: Any, eps: Any, b: Term) -> Call:
        return call("add.Tensor", call("group_norm", x, groups, g, None, eps, ...), b)

    def replacement(self, x: Leaf, groups: Any, g: Any, eps: Any, b: Leaf) -> Call:
        return call("group_norm", x, groups, g, _channels(b), eps)

    def check(self, match: Match) -> Verdict:
        return match.only_use() and _one_a_channel(match["b"], match.root)


def _channels(node: Leaf) -> Call:
    return call("view.default", node, [math.prod(node.shape)])


def _one_a_channel(node: fx.Node, result: fx.Node) -> Verdict:
    found, whole = spec(node), spec(result)
    if found.dtype is not whole.dtype:
        return No(f"{node.name} is {found.dtype}")
    rank = len(whole.shape)
    expected = (whole.shape[1], *([1] * (rank - 2)))
    if tuple(found.shape) not in (expected, (1, *expected)):
        return No(f"{node.name} is {found}, not one number for each channel of {whole}")
    return Yes()


class SoftmaxFormula(Rewrite):
    """
    before:  %e = exp(sub(%x, amax(%x, [2], True))), %y = div(%e, sum(%e, [2], True))
    after:   %y = softmax(%x, 2)
    """

    name = "softmax_formula"

    def pattern(self, x: Term, m: Term, d: Any) -> Call:
        powers = call("exp", call("sub.Tensor", x, m))
        return call("div.Tensor", powers, call("sum.dim_IntList", powers, [d], True))

    def replacement(self, x: Leaf, d: int) -> Call:
        return call("softmax.int", x, d)

    def check(self, match: Match) -> Verdict:
        return _takes_off_maximum(match) and match.only_use()


class LogSoftmaxFormula(Rewrite):
    """
    before:  %z = sub(%x, amax(%x, [2], True)), %y = sub(%z, log(sum(exp(%z), [2], True)))
    after:   %y = log_softmax(%x, 2)
    """

    name = "log_softmax_formula"

    def pattern(self, x: Term, m: Term, d: Any) -> Call:
        centred = call("sub.Tensor", x, m)
        total = call("sum.dim_IntList", call("exp", centred), [d], True)
        return call("sub.Tensor", centred, call("log", total))

    def replacement(self, x: Leaf, d: int) -> Call:
        return call("log_softmax.int", x, d)

    def check(self, match: Match) -> Verdict:
        return _takes_off_maximum(match) and match.only_use()


def _takes_off_maximum(match: Match) -> Verdict:
    """Whether `m` is the maximum of x along d: amax, or the first result of max."""
    x, m, d = match["x"], match["m"], match["d"]
    if not spec(x).dtype.is_floating_point:
        return No(f"the tensor is {spec(x).dtype}")
    if m.target is aten.amax.default:
        source, dims, keepdim = bound_args(m)
        if source is x and list(dims) == [d] and keepdim:
            return Yes()
    elif m.op == "call_function" and m.args and getattr(m.args[0], "target", None) is aten.max.dim:
        source, dim, keepdim = bound_args(cast(fx.Node, m.args[0]))
        if source is x and dim == d and keepdim and m.args[1] == 0:
            return Yes()
    return No(f"{m.name} is not the maximum of {x.name} along dimension {d}")


def normalization_rules() -> tuple[Rule, ...]:
    """All of them, in the order in which they are tried."""
    return (
        *(as_rule(_PlainLayerNorm(root)) for root in _ROOTS),
        *(as_rule(LayerNormFormula(root, weighted=True)) for root in _ROOTS),
        *(as_rule(RmsNormFormula(root)) for root in _ROOTS),
        *(as_rule(WeightIntoNorm(norm)) for norm in ("layer_norm", "rms_norm")),
        as_rule(BiasIntoLayerNorm()),
        as_rule(GroupNormFormula()),
        as_rule(WeightIntoGroupNorm()),
        as_rule(BiasIntoGroupNorm()),
        as_rule(SoftmaxFormula()),
        as_rule(LogSoftmaxFormula()),
    )
