"""Random calls of operators that have shape rules of ours: what the recorder makes of each beside what eager gives.

    LAMPWORK_FUZZ=1000 python -m pytest tests/conformance/test_rule_calls.py

Calls are those that torch's samples make below autograd, with arguments changed at random (`wrong_calls.change`). They
are recorded with the sizes as numbers, and with sizes left open; then eager is asked for other sizes that meet the
conditions. What eager refuses and the recorder does not is run compiled, where a check at run time may still refuse it.
Nothing is compiled otherwise, so that a hundred thousand calls take minutes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import opinfo_samples
import refused_calls
import torch
import wrong_calls
from refused_calls import Call
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from wrong_calls import Found

from lampwork.errors import LampworkError
from lampwork.graph.opinfo import op_info
from lampwork.graph.record import Recorder
from lampwork.graph.shapes import own_rule
from lampwork.graph.spec import TensorSpec, contiguous_strides, with_sizes
from lampwork.graph.symbols import Scope, SymbolicInt
from lampwork.graph.symnode import from_torch
from lampwork.graph.tracetensor import TraceTensor

SAMPLES = 4
CALLS = 12  # of one operator, different in looks


@dataclass(frozen=True, slots=True)
class Made:
    """One call of an ATen operator, whose tensors are real ones."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        args, kwargs = pytree.tree_map(_shown, (self.args, self.kwargs))
        return f"{self.op}({', '.join([*map(str, args), *(f'{k}={v}' for k, v in kwargs.items())])})"


def _shown(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    # Strides of what is empty are worth showing.
    return str(TensorSpec.of(value)) if value.numel() else f"{TensorSpec.of(value)}{value.stride()}"


class _Collecting(TorchDispatchMode):
    """Keeps calls of operators with rules of ours: some of each, different in ranks, dtypes and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Any, dict[str, Made]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        ours = own_rule(func) is not None or own_rule(op_info(func).functional) is not None
        if ours and torch.Tag.inplace_view not in func.tags:
            kept = self.found.setdefault(func, {})
            if len(kept) < CALLS:
                copied = opinfo_samples._copied((args, kwargs))
                kept.setdefault(repr(pytree.tree_map(_looks, (args, kwargs))), Made(func, *copied))
        return func(*args, **kwargs)


def _looks(value: Any) -> Any:
    return (value.dtype, value.dim()) if isinstance(value, torch.Tensor) else value


@cache
def calls() -> tuple[tuple[Made, ...], ...]:
    """Calls for each operator that has a rule."""
    mode = _Collecting()
    for op in opinfo_samples.database():
        for dtype in (torch.float32, torch.int64, torch.bool):
            for sample in opinfo_samples.samples(op, dtype, SAMPLES if dtype is torch.float32 else 2):
                args, kwargs = opinfo_samples._copied((sample.args, sample.kwargs))
                with torch._C._AutoDispatchBelowAutograd(), mode:
                    refused_calls.run(sample.fn, args, kwargs)
    by_name = sorted(mode.found.items(), key=lambda pair: str(pair[0]))
    return tuple(tuple(kept.values()) for _, kept in by_name)


def call(seed: int) -> Made:
    """The call of a seed."""
    rng = random.Random(seed)
    made = rng.choice(rng.choice(calls()))
    leaves, structure = pytree.tree_flatten((made.args, made.kwargs))
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(leaves)) if leaves else 0
        if leaves:
            leaves[at], _ = wrong_calls.change(rng, leaves[at])
    args, kwargs = pytree.tree_unflatten(leaves, structure)
    return Made(made.op, args, kwargs)


def difference(seed: int) -> Found | None:
    """What is wrong with what is recorded of the call of a seed."""
    made = call(seed)
    detail = _difference(made, random.Random(seed))
    return None if detail is None else Found(f"seed {seed}: {made}", detail)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _difference(made: Made, rng: random.Random) -> str | None:
    if any(t.layout is not torch.strided for t in _tensors((made.args, made.kwargs))):
        return None
    want, raised = eager(made)
    if isinstance(raised, MemoryError):
        return None
    for opened in (False, True):
        try:
            scope, inputs, got = record(made, rng if opened else None)
        except (LampworkError, TypeError, ValueError, RuntimeError, IndexError, ArithmeticError) as error:
            # It is eager then that runs the call: what it takes and we do not costs time, and nothing else.
            if not isinstance(error, LampworkError) and raised is None and not opened:
                return f"raised {error!r}, eager gives {want}"
            continue
        if raised is not None:
            detail = refused_calls.difference(Call("wrong", made.op, made.args, made.kwargs), opened)
            if detail is not None:
                return f"{'open sizes: ' * opened}{detail}"
            continue
        found = _at(got, scope.hints)
        if found != want:
            return f"{'open sizes: ' * opened}{found}, expected {want}"
        if scope.hints and (detail := _elsewhere(made, rng, scope, inputs, got)) is not None:
            return detail
    return None


def eager(made: Made) -> tuple[Any, Exception | None]:
    """How the results of eager look, or what it raises."""
    args, kwargs = opinfo_samples._copied((made.args, made.kwargs))
    with torch._C._AutoDispatchBelowAutograd():
        result, error = refused_calls.run(made.op, args, kwargs)
    return [(tuple(t.shape), t.stride(), t.dtype) for t in _tensors(result)], error


def _at(specs: Sequence[TensorSpec], values: dict[str, int]) -> Any:
    """How specs look for these values of their symbols."""
    numbers = [with_sizes(spec, lambda n: n.evaluate(values)) for spec in specs]
    return [(tuple(spec.shape), tuple(spec.strides), spec.dtype) for spec in numbers]


def record(made: Made, rng: random.Random | None) -> tuple[Scope, list[TensorSpec], list[TensorSpec]]:
    """The symbols, what the tensors of the call look like, and what its results do. Sizes are left open with `rng`."""
    inputs: list[TensorSpec] = []
    copied = opinfo_samples._copied((made.args, made.kwargs))
    with Recorder() as recorder:
        opener = _Opener(recorder.scope, rng)

        def traced(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            inputs.append(opener.spec(value))
            return recorder.input(value, f"x{len(inputs)}", spec=inputs[-1])

        args, kwargs = pytree.tree_map(traced, copied)
        result = made.op(*args, **kwargs)
    leaves = [leaf for leaf in _tensors(from_torch(result)) if isinstance(leaf, TraceTensor)]
    return recorder.scope, inputs, [leaf.spec for leaf in leaves]


class _Opener:
    """Opens sizes of row-major tensors at random; equal ones are one symbol, or each has its own."""

    def __init__(self, scope: Scope, rng: random.Random | None) -> None:
        self._scope, self._rng = scope, rng
        self._together = rng is not None and rng.random() < 0.3
        self._symbols: dict[int, Any] = {}

    def spec(self, tensor: torch.Tensor) -> TensorSpec:
        spec = TensorSpec.of(tensor)
        if self._rng is None or spec.strides != contiguous_strides(spec.shape):
            return spec
        shape = tuple(self._size(n) for n in spec.shape)
        return TensorSpec(shape, contiguous_strides(shape), spec.dtype, spec.device)

    def _size(self, number: int) -> Any:
        assert self._rng is not None
        if number < 2 or self._rng.random() < 0.1:
            return number
        if self._together and number in self._symbols:
            return self._symbols[number]
        self._symbols[number] = self._scope.symbol(number)
        return self._symbols[number]


def _elsewhere(
    made: Made, rng: random.Random, scope: Scope, inputs: Sequence[TensorSpec], got: Sequence[TensorSpec]
) -> str | None:
    """What differs for other values of the symbols, if the conditions allow for them."""
    conditions = list(scope.conditions)
    for attempt in range(4):
        names = [rng.choice(list(scope.hints))] if attempt % 2 else list(scope.hints)
        moved = {name: max(scope.hints[name] + rng.choice((-1, 0, 1, 1, 2, 10)), 2) for name in names}
        values = {**scope.hints, **moved}
        for name, index in scope.equal.items():
            values[name] = SymbolicInt(scope, index, 0).evaluate(values)
        if values == scope.hints or not all(condition.holds(values) for condition in conditions):
            continue
        if any(values[name] < scope.lowest.get(name, 2) for name in values):
            continue
        specs = iter(inputs)

        def real(given: Any, specs: Iterator[TensorSpec] = specs, values: dict[str, int] = values) -> Any:
            if not isinstance(given, torch.Tensor):
                return given
            shape = with_sizes(next(specs), lambda n: n.evaluate(values)).shape
            return given if shape == tuple(given.shape) else _filled(given, shape)

        other = Made(made.op, *pytree.tree_map(real, (made.args, made.kwargs)))
        want, raised = eager(other)
        if raised is not None:
            # Calls of ATen check their arguments themselves, and so do generated loads from data's places.
            detail = _after(made, other)
        else:
            found = _at(got, values)
            detail = None if found == want else f"{found}, expected {want}"
        if detail is not None:
            return f"for {other}: {detail}; conditions {[str(c) for c in conditions]}"
    return None


def _filled(given: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of the shape, with the content of another repeated as often as needed."""
    result = torch.zeros(shape, dtype=given.dtype)
    if given.numel():
        flat = given.reshape(-1).repeat(result.numel() // given.numel() + 1)
        result.view(-1).copy_(flat[: result.numel()])
    return result


def _after(made: Made, other: Made) -> str | None:
    """What a function compiled with open sizes for one call makes of another."""
    before = (made.args, made.kwargs)
    return refused_calls.difference(Call("wrong", made.op, other.args, other.kwargs, before), True)


def fuzz(seeds: Sequence[int], batch: int = 2000, patience: int = 10) -> Iterator[Found]:
    """As `wrong_calls.fuzz`."""
    calls()
    refused_calls.difference(Call("warm", torch.neg, (torch.ones(2),), {}), False)
    yield from wrong_calls.in_children(
        seeds, batch, patience, difference, _eagerly, lambda seed: f"seed {seed}: {call(seed)}"
    )


def _eagerly(seed: int) -> None:
    eager(call(seed))
