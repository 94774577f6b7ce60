"""Layouts as JSON: what a compiled program is before any number is known, with its kernels by module and name.

What is read is checked: every number is in its range, every value is made before it is used, memory is taken once and
given back once. (Whether views and arenas hold what lies in them is known with the sizes: `_C.Executable` sees to it.)
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any, cast, get_args

from lampwork.codegen.target import HostFunction
from lampwork.errors import SerialError
from lampwork.graph.devices import CPU
from lampwork.loops.ir.index import ZERO, Index
from lampwork.loops.ir.nodes import FloatOfBits
from lampwork.runtime.layout import (
    AtenStep,
    KernelStep,
    Layout,
    Slot,
    grain_of,
    keys_of,
    scalars_of,
    settled,
)
from lampwork.runtime.program import CallAten, CallKernel, Ref, Release, Take, Value, ValueKind
from lampwork.serial.arguments import argument_leaf_from_json, argument_to_json, nested_from_json
from lampwork.serial.indices import index_from_json, index_to_json, symbol_from_json
from lampwork.serial.modules import Modules, function_from_json
from lampwork.serial.values import (
    device_from_json,
    dtype_from_json,
    dtype_to_json,
    each,
    expected,
    flag,
    inside,
    items,
    mapping,
    one_of,
    text,
    whole,
)
from lampwork.standard import functools

FunctionOf = Callable[[int, str], HostFunction]
"""The function of this name in the module of this number."""

_KINDS = frozenset(get_args(ValueKind))
_PLACED = frozenset({"input", "bound", "constant"})
_RELEASED = frozenset({"aten", "heap", "fresh", "input"})
_LAYOUT = frozenset(
    {"values", "memory", "steps", "outputs", "n_inputs", "n_bound", "keys", "scalars", "constants", "undo"}
    | {"name", "labels", "device"}
)
_VALUE = frozenset({"kind", "dtype", "shape", "strides", "offset", "base", "position"})
_KERNEL = frozenset({"kernel", "buffers", "sizes", "extent", "work", "chunk", "name", "outside"})
_ATEN = frozenset({"aten", "args", "kwargs", "outs", "name"})
_DEVICE = frozenset({"device"})
_RELEASE = frozenset({"release"})
_REF = frozenset({"ref"})
_TAKE = frozenset({"take"})
_INT = frozenset({int})
_MOST = range(1 << 31)
_COUNT = range(1 << 63)
_LARGEST = _COUNT.stop - 1
_NUMBER = "a number that is not below 0"


def layout_to_json(layout: Layout, modules: Modules) -> dict[str, Any]:
    """A layout; `modules` receives the object code that its kernels are in. Equal layouts give equal JSON.

    Raises:
        SerialError: it has kernels of cards, or an argument without a serial form.
    """
    constants = layout.constants
    if constants is not None and constants.layout is None:
        raise SerialError("a program of constants whose layout is not known has no serial form")
    return {
        "values": [_value_to_json(value) for value in layout.values],
        "memory": [list(event) for event in layout.memory],
        "steps": [_step_to_json(step, modules) for step in layout.steps],
        "outputs": list(layout.outputs),
        "n_inputs": layout.n_inputs,
        "n_bound": layout.n_bound,
        "keys": sorted(layout.keys),
        "scalars": [index_to_json(index) for index in layout.scalars],
        "constants": None if constants is None else layout_to_json(cast(Layout, constants.layout), modules),
        "undo": [[at, _step_to_json(step, modules)] for at, step in layout.undo],
        "name": layout.name,
        "labels": [[list(label) for label in labels] for labels in layout.labels],
        "device": str(layout.device),
    }


def _value_to_json(value: Value | Slot) -> dict[str, Any]:
    offset = value.offset
    found = {
        "kind": value.kind,
        "dtype": None if value.dtype is None else dtype_to_json(value.dtype),
        "shape": [_number_to_json(size) for size in value.shape],
        "strides": [_number_to_json(stride) for stride in value.strides],
        "offset": _number_to_json(offset),
        "base": value.base,
        "position": value.position,
    }
    if value.device != CPU:
        found["device"] = str(value.device)
    return found


def _number_to_json(number: Any) -> Any:
    return index_to_json(number) if isinstance(number, Index) else number


def _step_to_json(step: Any, modules: Modules) -> dict[str, Any]:
    if isinstance(step, CallKernel | KernelStep):
        is_open = isinstance(step, KernelStep)
        return {
            "kernel": modules.place(step.code),
            "buffers": list(step.buffers),
            "sizes": [_number_to_json(size) for size in step.sizes],
            "extent": _number_to_json(step.extent),
            "work": index_to_json(step.work) if is_open else 1,
            "chunk": step.chunk if is_open else step.grain,
            "name": step.name,
            "outside": list(step.outside),
        }
    if isinstance(step, CallAten | AtenStep):
        call = step.call if isinstance(step, AtenStep) else step
        return {
            "aten": call.op,
            "args": [argument_to_json(value) for value in call.args],
            "kwargs": [[key, argument_to_json(value)] for key, value in call.kwargs],
            "outs": list(call.outs),
            "name": call.name,
        }
    return {"release" if isinstance(step, Release) else "take": list(step.values)}


def layout_from_json(value: Any, functions: FunctionOf) -> Layout:
    """The layout, with the kernels that `functions` gives.

    Raises:
        SerialError: it is damaged: where, what was expected, and what came.
    """
    try:
        return _layout_from_json(value, functions, is_constant=False)
    except RecursionError as error:
        raise SerialError("a layout was expected, not one nested so deep") from error


def _layout_from_json(value: Any, functions: FunctionOf, *, is_constant: bool) -> Layout:
    found = mapping(value, _LAYOUT)
    constants = found["constants"]
    if is_constant and constants is not None:
        raise expected("null, as constants have no constants", constants)
    n_inputs, n_bound = whole(found["n_inputs"], _MOST), whole(found["n_bound"], _MOST)
    reading = _Reading(n_inputs, n_bound, functions)
    made = None
    if constants is not None:
        layout = inside("constants", lambda: _layout_from_json(constants, functions, is_constant=True))
        if (layout.n_inputs, layout.n_bound) != (n_bound, 0):
            raise expected(f"constants of {n_bound} inputs", (layout.n_inputs, layout.n_bound))
        if layout.keys or layout.scalars:
            raise expected("constants without symbols", sorted(layout.keys))
        made = layout.place({})
        reading.positions["constant"] = range(-1, len(made.outputs))
    reading.values = list(each("values", found["values"], reading.value))
    device = device_from_json(found["device"])
    memory = each("memory", found["memory"], reading.memory)
    steps = each("steps", found["steps"], reading.step)
    undo = each("undo", found["undo"], lambda pair: reading.undo(pair, len(steps)))
    outputs = each("outputs", found["outputs"], reading.used)
    layout = Layout(
        tuple(reading.values),
        memory,
        steps,
        outputs,
        n_inputs,
        n_bound,
        made,
        frozenset(each("keys", found["keys"], symbol_from_json)),
        each("scalars", found["scalars"], index_from_json),
        undo,
        device,
        name=text(found["name"]),
        labels=each("labels", found["labels"], _labels_from_json),
    )
    _check(layout, reading.taken)
    return layout


def _numbers(values: Any) -> tuple[int, ...] | None:
    """Numbers that are not below 0; None where one depends on symbols."""
    if not _INT.issuperset(map(type, items(values))):
        return None
    if values and not (min(values) >= 0 and max(values) <= _LARGEST):
        raise expected(_NUMBER, next(value for value in values if value not in _COUNT))
    return tuple(values)


def _labels_from_json(value: Any) -> tuple[tuple[int, str], ...]:
    return tuple((whole(number), text(name)) for number, name in (items(pair, 2) for pair in items(value)))


def _check(layout: Layout, taken: Set[int]) -> None:
    """What holds of a layout as a whole. `taken`: the values that memory is taken for."""
    values = layout.values
    all_steps = [*layout.steps, *(step for _, step in layout.undo)]
    if missing := keys_of(values, all_steps) - layout.keys:
        raise expected("keys with every symbol of a size", sorted(missing))
    if set(scalars_of(all_steps, layout.keys)) != set(layout.scalars):
        raise expected("scalars that are the numbers which calls take", list(map(str, layout.scalars)))
    never = [n for n, value in enumerate(values) if value.kind == "arena" and n not in taken]
    if never:
        raise expected("memory for every value of the arena", f"none for {never[0]}")
    calls = sum(not isinstance(step, Release | Take) for step in layout.steps)
    if layout.labels and len(layout.labels) != calls:
        raise expected(f"labels of {calls} calls", f"{len(layout.labels)} of them")
    elsewhere = {value.device for value in values} - {CPU, layout.device}
    if elsewhere:
        raise expected("values on the CPU or the device of the kernels", str(next(iter(elsewhere))))


class _Reading:
    """What is known while a layout is read."""

    def __init__(self, n_inputs: int, n_bound: int, functions: FunctionOf) -> None:
        self.positions = dict.fromkeys(_KINDS, range(-1, 0))
        self.positions |= {"input": range(-1, n_inputs), "bound": range(-1, n_bound)}
        self.functions = functions
        self.values: list[Value | Slot] = []
        self.taken: set[int] = set()
        self._given: set[int] = set()
        self._owners: list[int] = []  # of the memory of each value
        self._unmade: set[int] = set()  # by ATen calls
        self._dropped: set[int] = set()
        self._is_open = False  # an argument that was read depends on symbols

    # --- values -------------------------------------------------------------------------------------------------------

    def value(self, value: Any) -> Value | Slot:
        found = mapping(value, _VALUE, _DEVICE)
        kind = cast(ValueKind, one_of(found["kind"], _KINDS))
        number = len(self.values)
        base, position = found["base"], found["position"]
        if base != -1 or type(base) is not int:
            whole(base, range(-1, number))
        if position != -1 or type(position) is not int:
            whole(position, self.positions[kind])
        if (position >= 0) != (kind in _PLACED):
            raise expected(f"a position for a value of kind {kind}", position)
        if (base >= 0) != (kind == "view"):
            raise expected(f"a base for a value of kind {kind}", base)
        self._owners.append(number if base < 0 else self._owners[base])
        if kind == "aten":
            self._unmade.add(number)
        device = device_from_json(found["device"]) if "device" in found else CPU
        if found["dtype"] is None:
            made: Value | Slot = Value(kind, position=position, device=device)
            if (found["shape"], found["strides"], found["offset"]) != ([], [], 0) or kind in (
                "arena",
                "view",
            ):
                raise expected("a value whose sizes torch alone knows", value)
        elif (known := self._static(found, kind)) is not None:
            dtype = dtype_from_json(found["dtype"])
            made = Value(kind, dtype, *known, base, position, device)
        else:
            slot = Slot(
                kind,
                dtype_from_json(found["dtype"]),
                tuple(map(_size, items(found["shape"]))),
                tuple(map(_size, items(found["strides"]))),
                _size(found["offset"]),
                base,
                position,
                device,
            )
            if len(slot.shape) != len(slot.strides):
                raise expected(f"{len(slot.shape)} strides", found["strides"])
            if kind not in ("view", "arena") and slot.offset != ZERO:
                raise expected(f"no offset for a value of kind {kind}", found["offset"])
            made = settled(slot)
        self.values.append(made)
        return made

    def _static(
        self, found: dict[str, Any], kind: ValueKind
    ) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
        """Shape, strides and offset, where no number is open; most values of most programs."""
        if kind == "arena" or type(offset := found["offset"]) is not int:
            return None
        shape, strides = _numbers(found["shape"]), _numbers(found["strides"])
        if shape is None or strides is None:
            return None
        if len(shape) != len(strides) or (offset and kind != "view"):
            raise expected(f"{len(shape)} strides, and an offset of views alone", (strides, offset))
        return shape, strides, offset if offset == 0 else whole(offset, _COUNT)

    def memory(self, value: Any) -> tuple[bool, int]:
        is_taken, number = items(value, 2)
        flag(is_taken)
        whole(number, range(len(self.values)))
        if self.values[number].kind != "arena":
            raise expected("a value of the arena", number)
        before = self.taken if is_taken else self._given
        if number in before or (not is_taken and number not in self.taken):
            raise expected("memory that is taken once, and given back once after that", value)
        before.add(number)
        return is_taken, number

    def used(self, value: Any) -> int:
        """The number of a value that a step uses."""
        count = len(self._owners)
        if type(value) is not int or not 0 <= value < count:
            raise expected(f"the number of one of {count} values", value)
        owner = self._owners[value]
        if owner in self._unmade:
            raise expected("a value that an ATen call has made before", value)
        if owner in self._dropped:
            raise expected("a value that is not released yet", value)
        return value

    # --- steps --------------------------------------------------------------------------------------------------------

    def step(self, value: Any) -> CallKernel | KernelStep | CallAten | AtenStep | Release | Take:
        if type(value) is not dict:
            raise expected("a step", value)
        if "kernel" in value:
            return self.kernel(value)
        if "aten" in value:
            return self.aten(value)
        if "release" in value:
            found = mapping(value, _RELEASE)
            released = tuple(map(self.used, items(found["release"])))
            if not _RELEASED.issuperset([self.values[n].kind for n in released]):
                raise expected("values that can be released", value)
            self._dropped.update(released)
            return Release(released)
        found = mapping(value, _TAKE)
        taken = tuple(map(self.used, items(found["take"])))
        if any(self.values[n].kind not in ("heap", "fresh") for n in taken):
            raise expected("values that take memory in a step", value)
        return Take(taken)

    def kernel(self, value: Any) -> CallKernel | KernelStep:
        found = mapping(value, _KERNEL)
        code = self.functions(*function_from_json(found["kernel"]))
        buffers = tuple(map(self.used, items(found["buffers"])))
        sizes, extent, work = items(found["sizes"]), found["extent"], found["work"]
        chunk, name = whole(found["chunk"], _COUNT), text(found["name"])
        outside = tuple(map(self.used, items(found["outside"])))
        if _INT.issuperset(map(type, (*sizes, extent, work))):
            numbers = tuple(map(whole, sizes))
            grain = grain_of(chunk, whole(work, _COUNT, _NUMBER))
            return CallKernel(code, buffers, numbers, whole(extent, _COUNT, _NUMBER), grain, name, outside)
        indices = tuple(map(index_from_json, sizes))
        return KernelStep(code, buffers, indices, _size(extent), _size(work), chunk, name, outside)

    def aten(self, value: Any) -> CallAten | AtenStep:
        found = mapping(value, _ATEN)
        op = text(found["aten"])
        if "::" not in op or "." not in op:
            raise expected("an operator with its overload, as aten::add.Tensor", op)
        self._is_open = False
        args = each("args", found["args"], self._argument)
        kwargs = tuple(
            (text(key), self._argument(item))
            for key, item in (items(pair, 2) for pair in items(found["kwargs"]))
        )
        outs = tuple(whole(out, range(-1, len(self.values))) for out in items(found["outs"]))
        for out in outs:
            if out >= 0 and out not in self._unmade:
                raise expected("a value that an ATen call makes, once", out)
            self._unmade.discard(out)
        call = CallAten(op, args, kwargs, outs, text(found["name"]))
        return AtenStep(call) if self._is_open else call

    def _argument(self, value: Any) -> Any:
        if type(value) is dict and value.keys() == _REF:  # as most are
            return Ref(self.used(value["ref"]))
        return nested_from_json(value, self._leaf)

    def _leaf(self, value: Any) -> Any:
        found = argument_leaf_from_json(value, self.used)
        self._is_open = self._is_open or isinstance(found, Index | FloatOfBits)
        return found

    def undo(self, value: Any, n_steps: int) -> tuple[int, CallKernel | KernelStep]:
        at, step = items(value, 2)
        return whole(at, range(n_steps)), self.kernel(step)


def _size(value: Any) -> Index:
    """A number that is not below 0, as far as that is known."""
    if type(value) is int:
        return _constant(whole(value, _COUNT, _NUMBER))
    return index_from_json(value)


@functools.lru_cache(maxsize=4096)
def _constant(value: int) -> Index:
    return Index.const(value)
