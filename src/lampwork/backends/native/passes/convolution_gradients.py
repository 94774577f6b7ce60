"""What the passes that put convolutions into channels-last order share about gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import fx

from lampwork.codegen.target import Target
from lampwork.graph.spec import TensorSpec
from lampwork.lower.convolution import PACKED_NOW
from lampwork.lower.convolution_backward import LEAST_CHANNELS
from lampwork.lower.dtypes import LOOP_DTYPES
from lampwork.plugins.context import PassContext
from lampwork.rewriting.schema import bound_args
from lampwork.transforms.convolution import spec
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten


def gradients(
    graph: fx.Graph, ctx: PassContext, name: str, judge: Callable[[fx.Node], Verdict]
) -> Iterator[fx.Node]:
    """The gradients of convolutions that `judge` says yes to and that the pass `name` may change."""
    for node in list(graph.nodes):
        if node.target is not aten.convolution_backward.default:
            continue
        verdict = No("a backend from outside takes it") if ctx.foreign(node) else judge(node)
        if isinstance(verdict, No):
            ctx.refuse(name, verdict.reason)
        elif ctx.spend(name, node):
            yield node


def operands_of(node: fx.Node) -> tuple[fx.Node, fx.Node]:
    """The gradient of the result, and the input."""
    g, x, *_ = bound_args(node)
    return cast(fx.Node, g), cast(fx.Node, x)


def has_gradient_template(node: fx.Node, target: Target) -> Verdict:
    """Whether lowering makes products of it, once its operands are channels-last."""
    _, x, weight, *_, transposed, _, groups, _ = bound_args(node)
    found, shape = spec(cast(fx.Node, x)), spec(cast(fx.Node, weight)).shape
    dtype = LOOP_DTYPES.get(found.dtype)
    if len(shape) != 4 or transposed:
        return No("gradients of lines, volumes and transposed convolutions keep their order")
    if dtype is None or dtype not in PACKED_NOW & target.products or found.device.type != "cpu":
        return No(f"gradients of convolutions of {found.dtype} have no template")
    depthwise = shape[1] == 1 and shape[0] == groups >= LEAST_CHANNELS
    if not depthwise and min(shape[0] // groups, shape[1]) < LEAST_CHANNELS:
        return No(f"gradients of a convolution in groups of {shape[1]} channels")
    if found.numel == 0 or 0 in shape:
        return No("there are no elements")
    return Yes()


def renewed(node: fx.Node, ctx: PassContext) -> list[fx.Node]:
    """The node, if its results have other strides now that its operands have."""
    was: Any = node.meta["val"]
    now: Any = ctx.infer(node.target, node.args, node.kwargs)
    if now == was or not all(isinstance(each, TensorSpec | None) for each in now):
        return []
    node.meta["val"], node.meta["eager_val"] = now, was
    return [node]
