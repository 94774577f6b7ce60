"""Functional collectives of torch.distributed as nodes of the graph: with an effect, so none is dropped or merged, and
no two that start change places. All processes that run the program start the same ones in the same order.

before:  y = all_reduce(x, "sum", group); z = relu(x); return y + z
after:   all_reduce = _c10d_functional.all_reduce(x, "sum", "0")
         relu = aten.relu(x)
         wait_tensor = _c10d_functional.wait_tensor(all_reduce)
         add = aten.add(wait_tensor, relu)

The program waits where it first reads the result, as eager's `AsyncCollectiveTensor` does, at the latest in the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from operator import getitem
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import fx

from lampwork import pristine
from lampwork.errors import UnsupportedOpError
from lampwork.graph.islands import Island
from lampwork.graph.shapes_collectives import collective_rules
from lampwork.graph.tracetensor import Storage, TraceTensor, make_trace_tensor

if TYPE_CHECKING:
    from lampwork.graph.record import Recorder

_NAMESPACES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d"})


def handler_of(func: Any) -> Callable[..., Any] | None:
    """What records an operator that communicates; None for others. Those that write to their operands, or that belong
    to other processes alone (`isend`), are refused."""
    if func.namespace not in _NAMESPACES:
        return None
    if is_wait(func):
        return _wait
    if func._opname == "_wrap_tensor_autograd":
        return _as_it_is
    return _start if func in collective_rules() else _refuse


def is_wait(target: Any) -> bool:
    """Whether an operator waits for what a collective gives."""
    return _is_functional(target) and target._opname == "wait_tensor"


def is_start(target: Any) -> bool:
    """Whether an operator starts a collective, or a node is an island, where calls on DTensors do."""
    return isinstance(target, Island) or (_is_functional(target) and target._opname != "wait_tensor")


def _is_functional(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target.namespace == "_c10d_functional"


def started_by(node: fx.Node) -> fx.Node:
    """The node that starts what a node waits for; a placeholder if that is in another part."""
    source = cast(fx.Node, node.args[0])
    return cast(fx.Node, source.args[0]) if source.target is getitem else source


def communicates(graph: fx.Graph) -> bool:
    return any(is_start(node.target) for node in graph.nodes)


def waits(graph: fx.Graph) -> tuple[fx.Node, ...]:
    return tuple(node for node in graph.nodes if is_wait(node.target) or node.meta.get("received"))


def _start(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record what starts a collective; its results are `pending`."""
    given = (*args, *kwargs.values())
    if not isinstance(given[-1], str):
        raise UnsupportedOpError(f"{func} of a group that is no name")
    if func._opname == "broadcast" and pristine.is_grad_enabled() and args[0].requires_grad:
        raise UnsupportedOpError(
            "broadcast of what requires grad, whose gradient eager takes for that of a copy"
        )
    made = rec.record(func, args, kwargs)
    tensors = [made] if isinstance(made, TraceTensor) else made
    for tensor in tensors:
        source = tensor.node.args[0] if tensor.node.target is getitem else tensor.node
        cast(fx.Node, source).meta["effect"] = True
        tensor.base.pending = True
        rec.renew(tensor.base, tensor.node)
        rec.started.append(tensor.base)
    return made


def wait(rec: Recorder, base: Storage) -> None:
    """Wait for what lies in `base`, in any block as outside of it."""
    base.pending = False
    with pristine.enable_grad() if rec.tracks_gradients else contextlib.nullcontext():
        node = rec.emit(torch.ops._c10d_functional.wait_tensor.default, (base.node,))
    node.meta["effect"] = True
    rec.renew(base, node)
    base.born = base.stamp


def arrived(rec: Recorder, number: int) -> list[TraceTensor]:
    """What collectives gave, those that were started behind the first `number`, waited for.

    Raises:
        UnsupportedOpError: something was written to it since.
    """
    found: list[TraceTensor] = []
    for base in rec.started[number:]:
        if base.pending:
            wait(rec, base)
        if base.written:
            raise UnsupportedOpError("what a collective gave is written to")
        found.append(make_trace_tensor(base.spec, base.node, base, ()))
    return found


def _wait(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """wait_tensor(tensor): another tensor on the same memory."""
    (tensor,) = (*args, *kwargs.values())
    if not isinstance(tensor, TraceTensor) or tensor.base.source == "input" or tensor.chain:
        raise UnsupportedOpError(
            "a wait for a collective that began outside of the region, or for a part of one"
        )
    node = rec.read(tensor)
    if rec.hides_gradient(tensor):
        return rec.view(tensor, torch.ops.aten.detach.default, (), {})
    return make_trace_tensor(tensor.spec, node, tensor.base, ())


def _as_it_is(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What eager wraps in a tensor that waits when it is read: so does the recorder."""
    (tensor,) = (*args, *kwargs.values())
    return tensor


def _refuse(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise UnsupportedOpError(f"{func} communicates, and not as a value of the graph")
