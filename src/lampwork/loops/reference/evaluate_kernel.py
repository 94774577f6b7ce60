"""A slow numpy interpreter of kernels: the reference for scheduling and for generated code.

Memory is flat: one 1-D array a buffer, as long as the buffer's memory; `to_memory` and `from_memory` convert. Vector
loops run all their iterations at once, which is what makes a dependence between them show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from lampwork.errors import InvalidLoopsError
from lampwork.loops.ir.nodes import (
    Barrier,
    Buffer,
    Expr,
    Kernel,
    Let,
    Loop,
    ReduceLoop,
    Reducer,
    ScanLoop,
    Stmt,
    Store,
    WhenLast,
)
from lampwork.loops.reference.evaluate import (
    NUMPY_DTYPES,
    Scope,
    convert,
    highest,
    lowest,
    put,
    reduce_array,
)

Array = NDArray[Any]


def memory_size(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements the memory of a strided array has."""
    if any(size == 0 for size in shape):
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def to_memory(buffer: Buffer, array: Array, sizes: Mapping[str, int] | None = None) -> Array:
    """The flat memory of a buffer that holds `array` (in the buffer's logical shape)."""
    shape, strides = _layout(buffer, sizes or {})
    if array.shape != shape:
        raise InvalidLoopsError(f"{buffer.name}: expected shape {shape}, got {array.shape}")
    memory = np.zeros(memory_size(shape, strides), NUMPY_DTYPES[buffer.dtype])
    if memory.size:
        _strided(memory, shape, strides)[...] = array
    return memory


def from_memory(buffer: Buffer, memory: Array, sizes: Mapping[str, int] | None = None) -> Array:
    """The logical array that lies in a buffer's flat memory."""
    shape, strides = _layout(buffer, sizes or {})
    return _strided(memory, shape, strides).copy() if memory.size else np.zeros(shape, memory.dtype)


def evaluate_kernels(
    kernels: Iterable[Kernel],
    arrays: Mapping[str, Array],
    buffers: Mapping[str, Buffer],
    *,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, Array]:
    """Runs kernels in order, over logical arrays as `evaluate_definitions` takes and gives them.

    Args:
        arrays: the inputs.
        buffers: the definitions' buffers by name, of inputs and of everything that kernels make.
    """
    memory = {
        name: to_memory(buffers[name], array, sizes) for name, array in arrays.items() if name in buffers
    }
    for kernel in kernels:
        for param in kernel.params:
            if param.name not in memory:
                shape, strides = _layout(buffers.get(param.name, param), sizes or {})
                memory[param.name] = _unset(memory_size(shape, strides), param)
        run_kernel(kernel, memory, sizes=sizes)
    return {name: from_memory(buffers[name], flat, sizes) for name, flat in memory.items() if name in buffers}


def run_kernel(
    kernel: Kernel,
    memory: MutableMapping[str, Array],
    *,
    sizes: Mapping[str, int] | None = None,
    begin: int = 0,
    end: int | None = None,
) -> None:
    """Runs one kernel on flat memory, in place; [begin, end) cuts the parallel loop (all of it by default).

    Raises:
        InvalidLoopsError: a buffer is missing, an access is outside of its memory, or vector loops are nested.
        IndexError: an index from data is out of range.
    """
    check_memory(kernel, memory)
    KernelRun(kernel, memory, sizes or {}, begin, end).run()


def check_memory(kernel: Kernel, memory: Mapping[str, Array]) -> None:
    """Raises InvalidLoopsError if a parameter has no memory."""
    missing = [param.name for param in kernel.params if param.name not in memory]
    if missing:
        raise InvalidLoopsError(f"{kernel.name}: no memory for {', '.join(missing)}")


def _layout(buffer: Buffer, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    scope = Scope(_no_load, {}, sizes)
    return (
        tuple(int(scope.index(size)) for size in buffer.shape),
        tuple(int(scope.index(stride)) for stride in buffer.strides),
    )


def _no_load(buffer: Buffer, point: tuple[Array, ...], active: Array | None) -> Array:
    raise InvalidLoopsError(f"{buffer.name} is read in a size")


def _strided(memory: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    return as_strided(memory, shape, tuple(stride * memory.itemsize for stride in strides))


def _unset(elements: int, buffer: Buffer) -> Array:
    """Memory that shows in results if it is read before it is written."""
    memory = np.zeros(elements, NUMPY_DTYPES[buffer.dtype])
    if np.issubdtype(memory.dtype, np.floating):
        memory.fill(np.nan)
    return memory


Touch = Literal["loads", "stores", "updates"]


class KernelRun:
    """One run of one kernel. `memory` may have its scratch, too."""

    def __init__(
        self,
        kernel: Kernel,
        memory: MutableMapping[str, Array],
        sizes: Mapping[str, int],
        begin: int,
        end: int | None,
    ) -> None:
        self.kernel = kernel
        self.memory = dict(memory)
        self.begin, self.end = begin, end
        self.scope = Scope(self._load, {}, sizes)
        self.lanes: int | None = None  # iterations of the running vector loop
        self.came: dict[tuple[int, int], int] = {}  # how many iterations, by statement and counter
        for scratch in kernel.scratch:
            if scratch.name not in self.memory:
                shape, strides = _layout(scratch, sizes)
                self.memory[scratch.name] = _unset(memory_size(shape, strides), scratch)

    def run(self) -> None:
        for statement in self.kernel.body:
            self._statement(statement)

    def _statement(self, statement: Stmt) -> None:
        if isinstance(statement, Let):
            self.scope.locals[statement.name] = self.scope.expr(statement.value)
        elif isinstance(statement, Store):
            self._store(statement)
        elif isinstance(statement, Loop):
            self._loop(statement)
        elif isinstance(statement, ReduceLoop):
            self._reduce(statement)
        elif isinstance(statement, WhenLast):
            if self._is_last(statement):
                self._body(statement.body)
        elif not isinstance(statement, Barrier):  # which one thread has no use for
            self._scan(statement)

    def _is_last(self, statement: WhenLast) -> bool:
        key = id(statement), int(self.scope.index(statement.counter))
        self.came[key] = (self.came.get(key, 0) + 1) % statement.among
        return self.came[key] == 0

    def _loop(self, loop: Loop) -> None:
        first, last = 0, int(self.scope.index(loop.axis.extent))
        if loop.kind in ("parallel", "parallel-vector"):
            first, last = self.begin, last if self.end is None else self.end
        if loop.limit is not None:
            last = min(last, int(self.scope.index(loop.limit)))
        if loop.kind in ("vector", "parallel-vector"):
            self._enter_vector(last - first)
            self.scope.variables[loop.axis.name] = np.arange(first, last, dtype=np.int64)
            if last > first:
                self._body(loop.body)
            self.lanes = None
        else:
            for value in range(first, last):
                self.scope.variables[loop.axis.name] = np.asarray(value)
                self._body(loop.body)
        self.scope.variables.pop(loop.axis.name, None)

    def _body(self, body: tuple[Stmt, ...]) -> None:
        for statement in body:
            self._statement(statement)

    def _enter_vector(self, lanes: int) -> None:
        if self.lanes is not None:
            raise InvalidLoopsError(f"{self.kernel.name}: a vector loop inside a vector loop")
        self.lanes = lanes

    def _reduce(self, loop: ReduceLoop) -> None:
        extent = int(self.scope.index(loop.axis.extent))
        if loop.kind == "vector":
            self._enter_vector(extent)
            self.scope.variables[loop.axis.name] = np.arange(extent, dtype=np.int64)
            self._body(loop.body)
            results = {reducer.name: self._across(loop, reducer, extent) for reducer in loop.reducers}
            self.lanes = None
        else:
            states = [start(reducer) for reducer in loop.reducers]
            for value in range(extent):
                self.scope.variables[loop.axis.name] = np.asarray(value)
                self._body(loop.body)
                states = self._add(loop, states)
            results = {
                reducer.name: state[has_position(reducer)]
                for reducer, state in zip(loop.reducers, states, strict=True)
            }
        self.scope.variables.pop(loop.axis.name, None)
        self.scope.locals.update(results)

    def _add(self, loop: ReduceLoop, states: Sequence[State]) -> list[State]:
        """The states after one more turn."""
        position = None if loop.position is None else self.scope.expr(loop.position)
        return [
            step(reducer, state, self.scope.expr(reducer.value), position)
            for reducer, state in zip(loop.reducers, states, strict=True)
        ]

    def _across(self, loop: ReduceLoop, reducer: Reducer, extent: int) -> Array:
        value = np.broadcast_to(self.scope.expr(reducer.value), (extent,))
        result = reduce_array(reducer.op, value, (0,))
        if has_position(reducer) and loop.position is not None:
            return np.broadcast_to(self.scope.expr(loop.position), (extent,))[int(result)]
        return convert(result, reducer.dtype)

    def _scan(self, loop: ScanLoop) -> None:
        reducer = Reducer(loop.name, loop.op, loop.value, loop.dtype)
        running = start(reducer)
        for value in range(int(self.scope.index(loop.axis.extent))):
            self.scope.variables[loop.axis.name] = np.asarray(value)
            self._body(loop.body)
            running = step(reducer, running, self.scope.expr(loop.value), None)
            self.scope.locals[loop.name] = running[0]
            self._body(loop.after)
        self.scope.variables.pop(loop.axis.name, None)

    def _address(self, buffer: Buffer, point: tuple[Array, ...]) -> Array:
        offset: Array = np.asarray(0, dtype=np.int64)
        for position, stride in zip(point, buffer.strides, strict=True):
            offset = offset + position * self.scope.index(stride)
        memory = self.memory[buffer.name]
        if np.any(offset < 0) or np.any(offset >= memory.size):
            raise InvalidLoopsError(f"{self.kernel.name}: {buffer.name} is accessed outside of its memory")
        return offset

    def _load(self, buffer: Buffer, point: tuple[Array, ...], active: Array | None) -> Array:
        memory = self.memory[buffer.name]
        if active is not None and not np.any(active):
            return np.zeros(active.shape, memory.dtype)
        if active is not None:
            point = tuple(np.where(active, position, 0) for position in point)
        place = self._address(buffer, point)
        self._touch(buffer, place, active, how="loads")
        return memory[place]

    def _store(self, store: Store) -> None:
        offset = self._address(store.buffer, tuple(self.scope.index(position) for position in store.index))
        value = convert(self.scope.expr(store.value), store.buffer.dtype)
        shape = np.broadcast(offset, value).shape if self.lanes is None else (self.lanes,)
        self._touch(store.buffer, offset, None, how="stores" if store.combine is None else "updates")
        memory = self.memory[store.buffer.name]
        place, value = np.broadcast_to(offset, shape), np.broadcast_to(value, shape)
        put(memory, (place,), value, store.buffer.dtype, store.combine)

    def _touch(self, buffer: Buffer, place: Array, active: Array | None, *, how: Touch) -> None:
        """What a Load or Store reaches; in lanes where `active` is false it does not."""


State = tuple[Array, Array]
"""What a reducer has found so far, and where (for argmax and argmin; -1 before the first value)."""


def has_position(reducer: Reducer) -> bool:
    return reducer.op in ("argmax", "argmin")


def start(reducer: Reducer) -> State:
    """The state before the first value."""
    dtype = NUMPY_DTYPES[_value_dtype(reducer.value) if has_position(reducer) else reducer.dtype]
    starts: dict[str, Any] = {
        "sum": 0,
        "prod": 1,
        "any": False,
        "all": True,
        "max": lowest(np.dtype(dtype)),
        "min": highest(np.dtype(dtype)),
        "argmax": lowest(np.dtype(dtype)),
        "argmin": highest(np.dtype(dtype)),
    }
    return np.asarray(starts[reducer.op], dtype=dtype), np.asarray(-1, dtype=np.int64)


def _value_dtype(expr: Expr) -> Any:
    return expr.dtype


def step(reducer: Reducer, state: State, value: Array, position: Array | None) -> State:
    """The state after one more value."""
    best, where = state
    with np.errstate(all="ignore"):
        if has_position(reducer):
            if position is None:
                raise InvalidLoopsError(f"{reducer.name}: {reducer.op} without a position")
            better = value > best if reducer.op == "argmax" else value < best
            wins = (where < 0) | better | (np.isnan(value) & ~np.isnan(best))
            wins = (
                wins & ~(np.isnan(best) & (where >= 0)) if np.issubdtype(value.dtype, np.floating) else wins
            )
            return np.where(wins, value, best), np.where(wins, position, where)
        if reducer.op == "sum":
            return (best + value).astype(best.dtype), where
        if reducer.op == "prod":
            return (best * value).astype(best.dtype), where
        if reducer.op in ("any", "all"):
            return np.asarray(best | value if reducer.op == "any" else best & value), where
        return np.asarray((np.maximum if reducer.op == "max" else np.minimum)(best, value)), where
