"""The pass `fold-batch-norm`."""

from __future__ import annotations

from typing import ClassVar, cast

import torch
from torch import fx

from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.apply.edit import Editor, replace
from lampwork.rewriting.apply.layout import adopt_strides, propagate_strides
from lampwork.rewriting.matching.values import is_constant
from lampwork.rewriting.schema import bound_args
from lampwork.standard import math
from lampwork.transforms.convolution import convolution, spec
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten


@record
class FoldBatchNorm:
    """Batch norm by running statistics is a scale and a shift per channel. Behind a convolution or a linear layer that
    nothing else reads it goes into the weights, also if views lie between that keep the channels together; before one
    that pads nothing, likewise; elsewhere it becomes a product and a sum. The new weights depend on bound tensors
    only, so that they are computed once per set of weights.

    As a product and a sum it is not left to the library's scale_behind_layer and shift_behind_layer: those refuse
    weights that have other readers or take gradients, know no transposed convolutions and look through no views; and
    bias - mean is best taken before either is scaled, as the two may be nearly equal.

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
            elif ctx.spend(self.name, node):
                ahead = _layer_ahead(node) if _layer_behind(bound_args(node)[0]) is None else None
                old = node if ahead is None else ahead
                edit = ctx.editor(graph, old)
                new = _folded(node, edit) if ahead is None else _into_next(node, ahead, edit)
                was = spec(old)
                replace(graph, old, new)
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
    x, _, beta, mean = bound_args(node)[:4]
    scale = _scale(node, edit)
    found = _layer_behind(x)
    if found is not None:
        layer, views = found
        new = _into_weights(layer, scale, mean, beta, edit)
        for view in reversed(views):
            new = edit.call(view.target, new, *view.args[1:], **view.kwargs)
        return new
    shift = _shift(None, scale, mean, beta, edit)
    shape = [1, spec(x).shape[1]] + [1] * (len(spec(x).shape) - 2)
    scaled = edit.call(aten.mul.Tensor, x, edit.call(aten.view.default, scale, shape))
    return edit.call(aten.add.Tensor, scaled, edit.call(aten.view.default, shift, shape))


def _scale(node: fx.Node, edit: Editor) -> fx.Node:
    """What a batch norm multiplies each channel by."""
    _, gamma, _, _, var, _, _, eps, _ = bound_args(node)
    scale = edit.call(aten.rsqrt.default, edit.call(aten.add.Tensor, var, eps))
    return scale if gamma is None else edit.call(aten.mul.Tensor, scale, gamma)


def _shift(
    bias: fx.Node | None, scale: fx.Node, mean: fx.Node, beta: fx.Node | None, edit: Editor
) -> fx.Node:
    """(bias - mean) * scale + beta, per channel."""
    centred = edit.call(aten.neg.default, mean) if bias is None else edit.call(aten.sub.Tensor, bias, mean)
    shift = edit.call(aten.mul.Tensor, centred, scale)
    return shift if beta is None else edit.call(aten.add.Tensor, shift, beta)


# --- behind a layer -------------------------------------------------------------------------------------------------


def _layer_behind(x: fx.Node) -> tuple[fx.Node, list[fx.Node]] | None:
    """The layer that `x` is the result of, or views of it, last first; None if it is not one whose channels are the
    dimension 1 of x, or it cannot take a scale."""
    channel: int | None = 1
    views: list[fx.Node] = []
    while True:
        if len(x.users) != 1 or channel is None:
            return None
        if x.target not in _VIEWS:
            break
        views.append(x)
        source = cast(fx.Node, x.args[0])
        channel = _channel_before(x, source, channel)
        x = source
    return (x, views) if _takes_scale(x, channel) else None


_VIEWS = (aten.view.default, aten.permute.default, aten.unsqueeze.default, aten.squeeze.dim)


def _channel_before(view: fx.Node, source: fx.Node, channel: int) -> int | None:
    """Which dimension of `source` is the dimension `channel` of a view of it."""
    if view.target is aten.permute.default:
        return cast("list[int]", view.args[1])[channel]
    before, after = spec(source).shape, spec(view).shape
    if any(type(size) is not int for size in (*before, *after)):
        return None
    outside = math.prod(after[:channel])
    for dim, size in enumerate(before):
        # The same number of elements before it, and it is of the same size: what comes after it is too.
        if math.prod(before[:dim]) == outside and size == after[channel]:
            return dim
    return None


def _takes_scale(x: fx.Node, channel: int) -> bool:
    """Whether `x` is a layer with its own constant weights, whose channels are the dimension `channel`."""
    if x.target is aten.linear.default:
        _, weight, bias = bound_args(x)
        if channel != len(spec(x).shape) - 1 or len(spec(weight).shape) != 2:
            return False
    else:
        conv = convolution(x)
        if conv is None or (conv.transposed and conv.groups != 1):
            return False
        if channel != len(spec(x).shape) - 1 - conv.rank:
            return False
        weight, bias = conv.weight, conv.bias
    return _is_parameter(weight, x) and (bias is None or _is_parameter(bias, x))


def _is_parameter(node: fx.Node, layer: fx.Node) -> bool:
    return is_constant(node) and spec(node).dtype is spec(layer).dtype


def _into_weights(x: fx.Node, scale: fx.Node, mean: fx.Node, beta: fx.Node | None, edit: Editor) -> fx.Node:
    """The layer `x` with the scale and the shift in its weight and bias."""
    channels = spec(scale).shape[0]
    inputs, weight, bias, *rest = bound_args(x)
    conv = convolution(x)
    shape = [channels, *([1] * (len(spec(weight).shape) - 1))]
    if conv is not None and conv.transposed:
        shape[0], shape[1] = 1, channels
    weight = edit.call(aten.mul.Tensor, cast(fx.Node, weight), edit.call(aten.view.default, scale, shape))
    return edit.call(x.target, inputs, weight, _shift(bias, scale, mean, beta, edit), *rest)


# --- before a layer -------------------------------------------------------------------------------------------------


def _layer_ahead(node: fx.Node) -> fx.Node | None:
    """The layer that alone reads the batch norm `node`, if it can take a scale and a shift of its inputs."""
    layer = next(iter(node.users))
    if len(node.users) != 1 or layer.op != "call_function" or layer.all_input_nodes[:1] != [node]:
        return None
    if layer.target is aten.linear.default:
        _, weight, bias = bound_args(layer)
        if len(spec(node).shape) != 2 or len(spec(weight).shape) != 2:
            return None
    else:
        conv = convolution(layer)
        # What is padded is zero behind the batch norm, not before it.
        if conv is None or conv.transposed or conv.groups != 1 or not conv.batched or any(conv.padding):
            return None
        weight, bias = conv.weight, conv.bias
    fits = _is_parameter(weight, layer) and (bias is None or _is_parameter(bias, layer))
    return layer if fits else None


def _into_next(node: fx.Node, layer: fx.Node, edit: Editor) -> fx.Node:
    """The layer behind the batch norm `node`, with the scale and the shift of its inputs in its weight and bias."""
    x, _, beta, mean = bound_args(node)[:4]
    scale = _scale(node, edit)
    shift = _shift(None, scale, mean, beta, edit)
    _, weight, bias, *rest = bound_args(layer)
    shape = [1, spec(scale).shape[0], *([1] * (len(spec(weight).shape) - 2))]
    scaled = edit.call(aten.mul.Tensor, weight, edit.call(aten.view.default, scale, shape))
    shifted = edit.call(aten.mul.Tensor, weight, edit.call(aten.view.default, shift, shape))
    total = edit.call(aten.sum.dim_IntList, shifted, list(range(1, len(shape))))
    new_bias = total if bias is None else edit.call(aten.add.Tensor, total, bias)
    return edit.call(layer.target, x, scaled, new_bias, *rest)
