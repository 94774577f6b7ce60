"""Changing the strides of a value inside a graph, and everything that follows from it.

Strides inside a graph are the compiler's choice; at the outputs they are eager's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import fx

from lampwork.errors import CaptureError
from lampwork.graph.spec import TensorSpec, contiguous_strides
from lampwork.rewrite.aliasing import escapes
from lampwork.rewrite.edit import Editor, Infer

aten = torch.ops.aten


def same_strides(a: TensorSpec, b: TensorSpec) -> bool:
    """Equal strides wherever they matter: dimensions of more than one element of tensors with elements."""
    if a.shape != b.shape:
        return False
    if a.numel <= 1:
        return True
    return all(size == 1 or x == y for size, x, y in zip(a.shape, a.strides, b.strides, strict=True))


def with_strides(spec: TensorSpec, strides: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(spec.shape, strides, spec.dtype, spec.device, spec.requires_grad)


def restrided(editor: Editor, node: fx.Node, wanted: TensorSpec) -> fx.Node:
    """A copy of `node` with the strides of `wanted`, which must be dense."""
    spec = cast(TensorSpec, node.meta["val"])
    if wanted.is_contiguous:
        return editor.call(aten.clone.default, node, memory_format=torch.contiguous_format)
    if len(spec.shape) == 4:
        copy = editor.call(aten.clone.default, node, memory_format=torch.channels_last)
        if same_strides(cast(TensorSpec, copy.meta["val"]), wanted):
            return copy
    # Any dense order of dimensions: permute to it, copy, permute back.
    order = sorted(range(len(spec.shape)), key=lambda d: (-wanted.strides[d], d))
    back = [order.index(d) for d in range(len(order))]
    moved = editor.call(aten.permute.default, node, order)
    copy = editor.call(aten.clone.default, moved, memory_format=torch.contiguous_format)
    return editor.call(aten.permute.default, copy, back)


def propagate_strides(graph: fx.Graph, infer: Infer, changed: Iterable[fx.Node]) -> int:
    """Bring the specs downstream of nodes whose strides changed up to date, in place.

    Users get the strides their op gives for the new operands, and so on. A view that the new strides do not allow
    reads a contiguous copy. A value that leaves the graph (itself or through views) is copied back to the strides it
    had, kept in `meta["eager_val"]` by whoever changed them. Returns the number of copies inserted.

    before:  %c: (1, 8, 4, 4) channels last (was contiguous), %v = view(%c, [1, -1]), return %v
    after:   %k = clone(%c, memory_format=contiguous), %v = view(%k, [1, -1]), return %v
    """
    pending = set(changed)
    copies = 0
    for node in list(graph.nodes):
        if node not in pending:
            continue
        spec, was = node.meta["val"], node.meta.pop("eager_val", None)
        if isinstance(spec, TensorSpec) and isinstance(was, TensorSpec):
            if same_strides(spec, was):
                node.meta["val"] = with_strides(spec, was.strides)
                continue
            if escapes(node):
                copies += _restore(graph, infer, node, was)
                continue
        for user in list(node.users):
            if user.op == "output":
                continue
            copies += _update(graph, infer, node, user, was, pending)
    return copies


def _restore(graph: fx.Graph, infer: Infer, node: fx.Node, was: TensorSpec) -> int:
    users = list(node.users)
    editor = Editor(graph, infer, node.next)
    copy = restrided(editor, node, was)
    for user in users:
        user.replace_input_with(node, copy)
    return 1


def _update(
    graph: fx.Graph, infer: Infer, node: fx.Node, user: fx.Node, was: Any, pending: set[fx.Node]
) -> int:
    old = user.meta["val"]
    try:
        spec = _keep_grad(infer(user.target, user.args, user.kwargs), old)
    except CaptureError:
        # The op asks for strides like those it was recorded with, as view does.
        now = cast(TensorSpec, node.meta["val"])
        wanted = was if isinstance(was, TensorSpec) else with_strides(now, contiguous_strides(now.shape))
        user.replace_input_with(node, restrided(Editor(graph, infer, user), node, wanted))
        return 1
    if isinstance(old, TensorSpec) and isinstance(spec, TensorSpec) and same_strides(spec, old):
        return 0
    if spec == old:
        return 0
    user.meta.setdefault("eager_val", old)
    user.meta["val"] = spec
    pending.add(user)
    return 0


def _keep_grad(spec: Any, old: Any) -> Any:
    if isinstance(spec, TensorSpec) and isinstance(old, TensorSpec):
        return TensorSpec(spec.shape, spec.strides, spec.dtype, spec.device, old.requires_grad)
    return spec
