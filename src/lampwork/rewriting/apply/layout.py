"""Changing the strides of a value inside a graph, and everything that follows from it.

Strides inside a graph are the compiler's choice; at the outputs, and where memory is read in its order, they are
eager's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import fx

from lampwork.errors import CaptureError
from lampwork.graph.layouts import of_rows, packed, reads_alike, reads_layout, recorded_layout, same_strides
from lampwork.graph.spec import TensorSpec, contiguous_strides
from lampwork.rewriting.apply.aliasing import shows_strides, view_base
from lampwork.rewriting.apply.edit import Editor, Infer
from lampwork.standard import operator

aten = torch.ops.aten


def is_dense(spec: TensorSpec) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in some order of the dimensions. No for sizes
    and strides that are symbols: nothing is asked of those."""
    if any(type(n) is not int for n in (*spec.shape, *spec.strides)):
        return False
    step = 1
    for size, stride in sorted(zip(spec.shape, spec.strides, strict=True), key=lambda d: (d[1], d[0])):
        if size == 1:
            continue
        if stride != step:
            return False
        step *= size
    return True


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
    reads a contiguous copy, and an operator whose values depend on strides one with those it was recorded with. A
    value that the caller sees (itself or through views) is copied back to the strides it had, kept in
    `meta["eager_val"]` by whoever changed them. Returns the number of copies inserted.

    before:  %c: (1, 8, 4, 4) channels last (was contiguous), %v = view(%c, [1, -1]), return %v
    after:   %k = clone(%c, memory_format=contiguous), %v = view(%k, [1, -1]), return %v
    """
    pending = {n for n in changed if not n._erased}
    copies = 0
    for node in list(graph.nodes):
        if node not in pending:
            continue
        was = node.meta.pop("eager_val", None)
        if _settled(node, was):
            continue
        users = [u for u in node.users if u.op != "output"]
        if isinstance(was, TensorSpec) and shows_strides(node):
            copies += 1
            users = _restore(graph, infer, node, was)
        for user in users:
            copies += _update(graph, infer, node, user, was, pending)
    return copies


def adopt_strides(new: fx.Node, was: Any) -> bool:
    """`new` stands for a value with the spec `was`, its users included. Takes over what is the same; True if strides
    differ, which `propagate_strides([new])` must then deal with."""
    now = new.meta["val"]
    if not isinstance(now, TensorSpec) or not isinstance(was, TensorSpec):
        return False
    new.meta["val"] = _keep_grad(now, was)
    if new.target is operator.getitem:
        _set_item(new)
    if _settled(new, was):
        return False
    new.meta["eager_val"] = was
    return True


def _settled(node: fx.Node, was: Any) -> bool:
    """Whether nobody can tell the strides of `node` from those of `was`; the spec then says `was`."""
    now = node.meta["val"]
    if not isinstance(now, TensorSpec) or not isinstance(was, TensorSpec) or not same_strides(now, was):
        return now == was
    # A caller sees the strides of single-element dimensions too.
    if now.strides != was.strides and any(map(shows_strides, _same_items(node))):
        return False
    node.meta["val"] = with_strides(now, was.strides)
    if node.target is operator.getitem:
        _set_item(node)
    return True


def _same_items(node: fx.Node) -> list[fx.Node]:
    """The nodes that take the same part of a result of several as `node`; itself, if it takes none."""
    if node.target is not operator.getitem:
        return [node]
    whole, index = node.args
    users = cast(fx.Node, whole).users
    return [user for user in users if user.target is operator.getitem and user.args[1] == index]


def _set_item(node: fx.Node) -> None:
    """A result of several says of its part what the node that takes it says."""
    whole, index = cast("tuple[fx.Node, int]", node.args)
    parts = list(whole.meta["val"])
    parts[index] = node.meta["val"]
    whole.meta["val"] = tuple(parts)


def _restore(graph: fx.Graph, infer: Infer, node: fx.Node, was: TensorSpec) -> list[fx.Node]:
    """The caller sees a copy with eager's strides. Returns the users that go on reading `node`."""
    users = list(node.users)
    point = node.next
    while point.op == "placeholder":
        point = point.next
    copy = restrided(Editor(graph, infer, point), node, was)
    copy.meta["val"] = was
    rest: list[fx.Node] = []
    for user in users:
        if user.op == "output" or (view_base(user) is node and shows_strides(user)):
            user.replace_input_with(node, copy)
        else:
            rest.append(user)
    return rest


def _update(
    graph: fx.Graph, infer: Infer, node: fx.Node, user: fx.Node, was: Any, pending: set[fx.Node]
) -> int:
    old = user.meta["val"]
    if reads_layout(user):
        copied = _keep_layout(graph, infer, node, user, was)
        if copied or not of_rows(user):
            return copied
    try:
        spec = infer(user.target, user.args, user.kwargs)
    except CaptureError:
        # The op asks for strides like those it was recorded with, as view does.
        now = cast(TensorSpec, node.meta["val"])
        wanted = was if isinstance(was, TensorSpec) else with_strides(now, contiguous_strides(now.shape))
        user.replace_input_with(node, restrided(Editor(graph, infer, user), node, wanted))
        return 1
    user.meta["val"] = _keep_grad(spec, old)
    if user in pending:
        return 0
    if not _settled(user, old):
        user.meta["eager_val"] = old
        pending.add(user)
    return 0


def _keep_layout(graph: fx.Graph, infer: Infer, node: fx.Node, user: fx.Node, was: Any) -> int:
    """`user` draws numbers for `node`, or looks at its memory: it reads eager's order of elements, as before."""
    now = cast(TensorSpec, node.meta["val"])
    wanted = recorded_layout(user, node) or was
    if not isinstance(wanted, TensorSpec) or reads_alike(user, now, wanted):
        return 0
    user.replace_input_with(node, restrided(Editor(graph, infer, user), node, packed(wanted)))
    return 1


def _keep_grad(spec: Any, old: Any) -> Any:
    if isinstance(spec, TensorSpec) and isinstance(old, TensorSpec):
        return TensorSpec(spec.shape, spec.strides, spec.dtype, spec.device, old.requires_grad)
    if isinstance(spec, tuple) and isinstance(old, tuple):
        pairs = zip(cast("tuple[Any, ...]", spec), cast("tuple[Any, ...]", old), strict=True)
        return tuple(_keep_grad(s, o) for s, o in pairs)
    return spec
