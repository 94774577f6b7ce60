"""Outside tensors and open numbers, as the region sees them: trace tensors and symbols."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, cast

import torch

from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import Item, Known, Source, Symbol, TensorGuard
from lampwork.capture.state.dynamic import Dynamic, bounded_symbol, marks, strides_of
from lampwork.capture.state.guards import GuardBuilder
from lampwork.graph.record import Recorder
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import SymbolicInt
from lampwork.graph.symnode import symfloat, symint
from lampwork.graph.tracetensor import TraceTensor
from lampwork.records import record

_PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})


@record(eq=False)
class Lifted:
    """An outside tensor and the trace tensor that stands for it. `bound`: a parameter, buffer or other known tensor."""

    trace: TraceTensor
    real: torch.Tensor
    source: Source
    bound: bool
    name: str


def place_in_storage(tensor: torch.Tensor, period: int) -> int:
    """Bytes from the start of its storage to a tensor's first element, modulo `period`."""
    return int(tensor.storage_offset()) * tensor.element_size() % period


@record
class BeginsAt:
    """A predicate: a tensor begins `place` bytes, modulo `period`, behind the start of its storage."""

    period: int
    place: int

    def __call__(self, tensor: torch.Tensor) -> bool:
        return place_in_storage(tensor, self.period) == self.place


_begins_at = cache(BeginsAt)


@record
class LiesAt:
    """A predicate: the address of a tensor's first element is `place`, modulo `period`."""

    period: int
    place: int

    def __call__(self, tensor: torch.Tensor) -> bool:
        return tensor.data_ptr() % self.period == self.place


_lies_at = cache(LiesAt)


class Lifting:
    """The trace tensor of each outside tensor, and the symbol of each number that is open."""

    def __init__(self, recorder: Recorder, guards: GuardBuilder, dynamic: Dynamic | None) -> None:
        self.recorder = recorder
        recorder.place_of = self._place_of
        recorder.address_of = self._address_of
        self.guards = guards
        self.dynamic = dynamic
        self.lifted: dict[int, Lifted] = {}  # by id of the outside tensor
        self.of_trace: dict[int, Lifted] = {}  # by id of the trace tensor
        self.symbols: list[Symbol] = []
        self._stride_symbols: list[Symbol] = []
        self._numbers: dict[Source, torch.SymInt | torch.SymFloat] = {}

    def close(self) -> None:
        """Let go of what was read."""
        self.lifted.clear()
        self.of_trace.clear()

    def lift(
        self, tensor: torch.Tensor, source: Source, name: str, *, bound: bool, fixed: bool = False
    ) -> torch.Tensor:
        """The trace tensor of an outside tensor. One tensor found at two places is one trace tensor, and guarded so.
        `fixed`: no size of it is left open.

        Raises:
            Break: LW107 for a tensor subclass.
        """
        if isinstance(tensor, TraceTensor):
            return tensor
        found = self.lifted.get(id(tensor))
        if found is not None:
            self.guards.again(tensor, source, None if found.bound else found.source, slow=bound)
            return found.trace
        if type(tensor) not in _PLAIN_TENSORS:
            raise Break("LW107", f"{name} ({type(tensor).__name__})")
        if bound:
            self.guards.add(source, "is", tensor, slow=True)
            source = Known(tensor, name)
        if tensor.layout is not torch.strided or tensor.is_nested:
            layout = "nested" if tensor.is_nested else tensor.layout
            raise Break("LW107", f"{name} ({layout} layout)")
        spec = TensorSpec.of(tensor) if bound or fixed else self._spec(tensor, source)
        expected = TensorGuard(
            type(tensor),
            tensor.dtype,
            tensor.device,
            tuple(None if isinstance(size, SymbolicInt) else size for size in spec.shape),
            tuple(None if isinstance(stride, SymbolicInt) else stride for stride in spec.strides),
            tensor.requires_grad,
        )
        self.guards.add(source, "tensor", expected, slow=bound)
        trace = self.recorder.input(tensor, name, bound=bound, spec=spec)
        lifted = Lifted(trace, tensor, source, bound, name)
        self.lifted[id(tensor)] = lifted
        self.of_trace[id(trace)] = lifted
        return trace

    def _place_of(self, tensor: torch.Tensor, period: int) -> int:
        """Where in its storage a tensor that was lifted begins, in bytes modulo `period`: there on each call."""
        place = place_in_storage(tensor, period)
        lifted = self.lifted.get(id(tensor))
        if lifted is not None:
            self.guards.add(lifted.source, "predicate", _begins_at(period, place))
        return place

    def _address_of(self, tensor: torch.Tensor, period: int) -> int | None:
        """The address of a tensor, modulo `period`, which is the same on each call; None if it was not lifted."""
        lifted = self.lifted.get(id(tensor))
        if lifted is None:
            return None
        place = tensor.data_ptr() % period
        self.guards.add(lifted.source, "predicate", _lies_at(period, place))
        return place

    def _spec(self, tensor: torch.Tensor, source: Source) -> TensorSpec:
        """The spec of a tensor, with symbols for the sizes that are open."""
        spec = TensorSpec.of(tensor)
        dims = self.dynamic.open_dims(source, tensor) if self.dynamic is not None else set[int]()
        if not dims:
            return spec
        bounds = marks(tensor)
        shape: list[Any] = list(spec.shape)
        for dim in sorted(dims):
            symbol = bounded_symbol(self.recorder.scope, shape[dim], bounds.get(dim, (None, None)))
            marked = dim in bounds
            self.symbols.append(Symbol(str(symbol), source, "size", dim, hint=shape[dim], marked=marked))
            shape[dim] = symbol
        strides = strides_of(tensor, tuple(shape))
        for dim, stride in enumerate(strides):
            if isinstance(stride, SymbolicInt):
                # What the stride must be is a condition on one more symbol, which nothing else depends on.
                own = self.recorder.scope.symbol(stride.hint, lowest=None)
                self._stride_symbols.append(Symbol(str(own), source, "stride", dim, hint=stride.hint))
                self.recorder.scope.require("==", own.index - stride.index)
        return replace(spec, shape=tuple(shape), strides=strides)

    def is_open_size(self, value: torch.Size, source: Source) -> bool:
        if self.dynamic is None:
            return False
        # Every item must be noted, also behind the first that is open.
        items = [self.dynamic.is_open(Item(source, i), number) for i, number in enumerate(value)]
        return any(items)

    def open_number(self, value: int | float, source: Source) -> torch.SymInt | torch.SymFloat:
        """The symbol of a Python number; an int that is negative stands for minus a symbol."""
        found = self._numbers.get(source)
        if found is not None:
            return found
        scope = self.recorder.scope
        if isinstance(value, float):
            number = scope.float_symbol(value)
            bits = cast(SymbolicInt, number.args[0])
            self.symbols.append(Symbol(str(bits), source, "float", hint=bits.hint))
            found = symfloat(number)
        else:
            symbol = scope.symbol(abs(value), lowest=None)
            self.symbols.append(Symbol(str(symbol), source, "int", negated=value < 0, hint=abs(value)))
            found = symint(-symbol if value < 0 else symbol)
        self._numbers[source] = found
        return found

    @property
    def all_symbols(self) -> tuple[Symbol, ...]:
        """The symbols that graphs may depend on, then those of strides."""
        return (*self.symbols, *self._stride_symbols)
