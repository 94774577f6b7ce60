"""Calls on DTensors that autograd has to know: as one node of a graph, which gives what the calls give.

Below autograd such calls are operators on local tensors, and collectives; but autograd differentiates the DTensors, and
their dispatch decides how gradients are sharded. So a graph that is differentiated has them as nodes, islands:

before:  view = view(x); t = t(weight); mm = mm(view, t); all_reduce = all_reduce(mm); wait = wait_tensor(all_reduce)
after:   island = island(x, weight); wait = island[0]
         which runs from_local(x), linear(x, weight), redistribute(...), to_local() on DTensors
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

from lampwork import pristine
from lampwork.errors import UnsupportedOpError
from lampwork.graph.distributed import has_mask, is_dtensor, make_dtensor
from lampwork.graph.nested import leaves, replaced
from lampwork.graph.nodes import add_call, copy_node
from lampwork.graph.origin import place_of
from lampwork.records import record

_HOME = "torch.distributed.tensor"


@record(eq=False)
class Value:
    """Stands for a tensor of an island: the one of this number, inputs first, then what the calls give."""

    number: int


@dataclass(slots=True, eq=False)
class Sharding:
    """How the gradient of one DTensor is sharded, once it is known."""

    spec: Any = None


@record(eq=False)
class Entering:
    """An input. `spec`: of the DTensor whose local tensor is given; None: it is a plain tensor. `gradient`: takes how
    the DTensor's gradient is sharded; None: as `from_local` has it."""

    spec: Any = None
    gradient: Sharding | None = None


@record(eq=False)
class Call:
    """function(*args, **kwargs), with `Value`s for tensors. `first`: the number of the first tensor that it gives."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    first: int


@dataclass(frozen=True, eq=False)
class Island:
    """The target of a node: takes the inputs, gives the values of the numbers `outputs`, the local tensors of those
    that are DTensors, and then what `n_waits` collectives gave where a recorder runs it, else None for each."""

    inputs: tuple[Entering, ...]
    calls: tuple[Call, ...]
    outputs: tuple[int, ...]
    n_waits: int
    __name__: ClassVar[str] = "island"

    def __call__(self, *given: Tensor) -> list[Any]:
        return self.run(given, None)

    def run(self, given: Sequence[Tensor], received: Sequence[Tensor] | None) -> list[Any]:
        """Run on tensors with data. `received`: what the collectives give, which are not started; None: they are."""
        with Plainly(received):
            return [*self.values(given), *[None] * self.n_waits]

    def values(self, given: Sequence[Tensor]) -> list[Tensor]:
        """The outputs, as functions of the inputs that autograd knows."""
        made: dict[int, Any] = {
            number: _enter(tensor, entering)
            for number, (tensor, entering) in enumerate(zip(given, self.inputs, strict=True))
        }
        for call in self.calls:
            args, kwargs = replaced((call.args, call.kwargs), Value, lambda value: made[value.number])
            result = call.function(*args, **kwargs)
            made.update(enumerate(leaves(result, Tensor), call.first))
        values = (made[number] for number in self.outputs)
        return [value.to_local() if is_dtensor(type(value)) else value for value in values]


@record(eq=False)
class Placed:
    """Where an island lies in a graph: names of nodes. `outputs`: with whether each requires grad. `inside`: what it
    stands for, in order."""

    island: Island
    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, bool], ...]
    waits: tuple[str, ...]
    inside: tuple[str, ...]


def contracted(graph: fx.Graph, places: Sequence[Placed], trained: Sequence[int]) -> fx.Graph:
    """A copy of a graph with islands as nodes. What these give has the name that it has in the graph, or that in
    `meta["recorded_as"]`. `trained`: numbers of the placeholders of local tensors of DTensors that require grad.

    Raises:
        UnsupportedOpError: something else than what an island gives is read of what it stands for.
    """
    copy, made = fx.Graph(), dict[fx.Node, fx.Node]()
    by_name = {node.name: node for node in graph.nodes}
    last = {place.inside[-1]: place for place in places}
    inside = {name for place in places for name in place.inside}
    late: list[fx.Node] = []
    for node in graph.nodes:
        if node.name not in inside:
            late.append(node)
        elif node.name in last:
            _place(copy, last[node.name], by_name, made)
        else:
            continue
        waiting: list[fx.Node] = []
        for other in late:
            if all(used in made for used in other.all_input_nodes):
                made[other] = copy_node(copy, other, made.__getitem__)
            else:
                waiting.append(other)
        late = waiting
    if late:
        raise UnsupportedOpError(f"{late[0].name} reads what is no result of calls on DTensors")
    placeholders = [node for node in copy.nodes if node.op == "placeholder"]
    for number in trained:
        meta = placeholders[number].meta
        meta["val"] = replace(meta["val"], requires_grad=True)
    return copy


def _place(
    copy: fx.Graph, place: Placed, by_name: Mapping[str, fx.Node], made: dict[fx.Node, fx.Node]
) -> None:
    """Add an island to a graph that is being copied, and the nodes that it gives."""
    if any(entering.spec is not None and has_mask(entering.spec) for entering in place.island.inputs):
        raise UnsupportedOpError("partial results with a mask are read behind other operators")
    if any(by_name[name].meta.get("random") for name in place.inside):
        raise UnsupportedOpError("random numbers are drawn for a DTensor that autograd knows")
    given = tuple(made[by_name[name]] for name in place.inputs)
    island = add_call(copy, place.island, given, {}, "island", place_of(by_name[place.inside[0]]))
    found = [*place.outputs, *((name, False) for name in place.waits)]
    specs = [replace(by_name[name].meta["val"], requires_grad=flag) for name, flag in found]
    island.meta.update(val=tuple(specs), effect=True)
    for number, ((name, _), spec) in enumerate(zip(found, specs, strict=True)):
        item = add_call(copy, getitem, (island, number), {}, name, place_of(by_name[name]))
        item.meta.update(val=spec, received=number >= len(place.outputs), recorded_as=name)
        made.setdefault(by_name[name], item)


def has_islands(graph: fx.Graph) -> bool:
    return any(isinstance(node.target, Island) for node in graph.nodes)


# --- on the way in ----------------------------------------------------------------------------------------------------


def _enter(tensor: Tensor, entering: Entering) -> Any:
    if entering.spec is None:
        return _Whole.apply(tensor) if tensor.requires_grad or is_connected(tensor) else tensor
    return _Enter.apply(tensor, entering.spec, entering.gradient)


def from_local(local: Tensor, spec: Any) -> Any:
    """The DTensor of which `local` is this process's part, for autograd too."""
    kind = sys.modules[_HOME].DTensor
    return kind.from_local(local, spec.mesh, spec.placements, shape=spec.shape, stride=spec.stride)


class _Whole(torch.autograd.Function):
    """The tensor itself. Its gradient has come when it is given."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _come(grads[0])


class _Enter(torch.autograd.Function):
    """The DTensor around a local tensor. The gradient is the local tensor of its gradient, however that is sharded if
    somebody takes notice, and as the DTensor else.

    Raises:
        UnsupportedOpError: in backward: it is sharded in another way, or not in parts of the local tensor's shape, on
            which autograd insists.
    """

    @staticmethod
    def forward(ctx: Any, local: Tensor, spec: Any, gradient: Sharding | None) -> Any:
        ctx.set_materialize_grads(False)
        ctx.spec, ctx.gradient, ctx.shape = spec, gradient, local.shape
        return make_dtensor(local.view_as(local), spec, is_connected(local))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        if grad is None:
            return None, None, None
        sharding = ctx.gradient
        if sharding is not None and sharding.spec is None:
            sharding.spec = grad._spec
        wanted = _of_gradient(ctx.spec.placements) if sharding is None else sharding.spec.placements
        local = _come(grad.to_local())
        if local.shape != ctx.shape or grad._spec.placements != wanted:
            found, own = grad._spec.placements, ctx.spec.placements
            raise UnsupportedOpError(f"the gradient of a DTensor with placements {own} comes with {found}")
        return local, None, None


class _Localize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, gradient: Sharding | None) -> Any:
        ctx.set_materialize_grads(False)
        ctx.spec, ctx.gradient = tensor._spec, gradient
        return tensor._local_tensor.view_as(tensor._local_tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        if grad is None:
            return None, None
        known = None if ctx.gradient is None else ctx.gradient.spec
        if known is not None and not pristine.is_grad_enabled():
            return make_dtensor(grad, known), None
        spec = ctx.spec if known is None else known
        kinds = sys.modules[_HOME]
        placements = [
            kinds.Replicate() if place.is_partial() and known is None else place for place in spec.placements
        ]
        return kinds.DTensor.from_local(
            grad, spec.mesh, placements, shape=spec.shape, stride=spec.stride
        ), None


def _of_gradient(placements: tuple[Any, ...]) -> tuple[Any, ...]:
    """How the gradient of a DTensor with these placements is sharded where nothing else is said: `from_local`'s way."""
    whole = sys.modules[_HOME].Replicate
    return tuple(whole() if placement.is_partial() else placement for placement in placements)


def localized(tensor: Any, gradient: Sharding | None) -> Tensor:
    """The local tensor of a DTensor, for autograd too: the DTensor's gradient is sharded as `gradient` says then."""
    return cast(Any, _Localize).apply(tensor, gradient)


_FLAG: Any = cast(Any, torch)._C.TensorBase.requires_grad


def is_connected(tensor: Tensor) -> bool:
    """Whether autograd differentiates by the tensor or by what it is computed from: torch's own flag, which trace
    tensors do not show."""
    return _FLAG.__get__(tensor)


def as_leaf(tensor: Tensor) -> Tensor:
    """The tensor as one that autograd differentiates by."""
    _FLAG.__set__(tensor, True)
    return tensor


def _come(tensor: Any) -> Any:
    """A result of a collective that is on its way, when it has come."""
    return tensor.wait() if type(tensor).__name__ == "AsyncCollectiveTensor" else tensor


class Plainly(TorchDispatchMode):
    """Collectives give plain tensors, waited for: those `received` before, as long as there are, or their own."""

    def __init__(self, received: Sequence[Tensor] | None) -> None:
        super().__init__()
        self._received: Iterator[Tensor] | None = None if received is None else iter(received)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # see Recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(map(is_dtensor, types)):
            return NotImplemented
        kwargs = kwargs or {}
        if func.namespace != "_c10d_functional":
            return func(*args, **kwargs)
        if func._opname == "_wrap_tensor_autograd":
            return torch.ops._c10d_functional.wait_tensor.default(*args)
        if self._received is None or func._opname == "wait_tensor":
            return func(*args, **kwargs)
        if str(func._schema.returns[0].type) == "List[Tensor]":
            return [next(self._received).detach() for _ in args[0]]
        return next(self._received).detach()
