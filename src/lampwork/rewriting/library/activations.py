"""Activations written out by formula become the op that means them.

The native backend makes the same loop of either; other backends run one op in place of five. Formulas that overflow
where the op does not (`log(1 + exp(x))` for softplus) stay: infinity is eager's answer there. So do those that the
native backend computes faster than the op, which is more careful: `1 / (1 + exp(-x))` for sigmoid, and mish with
`log(1 + exp(x))`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lampwork.graph.symbols import same_sizes
from lampwork.rewriting.apply.driver import Rewrite, Rule, as_rule, rule
from lampwork.rewriting.language.combinators.either import either
from lampwork.rewriting.language.combinators.via import scaled
from lampwork.rewriting.language.functions import F, ops
from lampwork.rewriting.library.recognize import close, polynomial
from lampwork.rewriting.matching.match import Match
from lampwork.standard import math
from lampwork.verdict import No, Verdict, Yes

LINES: Mapping[str, tuple[str, str]] = {
    "silu_by_exp": ("div(x, add(exp(neg(x)), 1))", "silu(x)"),
    "silu_by_reciprocal": ("mul(x, mul(reciprocal(add(exp(neg(x)), 1)), 1))", "silu(x)"),
    "silu_by_sigmoid": ("mul(x, sigmoid(x))", "silu(x)"),
    "mish_by_softplus": ("mul(x, tanh(softplus(x, 1, 20)))", "mish(x)"),
    "mish_by_log1p": ("mul(x, tanh(log1p(exp(x))))", "mish(x)"),
}
"""Rewrites in a line: pattern and replacement by name."""


class GeluFormula(Rewrite):
    """GELU by the error function, or by the hyperbolic tangent of a cubic; constants as exact as they are written.
    The cubic is read by `polynomial`: there are dozens of ways to write it.

    before:  %e = erf(div(%x, 1.4142135)), %y = mul(mul(%x, 0.5), add(%e, 1.0))
    after:   %y = gelu(%x)

    before:  %t = tanh(mul(add(%x, mul(pow(%x, 3), 0.044715)), 0.7978845608)), %y = mul(mul(%x, 0.5), add(%t, 1))
    after:   %y = gelu(%x, approximate="tanh")
    """

    def __init__(self, function: str) -> None:
        self.function = function
        self.name = f"gelu_by_{function}"
        self.inner = {1: math.sqrt(0.5)}
        if function == "tanh":
            self.inner = {1: math.sqrt(2 / math.pi), 3: math.sqrt(2 / math.pi) * 0.044715}

    def pattern(self, x: Tensor, u: Tensor):
        t = 1 + getattr(ops, self.function)(u)
        return either(scaled(x, 0.5) * t, x * scaled(t, 0.5), scaled(x * t, 0.5))

    def replacement(self, x: Tensor):
        return F.gelu(x, approximate="tanh" if self.function == "tanh" else "none")

    def check(self, match: Match) -> Verdict:
        dtype = match.spec("x").dtype
        if not dtype.is_floating_point:
            return No(f"the tensor is {dtype}")
        found = polynomial(match["u"], match["x"])
        if found is None:
            return No(f"the {self.function} is of no polynomial in {match['x'].name}")
        terms = {power: value for power, value in found.items() if value}
        if terms.keys() != self.inner.keys() or not all(
            close(value, self.inner[power], dtype) for power, value in terms.items()
        ):
            return No(f"the {self.function} is of {_text(terms)}, that of gelu of {_text(self.inner)}")
        return _pointwise(match)


def _text(terms: Mapping[int, float]) -> str:
    return " + ".join(f"{value:.10g} x^{power}" for power, value in sorted(terms.items()))


class HardsigmoidFormula(Rewrite):
    """
    before:  %r = hardtanh(add(%x, 3), 0, 6), %y = div(%r, 6)
    after:   %y = hardsigmoid(%x)
    """

    def pattern(self, x: Tensor):
        return F.relu6(x + 3) / 6

    def replacement(self, x: Tensor):
        return F.hardsigmoid(x)

    def check(self, match: Match) -> Verdict:
        return _unrounded(match) and _pointwise(match)


class HardswishFormula(Rewrite):
    """
    before:  %r = hardtanh(add(%x, 3), 0, 6), %y = div(mul(%x, %r), 6)
    after:   %y = hardswish(%x)
    """

    def pattern(self, x: Tensor):
        return x * F.relu6(x + 3) / 6

    def replacement(self, x: Tensor):
        return F.hardswish(x)

    def check(self, match: Match) -> Verdict:
        return _unrounded(match) and _pointwise(match)


def _unrounded(match: Match) -> Verdict:
    if match.spec("x").dtype in (torch.float16, torch.bfloat16):
        return No("the formula rounds each of its steps to a half type")
    return Yes()


class ClampToRelu(Rewrite):
    """What has a fused form with a convolution or a linear layer. torch's relu is this very clamp.

    before:  %y = clamp(%x, 0)
    after:   %y = relu(%x)
    """

    def pattern(self, x: Tensor):
        return torch.ops.aten.clamp.default(x, 0)

    def replacement(self, x: Tensor):
        return ops.relu(x)

    def check(self, match: Match) -> Verdict:
        return _pointwise(match)


class SoftplusFormula(Rewrite):
    """Softplus by its stable formula. Beyond 20 the op gives x itself, which is the same number in float32.

    before:  %y = add(relu(%x), log1p(exp(neg(abs(%x)))))
    after:   %y = softplus(%x)
    """

    def pattern(self, x: Tensor):
        return F.relu(x) + ops.log1p(ops.exp(-x.abs()))

    def replacement(self, x: Tensor):
        return F.softplus(x)

    def check(self, match: Match) -> Verdict:
        if match.spec("x").dtype is torch.float64:
            return No("softplus is x beyond 20, 2e-9 from its formula")
        return _pointwise(match)


class SoftplusAboveThreshold(Rewrite):
    """
    before:  %y = where(gt(%x, 20), %x, log1p(exp(%x)))
    after:   %y = softplus(%x, 1, 20)
    """

    def pattern(self, x: Tensor, threshold: float):
        return ops.where(x > threshold, x, ops.log1p(ops.exp(x)))

    def replacement(self, x: Tensor, threshold: float):
        return F.softplus(x, 1, threshold)

    def check(self, match: Match) -> Verdict:
        return _pointwise(match)


def _pointwise(match: Match) -> Verdict:
    """Whether the match computes floating numbers, one for each of `x`, which nothing else reads halfway. A number of a
    formula may stand in the graph as a larger tensor filled with it."""
    x, result = match.spec("x"), match.root.meta["val"]
    if not x.dtype.is_floating_point:
        return No(f"the tensor is {x.dtype}")
    if x.dtype is not result.dtype or not same_sizes(x.shape, result.shape):
        return No(f"the result is {result}, the tensor {x}")
    return match.only_use()


def activation_rules() -> tuple[Rule, ...]:
    """All of them, in the order in which they are tried."""
    formulas = (HardswishFormula, HardsigmoidFormula, SoftplusFormula, SoftplusAboveThreshold)
    return (
        *(as_rule(GeluFormula(function)) for function in ("erf", "tanh")),
        as_rule(ClampToRelu),
        *(rule(*line, name=name, check=_pointwise) for name, line in LINES.items()),
        *map(as_rule, formulas),
    )
