"""The pass `prepack-convolution`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
from torch import fx

from lampwork.backends.native.passes.channels_last_convolution import has_template
from lampwork.backends.native.passes.convolutions import eligible, has_onednn
from lampwork.codegen.target import Target
from lampwork.config import Config
from lampwork.graph.layouts import same_strides
from lampwork.graph.shapes_onednn import channels_last_strides
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import hint_of, same_sizes
from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.apply.aliasing import is_output
from lampwork.rewriting.apply.edit import replace as replace_node
from lampwork.rewriting.apply.layout import adopt_strides, propagate_strides
from lampwork.rewriting.matching.values import is_constant
from lampwork.rewriting.schema import bound_args, is_pinned
from lampwork.transforms.convolution import Convolution, spec
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten
mkldnn = torch.ops.mkldnn


@record
class Epilogue:
    """What oneDNN does to a convolution's result before it stores it: add `other`, then an activation."""

    last: fx.Node
    other: fx.Node | None = None
    activation: str = "none"
    scalars: tuple[float, ...] = ()
    algorithm: str = ""


@record
class PrepackConvolution:
    """Convolutions with constant weights run in oneDNN with the weight packed once (a constant of the graph, opaque),
    the bias and a residual sum or an activation done in place, and results in channels-last order.

    What follows gets the strides that its op gives for channels-last operands; a result of the graph is copied back to
    eager's strides, and so is what a view cannot read.

    before:  %c = conv2d(%x, %w, %b, [1, 1], [1, 1]), %r = silu(%c)
    after:   %p = mkldnn._reorder_convolution_weight(%w, [1, 1], [1, 1], [1, 1], 1, [1, 64, 56, 56])
             %r = mkldnn._convolution_pointwise(%x, %p, %b, [1, 1], [1, 1], [1, 1], 1, "swish", [], "")
    """

    name: ClassVar[str] = "prepack-convolution"

    target: Callable[[Config], Target]

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        target = self.target(ctx.config)
        if target.standalone or not torch.backends.mkldnn.is_available():
            return
        packed: list[fx.Node] = []
        restrided: list[fx.Node] = []
        for conv in eligible(graph, ctx, self.name, lambda conv: _eligible(conv, target)):
            fused, shown = _pack(graph, conv, ctx)
            packed.append(fused)
            restrided += [shown] if shown is not None else []
        propagate_strides(graph, ctx.infer, restrided)
        _convert_operands(graph, packed, ctx)


def _eligible(conv: Convolution, target: Target) -> Verdict:
    if isinstance(has_template(conv, target), Yes):
        return No("it has a template")
    x, w = spec(conv.x), spec(conv.weight)
    if is_pinned(conv.node):
        return No("it has an effect")
    if conv.transposed:
        return No("transposed convolutions are not packed")
    if conv.rank not in (1, 2):
        return No(f"convolutions over {conv.rank} dimensions are not packed")
    if not conv.batched:
        return No("the input has no batch dimension")
    if not is_constant(conv.weight):
        return No("the weight is computed in the graph")
    biases = [] if conv.bias is None else [spec(conv.bias)]
    if (
        x.device.type != "cpu"
        or any(each.dtype is not x.dtype for each in (w, *biases))
        or not has_onednn(conv)
    ):
        return No(f"the input is {x.dtype} on {x.device}")
    if spec(conv.node).numel == 0 or x.numel == 0:
        return No("there are no elements")
    return Yes()


# --- epilogues --------------------------------------------------------------------------------------------------------


def _activation(node: fx.Node) -> tuple[str, tuple[float, ...], str] | None:
    """oneDNN's name, scalars and algorithm for an activation. Its relu, hardtanh and hardsigmoid give 0 for nan, where
    torch's give nan, so these stay apart."""
    values = bound_args(node)
    match cast(Any, node.target):
        case aten.silu.default:
            return "swish", (), ""
        case aten.hardswish.default:
            return "hardswish", (), ""
        case aten.sigmoid.default:
            return "sigmoid", (), ""
        case aten.tanh.default:
            return "tanh", (), ""
        case aten.gelu.default:
            return "gelu", (), str(values[1])
        case aten.leaky_relu.default:
            return "leaky_relu", (float(values[1]),), ""
        case _:
            return None


def _only_user(node: fx.Node) -> fx.Node | None:
    if len(node.users) != 1 or is_output(node):
        return None
    user = next(iter(node.users))
    return user if user.op == "call_function" and not is_pinned(user) else None


def _epilogue(conv: Convolution) -> Epilogue:
    """The longest run of `+ other` and activation behind the convolution that nothing else reads into."""
    node = conv.node
    # Of half types eager rounds between the operators.
    user = _only_user(node) if spec(node).dtype is torch.float32 else None
    if user is None:
        return Epilogue(node)
    found = _activation(user)
    if found is not None and _same_type(user, node):
        return Epilogue(user, None, *found)
    if conv.rank != 2 or user.target is not aten.add.Tensor:
        return Epilogue(node)
    left, right, alpha = bound_args(user)
    other = right if left is node else left
    if not isinstance(other, fx.Node) or other is node or alpha != 1 or not _same_type(user, node, other):
        return Epilogue(node)
    return Epilogue(user, other)


def _same_type(*nodes: fx.Node) -> bool:
    first = spec(nodes[0])
    return all(same_sizes(spec(n).shape, first.shape) and spec(n).dtype is first.dtype for n in nodes)


# --- packing ----------------------------------------------------------------------------------------------------------


def _pack(graph: fx.Graph, conv: Convolution, ctx: PassContext) -> tuple[fx.Node, fx.Node | None]:
    """Put the packed convolution in place of `conv` and its epilogue. Returns it, and the node that the users now read
    if that has other strides than before."""
    end = _epilogue(conv)
    edit = ctx.editor(graph, end.last)
    x, weight = conv.x, conv.weight
    stride, padding, dilation = conv.stride, conv.padding, conv.dilation
    if conv.rank == 1:
        x, weight = edit.call(aten.unsqueeze.default, x, 2), edit.call(aten.unsqueeze.default, weight, 2)
        stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
    packed = edit.call(
        mkldnn._reorder_convolution_weight.default,
        weight,
        padding,
        stride,
        dilation,
        conv.groups,
        [hint_of(size) for size in spec(x).shape],  # the layout is chosen for it, and serves any size
    )
    packed.meta["opaque"] = True
    bias = conv.bias
    if bias is not None and not spec(bias).is_contiguous:
        # oneDNN reads it as if it were.
        bias = edit.call(aten.clone.default, bias, memory_format=torch.contiguous_format)
    common = (packed, bias, padding, stride, dilation, conv.groups)
    if end.other is None:
        tail = (end.activation, list(end.scalars), end.algorithm)
        new = edit.call(mkldnn._convolution_pointwise.default, x, *common, *tail)
    else:
        new = edit.call(
            mkldnn._convolution_pointwise.binary, x, end.other, *common, "add", None, None, [], None
        )
    shown = new if conv.rank == 2 else edit.call(aten.squeeze.dim, new, 2)
    was = spec(end.last)
    replace_node(graph, end.last, shown)
    return new, shown if adopt_strides(shown, was) else None


def _convert_operands(graph: fx.Graph, packed: list[fx.Node], ctx: PassContext) -> None:
    """Channels-last copies of what several packed convolutions read (each would make its own), and of summands."""
    copies: dict[fx.Node, fx.Node] = {}
    for node in packed:
        x = cast(fx.Node, node.args[0])
        summand = node.args[1] if node.target is mkldnn._convolution_pointwise.binary else None
        readers = sum(1 for user in x.users if user in packed)
        wanted = ([x] if readers > 1 else []) + ([summand] if isinstance(summand, fx.Node) else [])
        for operand in wanted:
            if _is_channels_last(spec(operand)):
                continue
            if operand not in copies:
                edit = ctx.editor(graph, node)
                copies[operand] = edit.call(aten.clone.default, operand, memory_format=torch.channels_last)
            node.replace_input_with(operand, copies[operand])


def _is_channels_last(found: TensorSpec) -> bool:
    return same_strides(found, replace(found, strides=channels_last_strides(found.shape)))
