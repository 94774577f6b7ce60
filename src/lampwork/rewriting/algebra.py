"""The table of one-line rewrites.

Each gives eager's result bit for bit, for every input: infinities, nan and -0.0 included. So `x + 0.0` stays (it turns
-0.0 into 0.0), `x + -0.0` and `x - 0.0` go; `x * 0` stays for floats (nan, inf); `exp(log(x))` stays (nan below 0).
A rewrite that would change a dtype or a shape (1.0 times integers, 1 times a row that broadcasts) does not fire.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lampwork.rewriting import schema
from lampwork.rewriting.apply.driver import Rewrite, Rule, as_rule, rule
from lampwork.rewriting.matching.match import Match
from lampwork.standard import math
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten


class DivideByPowerOfTwo(Rewrite):
    """Division by a power of two is exactly a product, which is cheaper.

    before:  div(x, 8.0)
    after:   mul(x, 0.125)
    """

    def pattern(self, x: Tensor, c: float):
        return aten.div.Tensor(x, c)

    def replacement(self, x: Tensor, c: float):
        return aten.mul.Tensor(x, 1.0 / c)

    def check(self, match: Match) -> Verdict:
        dtype, c = match.spec("x").dtype, match["c"]
        if not dtype.is_floating_point:
            return No(f"the tensor is {dtype}")
        if not math.isfinite(c) or abs(math.frexp(c)[0]) != 0.5:
            return No(f"{c} is not a power of two")
        info = torch.finfo(dtype)
        if not (info.tiny <= abs(c) <= info.max and info.tiny <= abs(1.0 / c) <= info.max):
            return No(f"1 / {c} is no normal number of {dtype}")
        return Yes()


def _not_half(match: Match) -> Verdict:
    """float16 powers go another way inside torch, with other roundings."""
    return No("the tensor is float16") if match.spec("x").dtype is torch.float16 else Yes()


def _negatable(match: Match) -> Verdict:
    """Negation wraps round for unsigned integers, and for the smallest signed one: what comes behind it must be
    computed in the same dtype to wrap back."""
    for value in (match.values[name] for name in ("x", "y") if name in match.values):
        spec = schema.spec_of(value)
        result = match.root.meta["val"].dtype
        if spec is not None and not spec.dtype.is_floating_point and spec.dtype is not result:
            return No(f"-x of {spec.dtype} wraps round before it becomes {result}")
    return Yes()


def _signed(match: Match) -> Verdict:
    dtype = match.spec("x").dtype
    return Yes() if dtype.is_signed else No(f"-x of {dtype} wraps round")


def _real(match: Match) -> Verdict:
    """A complex product with 1 + 0i makes nan of what is infinite."""
    dtype = match.spec("x").dtype
    return No(f"a product in {dtype}") if dtype.is_complex else Yes()


def algebra_rules() -> tuple[Rule, ...]:
    """All of them, in the order in which they are tried."""
    return (
        # Neutral elements.
        rule("mul(x, 1)", "x", check=_real),
        rule("div(x, 1)", "x", check=_real),
        rule("sub(x, 0)", "x"),
        rule("add(x, -0.0)", "x"),
        rule("add(x:int, 0, alpha=a:any)", "x"),
        rule("sub(x:int, 0, alpha=a:any)", "x"),
        rule("pow(x, 1)", "x"),
        rule("bitwise_or(x:int, 0)", "x"),
        rule("bitwise_xor(x:int, 0)", "x"),
        rule("bitwise_and(x:int, -1)", "x"),
        rule("bitwise_and(x:bool, True)", "x"),
        rule("bitwise_or(x:bool, False)", "x"),
        rule("logical_and(x:bool, True)", "x"),
        rule("logical_or(x:bool, False)", "x"),
        rule("logical_xor(x:bool, False)", "x"),
        rule("__rshift__(x:int, 0)", "x"),
        rule("__lshift__(x:int, 0)", "x"),
        # Powers: torch computes these very products and roots for these exponents.
        rule("pow.Tensor_Scalar(x, 2)", "mul(x, x)"),
        rule("pow.Tensor_Scalar(x:float, 3)", "mul(mul(x, x), x)", check=_not_half),
        rule("pow.Tensor_Scalar(x:float, 0.5)", "sqrt(x)", check=_not_half),
        rule("pow.Tensor_Scalar(x:float, -0.5)", "rsqrt(x)", check=_not_half),
        rule("pow.Tensor_Scalar(x:float, -1)", "reciprocal(x)"),
        # Signs.
        rule("mul(x:float, -1)", "neg(x)"),
        rule("div(x:float, -1)", "neg(x)"),
        rule("neg(neg(x))", "x"),
        rule("add(x, neg(y))", "sub(x, y)", check=_negatable),
        rule("sub(x, neg(y))", "add(x, y)", check=_negatable),
        rule("neg(sub(x:int, y:int))", "sub(y, x)"),
        rule("mul(neg(x), neg(y))", "mul(x, y)", check=_negatable),
        rule("div.Tensor(neg(x), neg(y))", "div.Tensor(x, y)", check=_negatable),
        rule("abs(neg(x))", "abs(x)", check=_signed),
        rule("mul(abs(x:float), abs(x))", "mul(x, x)"),
        rule("cos(neg(x))", "cos(x)", check=_negatable),
        # Once is enough.
        rule("abs(abs(x))", "abs(x)"),
        rule("relu(relu(x))", "relu(x)"),
        rule("relu(abs(x))", "abs(x)"),
        rule("sign(sign(x))", "sign(x)"),
        rule("floor(floor(x))", "floor(x)"),
        rule("ceil(ceil(x))", "ceil(x)"),
        rule("round(round(x))", "round(x)"),
        rule("trunc(trunc(x))", "trunc(x)"),
        rule("floor(ceil(x))", "ceil(x)"),
        rule("ceil(floor(x))", "floor(x)"),
        rule("maximum(x, x)", "x"),
        rule("minimum(x, x)", "x"),
        rule("maximum(x, maximum(x, y))", "maximum(x, y)"),
        rule("minimum(x, minimum(x, y))", "minimum(x, y)"),
        rule("bitwise_and(x, x)", "x"),
        rule("bitwise_or(x, x)", "x"),
        rule("logical_and(x:bool, x)", "x"),
        rule("logical_or(x:bool, x)", "x"),
        # Booleans and choices.
        rule("logical_not(logical_not(x:bool))", "x"),
        rule("bitwise_not(bitwise_not(x))", "x"),
        rule("logical_not(eq(x, y:any))", "ne(x, y)"),
        rule("logical_not(ne(x, y:any))", "eq(x, y)"),
        rule("logical_not(lt(x:int, y:int))", "ge(x, y)"),
        rule("logical_not(le(x:int, y:int))", "gt(x, y)"),
        rule("logical_not(gt(x:int, y:int))", "le(x, y)"),
        rule("logical_not(ge(x:int, y:int))", "lt(x, y)"),
        rule("where(c, x, x)", "x"),
        rule("where(True, x, y:any)", "x"),
        rule("where(False, x:any, y)", "y"),
        rule("where(logical_not(c:bool), x:any, y:any)", "where(c, y, x)"),
        rule("where(bitwise_not(c:bool), x:any, y:any)", "where(c, y, x)"),
        rule("where(c, where(c, x, y), z)", "where(c, x, z)"),
        rule("where(c, x, where(c, y, z))", "where(c, x, z)"),
        rule("masked_fill(x, False, v:any)", "x"),
        # Integers only: nan, inf and -0.0 have no say there.
        rule("mul(x:int, 0)", "zeros_like(x)"),
        rule("sub(x:int, x)", "zeros_like(x)"),
        rule("bitwise_xor(x:int, x)", "zeros_like(x)"),
        rule("bitwise_and(x:int, 0)", "zeros_like(x)"),
        as_rule(DivideByPowerOfTwo()),
    )
