"""Which values of a functional graph share memory, as far as the caller can see it.

Inside the graph sharing cannot be seen: nothing is written. It shows at the outputs only. A result that eager makes
fresh must not become a view of an argument, two fresh results must not become one, and a view of an argument must
stay one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import fx

from lampwork.rewriting.schema import signature
from lampwork.standard import operator
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten
_OTHER_SHAPES = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.alias.default,
        aten.detach.default,
        aten.unsqueeze.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.permute.default,
        aten.transpose.int,
        aten.t.default,
    }
)
"""Views of all elements, each once, of the dtype that they have."""


def view_base(node: fx.Node) -> fx.Node | None:
    """The node whose memory `node` is a view of; None if it has memory of its own."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        source = cast(fx.Node, node.args[0])
        return view_base(source)
    aliased = signature(node.target).aliased
    if aliased < 0:
        return None
    base = node.args[aliased] if aliased < len(node.args) else None
    return base if isinstance(base, fx.Node) else None


def storage_root(node: fx.Node) -> fx.Node:
    """The node that owns the memory `node` lives in: a placeholder or a fresh result."""
    while (base := view_base(node)) is not None:
        node = base
    return node


def fills_memory(node: fx.Node) -> bool:
    """`node` is all of the memory that it lives in, from the beginning to the end: fresh, or another shape of such."""
    while (base := view_base(node)) is not None:
        if node.target not in _OTHER_SHAPES:
            return False
        node = base
    return node.op == "call_function"


def is_detached(node: fx.Node) -> bool:
    """`node` is a view of something that requires grad, made by way of a `detach`."""
    while (base := view_base(node)) is not None:
        if node.target is torch.ops.aten.detach.default and base.meta["val"].requires_grad:
            return True
        node = base
    return False


def is_output(node: fx.Node) -> bool:
    return any(user.op == "output" for user in node.users)


def escapes(node: fx.Node) -> bool:
    """`node` or a view of it is an output of the graph."""
    return next(_leaving(node), None) is not None


def shows_strides(node: fx.Node) -> bool:
    """`node` or a view of it is an output whose strides the caller sees: one of the first `meta["n_shown"]` of the node
    `output`, or of all where it has none. Others are for programs of our own."""
    return any(left in _shown(output) for left, output in _leaving(node))


def _shown(output: fx.Node) -> tuple[fx.Node, ...]:
    return cast("tuple[fx.Node, ...]", output.args[0])[: output.meta.get("n_shown")]


def _leaving(node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
    """`node` and the views of it that are outputs, each with the node `output`."""
    seen: set[fx.Node] = set()
    work = [node]
    while work:
        current = work.pop()
        if current in seen:
            continue
        seen.add(current)
        for user in current.users:
            if user.op == "output":
                yield current, user
            elif user.target is operator.getitem or view_base(user) is current:
                work.append(user)


def may_stand_for(new: fx.Node, old: fx.Node) -> Verdict:
    """Whether the users of `old` may read `new`, of equal value, without the caller seeing it."""
    if not escapes(old):
        return Yes()
    if is_output(old) and (new.op == "placeholder" or is_output(new)):
        return No(f"the result {old.name} would become the same tensor as {new.name}")
    old_root, new_root = storage_root(old), storage_root(new)
    if (
        is_output(old)
        and new is old_root
        and any(view_base(user) is new and escapes(user) for user in new.users if user is not old)
    ):
        return No(f"other results would become views of the result {old.name}")
    if old_root is new_root:
        return Yes()
    if view_base(old) is not None:
        return No(f"the result {old.name} would no longer be a view of {old_root.name}")
    if new_root.op == "placeholder":
        return No(f"the result {old.name} would become a view of the argument {new_root.name}")
    if escapes(new_root):
        return No(f"the results {old.name} and {new.name} would share memory")
    if not fills_memory(new):
        # Offsets, as_strided, views of another dtype and the size of the memory would tell.
        return No(f"the result {old.name} would be a part of the memory of {new_root.name}")
    return Yes()
