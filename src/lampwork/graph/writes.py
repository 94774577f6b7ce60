"""Which writes a functional graph can stand for: autograd and version counters must see them as eager's do.

Memory, autograd's tensors and version counters are three things in eager. `x.detach()` has the memory and the version
of x, and a gradient of its own; `x.data` has only the memory. A `Storage` is the memory; what the other two know that
it does not is noted in its flags, and what they would tell apart is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch

from lampwork import pristine
from lampwork.errors import UnsupportedOpError
from lampwork.graph.functionalize import spec_of
from lampwork.graph.opinfo import op_info
from lampwork.graph.recorded import Input
from lampwork.graph.shapes_common import is_dense
from lampwork.graph.spec import TensorSpec
from lampwork.graph.tracetensor import Storage, TraceTensor, ViewStep


def detached_by(tensor: TraceTensor) -> ViewStep | None:
    """The last step of its chain that cuts the tensor off from the gradients of its memory."""
    return next((step for step in reversed(tensor.chain) if not op_info(step.op).differentiable), None)


def check_tracked(tensor: TraceTensor, content: torch.fx.Node) -> None:
    """A write behind autograd's back changes values but no gradients, which the recorded graph cannot tell apart; and
    what was overwritten as a whole requires grad all the same.

    Raises:
        UnsupportedOpError: it is such a write.
    """
    base = tensor.base
    if base.sealed:
        raise UnsupportedOpError("memory of a tensor that was detached in place is written")
    if not spec_of(base.node).requires_grad:
        return
    hidden = not pristine.is_grad_enabled() or detached_by(tensor) is not None
    if hidden or not spec_of(content).requires_grad:
        raise UnsupportedOpError("memory that requires grad is written where autograd does not see it")


def check_stray(tensor: TraceTensor) -> None:
    """
    Raises:
        UnsupportedOpError: a detached tensor that was written to has a gradient that its memory has not.
    """
    if tensor.is_stray:
        raise UnsupportedOpError(
            "a detached tensor is used after a value that requires grad was written to it"
        )


def check_unnoticed(tensor: TraceTensor) -> None:
    """Refuse a write that no version shows where an operator may have saved the memory for backward: it would compute
    with what is written now.

    Raises:
        UnsupportedOpError: an operator may have.
    """
    if tensor.base.differentiated:
        raise UnsupportedOpError("memory that backward may need is written through .data")


def note_differentiated(arguments: Iterable[Any]) -> None:
    """Note of the tensors among the arguments of a differentiable operator that it may save them.

    Raises:
        UnsupportedOpError: one is memory from outside that was written through .data: on the next call that happens
            again, and backward of this one would see it.
    """
    for value in arguments:
        if isinstance(value, TraceTensor):
            if value.base.unnoticed and value.base.source == "input":
                raise UnsupportedOpError("a tensor from outside is used after it was written through .data")
            value.base.differentiated = True
        elif isinstance(value, (list, tuple)):
            note_differentiated(cast("list[Any]", value))


def note_content(tensor: TraceTensor, value: torch.fx.Node, content: torch.fx.Node) -> None:
    """Note that `value`, written through `tensor`, is a part of the memory's content: what autograd saves of it is lost
    with that content. A piece that `unsafe_split` gives is memory of its own to autograd."""
    if not any(step.unsafe for step in tensor.chain):
        value.meta["lies_in"] = content.name


def note_version(tensor: TraceTensor) -> None:
    """Note that the memory of a tensor has another version from its node on, though nothing was written to it."""
    content = tensor.base.node
    content.meta["new_versions"] = (*content.meta.get("new_versions", ()), tensor.node.name)


def check_dense(spec: TensorSpec) -> None:
    """Raise for memory of the region's that has gaps: the new content of a write is dense, and would lie otherwise."""
    if not is_dense(spec):
        raise UnsupportedOpError("memory with gaps, which an operator made, is written in place")


def check_shared(tensor: torch.Tensor, name: str, base: Storage | None, others: Iterable[Input]) -> None:
    """A write to an input is only recorded if no other input shares its memory, now or later.

    `base` is what is being written; None for a new input.

    Raises:
        UnsupportedOpError: it does.
    """
    address = tensor.untyped_storage()._cdata
    for other in others:
        if base is None and not other.base.written:
            continue
        if other.base is not base and other.tensor.untyped_storage()._cdata == address:
            raise UnsupportedOpError(
                f"{name} shares memory with {other.name}, and one of them is written",
                fix="pass tensors that do not overlap, or clone one of them",
            )
