"""torch.distributed: what it says of the process is asked again on every call, its functional collectives are recorded.

Functions are told by module and name: to name them would import what a program may not use.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from lampwork.capture.calls.torch_calls import run_unrecorded
from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import Known, Result
from lampwork.capture.model.values import is_constant
from lampwork.graph.tracetensor import TraceTensor
from lampwork.standard import functools

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

Args = list[Any]
Kwargs = dict[str, Any]
Handler = Callable[["Interpreter", Any, Args, Kwargs], Any]

_FUNCTIONAL = "torch.distributed._functional_collectives"
_C10D = "torch.distributed.distributed_c10d"
_QUESTIONS = (
    "WORLD",
    "_get_default_group",
    "is_initialized",
    "get_rank",
    "get_world_size",
    "get_backend",
    "get_group_rank",
    "get_global_rank",
    "get_process_group_ranks",
    "_get_group_tag",
    "_get_group_size_by_name",
)


def handler_of(function: Any) -> Handler | None:
    return _HANDLERS.get((function.__module__, function.__name__))


def _ask(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """What a function says of the process groups, which may be made anew between calls."""
    values = [_fixed(interp, value) for value in args]
    named = {name: _fixed(interp, value) for name, value in kwargs.items()}
    asked = functools.partial(function, *values, **named)
    result = run_unrecorded(asked, [], {})
    return interp.environment.read(result, Result(Known(asked, function.__name__)), f"{function.__name__}()")


def _fixed(interp: Interpreter, value: Any) -> Any:
    """An argument, guarded to be the same on every call."""
    value = interp.force(value)
    if type(value) is list:
        return [_fixed(interp, item) for item in value]
    if not is_constant(value):
        if isinstance(value, torch.Tensor):
            raise Break("LW103", "a question to torch.distributed about a tensor")
        interp.environment.register(value, type(value).__name__)
    return value


def _group_name(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    group = _fixed(interp, args[0])
    return group if isinstance(group, str) else group.group_name


def _as_it_is(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """What a collective gives, which eager wraps in a tensor that waits when it is read: the recorder's waits so."""
    return interp.force(args[0])


def _find_group(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """The group of some ranks.

    Raises:
        Break: LW105 if there is none, so that one would be made.
    """
    found = _ask(interp, function.__globals__["_find_pg_by_ranks_and_tag"], args[:2], {})
    if found is None:
        raise Break("LW105", f"{function.__name__}() makes a group")
    return found


# --- collectives that write to tensors --------------------------------------------------------------------------------


def _group_of(group: Any) -> tuple[str, int] | None:
    """Name and size of a group, or of that of all processes; None where its collectives are not run one by one, or this
    process does not belong to it."""
    c10d: Any = torch.distributed.distributed_c10d
    group = group or c10d.GroupMember.WORLD
    if not isinstance(group, c10d.ProcessGroup) or group in c10d._world.pg_coalesce_state:
        return None
    return group.group_name, group.size()


def _written(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> None:
    """A collective that writes what it gives to tensors: the functional one, whose result is copied there.

    Raises:
        Break: LW105 where that is something else: it is asynchronous, autograd watches, or eager may refuse it.
    """
    name = function.__name__
    given = inspect.signature(function).bind(*args, **kwargs)
    given.apply_defaults()
    values = {key: interp.force(value) for key, value in given.arguments.items()}
    source, targets = _operands(interp, values)
    found = _ask(interp, _group_of, [values["group"]], {})
    if not found or values["async_op"] or not all(map(_is_plain, (source, *targets))):
        raise Break("LW105", f"torch.distributed.{name}() with such operands or options")
    group, size = found
    shape = _shape(name, source, size)
    if shape is None or any(target.shape != shape or target.dtype is not source.dtype for target in targets):
        raise Break("LW105", f"torch.distributed.{name}() of tensors that do not fit together")
    made = _functional(function, values, source, group, size)
    for target, piece in zip(targets, made.reshape(len(targets), *shape), strict=True):
        target.data.copy_(piece)  # which autograd does not notice


def _operands(interp: Interpreter, values: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """What is sent, and where to write what comes."""
    if "tensor_list" in values:
        return values["tensor"], [interp.force(tensor) for tensor in values["tensor_list"]]
    if "tensor" in values:
        return values["tensor"], [values["tensor"]]
    if "input" in values:
        return values["input"], [values["output"]]
    return values["input_tensor"], [values["output_tensor"]]


def _is_plain(tensor: Any) -> bool:
    return (
        type(tensor) is TraceTensor
        and tensor.is_contiguous()
        and not tensor.requires_grad
        and not tensor.is_complex()
    )


def _shape(name: str, source: TraceTensor, size: int) -> tuple[int, ...] | None:
    """The shape of each target, of a group of `size`; None if there is none."""
    shape = tuple(source.shape)
    if name in _GATHERING:
        return (shape[0] * size, *shape[1:]) if shape else None
    if name in _REDUCING:
        return (shape[0] // size, *shape[1:]) if shape and shape[0] % size == 0 else None
    return shape


def _functional(
    function: Any, values: Mapping[str, Any], source: TraceTensor, group: str, size: int
) -> TraceTensor:
    """What a collective gives; of one dimension where processes give or get parts."""
    name = function.__name__
    ops = torch.ops._c10d_functional
    reduction = _REDUCTIONS.get(str(values["op"]).rpartition(".")[2]) if "op" in values else ""
    if reduction is None:
        raise Break("LW105", f"torch.distributed.{name}() by {values['op']}")
    if name == "all_reduce":
        return ops.all_reduce(source, reduction, group)
    if name == "broadcast":
        if values["group"] is not None or type(values["src"]) is not int:
            raise Break("LW105", "torch.distributed.broadcast() in a group")
        return ops.broadcast(source, values["src"], group)
    if name in _REDUCING:
        return ops.reduce_scatter_tensor(source.reshape(-1), reduction, size, group)
    return ops.all_gather_into_tensor(source.reshape(-1), size, group)


_REDUCTIONS = {name: name.lower() for name in ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")}
_REDUCING = ("reduce_scatter_tensor", "reduce_scatter_single")
_GATHERING = ("all_gather_into_tensor", "all_gather_single")
_WRITING = ("all_reduce", "broadcast", "all_gather", *_GATHERING, *_REDUCING)

_HANDLERS: dict[tuple[str, str], Handler] = {
    **{(_C10D, name): _ask for name in _QUESTIONS},
    **{(_C10D, name): _written for name in _WRITING},
    (_C10D, "_find_or_create_pg_by_ranks_and_tag"): _find_group,
    (_FUNCTIONAL, "_group_or_group_name"): _group_name,
    (_FUNCTIONAL, "_maybe_wrap_tensor"): _as_it_is,
}
