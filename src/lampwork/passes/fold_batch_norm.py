"""The pass `fold-batch-norm`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import fx

from lampwork.passes.context import PassContext
from lampwork.passes.convolution import convolution, spec
from lampwork.rewrite.edit import Editor, replace
from lampwork.rewrite.layout import adopt_strides, propagate_strides
from lampwork.rewrite.match import is_constant
from lampwork.rewrite.schema import bound_args
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class FoldBatchNorm:
    """Batch norm by running statistics is a scale and a shift per channel. Behind a convolution or a linear layer that
    nothing else reads it goes into the weights; elsewhere it becomes a product and a sum. The new weights depend on
    bound tensors only, so that they are computed once per set of weights.

    before:  %c = conv2d(%x, %w, %b), %y = batch_norm(%c, %gamma, %beta, %mean, %var, False, 0.1, 1e-5, True)
    after:   %s = mul(rsqrt(add(%var, 1e-5)), %gamma), %w2 = mul(%w, view(%s, [64, 1, 1, 1])),
             %b2 = add(mul(sub(%b, %mean), %s), %beta), %y = conv2d(%x, %w2, %b2)
    """

    name: ClassVar[str] = "fold-batch-norm"

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        restrided: list[fx.Node] = []
        for node in list(graph.nodes):
            if node.target is not aten.batch_norm.default:
                continue
            verdict = _foldable(node)
            if isinstance(verdict, No):
                ctx.refuse(self.name, verdict.reason)
            elif ctx.spend(self.name):
                was, new = spec(node), _folded(node, ctx.editor(graph, node))
                replace(graph, node, new)
                if adopt_strides(new, was):
                    restrided.append(new)
        propagate_strides(graph, ctx.infer, restrided)


def _foldable(node: fx.Node) -> Verdict:
    x, gamma, beta, mean, var, training = bound_args(node)[:6]
    if training:
        return No("the statistics are the batch's")
    if mean is None or var is None:
        return No("there are no running statistics")
    statistics = [n for n in (gamma, beta, mean, var) if n is not None]
    if not all(is_constant(n) for n in statistics):
        return No("the statistics are computed in the graph")
    dtype = spec(x).dtype
    if dtype not in (torch.float32, torch.float64) or any(spec(n).dtype is not dtype for n in statistics):
        return No(f"the input is {dtype}, the statistics are {spec(var).dtype}")
    return Yes()


def _folded(node: fx.Node, edit: Editor) -> fx.Node:
    """The node that computes what the batch norm `node` does."""
    x, gamma, beta, mean, var, _, _, eps, _ = bound_args(node)
    scale = edit.call(aten.rsqrt.default, edit.call(aten.add.Tensor, var, eps))
    if gamma is not None:
        scale = edit.call(aten.mul.Tensor, scale, gamma)
    new = _into_weights(x, scale, mean, beta, edit)
    if new is not None:
        return new
    shift = _shift(None, scale, mean, beta, edit)
    shape = [1, spec(x).shape[1]] + [1] * (len(spec(x).shape) - 2)
    scaled = edit.call(aten.mul.Tensor, x, edit.call(aten.view.default, scale, shape))
    return edit.call(aten.add.Tensor, scaled, edit.call(aten.view.default, shift, shape))


def _shift(
    bias: fx.Node | None, scale: fx.Node, mean: fx.Node, beta: fx.Node | None, edit: Editor
) -> fx.Node:
    """(bias - mean) * scale + beta, per channel."""
    centred = edit.call(aten.neg.default, mean) if bias is None else edit.call(aten.sub.Tensor, bias, mean)
    shift = edit.call(aten.mul.Tensor, centred, scale)
    return shift if beta is None else edit.call(aten.add.Tensor, shift, beta)


def _into_weights(
    x: fx.Node, scale: fx.Node, mean: fx.Node, beta: fx.Node | None, edit: Editor
) -> fx.Node | None:
    """The layer `x` with the scale and the shift in its weight and bias; None if it cannot take them."""
    if len(x.users) != 1:
        return None
    if x.target is aten.linear.default:
        inputs, weight, bias = bound_args(x)
        if len(spec(x).shape) != 2:
            return None
        shape = [*spec(scale).shape, 1]
        rest: tuple[Any, ...] = ()
    else:
        conv = convolution(x)
        if conv is None or not conv.batched or (conv.transposed and conv.groups != 1):
            return None
        inputs, weight, bias = conv.x, conv.weight, conv.bias
        channels = spec(scale).shape[0]
        shape = [1, channels] if conv.transposed else [channels, 1]
        shape += [1] * conv.rank
        rest = tuple(bound_args(x)[3:])
    if (
        not is_constant(weight)
        or not (bias is None or is_constant(bias))
        or spec(weight).dtype != spec(x).dtype
    ):
        return None
    weight = edit.call(aten.mul.Tensor, cast(fx.Node, weight), edit.call(aten.view.default, scale, shape))
    return edit.call(x.target, inputs, weight, _shift(bias, scale, mean, beta, edit), *rest)
