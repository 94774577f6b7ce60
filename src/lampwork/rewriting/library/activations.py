"""Activations written out by formula become the op that means them.

The native backend makes the same loop of either; other backends run one op in place of five. Formulas that overflow
where the op does not (`log(1 + exp(x))` for softplus) stay: infinity is eager's answer there. So do those that the
native backend computes faster than the op, which is more careful: `1 / (1 + exp(-x))` for sigmoid, and mish with
`log(1 + exp(x))`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from lampwork.rewriting.apply.driver import Rewrite, Rule, as_rule, rule
from lampwork.rewriting.language.term import Call, Term, call
from lampwork.rewriting.library.recognize import close, polynomial
from lampwork.rewriting.matching.match import Match
from lampwork.standard import math
from lampwork.verdict import No, Verdict, Yes

Outer = Callable[[Term, Term, Any], Call]

# The ways to write x * t / 2, by whether `half` is a factor or a divisor.
_HALVES: Mapping[str, tuple[bool, Outer]] = {
    "(x * h) * t": (True, lambda x, t, h: call("mul.Tensor", call("mul.Tensor", x, h), t)),
    "x * (t * h)": (True, lambda x, t, h: call("mul.Tensor", x, call("mul.Tensor", t, h))),
    "(x * t) * h": (True, lambda x, t, h: call("mul.Tensor", call("mul.Tensor", x, t), h)),
    "(x / h) * t": (False, lambda x, t, h: call("mul.Tensor", call("div.Tensor", x, h), t)),
    "x * (t / h)": (False, lambda x, t, h: call("mul.Tensor", x, call("div.Tensor", t, h))),
    "(x * t) / h": (False, lambda x, t, h: call("div.Tensor", call("mul.Tensor", x, t), h)),
}


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

    before:  %e = erf(div(%x, 1.4142135)), %y = mul(mul(%x, 0.5), add(%e, 1.0))
    after:   %y = gelu(%x)

    before:  %t = tanh(mul(add(%x, mul(pow(%x, 3), 0.044715)), 0.7978845608)), %y = mul(mul(%x, 0.5), add(%t, 1))
    after:   %y = gelu(%x, approximate="tanh")
    """

    def __init__(self, function: str, product: str) -> None:
        self.function = function
        self.by_factor, self.outer = _HALVES[product]
        self.name = f"gelu_by_{function}"
        inner = {1: math.sqrt(0.5)}
        if function == "tanh":
            inner = {1: math.sqrt(2 / math.pi), 3: math.sqrt(2 / math.pi) * 0.044715}
        self.inner = inner

    def pattern(self, x: Term, u: Term, one: float, half: float) -> Call:
        return self.outer(x, call("add.Tensor", call(self.function, u), one), half)

    def replacement(self, x: Term) -> Call:
        if self.function == "tanh":
            return call("gelu", x, approximate="tanh")
        return call("gelu", x)

    def check(self, match: Match) -> Verdict:
        dtype = match.spec("x").dtype
        if not dtype.is_floating_point:
            return No(f"the tensor is {dtype}")
        if match["one"] != 1 or match["half"] != (0.5 if self.by_factor else 2):
            return No(f"the constants are {match['half']} and {match['one']}")
        found = polynomial(match["u"], match["x"])
        if found is None:
            return No(f"the {self.function} is of no polynomial in {match['x'].name}")
        terms = {power: value for power, value in found.items() if value}
        if terms.keys() != self.inner.keys() or not all(
            close(value, self.inner[power], dtype) for power, value in terms.items()
        ):
            return No(f"the {self.function} is of {_shown(terms)}, that of gelu of {_shown(self.inner)}")
        return match.only_use()


def _shown(terms: Mapping[int, float]) -> str:
    return " + ".join(f"{value:.10g} x^{power}" for power, value in sorted(terms.items()))


class HardsigmoidFormula(Rewrite):
    """
    before:  %r = hardtanh(add(%x, 3), 0, 6), %y = div(%r, 6)
    after:   %y = hardsigmoid(%x)
    """

    name = "hardsigmoid_formula"

    def __init__(self, clip: str) -> None:
        self.clip = clip

    def pattern(self, x: Term, three: float, six: float, low: float, high: float) -> Call:
        return call("div.Tensor", call(self.clip, call("add.Tensor", x, three), low, high), six)

    def replacement(self, x: Term) -> Call:
        return call("hardsigmoid", x)

    def check(self, match: Match) -> Verdict:
        return _hard_constants(match) and match.only_use()


class HardswishFormula(Rewrite):
    """
    before:  %r = hardtanh(add(%x, 3), 0, 6), %y = div(mul(%x, %r), 6)
    after:   %y = hardswish(%x)
    """

    name = "hardswish_formula"

    def __init__(self, clip: str) -> None:
        self.clip = clip

    def pattern(self, x: Term, three: float, six: float, low: float, high: float) -> Call:
        clipped = call(self.clip, call("add.Tensor", x, three), low, high)
        return call("div.Tensor", call("mul.Tensor", x, clipped), six)

    def replacement(self, x: Term) -> Call:
        return call("hardswish", x)

    def check(self, match: Match) -> Verdict:
        return _hard_constants(match) and match.only_use()


def _hard_constants(match: Match) -> Verdict:
    found = [match[name] for name in ("three", "low", "high", "six")]
    if found != [3, 0, 6, 6]:
        return No(f"the constants are {found}, not [3, 0, 6, 6]")
    if match.spec("x").dtype in (torch.float16, torch.bfloat16):
        return No("the formula rounds each of its steps to a half type")
    return _floating(match)


class ClampToRelu(Rewrite):
    """What has a fused form with a convolution or a linear layer. torch's relu is this very clamp.

    before:  %y = clamp(%x, 0)
    after:   %y = relu(%x)
    """

    def pattern(self, x: Term, low: float) -> Call:
        return call("clamp.default", x, low, None)

    def replacement(self, x: Term) -> Call:
        return call("relu", x)

    def check(self, match: Match) -> Verdict:
        if match["low"] != 0 or math.copysign(1, match["low"]) < 0:
            return No(f"the bound is {match['low']}")
        return _floating(match)


class SoftplusFormula(Rewrite):
    """Softplus by its stable formula. Beyond 20 the op gives x itself, which is the same number in float32.

    before:  %y = add(relu(%x), log1p(exp(neg(abs(%x)))))
    after:   %y = softplus(%x)
    """

    name = "softplus_formula"

    def __init__(self, positive: str) -> None:
        self.positive = positive

    def pattern(self, x: Term) -> Call:
        positive = call("relu", x) if self.positive == "relu" else call("clamp.default", x, 0, None)
        return call("add.Tensor", positive, call("log1p", call("exp", call("neg", call("abs", x)))))

    def replacement(self, x: Term) -> Call:
        return call("softplus", x)

    def check(self, match: Match) -> Verdict:
        if match.spec("x").dtype is torch.float64:
            return No("softplus is x beyond 20, 2e-9 from its formula")
        return _floating(match) and match.only_use()


class SoftplusAboveThreshold(Rewrite):
    """
    before:  %y = where(gt(%x, 20), %x, log1p(exp(%x)))
    after:   %y = softplus(%x, 1, 20)
    """

    def pattern(self, x: Term, threshold: float) -> Call:
        soft = call("log1p", call("exp", x))
        return call("where.self", call("gt.Scalar", x, threshold), x, soft)

    def replacement(self, x: Term, threshold: float) -> Call:
        return call("softplus", x, 1, threshold)

    def check(self, match: Match) -> Verdict:
        return _floating(match) and match.only_use()


def _floating(match: Match) -> Verdict:
    dtype = match.spec("x").dtype
    return Yes() if dtype.is_floating_point else No(f"the tensor is {dtype}")


def _alone(match: Match) -> Verdict:
    return _floating(match) and match.only_use()


def activation_rules() -> tuple[Rule, ...]:
    """All of them, in the order in which they are tried."""
    return (
        *(as_rule(GeluFormula(f, product)) for f in ("erf", "tanh") for product in _HALVES),
        as_rule(ClampToRelu()),
        *(rule(*line, name=name, check=_alone) for name, line in LINES.items()),
        *(as_rule(HardswishFormula(clip)) for clip in ("hardtanh", "clamp.default")),
        *(as_rule(HardsigmoidFormula(clip)) for clip in ("hardtanh", "clamp.default")),
        *(as_rule(SoftplusFormula(positive)) for positive in ("relu", "clamp")),
        as_rule(SoftplusAboveThreshold()),
    )
