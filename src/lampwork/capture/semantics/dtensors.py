"""Calls on DTensors. They run as they are, on DTensors around trace tensors: what their own dispatch makes of them is
recorded, the operators on local tensors and the collectives between. Where autograd watches, the call itself is noted
as well: a graph that is differentiated has it as part of an island (graph/islands.py)."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from lampwork import pristine
from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import Known, Result
from lampwork.capture.model.values import is_constant
from lampwork.capture.semantics.symbolic import NumbersNeeded
from lampwork.capture.state.distributed import Event, Made, without_gradients
from lampwork.graph.collectives import arrived
from lampwork.graph.distributed import connected, dispatch_state, distributing, holds_dtensors, is_dtensor
from lampwork.graph.islands import as_leaf, is_connected
from lampwork.graph.nested import leaves, replaced
from lampwork.graph.record import Recorder
from lampwork.graph.tracetensor import Storage, TraceTensor
from lampwork.graph.within import devices_cast
from lampwork.records import record
from lampwork.standard import functools

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

_HOME = "torch.distributed.tensor"
_ANSWERED = frozenset(
    {"shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_sparse", "is_nested"}
)
"""Attributes that follow from what DTensors are guarded by."""
_METHODS = frozenset(f"DTensor.{name}" for name in ("from_local", "to_local", "redistribute", "full_tensor"))
_HELD = frozenset({"placements", "device_mesh"})
"""Attributes that hold objects, the same ones on every call."""


def is_of_dtensors(function: types.FunctionType) -> bool:
    """Whether a function of Python makes DTensors, or other ones or tensors of them."""
    return function.__module__ == f"{_HOME}._api" and function.__qualname__ in _METHODS


def is_placement(cls: type) -> bool:
    """Whether objects of a class say how DTensors are sharded: they never change."""
    return cls.__module__ == f"{_HOME}.placement_types"


def takes_dtensors(function: Any, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a native call is one on DTensors."""
    return _HOME in sys.modules and holds_dtensors((getattr(function, "__self__", None), args, kwargs))


def call_distributed(interp: Interpreter, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """function(*args, **kwargs), where DTensors are taken or made.

    Raises:
        Break: LW107: autocast, another rule of dispatch, or a write that autograd watches has a say in it.
        NumbersNeeded: sizes are open.
    """
    values = [_given(interp, value) for value in args]
    named = {name: _given(interp, value) for name, value in kwargs.items()}
    name = getattr(function, "__qualname__", type(function).__name__)
    receiver = getattr(function, "__self__", None)
    if isinstance(receiver, Tensor):
        function, values = functools.partial(_call_method, function.__name__), [receiver, *values]
    _guard_dispatch(interp, name)
    if interp.environment.lifting.symbols:
        raise NumbersNeeded(TypeError("a DTensor among sizes that are open"))
    if interp.recorder.tracks_gradients and interp.environment.distributed.trains:
        return _call_watched(interp, function, values, named)
    if pristine.is_grad_enabled() and any(tensor.requires_grad for tensor in leaves((values, named), Tensor)):
        raise Break("LW107", f"an operand of {name}() that requires grad (DTensor)")
    with distributing(interp.recorder):
        made = function(*values, **named)
    interp.environment.distributed.note(made)
    return made


def _call_method(name: str, receiver: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(receiver, name)(*args, **kwargs)


def _call_watched(interp: Interpreter, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The call, where autograd watches: it goes through autograd, so that DTensors and results know whether they
    require grad.

    Raises:
        Break: LW107: it writes to what it did not make.
    """
    recorder, distributed = interp.recorder, interp.environment.distributed
    operands = {id(tensor): _Operand.of(recorder, tensor) for tensor in leaves((args, kwargs), Tensor)}
    outside = [
        operand.base
        for key, operand in operands.items()
        if not is_dtensor(type(operand.tensor)) or key in distributed.of_stand_in
    ]
    stamps = [base.stamp for base in outside]
    started, before = len(recorder.started), recorder.graph._root.prev
    aliased = {key: operand.alias(recorder) for key, operand in operands.items()}
    args, kwargs = replaced((args, kwargs), Tensor, lambda tensor: aliased[id(tensor)])
    with distributing(recorder):
        result = function(*args, **kwargs)
    if [base.stamp for base in outside] != stamps:
        raise Break("LW107", "what is written where gradients are watched, a DTensor,")
    waits = tuple(tensor.node.name for tensor in arrived(recorder, started))
    made: list[Made] = []

    def leave(tensor: Any) -> Any:
        requires_grad = type(tensor) is TraceTensor and is_connected(tensor)
        made.append(Made.of(tensor, connected(recorder, tensor) if requires_grad else tensor))
        return made[-1].given

    result = replaced(result, Tensor, leave)
    if not pristine.is_grad_enabled():
        function = without_gradients(function)
    given = {id(aliased[key]): (operand.name, operand.tensor) for key, operand in operands.items()}
    inside = tuple(node.name for node in _nodes_behind(before))
    distributed.events.append(Event(function, args, kwargs, given, tuple(made), inside, waits))
    distributed.note(result)
    return result


@record(eq=False)
class _Operand:
    """A tensor that a call is given, the memory that it or its local tensor lives in, and the node with its content."""

    tensor: Any
    base: Storage
    name: str

    @staticmethod
    def of(recorder: Recorder, tensor: Any) -> _Operand:
        local = tensor._local_tensor if is_dtensor(type(tensor)) else tensor
        return _Operand(
            tensor, local.base, recorder.read(local).name
        )  # what is coming is waited for before the call

    def alias(self, recorder: Recorder) -> Any:
        """What the call gets: of a plain tensor that requires grad an alias, by which autograd differentiates."""
        if is_dtensor(type(self.tensor)) or not self.tensor.requires_grad:
            return self.tensor
        return as_leaf(recorder.view(self.tensor, torch.ops.aten.detach.default, (), {}))


def _nodes_behind(node: fx.Node) -> Iterator[fx.Node]:
    while (node := node.next).op != "root":
        yield node


def _given(interp: Interpreter, value: Any) -> Any:
    """An argument, of which what is no tensor is guarded to be the same on every call."""
    value = interp.force(value)
    if type(value) in (list, tuple):
        return type(value)([_given(interp, item) for item in value])
    if is_constant(value) or isinstance(value, (Tensor, torch.Size)):
        return value
    entry = interp.environment.entry(value)
    if entry is not None and not entry.known and not isinstance(value, dict):
        interp.environment.register(value, type(value).__name__)
    return value


def _guard_dispatch(interp: Interpreter, name: str) -> None:
    state = dispatch_state()
    interp.guards.add(Result(Known(dispatch_state, "dispatch_state")), "equals", state)
    if any(state) or devices_cast():
        raise Break("LW107", f"an operand of {name}(), inside of loss_parallel or autocast, a DTensor,")


def load_dtensor_attr(interp: Interpreter, tensor: Any, name: str) -> Any:
    """tensor.name of a DTensor.

    Raises:
        AttributeError: there is none.
        Break: LW107 for what the region does not know of it.
    """
    kind = type(tensor)
    found, _ = interp.lookup(kind, name)
    if name in _ANSWERED:
        return getattr(tensor, name)
    if name in _HELD:
        return interp.environment.known(getattr(tensor, name), name)
    if name == "__class__":
        return kind
    if callable(found) or isinstance(found, (staticmethod, classmethod)):
        return getattr(tensor, name)
    if not hasattr(kind, name):
        raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
    if name in ("T", "mT", "H", "mH"):
        return call_distributed(interp, getattr, [tensor, name], {})
    raise Break("LW107", f"{name} of a tensor, of a DTensor,")
