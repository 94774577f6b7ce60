"""The pass `channels-last-convolution`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import fx

from lampwork.backends.native.passes.convolution_gradients import (
    gradients,
    has_gradient_template,
    operands_of,
    renewed,
)
from lampwork.backends.native.passes.convolutions import eligible
from lampwork.codegen.target import Target
from lampwork.config import Config
from lampwork.graph.layouts import same_strides
from lampwork.graph.shapes_common import channels_last_strides
from lampwork.graph.spec import TensorSpec
from lampwork.lower.convolution import CONVOLVED, PACKED_NOW, fits_template, fits_transposed
from lampwork.lower.dtypes import LOOP_DTYPES
from lampwork.lower.transposed import PhaseDim
from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.apply.edit import Editor
from lampwork.rewriting.apply.edit import replace as replace_node
from lampwork.rewriting.apply.layout import adopt_strides, propagate_strides
from lampwork.rewriting.matching.values import is_constant
from lampwork.rewriting.schema import is_pinned
from lampwork.transforms.convolution import Convolution, spec
from lampwork.verdict import No, Verdict

aten = torch.ops.aten


@record
class ChannelsLastConvolution:
    """Convolutions that have a template read their input in channels-last order, and so give their result in it.

    What follows gets the strides that its op gives for channels-last operands, so that a network stays in this order
    from its first convolution to the last; a result of the graph is copied back to eager's strides, and so is what a
    view cannot read. Of one dimension they become those of two, the first of size 1. Gradients of convolutions read the
    gradient of the result and the input in this order, and give those of the input and the weight in it.

    before:  %c = conv2d(%x, %w, %b, [1, 1], [1, 1])                            %x: (1, 64, 56, 56) row-major
    after:   %y = clone(%x, memory_format=channels_last), %c = conv2d(%y, %w, %b, [1, 1], [1, 1])
    """

    name: ClassVar[str] = "channels-last-convolution"

    target: Callable[[Config], Target]

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        target = self.target(ctx.config)
        copies: dict[fx.Node, fx.Node] = {}
        changed: list[fx.Node] = []
        for conv in eligible(graph, ctx, self.name, lambda conv: has_template(conv, target)):
            changed += _converted(graph, conv, ctx, copies)
        for node in gradients(graph, ctx, self.name, lambda node: has_gradient_template(node, target)):
            read_in_order(node, operands_of(node), ctx, copies)
            changed += renewed(node, ctx)
        propagate_strides(graph, ctx.infer, changed)


def has_template(conv: Convolution, target: Target) -> Verdict:
    """Whether lowering makes a product of it, once its input is channels-last (`lower/convolution.py`)."""
    moves = any(step != 1 for step in (*conv.stride, *conv.dilation))
    if conv.rank == 3 and spec(conv.weight).shape[-2:] == (1, 1) and not moves:
        return No("volumes by single taps come in the order that torch has for the number of threads")
    return is_product(conv, target)


def is_product(conv: Convolution, target: Target) -> Verdict:
    """Whether there is a product for it, whatever order its result has in eager."""
    x, w = spec(conv.x), spec(conv.weight)
    specs = [x, w, *([spec(conv.bias)] if conv.bias is not None else [])]
    if is_pinned(conv.node):
        return No("it has an effect")
    if not conv.batched:
        return No("the input has no batch dimension")
    if any(each.device.type != "cpu" or each.dtype is not x.dtype for each in specs):
        return No("the operands differ in dtype or device")
    dtype = LOOP_DTYPES.get(x.dtype)
    if dtype is None or dtype not in target.products & CONVOLVED:
        return No(f"convolutions of {x.dtype} have no template")
    if not is_constant(conv.weight) and dtype not in PACKED_NOW:
        return No(f"the weight of {x.dtype} is computed in the graph")
    if spec(conv.node).numel == 0 or x.numel == 0:
        return No("there are no elements")
    if conv.transposed:
        sizes = (x.shape[2:], spec(conv.node).shape[2:], w.shape[2:])
        parts = zip(*sizes, conv.stride, conv.padding, conv.dilation, strict=True)
        return fits_transposed(dtype, w.shape, [PhaseDim(*each) for each in parts], conv.groups)
    return fits_template(dtype, w.shape, conv.groups)


def _converted(
    graph: fx.Graph, conv: Convolution, ctx: PassContext, copies: dict[fx.Node, fx.Node]
) -> list[fx.Node]:
    """The convolution over a channels-last input; the nodes whose strides have changed."""
    edit = ctx.editor(graph, conv.node)
    node, x, weight = conv.node, conv.x, conv.weight
    if conv.rank == 1:
        x = edit.call(aten.unsqueeze.default, x, 2)
        weight = edit.call(aten.unsqueeze.default, weight, 2)
        if is_constant(conv.weight):
            weight.meta["constant"] = True
    if not is_channels_last(spec(x)):
        x = copied(edit, x, copies)
    stride, padding, dilation, extra = conv.stride, conv.padding, conv.dilation, conv.output_padding
    if conv.rank == 1:
        stride, padding, dilation, extra = [1, *stride], [0, *padding], [1, *dilation], [0, *extra]
    operands = (x, weight, conv.bias, stride, padding)
    if conv.transposed:
        back: Any = aten.conv_transpose3d.input if conv.rank == 3 else aten.conv_transpose2d.input
        new = edit.call(back, *operands, extra, conv.groups, dilation)
    else:
        operator: Any = aten.conv3d.default if conv.rank == 3 else aten.conv2d.default
        new = edit.call(operator, *operands, dilation, conv.groups)
    shown = edit.call(aten.squeeze.dim, new, 2) if conv.rank == 1 else new
    was = spec(node)
    replace_node(graph, node, shown)
    return [shown] if adopt_strides(shown, was) else []


def copied(edit: Editor, x: fx.Node, copies: dict[fx.Node, fx.Node]) -> fx.Node:
    """x in channels-last order; one copy for all convolutions that read it."""
    if x not in copies:
        order = torch.channels_last if len(spec(x).shape) == 4 else torch.channels_last_3d
        source = _bytes_of(edit, x)
        if source is not None:
            # What a product of int8 reads is the copy, and not what was made of it.
            copy = edit.call(aten.clone.default, source, memory_format=order)
            copies[x] = edit.call(aten._to_copy.default, copy, dtype=spec(x).dtype)
        else:
            copies[x] = edit.call(aten.clone.default, x, memory_format=order)
    return copies[x]


def read_in_order(
    node: fx.Node, operands: Sequence[fx.Node], ctx: PassContext, copies: dict[fx.Node, fx.Node]
) -> None:
    """Have a node read these operands in channels-last order."""
    edit = ctx.editor(node.graph, node)
    for operand in operands:
        if is_channels_last(spec(operand)):
            continue
        copy = copied(edit, operand, copies)
        if node < copy:
            node.prepend(copy)  # it was made for a convolution that comes later
        node.replace_input_with(operand, copy)


def _bytes_of(edit: Editor, x: fx.Node) -> fx.Node | None:
    """What x, as it came or as a plane of one line, was made of, if that is int8."""
    is_line = x.target is aten.unsqueeze.default
    wide = x.args[0] if is_line else x
    if not isinstance(wide, fx.Node) or wide.target is not aten._to_copy.default:
        return None
    source = wide.args[0]
    if not isinstance(source, fx.Node) or spec(source).dtype is not torch.int8:
        return None
    return edit.call(aten.unsqueeze.default, source, 2) if is_line else source


def is_channels_last(found: TensorSpec) -> bool:
    return same_strides(found, replace(found, strides=channels_last_strides(found.shape)))
