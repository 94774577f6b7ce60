"""A slow interpreter of kernels on a grid, thread by thread: the reference for barriers and shared memory.

The blocks of a cluster are one group of threads here: how they send each other what they found, and wait for each
other in two steps, is not seen.

Each thread runs the body on its own up to the next barrier, in an order drawn by chance. It is kept who read and wrote
what: a thread that reads or writes what another one wrote since the last barrier, or writes what another read, is an
error, whatever the values are; and so is that of another group, barrier or not. Who comes last to a WhenLast knows of
all that the others that count with him did before they came.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lampwork.errors import InvalidLoopsError
from lampwork.loops.ir.grid import WARP, Grid, is_shared, parallel_loop
from lampwork.loops.ir.kernel import parallel_extent, statements
from lampwork.loops.ir.nodes import (
    Barrier,
    Buffer,
    Loop,
    ReduceLoop,
    Reducer,
    ScanLoop,
    Stmt,
    Store,
    WhenLast,
)
from lampwork.loops.reference.evaluate import NUMPY_DTYPES, convert, highest, reduce_array
from lampwork.loops.reference.evaluate_kernel import (
    Array,
    KernelRun,
    State,
    Touch,
    check_memory,
    has_position,
    start,
    step,
)
from lampwork.records import record


class RaceError(InvalidLoopsError):
    """Two threads reach one place with no barrier between them, and one of them writes to it."""


def run_grid(
    grid: Grid,
    memory: MutableMapping[str, Array],
    *,
    sizes: Mapping[str, int] | None = None,
    blocks: int = 2,
    wide: bool = True,
    seed: int = 0,
) -> None:
    """Runs a kernel on flat memory (evaluate_kernel.py), in place.

    Args:
        blocks: of the grid; few, so that groups have several iterations each.
        wide: whether threads take several neighbours at a time where they can, as they do where buffers are aligned.
        seed: of the order of the threads.

    Raises:
        RaceError: see there; the message has the buffer and the place.
        InvalidLoopsError: threads of a group wait at different barriers, or have different results of a reduction.
        InvalidLoopsError, IndexError: as `run_kernel`.
    """
    check_memory(grid.kernel, memory)
    run = _Run(grid, memory, sizes or {}, blocks, wide, random.Random(seed))
    order = list(range(blocks * grid.groups))
    run.rng.shuffle(order)
    for number in order:
        run.group(number)


# --- who reached what -------------------------------------------------------------------------------------------------

NOBODY, SEVERAL, UPDATED = -1, -2, -3


_DONE: Mapping[Touch, str] = {"loads": "read", "stores": "written", "updates": "updated"}


@dataclass(slots=True)
class _Traces:
    """Who wrote and who read each place last; `who` is what the owners are called in messages. Updates of a place clash
    with whatever else reaches it, but not with each other."""

    who: str
    found: dict[str, tuple[Array, Array]] = field(default_factory=dict[str, tuple[Array, Array]])

    def note(
        self, buffer: str, elements: int, places: Array, owners: Array, *, how: Touch, known: Array
    ) -> None:
        if buffer not in self.found:
            self.found[buffer] = (np.full(elements, NOBODY), np.full(elements, NOBODY))
        writers, readers = self.found[buffer]
        stores = how != "loads"
        if how == "updates":
            owners = np.full_like(owners, UPDATED)
        clash = _others(writers[places], owners) & ~np.isin(writers[places], known)
        if stores:
            clash |= _others(readers[places], owners) & ~np.isin(readers[places], known)
        else:
            readers[places] = np.where(_others(readers[places], owners), SEVERAL, owners)
            shared = places[_others(readers[places], owners)]
            readers[shared] = SEVERAL
        if stores:
            writers[places] = owners
            clash |= _others(writers[places], owners)
        if np.any(clash):
            first = int(np.argmax(clash))
            raise RaceError(
                f"{buffer}[{places[first]}] is {_DONE[how]} by {self.who} {owners[first]},"
                f" and {self.who}s reach it with no barrier between them"
            )


def _others(found: Array, owners: Array) -> Array:
    return (found != NOBODY) & (found != owners)


# --- threads ----------------------------------------------------------------------------------------------------------


@record
class _Wait:
    """Where a thread waits for its group, and what it brings to a reduction or scan. orders: what others stored before
    is there afterwards; the shuffles alone do not see to that."""

    place: tuple[int, ...]
    reducers: tuple[Reducer, ...] = ()
    states: tuple[State, ...] = ()
    scans: bool = False
    orders: bool = True


Results = Mapping[str, Array]
Steps = Generator[_Wait, Results, None]


@dataclass(slots=True)
class _Run:
    """One run of a grid."""

    grid: Grid
    memory: Mapping[str, Array]
    sizes: Mapping[str, int]
    blocks: int
    wide: bool
    rng: random.Random
    traces: _Traces = field(default_factory=lambda: _Traces("iteration"))
    lanes: dict[int, int] = field(default_factory=dict[int, int])
    waits: set[int] = field(default_factory=set[int])
    stored: set[str] = field(default_factory=set[str])
    came: dict[tuple[int, int], list[set[int]]] = field(default_factory=dict[tuple[int, int], list[set[int]]])
    """What each iteration knows of that has come to a WhenLast, by statement and counter."""

    def __post_init__(self) -> None:
        """What is known of statements, by their ids: the lanes of shared loops, and whether threads wait inside."""
        for stmt in statements(self.grid.kernel.body):
            inside = list(statements([stmt]))
            if isinstance(stmt, Loop | ReduceLoop) and is_shared(stmt):
                limited = isinstance(stmt, Loop) and stmt.limit is not None
                self.lanes[id(stmt)] = 1 if limited or not self.wide else self.grid.lanes_of(stmt)
            if any(isinstance(each, Barrier) or is_shared(each) for each in inside):
                self.waits.add(id(stmt))
            self.stored |= {each.buffer.name for each in inside if isinstance(each, Store)}

    def group(self, number: int) -> None:
        """All iterations of one group."""
        traces, scratch = _Traces("thread"), {each.name: _poison(each) for each in self.grid.kernel.scratch}
        memory = {**self.memory, **scratch}
        running = [_Thread(self, number, t, memory, traces).steps() for t in range(self.grid.threads)]
        results: list[Results] = [{} for _ in running]
        order, started = list(range(len(running))), False
        while True:
            self.rng.shuffle(order)
            met: dict[int, _Wait | None] = {}
            for each in order:
                try:
                    met[each] = running[each].send(results[each]) if started else next(running[each])
                except StopIteration:
                    met[each] = None
            waits = [met[each] for each in range(len(running))]
            self._check(waits)
            if waits[0] is None:
                return
            results = _across([wait for wait in waits if wait is not None], self.grid.cluster)
            started = True
            if waits[0].orders:
                traces.found.clear()

    def _check(self, waits: Sequence[_Wait | None]) -> None:
        places = [None if wait is None else wait.place for wait in waits]
        for number, place in enumerate(places):
            if place != places[0]:
                raise InvalidLoopsError(
                    f"{self.grid.kernel.name}: thread 0 {_waits(places[0])}, thread {number} {_waits(place)}"
                )


def _waits(place: tuple[int, ...] | None) -> str:
    return "has ended" if place is None else f"waits at statement {'.'.join(map(str, place))}"


def _poison(buffer: Buffer) -> Array:
    """Memory that shows in results if it is read before it is written."""
    memory = np.zeros(buffer.shape[0].as_int() or 0, NUMPY_DTYPES[buffer.dtype])
    if memory.dtype != np.bool_:
        floats = np.issubdtype(memory.dtype, np.floating)
        memory.fill(np.nan if floats else highest(memory.dtype) // 3 * 2)
    return memory


class _Thread(KernelRun):
    """What one thread does; `steps` stops wherever it waits for the others, and goes on with what they found."""

    def __init__(
        self, run: _Run, group: int, number: int, memory: MutableMapping[str, Array], traces: _Traces
    ) -> None:
        super().__init__(run.grid.kernel, memory, run.sizes, 0, None)
        self.of, self.group, self.number, self.traces = run, group, number, traces
        self.grid = run.grid
        self.iteration: Array = np.asarray(group)
        self.known: set[int] = set()  # iterations of which this one sees all that they stored
        self.apart = (
            self.grid.is_flat
        )  # whether each thread makes the stores that come next, not the first alone
        self.own = {each.name for each in self.kernel.scratch}

    def steps(self) -> Steps:
        loop, extent = parallel_loop(self.kernel), int(self.scope.index(parallel_extent(self.kernel)))
        body = self.kernel.body if loop is None else loop.body
        stride = self.of.blocks * self.grid.groups
        lanes = self.grid.lanes if self.of.wide and self.grid.is_flat else 1
        whole = extent // lanes * lanes
        starts = [(first, lanes) for first in range(self.group * lanes, whole, stride * lanes)]
        starts += [(first, 1) for first in range(whole + self.group, extent, stride)] if lanes > 1 else []
        for first, width in starts:
            self.iteration = np.arange(first, first + width) if width > 1 else np.asarray(first)
            self.known = set()
            if loop is not None:
                self.scope.variables[loop.axis.name] = self.iteration
            self.lanes = width if width > 1 else None
            yield from self._together(body, ())

    def _together(self, body: Sequence[Stmt], place: tuple[int, ...]) -> Steps:
        """Statements that all threads of a group run."""
        for number, stmt in enumerate(body):
            here = (*place, number)
            if isinstance(stmt, Barrier):
                yield _Wait(here)
            elif isinstance(stmt, WhenLast):
                yield from self._when_last(stmt, here)
            elif isinstance(stmt, Loop) and is_shared(stmt):
                self._share(stmt)
                self._leave(stmt)
            elif isinstance(stmt, ReduceLoop) and is_shared(stmt):
                yield from self._reduce_together(stmt, here)
            elif isinstance(stmt, ScanLoop) and not self.grid.is_flat:
                yield from self._scan_together(stmt, here)
            elif id(stmt) in self.of.waits and not isinstance(stmt, ScanLoop):
                yield from self._turns(stmt, here)
            else:
                self._statement(stmt)

    def _when_last(self, stmt: WhenLast, place: tuple[int, ...]) -> Steps:
        came = self.of.came.setdefault((id(stmt), int(self.scope.index(stmt.counter))), [])
        yield _Wait((*place, 0))
        if self.number == 0:
            came.append({int(self.iteration), *self.known})
        yield _Wait((*place, 1))
        if len(came) < stmt.among:
            return
        self.known.update(*came)
        yield from self._together(stmt.body, place)
        yield _Wait((*place, 2))
        came.clear()

    def _turns(self, loop: Stmt, place: tuple[int, ...]) -> Steps:
        """A loop whose turns all threads run together."""
        assert isinstance(loop, Loop | ReduceLoop)
        reducers = loop.reducers if isinstance(loop, ReduceLoop) else ()
        states = [start(reducer) for reducer in reducers]
        for value in range(self._end(loop)):
            self.scope.variables[loop.axis.name] = np.asarray(value)
            yield from self._together(loop.body, place)
            if isinstance(loop, ReduceLoop):
                states = self._add(loop, states)
        self.scope.locals.update(_results(reducers, states))
        self.scope.variables.pop(loop.axis.name, None)

    def _end(self, loop: Loop | ReduceLoop | ScanLoop) -> int:
        extent = int(self.scope.index(loop.axis.extent))
        if isinstance(loop, Loop) and loop.limit is not None:
            return min(extent, int(self.scope.index(loop.limit)))
        return extent

    def _share(self, loop: Loop | ReduceLoop) -> bool:
        """Runs the body for this thread's turns; whether it has any."""
        end, lanes, threads = self._end(loop), self.of.lanes[id(loop)], self.grid.threads
        whole = end // lanes * lanes
        starts = np.arange(self.number * lanes, whole, threads * lanes)
        turns = (starts[:, None] + np.arange(lanes)).ravel()
        if lanes > 1:
            turns = np.concatenate([turns, np.arange(whole + self.number, end, threads)])
        self._enter_vector(turns.size)
        self.apart = True
        self.scope.variables[loop.axis.name] = turns
        if turns.size:
            self._body(loop.body)
        return turns.size > 0

    def _leave(self, loop: Loop | ReduceLoop) -> None:
        self.lanes, self.apart = None, False
        self.scope.variables.pop(loop.axis.name, None)

    def _reduce_together(self, loop: ReduceLoop, place: tuple[int, ...]) -> Steps:
        states = [start(reducer) for reducer in loop.reducers]
        if self._share(loop):
            states = [self._partial(loop, reducer) for reducer in loop.reducers]
        self._leave(loop)
        found = yield _Wait(place, loop.reducers, tuple(states))
        self.scope.locals.update(found)

    def _scan_together(self, loop: ScanLoop, place: tuple[int, ...]) -> Steps:
        """As many places at a time as there are threads. Those past the end run the body at the last one."""
        reducer = Reducer(loop.name, loop.op, loop.value, loop.dtype)
        total, end = start(reducer), self._end(loop)
        for first in range(0, end, self.grid.threads):
            here = first + self.number
            self.apart = True
            self.scope.variables[loop.axis.name] = np.asarray(min(here, end - 1))
            self._body(loop.body)
            state = start(reducer)
            if here < end:
                state = step(reducer, state, self.scope.expr(loop.value), None)
            found = yield _Wait(place, (reducer,), (state,), scans=True, orders=self.grid.threads > WARP)
            if here < end:
                self.scope.locals[loop.name] = step(reducer, total, found["up to here"], None)[0]
                self._body(loop.after)
            self.apart = False
            total = step(reducer, total, found["in all"], None)
        self.scope.locals[loop.name] = total[0]
        self.scope.variables.pop(loop.axis.name, None)

    def _partial(self, loop: ReduceLoop, reducer: Reducer) -> State:
        value = np.broadcast_to(self.scope.expr(reducer.value), (self.lanes or 0,))
        if not has_position(reducer):
            return convert(reduce_array(reducer.op, value, (0,)), reducer.dtype), np.asarray(-1)
        assert loop.position is not None
        best = int(reduce_array(reducer.op, value, (0,)))
        position = np.broadcast_to(self.scope.expr(loop.position), value.shape)
        return value[best], position[best]

    def _statement(self, statement: Stmt) -> None:
        if isinstance(statement, Barrier):
            raise InvalidLoopsError(f"{self.kernel.name}: a barrier in a loop that the threads share")
        super()._statement(statement)

    # --- memory -------------------------------------------------------------------------------------------------------

    def _store(self, store: Store) -> None:
        if self.apart or self.number == 0:
            super()._store(store)

    def _touch(self, buffer: Buffer, place: Array, active: Array | None, *, how: Touch) -> None:
        if buffer.name not in self.of.stored:
            return
        owners = np.asarray(self.number)
        elements = self.memory[buffer.name].size
        traces: list[tuple[_Traces, Array]] = [] if self.grid.is_flat else [(self.traces, owners)]
        if buffer.name not in self.own:
            traces.append((self.of.traces, self.iteration))
        for trace, owner in traces:
            places, owned, reached = np.broadcast_arrays(place, owner, True if active is None else active)
            known = np.array(sorted(self.known) if trace is self.of.traces else (), np.int64)
            trace.note(buffer.name, elements, places[reached], owned[reached], how=how, known=known)


# --- reductions across a group ----------------------------------------------------------------------------------------


def _across(waits: Sequence[_Wait], cluster: int) -> list[Results]:
    """What each thread has after a wait: its reductions, merged as the device merges them."""
    reducers = waits[0].reducers
    if waits[0].scans:
        prefixes, total = _prefixes(reducers[0], [wait.states[0][0] for wait in waits])
        return [{"up to here": prefixes[n], "in all": total} for n in range(len(waits))]
    merged = [
        _merged(reducer, [wait.states[n] for wait in waits], cluster) for n, reducer in enumerate(reducers)
    ]
    return [_results(reducers, [(value[n], where[n]) for value, where in merged]) for n in range(len(waits))]


def _results(reducers: Sequence[Reducer], states: Sequence[State]) -> Results:
    """argmax and argmin give positions; 0 where no value beats the neutral one."""
    return {
        reducer.name: np.maximum(where, 0) if has_position(reducer) else value
        for reducer, (value, where) in zip(reducers, states, strict=True)
    }


def _merged(reducer: Reducer, states: Sequence[State], cluster: int) -> State:
    """The states of all threads, each merged with all others: across the lanes of a warp, then across the warps of a
    block, then across the blocks of a cluster."""
    value, where = (np.stack([np.asarray(state[n]) for state in states]) for n in (0, 1))
    threads, block = np.arange(len(states)), len(states) // cluster
    found = _across_lanes(reducer, (value, where), threads, min(block, WARP))
    warps, lane = block // WARP, threads % WARP
    if warps > 1:
        taken = threads // block * block + (lane & warps - 1) * WARP
        found = _across_lanes(reducer, (found[0][taken], found[1][taken]), threads, warps)
    if cluster > 1:
        taken = (lane & cluster - 1) * block
        found = _across_lanes(reducer, (found[0][taken], found[1][taken]), threads, cluster)
    for part in found if has_position(reducer) else found[:1]:
        if not np.all((part == part[0]) | (part != part)):
            raise InvalidLoopsError(f"threads have different results of {reducer.name}")
    return found


def _across_lanes(reducer: Reducer, state: State, threads: Array, lanes: int) -> State:
    distance = lanes // 2
    while distance:
        other = threads ^ distance
        state = _merge(reducer, state, (state[0][other], state[1][other]))
        distance //= 2
    return state


def _merge(reducer: Reducer, left: State, right: State) -> State:
    if not has_position(reducer):
        return step(reducer, left, right[0], None)
    compare: Callable[[Array, Array], Array] = np.greater if reducer.op == "argmax" else np.less
    unknown = (np.isnan(left[0]), np.isnan(right[0]))
    better = compare(right[0], left[0]) & ~unknown[0] | unknown[1] & ~unknown[0]
    equal = (right[0] == left[0]) | unknown[0] & unknown[1]
    take = (right[1] >= 0) & ((left[1] < 0) | better | equal & (right[1] < left[1]))
    return np.where(take, right[0], left[0]), np.where(take, right[1], left[1])


# --- scans across a group ---------------------------------------------------------------------------------------------


def _prefixes(reducer: Reducer, values: Sequence[Array]) -> tuple[Array, Array]:
    """The values of each thread and all before it merged, and those of all."""
    threads = np.arange(len(values))
    lanes, warps = min(len(values), WARP), len(values) // WARP
    found = _up_to(reducer, np.stack(values), threads % lanes, lanes)
    if warps <= 1:
        return found, found[-1]
    sums = _up_to(reducer, found[WARP - 1 :: WARP], np.arange(warps), warps)
    earlier = np.repeat(np.concatenate([sums[:1], sums[:-1]]), WARP)
    return np.where(threads < WARP, found, _merged_values(reducer, earlier, found)), sums[-1]


def _up_to(reducer: Reducer, values: Array, lane: Array, lanes: int) -> Array:
    distance = 1
    while distance < lanes:
        earlier = values[np.maximum(np.arange(values.size) - distance, 0)]
        values = np.where(lane >= distance, _merged_values(reducer, earlier, values), values)
        distance *= 2
    return values


def _merged_values(reducer: Reducer, left: Array, right: Array) -> Array:
    return step(reducer, (left, np.asarray(-1)), right, None)[0]
