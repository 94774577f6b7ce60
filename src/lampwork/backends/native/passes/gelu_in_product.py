"""The pass `gelu-in-product`."""

from __future__ import annotations

from typing import ClassVar, cast

import torch
from torch import fx

from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.apply.aliasing import is_output
from lampwork.rewriting.apply.edit import Editor, replace
from lampwork.rewriting.apply.layout import adopt_strides, propagate_strides
from lampwork.rewriting.schema import bound_args, is_pinned
from lampwork.standard import math
from lampwork.transforms.convolution import spec
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten


@record
class GeluInProduct:
    """With numerics="fast", the tanh form of gelu behind a linear layer of a half type on a CUDA device is computed in
    cuBLASLt's product, before that is rounded. relu is not: cuBLASLt's gives 0 for nan. Nor is float32: what its tanh
    is accurate to is not said.

    before:  %l = linear(%x, %w, %b), %g = gelu(%l, approximate="tanh")              %x: bfloat16[8, 128, 768] on cuda:0
    after:   %a = _addmm_activation(%b, view(%x, [1024, 768]), t(%w), use_gelu=True), %g = view(%a, [8, 128, 3072])
    """

    name: ClassVar[str] = "gelu-in-product"

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        if ctx.config.numerics != "fast":
            return
        changed: list[fx.Node] = []
        for node in list(graph.nodes):
            if node.target is not aten.gelu.default or spec(node).device.type != "cuda":
                continue
            verdict = No("a backend from outside takes it") if ctx.foreign(node) else _eligible(node)
            if isinstance(verdict, No):
                ctx.refuse(self.name, verdict.reason)
            elif ctx.spend(self.name, node):
                new, was = _in_product(node, ctx.editor(graph, node)), spec(node)
                replace(graph, node, new)
                if adopt_strides(new, was):
                    changed.append(new)
        propagate_strides(graph, ctx.infer, changed)


def _eligible(node: fx.Node) -> Verdict:
    layer, form = bound_args(node)
    if form != "tanh":
        return No("it is the exact form")
    if not isinstance(layer, fx.Node) or layer.target is not aten.linear.default:
        return No("it is not behind a linear layer")
    if len(layer.users) > 1 or is_output(layer) or is_pinned(layer) or is_pinned(node):
        return No("the layer has other readers")
    x, weight, bias = bound_args(layer)
    if bias is None or not spec(bias).is_contiguous or len(spec(weight).shape) != 2 or len(spec(x).shape) < 2:
        return No("the layer has no bias")
    if spec(node).dtype not in (torch.float16, torch.bfloat16):
        return No(f"the layer computes {spec(node).dtype}")
    if any(each.device != spec(node).device for each in (spec(x), spec(weight), spec(bias))):
        return No("the operands are on several devices")
    return Yes()


def _in_product(node: fx.Node, edit: Editor) -> fx.Node:
    x, weight, bias = bound_args(cast(fx.Node, bound_args(node)[0]))
    shape = spec(x).shape
    rows = edit.reshape(x, [math.prod(shape[:-1]), shape[-1]])
    columns = edit.call(aten.permute.default, weight, [1, 0])
    product = edit.call(aten._addmm_activation.default, bias, rows, columns, use_gelu=True)
    return edit.reshape(product, spec(node).shape)
