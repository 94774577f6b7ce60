"""DTensors while a program is recorded: real ones, around trace tensors. How operators are sharded is decided by their
own dispatch, above the recorder, to which operators on local tensors and functional collectives come down.

before:  y = F.linear(x, weight)                     x: Replicate, weight: Shard(0), of 2 processes
         y = y.redistribute(placements=[Replicate()])
after:   t = aten.t(weight); mm = aten.mm(x, t)      of the local tensors
         all_gather = _c10d_functional.all_gather_into_tensor(mm, 2, "0"); ...
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils._python_dispatch import _disable_current_modes

from lampwork import pristine
from lampwork.errors import UnsupportedOpError
from lampwork.graph.nested import leaves
from lampwork.graph.tracetensor import TraceTensor

if TYPE_CHECKING:
    from lampwork.graph.record import Recorder

_HOME = "torch.distributed.tensor"


def is_dtensor(kind: type) -> bool:
    """Whether it is the class of DTensors, which a program that does not use them need not import."""
    home = sys.modules.get(_HOME)
    return home is not None and kind is getattr(home, "DTensor", None)


def dtensors(value: Any) -> Iterator[Any]:
    """The DTensors in nested tuples, lists and dicts."""
    return (tensor for tensor in leaves(value, torch.Tensor) if is_dtensor(type(tensor)))


def holds_dtensors(value: Any) -> bool:
    """Whether there are any."""
    kind = getattr(sys.modules.get(_HOME), "DTensor", None)
    return kind is not None and _holds(value, kind)


def _holds(value: Any, kind: type) -> bool:
    if isinstance(value, dict):
        value = cast("dict[Any, Any]", value).values()
    elif not isinstance(value, (tuple, list)):
        return type(value) is kind
    return any(_holds(item, kind) for item in cast("Iterable[Any]", value))


def make_dtensor(local: torch.Tensor, spec: Any, requires_grad: bool = False) -> Any:
    """The DTensor of which `local` is this process's part; `spec` says of what. It has no autograd history."""
    return sys.modules[_HOME].DTensor(local, spec, requires_grad=requires_grad)


def has_part(tensor: Any) -> bool:
    """Whether this process belongs to the mesh of a DTensor, and has an ordinary tensor as its part."""
    plain = type(tensor._local_tensor) in (torch.Tensor, torch.nn.Parameter, TraceTensor)
    return plain and tensor._spec.mesh.get_coordinate() is not None


def dispatch_state() -> tuple[bool, bool]:
    """What DTensor's dispatch goes by beside the operands: inside of `loss_parallel` it has other rules for losses, and
    it may take plain tensors for replicated ones."""
    dispatcher = sys.modules[_HOME].DTensor._op_dispatcher
    losses = torch.ops.aten._log_softmax.default in dispatcher._custom_op_handlers
    return losses, dispatcher._allow_implicit_replication


def passes_on(rec: Recorder, func: Any, types: Sequence[type]) -> bool:
    """Whether an operator is left to the dispatch of a DTensor among its operands, which comes back with operators on
    local tensors.

    Raises:
        UnsupportedOpError: it is called where no DTensors are looked for.
    """
    if not any(map(is_dtensor, types)):
        return False
    if not rec.distributes:
        raise UnsupportedOpError(f"{func} is called on a DTensor where nobody looks for one")
    return True


@contextlib.contextmanager
def distributing(rec: Recorder) -> Generator[None]:
    """Operators on DTensors, around trace tensors, are recorded as their dispatch divides them."""
    before, rec.distributes = rec.distributes, True
    try:
        with _propagating_unrecorded(), _with_autograd():
            yield
    finally:
        rec.distributes = before


def connected(rec: Recorder, tensor: TraceTensor) -> TraceTensor:
    """The tensor as a result of its own that requires grad, which autograd does not let anybody write to."""
    spec = replace(tensor.spec, requires_grad=True)
    with pristine.enable_grad():
        node = rec.emit(torch.ops.aten.alias.default, (rec.read(tensor),))
    node.meta["val"] = spec
    made = rec.result(spec, node)
    made.is_piece = True
    return made


class _Thread(threading.local):
    def __init__(self) -> None:
        self.records = False
        self.masks: list[Any] = []


_thread = _Thread()


@contextlib.contextmanager
def _propagating_unrecorded() -> Generator[None]:
    """How to shard is found out by running operators too, on stand-ins of torch's: in this thread outside of modes."""
    propagator: Any = sys.modules[_HOME].DTensor._op_dispatcher.sharding_propagator
    for name in _PROPAGATING:
        found = getattr(propagator, name)
        if not isinstance(found, _Unrecorded):
            setattr(propagator, name, _Unrecorded(found))
    _note_masks()
    before, _thread.records = _thread.records, True
    try:
        yield
    finally:
        _thread.records = before


_PROPAGATING = ("propagate_op_sharding", "propagate_op_sharding_non_cached")


class _Unrecorded:
    """What looks for a sharding, in the place of a method of torch's: as it is, but in a thread that records."""

    def __init__(self, propagate: Callable[..., Any]) -> None:
        self._propagate = propagate

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes() if _thread.records else contextlib.nullcontext():
            return self._propagate(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._propagate, name)


def _autograd_keys() -> int:
    keys: Any = torch._C
    before = keys._dispatch_tls_local_exclude_set().raw_repr()
    with keys._AutoDispatchBelowAutograd():
        return keys._dispatch_tls_local_exclude_set().raw_repr() & ~before


_AUTOGRAD_KEYS = _autograd_keys()


def _with_autograd() -> Any:
    """A guard under which operators come by way of autograd, as in eager, where a recorder has it out of the way: what
    is composed of others is taken apart there, before it is sharded."""
    keys: Any = torch._C
    if pristine.is_inference_mode_enabled():
        return contextlib.nullcontext()  # where autograd is out of the way in eager as well
    excluded = keys._dispatch_tls_local_exclude_set().raw_repr() & ~_AUTOGRAD_KEYS
    included = keys._dispatch_tls_local_include_set()
    return keys._ForceDispatchKeyGuard(included, keys.DispatchKeySet.from_raw_repr(excluded))


def has_mask(tensor: Any) -> bool:
    """Whether a DTensor holds the partial results of a lookup in sharded rows, which only their reduction understands:
    their placement has the mask."""
    return any(hasattr(placement, "mask_buffer") for placement in tensor.placements)


def release_masks() -> None:
    """Empty the masks that were recorded in this thread, and not reduced since: placements outlive a recording."""
    while _thread.masks:
        buffer = _thread.masks.pop()
        if isinstance(buffer.data, TraceTensor):
            buffer.data, buffer.refcount = None, 0


def _note_masks() -> None:
    """Have this module know of the masks that are recorded."""
    kind: Any = sys.modules[f"{_HOME}._ops._mask_buffer"].MaskBuffer
    materialize = kind.materialize_mask
    if materialize.__module__ == __name__:
        return

    def materialize_mask(self: Any, mask: Any) -> None:
        if _thread.records:
            _thread.masks.append(self)
        materialize(self, mask)

    kind.materialize_mask = materialize_mask
