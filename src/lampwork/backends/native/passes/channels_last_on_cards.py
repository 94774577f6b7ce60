"""The pass `channels-last-on-cards`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

import torch
from torch import fx

from lampwork.backends.native.passes.channels_last_convolution import (
    copied,
    is_channels_last,
    read_in_order,
)
from lampwork.backends.native.passes.convolution_gradients import gradients, operands_of, renewed
from lampwork.backends.native.passes.convolutions import eligible
from lampwork.codegen.target import Target
from lampwork.config import Config
from lampwork.graph.shapes_common import is_channels_last_strided
from lampwork.lower.dtypes import LOOP_DTYPES
from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.apply.edit import replace
from lampwork.rewriting.apply.layout import adopt_strides, propagate_strides
from lampwork.rewriting.matching.values import is_constant
from lampwork.rewriting.schema import bound_args, is_pinned
from lampwork.transforms.convolution import Convolution, convolution, spec
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten

TF32_CHANNELS = 24
"""From which cuDNN takes TF32 in the order of rows too, where it may: measured on an H200, with 24 and more. Of 3 and
16 it keeps float32 in that order, and takes TF32 in the other. Depthwise ones are of float32 in both."""


@record
class ChannelsLastOnCards:
    """Convolutions that a card's units for products compute read their input and their weight in channels-last order,
    as those units do: cuDNN would put both, and the result, in this order and back on each call.

    What follows gets the strides that its op gives for channels-last operands; a result of the graph is copied back to
    eager's strides. A constant weight is copied in the constant part. It is done to a graph of which at least half of
    the convolutions gain, and which has none in groups of several channels: those are slower in this order, by far, and
    in between it would cost two copies each. Gradients likewise.

    target: that of a device.

    before:  %c = conv2d(%x, %w, None, [1, 1], [1, 1])          of bfloat16, %x: (8, 64, 56, 56) row-major, on cuda:0
    after:   %v = clone(%w, memory_format=channels_last), %y = clone(%x, memory_format=channels_last),
             %c = conv2d(%y, %v, None, [1, 1], [1, 1])
    """

    name: ClassVar[str] = "channels-last-on-cards"

    target: Callable[[torch.device, Config], Target]

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        layers = [layer for node in graph.nodes if (layer := _layer_of(node)) is not None]
        if not layers:
            return
        target = self.target(layers[0].device, ctx.config)
        pays = _pays(layers, target)
        copies: dict[fx.Node, fx.Node] = {}
        changed: list[fx.Node] = []
        for conv in eligible(graph, ctx, self.name, lambda conv: pays and _fits(_of(conv), target)):
            changed += _converted(graph, conv, ctx, copies)
        for node in gradients(graph, ctx, self.name, lambda node: pays and _fits(_of_gradient(node), target)):
            read_in_order(node, operands_of(node), ctx, copies)
            changed += renewed(node, ctx)
        propagate_strides(graph, ctx.infer, changed)


@record
class _Layer:
    """A convolution, or the gradients of one."""

    node: fx.Node
    x: fx.Node
    weight: fx.Node
    groups: int

    @property
    def device(self) -> torch.device:
        return spec(self.x).device

    @property
    def in_groups(self) -> bool:
        """Of several channels each."""
        return self.groups > 1 and spec(self.x).shape[1] != self.groups


def _of(conv: Convolution) -> _Layer:
    return _Layer(conv.node, conv.x, conv.weight, conv.groups)


def _of_gradient(node: fx.Node) -> _Layer:
    values = bound_args(node)
    return _Layer(node, values[1], values[2], values[9])


def _layer_of(node: fx.Node) -> _Layer | None:
    """The convolution on a card that a node is, or is the gradients of."""
    if node.op != "call_function":
        return None
    if node.target is aten.convolution_backward.default:
        layer = _of_gradient(node)
    else:
        conv = convolution(node)
        layer = None if conv is None else _of(conv)
    return layer if layer is not None and layer.device.type == "cuda" else None


def _pays(layers: list[_Layer], target: Target) -> Verdict:
    """Whether a graph with these convolutions is better off in channels-last order."""
    if any(layer.in_groups for layer in layers):
        return No("a convolution in groups of several channels is slower so")
    fitting = [layer for layer in layers if isinstance(_fits(layer, target), Yes)]
    if 2 * len(fitting) < len(layers):
        return No("most convolutions gain nothing")
    follows: set[fx.Node] = {layer.node for layer in fitting}
    exact = {layer.node: layer.x for layer in layers if _is_exact(layer)}
    for node in layers[0].node.graph.nodes:
        if node in exact and exact[node] in follows:
            return No("a convolution whose products may be those of float32 would follow")
        if not follows.isdisjoint(node.all_input_nodes):
            follows.add(node)
    return Yes()


def _is_exact(layer: _Layer) -> bool:
    """Whether eager may compute a convolution of float32 as such, though TF32 is allowed, and would not in another
    order."""
    x, w = spec(layer.x), spec(layer.weight)
    return x.dtype is torch.float32 and w.shape[1] < TF32_CHANNELS and layer.groups == 1


def _fits(layer: _Layer, target: Target) -> Verdict:
    """Whether a convolution is computed in channels-last order anyway."""
    x, w = spec(layer.x), spec(layer.weight)
    if layer.device.type != "cuda":
        return No(f"it is computed on {layer.device}")
    if len(x.shape) not in (4, 5) or len(w.shape) != len(x.shape):
        return No("the input is no batch of images or volumes")
    if is_pinned(layer.node):
        return No("it has an effect")
    dtype = LOOP_DTYPES.get(x.dtype)
    if w.dtype is not x.dtype or w.device != x.device or dtype not in target.convolved_last:
        return No(f"the operands are {x.dtype} and {w.dtype}")
    if dtype == "f32" and torch._C._get_fp32_precision_getter("cuda", "conv") != "tf32":
        return No("the products are those of float32")
    if _is_exact(layer):
        return No("in eager's order the products may be those of float32")
    if x.numel == 0 or w.numel == 0:
        return No("there are no elements")
    return Yes()


def _converted(
    graph: fx.Graph, conv: Convolution, ctx: PassContext, copies: dict[fx.Node, fx.Node]
) -> list[fx.Node]:
    """The convolution over channels-last operands; the nodes whose strides have changed."""
    edit = ctx.editor(graph, conv.node)
    node, x, weight = conv.node, conv.x, conv.weight
    if not is_channels_last(spec(x)):
        x = copied(edit, x, copies)
    # A weight that comes as an argument is put in order by cuDNN, by a copy as ours would be. If all sizes but one are
    # 1 both orders are the same memory, and torch goes by the strides.
    is_told = is_channels_last_strided(spec(x)) or is_channels_last_strided(spec(weight))
    if (is_constant(weight) and not is_channels_last(spec(weight))) or not is_told:
        weight = copied(edit, weight, copies)
    if (x, weight) == (conv.x, conv.weight):
        return []
    new = edit.call(cast(Any, node.target), x, weight, *bound_args(node)[2:])
    was = spec(node)
    replace(graph, node, new)
    return [new] if adopt_strides(new, was) else []
