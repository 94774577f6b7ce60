"""A call of an entry: what is passed is checked, put in order, and laid out as the program expects it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from lampwork import pristine
from lampwork.artifacts.manifest import Entry, Tensed, extent, overlaps, short
from lampwork.artifacts.plain import FOREIGN, is_lazy, keys_of
from lampwork.artifacts.programs import Runner
from lampwork.artifacts.trees import Reading, rebuilt
from lampwork.errors import ArtifactCallError, RuntimeFailure
from lampwork.loops.ir.symbols import NoDivisor, evaluate
from lampwork.records import record

_PLAIN = (Tensor, nn.Parameter, nn.Buffer)

_TRANSFORMS = (
    torch._C.DispatchKey.FuncTorchBatched,
    torch._C.DispatchKey.FuncTorchGradWrapper,
    torch._C.DispatchKey.Functionalize,
)

_MOST_ELEMENTS = 1 << 44
"""Of a tensor that is laid out anew."""

_KERNEL_FAILED = "reported a failure"
"""What the runtime says of kernels, which check indices and nothing else that a call can have wrong."""


@record
class _Input:
    """What is known of an input: `shape` and `strides` where they are the same in all calls; `fixed`: the dimensions
    that are, with their sizes."""

    tensed: Tensed
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None
    fixed: tuple[tuple[int, int], ...]

    @staticmethod
    def of(tensed: Tensed) -> _Input:
        shape, strides = (
            tuple(each.constant for each in found) if all(each.is_const for each in found) else None
            for found in (tensed.shape, tensed.strides)
        )
        fixed = tuple((dim, size.constant) for dim, size in enumerate(tensed.shape) if size.is_const)
        return _Input(tensed, shape, strides, fixed)


@dataclass(slots=True, eq=False)
class LoadedEntry:
    """Something of an artifact that can be called, as the exported function was.

    `spec`: what the file says of it: inputs, ranges, results.
    """

    name: str
    spec: Entry
    _run: Runner
    _others: tuple[LoadedEntry, ...] = ()
    _inputs: tuple[_Input, ...] = field(init=False)
    _written: frozenset[int] = field(init=False)
    _output_of: dict[int, int] = field(init=False)
    _apart: dict[tuple[int, int], set[int | None]] = field(
        default_factory=dict[tuple[int, int], "set[int | None]"]
    )

    def __post_init__(self) -> None:
        self._inputs = tuple(map(_Input.of, self.spec.inputs))
        self._written = frozenset(place for place, _ in self.spec.writes if place < len(self.spec.inputs))
        self._output_of = dict(self.spec.writes)
        for other in self._others:
            for number, known in enumerate(other._inputs):
                for dim, size in known.fixed:
                    self._apart.setdefault((number, dim), set()).add(size)

    def __repr__(self) -> str:
        return f"<entry {self.name}({', '.join(each.name for each in self.spec.inputs)})>"

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """What the exported function gives for these arguments, as under `torch.no_grad()`: tensors that are returned
        require no grad, but for those that were passed.

        Raises:
            ArtifactCallError: it was not exported for such arguments.
        """
        reading = self._read(args, kwargs)
        if self._others and not self._fits(reading.tensors):
            for other in self._others:
                if other._fits(reading.tensors):
                    return other._called(other._read(args, kwargs))
        return self._called(reading)

    def _called(self, reading: Reading) -> Any:
        try:
            return self._computed(reading)
        except NoDivisor as error:
            raise self._wrong(
                "the sizes", f"{error.divisor} to be above 0, as sizes are divided by it", "0"
            ) from error
        except RuntimeFailure as error:
            if _KERNEL_FAILED not in error.cause:
                raise
            raise ArtifactCallError(
                f"{self.name}: {error.cause}: an index in the inputs is out of range, or there was no memory",
                fix="check indices against the sizes of what they index; eager PyTorch says which one it is",
            ) from error

    def _computed(self, reading: Reading) -> Any:
        tensors = reading.tensors
        values = self._values(tensors)
        given = [self._laid_out(n, tensor, values) for n, tensor in enumerate(tensors)]
        if self._written:
            self._check_written(tensors)
        if pristine.is_autocast_enabled("cpu"):
            with pristine.autocast("cpu", enabled=False), pristine.no_grad():
                outputs = self._run(given, values)
        else:
            with pristine.no_grad():
                outputs = self._run(given, values)
        for number in self._written:
            if given[number] is not tensors[number]:
                with pristine.no_grad():
                    tensors[number].copy_(given[number])
        results = self._results(outputs, given, tensors)
        return rebuilt(self.spec.result, results, lambda index: evaluate(index, values), reading.kept)

    def _results(
        self, outputs: Sequence[Tensor], given: Sequence[Tensor], tensors: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """The outputs as a caller finds them: an input that is returned is what was passed, and views of what is
        written to are views of that."""
        found = list(outputs)
        bound = self._run.bound
        for output, place in self.spec.views:
            base = tensors[place] if place < len(tensors) else bound[place - len(tensors)]
            written = outputs[self._output_of[place]]
            if not is_lazy(base):
                found[output] = _view_like(base, written, found[output])
        for output, tensor in enumerate(found):
            for number, one in enumerate(given):
                if tensor is one:
                    found[output] = tensors[number]
                    break
            else:
                if tensor.requires_grad and all(tensor is not weight for weight in bound):
                    found[output] = tensor.detach()
        return found

    # --- arguments ----------------------------------------------------------------------------------------------------

    def _wrong(self, where: str, expected: str, came: str, fix: str = "") -> ArtifactCallError:
        return ArtifactCallError(
            f"{self.name}: {where}: expected {expected}, came {came}",
            fix=fix or "call it as it was exported, or export it for such calls too",
        )

    def _foreign(self, name: str, tensor: Tensor) -> ArtifactCallError:
        """Why a tensor is refused that is not a dense one on the CPU."""
        expected = "a dense tensor on the CPU"
        keys = keys_of(tensor)
        if any(keys.has(key) for key in _TRANSFORMS):
            return self._wrong(
                name,
                expected,
                "one of a transform of torch.func",
                "call it outside: programs are no operators that vmap, grad, jvp and functionalize see into",
            )
        if tensor.is_nested or tensor.is_quantized or tensor._is_zerotensor():
            kind = "a nested" if tensor.is_nested else "a quantized" if tensor.is_quantized else "a lazy zero"
            return self._wrong(name, expected, f"{kind} tensor")
        return self._wrong(name, expected, f"one on {tensor.device} ({tensor.layout})")

    def _read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Reading:
        spec = self.spec
        names = spec.names[: len(spec.args)]
        if len(args) > len(spec.args):
            raise self._wrong("the call", f"{len(spec.args)} positional arguments", str(len(args)))
        for name in kwargs:
            at = names.index(name) if name in names else -1
            if name not in spec.kwargs and at < 0:
                known = ", ".join((*filter(str.isidentifier, names), *spec.kwargs))
                raise self._wrong("the call", f"arguments {known or 'of no name'}", f"{name}=")
            if 0 <= at < len(args):
                raise self._wrong(name, "one value", "two, by position and by name")
        if spec.ordered:
            came = [name for name in kwargs if name in spec.ordered]
            if len(came) == len(spec.ordered) and came != list(spec.ordered):
                raise self._wrong("the call", f"{', '.join(spec.ordered)} in this order", ", ".join(came))
        reading = Reading([None] * len(spec.inputs), [""] * len(spec.inputs), self._wrong)
        for number, tree in enumerate(spec.args):
            where = names[number] if number < len(names) else f"argument {number}"
            if number < len(args):
                reading.read(tree, args[number], where)
            elif where in kwargs:
                reading.read(tree, kwargs[where], where)
            else:
                raise self._wrong("the call", where, "none")
        for name, tree in spec.kwargs.items():
            if name not in kwargs:
                raise self._wrong("the call", f"{name}=", "none")
            reading.read(tree, kwargs[name], name)
        return reading

    def _fits(self, tensors: Sequence[Any]) -> bool:
        """Whether the sizes are such as the program is for."""
        for known, tensor in zip(self._inputs, tensors, strict=True):
            if not isinstance(tensor, Tensor) or tensor.dim() != len(known.tensed.shape):
                return False
            shape = tensor.shape
            for dim, size in known.fixed:
                if shape[dim] != size:
                    return False
        for symbol in self.spec.symbols:
            if symbol.index is None:
                size = tensors[symbol.input].shape[symbol.dim]
                if size < symbol.min or (symbol.max is not None and size > symbol.max):
                    return False
        return True

    def _values(self, tensors: Sequence[Tensor]) -> dict[str, int]:
        """The numbers of the symbols; what the inputs are is checked."""
        for known, tensor in zip(self._inputs, tensors, strict=True):
            expected = known.tensed
            if type(tensor) not in _PLAIN:
                raise self._wrong(expected.name, "a plain tensor", f"a {type(tensor).__name__}")
            if keys_of(tensor).raw_repr() & FOREIGN:
                raise self._foreign(expected.name, tensor)
            if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
                raise self._wrong(
                    expected.name,
                    "a tensor without a tangent",
                    "a dual tensor",
                    "pass what unpack_dual gives",
                )
            if tensor.dtype != expected.dtype:
                raise self._wrong(
                    expected.name,
                    short(expected.dtype),
                    short(tensor.dtype),
                    f"pass {expected.name}.to(torch.{short(expected.dtype)})",
                )
            if tensor.dim() != len(expected.shape):
                raise self._wrong(
                    expected.name,
                    f"{len(expected.shape)} dimension{'s' * (len(expected.shape) != 1)} {self._sizes(expected)}",
                    str(tuple(tensor.shape)),
                )
            if known.shape is not None and tensor.shape != known.shape:
                raise self._wrong(
                    expected.name,
                    f"shape {known.shape}",
                    str(tuple(tensor.shape)),
                    "pass that shape, or export it with dynamic_shapes=",
                )
        spec = self.spec
        if not spec.symbols:
            return {}
        values: dict[str, int] = {}
        for symbol in spec.symbols:
            tensor = tensors[symbol.input]
            if symbol.index is not None:
                values[symbol.name] = evaluate(symbol.index, values)
                continue
            value = tensor.shape[symbol.dim]
            if value < symbol.min or (symbol.max is not None and value > symbol.max):
                apart = self._apart.get((symbol.input, symbol.dim), set())
                where = f"dimension {symbol.dim} of {spec.inputs[symbol.input].name}"
                if value in apart:  # it is served, but with other sizes of the rest
                    expected = f"{symbol.range_text(set())}, with the other sizes of this call"
                    raise self._wrong(where, expected, str(value))
                raise self._wrong(
                    where,
                    symbol.range_text(apart),
                    str(value),
                    "split or pad the input, or export it with a Dim of other bounds",
                )
            values[symbol.name] = value
        for known, tensor in zip(self._inputs, tensors, strict=True):
            if known.shape is None:
                shape = tuple([evaluate(size, values) for size in known.tensed.shape])
                if tensor.shape != shape:
                    raise self._wrong(
                        known.tensed.name,
                        f"shape {shape} {self._sizes(known.tensed)}",
                        str(tuple(tensor.shape)),
                    )
        for condition in spec.conditions:
            if not condition.holds(values):
                numbers = ", ".join(f"{name} = {values[name]}" for name in sorted(condition.index.symbols()))
                raise self._wrong("the sizes", f"{condition} ({self._symbols()})", numbers)
        return values

    def _sizes(self, expected: Tensed) -> str:
        return f"({', '.join(map(str, expected.shape))})"

    def _symbols(self) -> str:
        found = (
            f"{each.name} is dimension {each.dim} of {self.spec.inputs[each.input].name}"
            for each in self.spec.symbols
        )
        return ", ".join(found)

    def _laid_out(self, number: int, tensor: Tensor, values: Mapping[str, int]) -> Tensor:
        """The tensor, or a copy of it that lies in memory as the program expects."""
        known = self._inputs[number]
        strides = known.strides
        if strides is None:
            strides = tuple([evaluate(stride, values) for stride in known.tensed.strides])
        lazy = is_lazy(tensor)
        if tensor.stride() == strides and not lazy:
            return tensor
        if not lazy and all(
            size <= 1 or have == want
            for size, have, want in zip(tensor.shape, tensor.stride(), strides, strict=True)
        ):
            return tensor.detach().as_strided(tensor.shape, strides)
        if overlaps(tensor.shape, strides):
            raise self._wrong(
                known.tensed.name,
                f"the strides {tuple(strides)}, where elements are in one another's place",
                str(tensor.stride()),
                "export it again, with an example that is contiguous()",
            )
        if extent(tensor.shape, strides) > _MOST_ELEMENTS:
            raise self._wrong(
                known.tensed.name,
                f"the strides {tuple(strides)}, which no memory has place for",
                str(tensor.stride()),
                "export it again, with an example that is contiguous()",
            )
        copy = pristine.empty_strided(tensor.shape, strides, dtype=tensor.dtype)
        with pristine.no_grad():
            return copy.copy_(tensor)

    def _check_written(self, tensors: Sequence[Tensor]) -> None:
        """Inputs that are written to can be, and no other input lies in their memory."""
        for number in self._written:
            tensor, name = tensors[number], self.spec.inputs[number].name
            if tensor.requires_grad and pristine.is_grad_enabled():
                raise self._wrong(
                    name,
                    "a tensor that requires no grad, as it is written to",
                    "one that does",
                    "pass a clone, or call it under torch.no_grad()",
                )
            if tensor.is_inference() and not pristine.is_inference_mode_enabled():
                raise self._wrong(
                    name,
                    "a tensor that can be written to",
                    "one of torch.inference_mode()",
                    "pass a clone, or call it under torch.inference_mode()",
                )
            if overlaps(tensor.shape, tensor.stride()):
                raise self._wrong(
                    name,
                    "elements in places of their own, as it is written to",
                    f"strides {tensor.stride()} for the shape {tuple(tensor.shape)}",
                    "pass a clone",
                )
            memory = tensor.untyped_storage().data_ptr()
            for other, another in enumerate(tensors):
                if other != number and memory and another.untyped_storage().data_ptr() == memory:
                    raise self._wrong(
                        name,
                        "memory of its own, as it is written to",
                        f"the memory of {self.spec.inputs[other].name}",
                        "pass a clone",
                    )


def _view_like(base: Tensor, written: Tensor, view: Tensor) -> Tensor:
    """What `view` is of `written`, of `base`, which has the same shape. One that is none stays what it is, and so does
    one for which `base` lies in memory in too different a way."""
    if view.dtype != base.dtype or view.untyped_storage().data_ptr() != written.untyped_storage().data_ptr():
        return view
    if view.is_conj() or view.is_neg():
        return view  # as_strided would give the numbers as they lie
    begin = int(view.storage_offset() - written.storage_offset())
    strides = view.stride()
    if base.stride() != written.stride():
        moved = _moved(begin, view, written, base.stride())
        if moved is None:
            return view
        begin, strides = moved
    return base.detach().as_strided(view.shape, strides, base.storage_offset() + begin)


def _moved(
    begin: int, view: Tensor, written: Tensor, strides: Sequence[int]
) -> tuple[int, tuple[int, ...]] | None:
    """Where a view of `written` begins, and its strides, in a tensor of the same shape with other strides; None where
    it is no view of that.

    A distance in `written` is so many steps along each of its dimensions. The view is one of the other tensor if no
    element of it takes more steps along a dimension than that has.
    """
    dims = _run_together(written.shape, written.stride(), strides)

    def steps(distance: int) -> list[int] | None:
        found = list[int]()
        for _, step, _ in dims:
            many, distance = divmod(distance, step) if step > 0 else (0, distance)
            found.append(many)
        return found if distance == 0 else None

    def distance_of(steps: list[int]) -> int:
        return sum(number * step for number, (_, _, step) in zip(steps, dims, strict=True))

    first = steps(begin)
    along = [steps(stride) for stride in view.stride()]
    if first is None or view.numel() == 0:
        return None
    last, places = first[:], list[int]()
    for size, each in zip(view.shape, along, strict=True):
        if each is None and size > 1:
            return None
        each = each or [0] * len(dims)
        last = [reached + (size - 1) * more for reached, more in zip(last, each, strict=True)]
        places.append(distance_of(each))
    if any(reached >= size for reached, (size, _, _) in zip(last, dims, strict=True)):
        return None
    return distance_of(first), tuple(places)


def _run_together(
    shape: Sequence[int], one: Sequence[int], other: Sequence[int]
) -> list[tuple[int, int, int]]:
    """(size, stride in the one layout, stride in the other) of each dimension, the largest steps of the one first.
    Dimensions that are one run of elements in both layouts are one."""
    found: list[tuple[int, int, int]] = []
    for size, near, far in sorted(zip(shape, one, other, strict=True), key=lambda dim: dim[1], reverse=True):
        if size == 1:
            continue
        if found and found[-1][1:] == (near * size, far * size):
            size *= found.pop()[0]
        found.append((size, near, far))
    return found
