"""DTensors of one capture: outside ones as the region sees them, around the trace tensors of their local tensors, and
the calls on them that autograd has to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from lampwork import pristine
from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import Attr, Known, Slot, Source
from lampwork.capture.state.guards import GuardBuilder
from lampwork.capture.state.lifting import Lifting
from lampwork.graph.distributed import dtensors, has_part, is_dtensor, make_dtensor, release_masks
from lampwork.graph.islands import Placed, Sharding
from lampwork.records import record
from lampwork.standard import functools


@record(eq=False)
class LiftedDTensor:
    """An outside DTensor and what stands for it. `bound`: as of `Lifted`. `trained`: it is differentiated by."""

    stand_in: Any
    real: Any
    source: Source
    bound: bool
    trained: bool

    @property
    def is_as_lifted(self) -> bool:
        """Whether the region left the stand-in around the same tensor, sharded as before."""
        return self.stand_in._spec is self.real._spec

    @property
    def place(self) -> str:
        """The name of the placeholder of the local tensor."""
        return self.stand_in._local_tensor.base.origin.name


@record(eq=False)
class IsShardedSo:
    """A predicate: a DTensor is sharded as another one, on the very same mesh."""

    spec: Any

    def __call__(self, tensor: Any) -> bool:
        return tensor._spec.mesh is self.spec.mesh and tensor._spec == self.spec


@record(eq=False)
class Made:
    """A tensor that a function gave, and what the program has of it; the node with its content, or that of its local
    tensor; whether it requires grad."""

    tensor: Tensor
    given: Tensor
    name: str
    requires_grad: bool

    @staticmethod
    def of(tensor: Any, given: Any) -> Made:
        if is_dtensor(type(tensor)):
            return Made(tensor, given, tensor._local_tensor.node.name, tensor.requires_grad)
        return Made(tensor, given, given.node.name, given.spec.requires_grad)


@record(eq=False)
class Event:
    """A call on DTensors that autograd may have to know.

    `given`: id of a tensor among the arguments → the node with its content, or of its local tensor, and, where the call
    was given an alias, the tensor itself. `made`: what the function gave.
    `inside`, `waits`: nodes that were recorded meanwhile, and those among them that are results of collectives, in the
    order in which these were started.
    """

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    given: Mapping[int, tuple[str, Tensor]]
    made: tuple[Made, ...]
    inside: tuple[str, ...]
    waits: tuple[str, ...]


class Distributed:
    """The DTensors of one capture. `trains`: it may be differentiated by some."""

    def __init__(self, lifting: Lifting, guards: GuardBuilder, trains: bool) -> None:
        self.lifting = lifting
        self.guards = guards
        self.trains = trains
        self.of_stand_in: dict[int, LiftedDTensor] = {}
        self.of_local: dict[int, LiftedDTensor] = {}  # by id of the outside local tensor
        self.events: list[Event] = []
        self._of_real: dict[int, LiftedDTensor] = {}
        self._made: dict[int, Any] = {}

    def close(self) -> None:
        """Let go of what was read, and of masks that nobody asked for."""
        release_masks()
        for table in (self.of_stand_in, self.of_local, self._of_real, self._made, self.events):
            table.clear()

    def note(self, made: Any) -> None:
        """Note the DTensors in a result."""
        self._made.update((id(tensor), tensor) for tensor in dtensors(made))

    def is_inside(self, value: Any) -> bool:
        """Whether a DTensor is one of the region's."""
        return id(value) in self.of_stand_in or id(value) in self._made

    def lift(self, tensor: Any, source: Source, name: str, *, bound: bool) -> Any:
        """What stands for an outside DTensor. One found at two places is one, and guarded so.

        Raises:
            Break: LW107: this process has no part of it, it is still being communicated, or gradients were switched on
                in the region.
        """
        if self.is_inside(tensor):
            return tensor
        found = self._of_real.get(id(tensor))
        if found is not None:
            self.guards.again(tensor, source, None if found.bound else found.source, slow=bound)
            return found.stand_in
        tracks = self.lifting.recorder.tracks_gradients
        refused = not tracks or not self.trains
        if not has_part(tensor) or (tensor.requires_grad and pristine.is_grad_enabled() and refused):
            raise Break("LW107", f"{name} (DTensor)")
        kind = type(tensor)
        local, spec = tensor._local_tensor, tensor._spec
        if bound:
            self.guards.add(source, "is", tensor, slow=True)
            source = Known(tensor, name)
        place = Slot(source, vars(kind)["_local_tensor"])
        if bound:
            self.guards.add(place, "is", local)
            self.guards.add(Slot(source, vars(kind)["_spec"]), "is", spec)
        else:
            self.guards.add(source, "type", kind)
            self.guards.add(source, "predicate", IsShardedSo(spec))
        if tracks:
            self.guards.add(Attr(source, "requires_grad"), "equals", tensor.requires_grad)
        trained = tracks and self.trains and tensor.requires_grad
        label = f"{name}._local_tensor"
        trace = self.lifting.lift(local, place, label, bound=bound and not trained, fixed=True)
        stand_in = make_dtensor(trace, spec, tensor.requires_grad)
        if isinstance(tensor, torch.nn.Parameter):
            stand_in._is_param = True
        lifted = LiftedDTensor(stand_in, tensor, source, bound, trained)
        self._of_real[id(tensor)] = self.of_stand_in[id(stand_in)] = lifted
        if trained:
            self.of_local[id(local)] = lifted
        return stand_in

    def sharding(self, local: Tensor, islands: tuple[Placed, ...]) -> Sharding | None:
        """What takes how the gradient of a trained DTensor is sharded, of which this is the local tensor."""
        place = self.of_local[id(local)].place
        return next(
            (
                entering.gradient
                for placed in islands
                for name, entering in zip(placed.inputs, placed.island.inputs, strict=True)
                if name == place
            ),
            None,
        )


def without_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is called where gradients are switched off."""

    @functools.wraps(function, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        with pristine.no_grad():
            return function(*args, **kwargs)

    return run
