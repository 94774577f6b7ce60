"""A kernel on a grid (loops/ir/grid.py) as LLVM IR: what a device and its emulation on this CPU have in common.

Expressions, serial loops and the code of a thread are those of the CPU's kernels. A writer adds how a group shares the
turns of a loop, reduces across its threads and waits.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence, Set
from contextlib import nullcontext
from dataclasses import replace

from lampwork.codegen.gpu.updates import emit_update
from lampwork.codegen.llvm.analysis import cost, expressions, has_loops
from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.codegen.llvm.emit import Emitter, Lanes
from lampwork.codegen.llvm.emit_kernel import KernelWriter, Turn
from lampwork.codegen.llvm.emit_reduce import ReduceWriter
from lampwork.codegen.llvm.env import Env, VectorAxis
from lampwork.codegen.llvm.reduce import Reduction, State
from lampwork.codegen.llvm.types import itemsize
from lampwork.codegen.target import Target
from lampwork.errors import CodegenError
from lampwork.loops.ir.bounds import offset_in
from lampwork.loops.ir.grid import ALIGNED, Grid, is_shared, is_side_by_side, parallel_loop, shared_loops
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.kernel import statements
from lampwork.loops.ir.nodes import (
    Barrier,
    Buffer,
    CombineOp,
    DType,
    Let,
    Load,
    Local,
    Loop,
    Op,
    ReduceLoop,
    Reducer,
    Stmt,
    Store,
    WhenLast,
)
from lampwork.loops.ir.traverse import walk_once
from lampwork.records import record

CHEAP = 16  # operations of a turn of a serial reduction, up to which several are written side by side
SIDE_BY_SIDE = 8  # such turns: their loads are on the way at the same time


@record
class Carried:
    """What a shared loop carries from turn to turn: its start for so many lanes; vectors as scalars; two in one. cheap:
    whether a turn is little more than what it reads."""

    initial: Callable[[int], list[Value]]
    narrow: Callable[[list[Value]], list[Value]]
    merge: Callable[[list[Value], list[Value]], list[Value]]
    cheap: bool = False


def _none(*parts: object) -> list[Value]:
    return []


NOTHING = Carried(_none, _none, _none)


class GridEmitter(Emitter):
    """Expressions of a thread. `aligned`: all buffers start at multiples of 16 bytes. `scope`: what LLVM calls the
    threads of a device."""

    aligned = False
    scope = "device"

    def emit_update(self, store: Store, op: CombineOp, value: Value, env: Env) -> None:
        buffer = store.buffer
        place = self._place(buffer, store.index, env, None)
        is_proven = self._is_proven(buffer, store.index, None, env)
        guard = None if is_proven else self._checked(buffer, place, env, None)
        if env.lanes > 1:
            self._update_lanes(store, op, value, env, place, guard)
            return
        offset = place.base if place.vector is None else place.vector
        address = self.b.element(self._base(buffer, env), buffer.dtype, offset).text
        with nullcontext() if guard is None else self._where(guard):
            self.combine(op, address, self.as_stored(buffer, value), buffer.dtype)

    def _update_lanes(
        self, store: Store, op: CombineOp, value: Value, env: Env, place: Lanes, guard: Value | None
    ) -> None:
        """Neighbours at a time where there is an instruction for that, else one after the other."""
        b, buffer, lanes = self.b, store.buffer, env.lanes
        if self._active(env, None) is not None:
            raise CodegenError(f"elements of {buffer.name} are combined with memory under a mask")
        value = b.widen(self.as_stored(buffer, value), lanes)
        if guard is None and place.vector is None and place.step == 1:
            whole = self.alignment(buffer, store.index, env) == lanes * itemsize(buffer.dtype)
            address = b.element(self._base(buffer, env), buffer.dtype, place.base).text
            if whole and self.combine_neighbours(op, address, value, buffer.dtype):
                return
        offsets = self._all_lanes(place, env)
        for lane in range(lanes):
            offset, own = (_lane(b, each, lane) for each in (offsets, value))
            address = b.element(self._base(buffer, env), buffer.dtype, offset).text
            with nullcontext() if guard is None else self._where(_lane(b, guard, lane)):
                self.combine(op, address, own, buffer.dtype)

    def combine_neighbours(self, op: CombineOp, address: str, value: Value, dtype: DType) -> bool:
        """`combine` of all lanes of a value with as many neighbours, at a multiple of their size, by one instruction;
        False if there is none."""
        return False

    def combine(self, op: CombineOp, address: str, value: Value, dtype: DType) -> None:
        """The element at an address becomes `op` of itself and a value, in the form that it has in memory."""
        emit_update(self.b, op, address, value, dtype, self.scope)

    def alignment(self, buffer: Buffer, index: tuple[Index, ...], env: Env) -> int:
        size, vector = itemsize(buffer.dtype), env.vector
        if not self.aligned or vector is None or vector.aligned % vector.lanes:
            return size
        offset, lanes = offset_in(buffer, index), vector.lanes
        while lanes > 1 and not is_side_by_side(offset, vector.name, lanes):
            lanes //= 2
        return min(size * lanes, ALIGNED)


def _lane(b: Builder, value: Value, lane: int) -> Value:
    """One lane of a vector; a scalar is all of them."""
    if value.lanes == 1:
        return value
    return b.emit(f"extractelement {value.type} {value.text}, i64 {lane}", value.dtype, 1)


class GridWriter(KernelWriter):
    """Writes one kernel of a grid."""

    def __init__(self, module: Module, grid: Grid, target: Target) -> None:
        self.grid = grid
        super().__init__(module, grid.kernel, target)
        self.b.coarse = _is_coarse(grid)
        self.maxima = _maxima(grid.kernel.body)

    # --- what machines differ in --------------------------------------------------------------------------------------

    @abstractmethod
    def across_group(self, reductions: Sequence[Reduction], states: Sequence[State]) -> list[State]:
        """The states of all threads of the group merged, for each reduction: every thread has the result."""
        raise NotImplementedError

    @abstractmethod
    def share(
        self, axis: str, end: Value, lanes: int, env: Env, turn: Turn, carried: Carried = NOTHING
    ) -> list[Value]:
        """for axis in range(end), shared by the threads of a group, each `lanes` neighbours at a time: what is carried,
        as scalars, for `across_group`."""
        raise NotImplementedError

    @abstractmethod
    def barrier(self) -> None:
        """All threads of the group wait for each other."""
        raise NotImplementedError

    @abstractmethod
    def first_thread(self, store: Store, env: Env) -> None:
        """A store that one thread of the group makes."""
        raise NotImplementedError

    @abstractmethod
    def when_last(self, last: WhenLast, env: Env) -> None:
        """What the iteration that comes last runs, in its place."""
        raise NotImplementedError

    @property
    def wide(self) -> bool:
        """Whether threads take several neighbours at a time, in the code that is being written."""
        return True

    # --- bodies -------------------------------------------------------------------------------------------------------

    def has_vectors(self) -> bool:
        """Whether any thread takes several neighbours at a time."""
        if self.grid.is_flat:
            return self.grid.lanes > 1
        loop = parallel_loop(self.kernel)
        return any(
            self.grid.lanes_of(each) > 1
            for each in shared_loops(self.kernel.body if loop is None else loop.body)
        )

    def vectorized(self, env: Env, axis: str, lanes: int, aligned: int = 1, mask: Value | None = None) -> Env:
        return replace(env, vector=VectorAxis(axis, lanes, mask, aligned))

    def iteration(self, loop: Loop | None, index: Value, lanes: int, env: Env) -> None:
        """One iteration of the parallel loop, or `lanes` neighbours of a flat one."""
        if loop is None:
            self.statements(self.kernel.body, env)
            return
        env = env.in_loop(loop.axis).with_index(loop.axis.name, index)
        if self.grid.is_flat:
            env = self.vectorized(env, loop.axis.name, lanes, lanes)
        with self.b.scope():
            if not self.grid.is_flat:
                self.read_early(loop, env)
            self.statements(loop.body, env)

    def read_early(self, loop: Loop | ReduceLoop, env: Env) -> None:
        """What a group reads once a turn is on the way before the threads wait for each other, and what a thread of a
        flat kernel reads before it computes."""
        known = {*env.indices, loop.axis.name}
        ends = [stmt for stmt in loop.body if isinstance(stmt, Let | Store)]
        for part in walk_once(*(stmt.value for stmt in ends)):
            if (
                not isinstance(part, Load)
                or part.mask is not None
                or part.buffer.name in self.emitter.written
            ):
                continue
            if all(place.variables() <= known and not place.indirects() for place in part.index):
                self.emitter.emit_expr(part, env)

    # --- statements ---------------------------------------------------------------------------------------------------

    def _statement(self, stmt: Stmt, env: Env) -> Env:
        if isinstance(stmt, Barrier):
            self.barrier()
            return env
        if isinstance(stmt, WhenLast):
            self.when_last(stmt, env)
            return env
        if isinstance(stmt, Store) and env.vector is None and not self.grid.is_flat:
            self.first_thread(stmt, env)
            return env
        return super()._statement(stmt, env)

    def _loop(self, loop: Loop, env: Env) -> None:
        def turn(inner: Env, carried: list[Value]) -> list[Value]:
            self.statements(loop.body, inner)
            return carried

        axis = loop.axis.name
        limits = () if loop.limit is None else (loop.limit - 1 - Index.var(axis),)
        inside = env.in_loop(loop.axis, *limits)
        self.hoist(axis, loop.axis.extent, loop.body, [], inside)
        end = self._end(loop, inside)
        if env.vector is not None or not is_shared(loop):
            self._serial(axis, self.b.const(0, "i64"), end, inside, turn, [])
            return
        lanes = self.grid.lanes_of(loop) if self.wide and loop.limit is None else 1
        self.share(axis, end, lanes, inside, turn)

    def _end(self, loop: Loop, env: Env) -> Value:
        end = self.emitter.emit_index(loop.axis.extent, env)
        if loop.limit is None:
            return end
        limit = self.emitter.emit_index(loop.limit, env)
        return self.b.select(self.b.cmp("lt", limit, end), limit, end)

    def counter(self, last: WhenLast, env: Env) -> Value:
        """The number of a counter among all of the kernel."""
        before = 0
        for each in statements(self.kernel.body):
            if each is last:
                return self.b.add(self.emitter.emit_index(last.counter, env), before)
            before += each.counters if isinstance(each, WhenLast) and not each.near else 0
        raise CodegenError(f"{self.kernel.name} has no such counter")

    def _reduce(self, loop: ReduceLoop, env: Env) -> Env:
        if env.vector is None and is_shared(loop):
            return SharedReduce(self, loop, env).write()
        return ThreadReduce(self, loop, env).write()


HALVES = ("f16", "bf16")
_STEPS = frozenset(("floor", "ceil", "trunc", "round", "sign"))
"""Operations that make a large difference of a small one."""


def _is_coarse(grid: Grid) -> bool:
    """Whether all that a kernel reads and writes is of half types, to which eager rounds its results, and nothing in it
    makes much of small differences."""
    if not all(buffer.dtype in HALVES for buffer in grid.kernel.params):
        return False
    parts = [part for part in walk_once(*grid.kernel.body) if isinstance(part, Op)]
    return not any(part.name in _STEPS or part.dtype[0] in "iu" for part in parts)


def _maxima(body: Sequence[Stmt]) -> frozenset[str]:
    """The names of results that are the largest of some values."""
    found: set[str] = set()
    for stmt in statements(body):
        if isinstance(stmt, ReduceLoop):
            found |= {each.name for each in stmt.reducers if each.op == "max"}
        elif isinstance(stmt, Let) and isinstance(stmt.value, Local) and stmt.value.name in found:
            found.add(stmt.name)
    return frozenset(found)


def _sums_powers(reducer: Reducer, maxima: Set[str]) -> bool:
    """Whether what is summed is e ** (x - m) of numbers of half types, m being the maximum of them."""
    value = reducer.value
    if reducer.op != "sum" or not isinstance(value, Op) or value.name != "exp" or value.dtype != "f32":
        return False
    (apart,) = value.args
    if not isinstance(apart, Op) or apart.name != "sub":
        return False
    if not isinstance(apart.args[1], Local) or apart.args[1].name not in maxima:
        return False
    read = [part for part in walk_once(apart) if isinstance(part, Load)]
    return bool(read) and all(load.buffer.dtype in HALVES for load in read)


class ThreadReduce(ReduceWriter):
    """A reduction of one thread, or one whose turns all threads of a group run alike."""

    w: GridWriter

    def _turn(self, env: Env, carried: list[Value]) -> list[Value]:
        if env.vector is None and not self.w.grid.is_flat and shared_loops(self.loop.body):
            self.w.read_early(self.loop, env)
        return super()._turn(env, carried)

    def _unroll(self, extent: Value) -> int:
        values = [reducer.value for reducer in self.loop.reducers]
        if (
            has_loops(self.loop.body)
            or self.loop.position is not None
            or any(isinstance(stmt, Store) for stmt in self.loop.body)
        ):
            return 1
        if cost([*expressions(self.loop.body), *values]) > CHEAP or (
            extent.const and int(extent.text) < 2 * SIDE_BY_SIDE
        ):
            return 1
        return SIDE_BY_SIDE

    def _chains(self, unroll: int) -> int:
        """The lanes of a turn are chains of their own."""
        return max(unroll // self.env.lanes, 1)


class SharedReduce(ReduceWriter):
    """A reduction whose turns the threads of a group share, and whose result each of them has."""

    w: GridWriter

    def write(self) -> Env:
        writer, loop = self.w, self.loop
        values = [reducer.value for reducer in loop.reducers]
        writer.hoist(self.axis, loop.axis.extent, loop.body, values, self.env)
        end = writer.emitter.emit_index(loop.axis.extent, self.env)
        self.lanes = writer.grid.lanes_of(loop) if writer.wide else 1
        cheap = not has_loops(loop.body) and cost([*expressions(loop.body), *values]) <= CHEAP
        carried = Carried(self._initial, self._narrowed, self._merged, cheap)
        self.b.sums_powers = not loop.body and all(
            _sums_powers(each, writer.maxima) for each in loop.reducers
        )
        totals = writer.share(self.axis, end, self.lanes, self.env, self._turn, carried)
        env = self.outer
        self.b.sums_powers = False
        states = writer.across_group(self.reductions, self._split(totals))
        for reducer, reduction, state in zip(loop.reducers, self.reductions, states, strict=True):
            env = env.with_local(reducer.name, reduction.result(self.b, state))
        return env
