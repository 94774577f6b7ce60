"""Constants around linear layers and convolutions go into their weights and biases.

The new weights depend on bound tensors only, so they are computed once per set of weights. A factor that is no power of
two changes the rounding: once per weight in place of once per result. In float16 and bfloat16, where a rounded weight
costs as much as a rounded result, only powers of two move.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, fx

from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import same_size, same_sizes
from lampwork.rewriting.apply.driver import Rewrite, Rule, as_rule
from lampwork.rewriting.language.combinators.either import either
from lampwork.rewriting.language.term import Leaf, Term
from lampwork.rewriting.matching.match import Match
from lampwork.rewriting.matching.values import is_constant
from lampwork.rewriting.schema import bound_args, spec_of
from lampwork.standard import math
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten

_CONVOLUTIONS = (aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)
_LAYERS = (aten.linear.default, *_CONVOLUTIONS)

# Beyond these a scaled weight could leave the range of its dtype where the result did not.
_SMALLEST, _LARGEST = 2.0**-40, 2.0**40


def _linear(x: Any, w: Tensor, b: Any) -> Tensor:
    return aten.linear.default(x, w, b)


def _layer(x: Tensor, w: Tensor, b: Any) -> Tensor:
    """A linear layer or a convolution, whatever its stride and padding."""
    return cast(Tensor, either(_linear(x, w, b), *(conv(x, w, b, ...) for conv in _CONVOLUTIONS)))


_SCALINGS = (aten.mul.Tensor, aten.div.Tensor)
_SIGNS = (aten.add.Tensor, aten.sub.Tensor)


def _scaled(x: Tensor, c: Any) -> Term:
    """A product or a quotient; `_scaled_as` makes the same of other operands."""
    return either(*(scaling(x, c) for scaling in _SCALINGS), name="scaling")


def _scaled_as(match: Match, x: Any, c: Any) -> Any:
    return _SCALINGS[match.count("scaling")](x, c)


class ScaleBehindLayer(Rewrite):
    """A factor or divisor behind a linear layer or a convolution: a number, or a constant for each channel.

    before:  %l = linear(%x, %w, %b), %y = div(%l, 3.0)
    after:   %w3 = div(%w, 3.0), %b3 = div(%b, 3.0), %y = linear(%x, %w3, %b3)
    """

    def pattern(self, x: Tensor, w: Tensor, b: Any, c: Any):
        return _scaled(_layer(x, w, b), c)

    def replacement(self, match: Match):
        layer = _found(match)
        weight, bias = _parameters(layer)
        factor = match["c"]
        new_weight = _scaled_as(match, Leaf(weight), _along(factor, len(_spec(weight).shape), 0))
        new_bias = None if bias is None else _scaled_as(match, Leaf(bias), _along(factor, 1, 0))
        return _again(layer, Leaf(_input(layer)), new_weight, new_bias)

    def check(self, match: Match) -> Verdict:
        layer = _found(match)
        return (
            _ours(layer)
            and match.only_use()
            and _factor(match["c"], _spec(layer), _channel(layer))
            and _same_result(match.root, layer)
        )


class ScaleBehindHeads(Rewrite):
    """A number times the heads of a linear layer's result.

    before:  %l = linear(%x, %w, %b), %v = view(%l, [2, 16, 8, 64]), %p = permute(%v, [0, 2, 1, 3]),
             %y = div(%p, 3.0)
    after:   %w3 = div(%w, 3.0), %b3 = div(%b, 3.0), %l = linear(%x, %w3, %b3), %v = view(%l, [2, 16, 8, 64]),
             %y = permute(%v, [0, 2, 1, 3])
    """

    def pattern(self, x: Tensor, w: Tensor, b: Any, shape: Any, dims: Any, c: float):
        return _scaled(aten.permute.default(aten.view.default(_linear(x, w, b), shape), dims), c)

    def replacement(self, match: Match, x: Tensor, w: Tensor, b: Any, shape: Any, dims: Any, c: float):
        bias = None if b is None else _scaled_as(match, b, c)
        return _linear(x, _scaled_as(match, w, c), bias).view(shape).permute(dims)

    def check(self, match: Match) -> Verdict:
        layer = _found(match)
        return _ours(layer) and match.only_use() and _factor(match["c"], _spec(layer), -1)


class ScaleBeforeLinear(Rewrite):
    """A factor or divisor before a linear layer: a number, or a constant for each input.

    before:  %s = mul(%x, %g), %y = linear(%s, %w, %b)
    after:   %wg = mul(%w, %g), %y = linear(%x, %wg, %b)
    """

    def pattern(self, x: Tensor, w: Tensor, b: Any, c: Any):
        return _linear(_scaled(x, c), w, b)

    def replacement(self, match: Match, x: Tensor, w: Tensor, b: Any):
        return _linear(x, _scaled_as(match, w, _along(match["c"], 2, 1)), b)

    def check(self, match: Match) -> Verdict:
        scaled = cast(fx.Node, match.root.args[0])
        return (
            _ours(match.root)
            and match.only_use()
            and _factor(match["c"], _spec(scaled), -1)
            and _same_result(scaled, match["x"])
        )


class ShiftBehindLayer(Rewrite):
    """A constant for each channel added to, or taken from, what a linear layer or a convolution gives.

    before:  %l = linear(%x, %w, %b), %y = add(%l, %c)
    after:   %bc = add(%b, %c), %y = linear(%x, %w, %bc)
    """

    def pattern(self, x: Tensor, w: Tensor, b: Any, c: Any):
        layer = _layer(x, w, b)
        return either(*(sign(layer, c) for sign in _SIGNS), name="sign")

    def replacement(self, match: Match):
        layer = _found(match)
        weight, bias = _parameters(layer)
        shift = match["c"]
        if isinstance(shift, fx.Node):
            shift = _along(shift, 1, 0)
        sign = _SIGNS[match.count("sign")]
        if bias is not None:
            shift = sign(Leaf(bias), shift)
        elif sign is aten.sub.Tensor:
            shift = -shift
        return _again(layer, Leaf(_input(layer)), Leaf(weight), shift)

    def check(self, match: Match) -> Verdict:
        layer = _found(match)
        weight, bias = _parameters(layer)
        shift = match["c"]
        if not isinstance(shift, fx.Node):
            return No("there is no bias to take the number") if bias is None else _checks(match, layer)
        spec = spec_of(shift)
        if spec is None or not is_constant(shift):
            return No("the summand is computed in the graph")
        if bias is None and spec.numel != _spec(weight).shape[0]:
            return No("there is no bias to take the number")
        return _checks(match, layer) and _per_channel(spec, _spec(layer), _channel(layer))


def _checks(match: Match, layer: fx.Node) -> Verdict:
    return _ours(layer) and match.only_use() and _same_result(match.root, layer)


# --- layers ---------------------------------------------------------------------------------------------------------


def _found(match: Match) -> fx.Node:
    """The layer in a match."""
    return next(n for n in match.nodes if n.target in _LAYERS)


def _spec(node: fx.Node) -> TensorSpec:
    return cast(TensorSpec, node.meta["val"])


def _input(layer: fx.Node) -> fx.Node:
    return cast(fx.Node, bound_args(layer)[0])


def _parameters(layer: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    _, weight, bias = bound_args(layer)[:3]
    return weight, bias


def _channel(layer: fx.Node) -> int:
    """The dimension of a layer's result that its weight's rows are for, from the end."""
    return -1 if layer.target is aten.linear.default else 1 - len(_spec(_parameters(layer)[0]).shape)


def _again(layer: fx.Node, x: Any, weight: Any, bias: Any) -> Any:
    """The layer with other operands."""
    return cast(Any, layer.target)(x, weight, bias, *bound_args(layer)[3:])


def _ours(layer: fx.Node) -> Verdict:
    """Whether the parameters of a layer may be replaced by others, computed once."""
    weight, bias = _parameters(layer)
    dtype = _spec(layer).dtype
    if not dtype.is_floating_point:
        return No(f"the layer computes {dtype}")
    if _spec(layer).requires_grad:
        return No("gradients are recorded: the weights may be others at each call")
    for parameter in (weight, bias):
        if parameter is None:
            continue
        if not is_constant(parameter):
            return No(f"{parameter.name} is computed in the graph")
        if _spec(parameter).dtype is not dtype:
            return No(f"{parameter.name} is {_spec(parameter).dtype}")
        if len(parameter.users) > 1:
            return No(f"{parameter.name} has other readers, there would be two of it")
    return Yes()


def _same_result(scaled: fx.Node, layer: fx.Node) -> Verdict:
    """Whether scaling broadcast nothing and changed no dtype."""
    a, b = _spec(scaled), _spec(layer)
    if a.dtype is not b.dtype or not same_sizes(a.shape, b.shape):
        return No(f"the constant makes {a} of {b}")
    return Yes()


# --- constants ------------------------------------------------------------------------------------------------------


def _factor(factor: Any, spec: TensorSpec, channel: int) -> Verdict:
    """Whether a weight can take the factor: a number of moderate size, or a constant for each channel."""
    exact_only = spec.dtype not in (torch.float32, torch.float64)
    if isinstance(factor, fx.Node):
        constant = spec_of(factor)
        if constant is None or not is_constant(factor):
            return No("the factor is computed in the graph")
        if exact_only:
            return No(f"weights of {spec.dtype} would be rounded twice")
        if constant.dtype is not spec.dtype:
            return No(f"the factor is {constant.dtype}")
        return _per_channel(constant, spec, channel)
    if isinstance(factor, bool) or type(factor) not in (int, float):
        return No(f"{factor!r} is no constant number")
    if not _SMALLEST <= abs(factor) <= _LARGEST:
        return No(f"the factor {factor} is too far from 1")
    if exact_only and abs(math.frexp(factor)[0]) != 0.5:
        return No(f"{factor} is no power of two: weights of {spec.dtype} would be rounded twice")
    return Yes()


def _per_channel(constant: TensorSpec, spec: TensorSpec, channel: int) -> Verdict:
    """Whether a constant that broadcasts over a tensor differs along its dimension `channel` at most."""
    rank = len(constant.shape)
    for dim, size in enumerate(constant.shape, -rank):
        if same_size(size, 1):
            continue
        if dim != channel or not same_size(size, spec.shape[channel]):
            return No(f"the constant {constant} is not one number for each channel")
    return Yes()


def _along(constant: Any, rank: int, dim: int) -> Any:
    """A constant as a term that broadcasts along dimension `dim` of a tensor of `rank` dimensions."""
    if not isinstance(constant, fx.Node):
        return constant
    shape = [1] * rank
    shape[dim] = _spec(constant).numel
    if list(_spec(constant).shape) == shape:
        return Leaf(constant)
    return aten.view.default(Leaf(constant), shape)


def linear_rules() -> tuple[Rule, ...]:
    """All of them, in the order in which they are tried."""
    return tuple(map(as_rule, (ScaleBehindLayer, ScaleBehindHeads, ScaleBeforeLinear, ShiftBehindLayer)))
