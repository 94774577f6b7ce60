"""Reduction loops.

Independent accumulators hide the latency of an addition, so a cheap body is written several times. Float32 sums are
made in blocks: a long chain of additions to one accumulator would lose digits, so partial sums of some dozens of
values are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt, prod
from typing import TYPE_CHECKING

from lampwork.codegen.llvm.analysis import cost, draws, expressions, has_loops, lanes_for
from lampwork.codegen.llvm.builder import Value
from lampwork.codegen.llvm.env import Env
from lampwork.codegen.llvm.reduce import NOWHERE, Reduction, State
from lampwork.codegen.llvm.types import itemsize
from lampwork.loops.ir.bounds import offset_in
from lampwork.loops.ir.index import ONE
from lampwork.loops.ir.nodes import DType, Expr, Load, Loop, Op, ReduceLoop, Reducer, Stmt, Store
from lampwork.loops.ir.traverse import walk_once

if TYPE_CHECKING:
    from lampwork.codegen.llvm.emit_kernel import KernelWriter

UNROLL = 4
MOST_LANES = 64  # of a mask (`Builder.first_lanes`)
CHEAP = 12  # a body up to this cost is unrolled: beyond it, its own work hides the latency
WINDOW = 5  # turns of a loop that are written out
WINDOW_WORK = 200  # operations of them
BLOCK = 128  # additions to one accumulator before it is put aside


def emit_reduce(writer: KernelWriter, loop: ReduceLoop, env: Env) -> Env:
    """Write a ReduceLoop; the environment returned knows its reducers' results."""
    return ReduceWriter(writer, loop, env).write()


class ReduceWriter:
    """Writes one ReduceLoop of one thread."""

    def __init__(self, writer: KernelWriter, loop: ReduceLoop, env: Env) -> None:
        self.w = writer
        self.b = writer.b
        self.loop = loop
        self.outer = env
        self.env = env.in_loop(loop.axis)
        self.axis = loop.axis.name
        self.vector = loop.kind == "vector" and env.vector is None
        maximum = writer.target.has_maximum
        self.reductions = [
            Reduction(r.op, _value_dtype(loop, i), maximum) for i, r in enumerate(loop.reducers)
        ]
        self.lanes = lanes_for(writer.target, self.axis, loop.body, loop) if self.vector else 1
        if self.lanes > 1 and self._takes_many():
            self.lanes *= UNROLL

    def _takes_many(self) -> bool:
        """Whether several vectors are one, for the random numbers of their elements."""
        many, extent = self.lanes * UNROLL, self.loop.axis.extent.as_int()
        values = (reducer.value for reducer in self.loop.reducers)
        if many > MOST_LANES or not draws([*expressions(self.loop.body), *values]):
            return False
        fits = extent is not None and extent % many == 0
        return fits or (self.w.target.has_masks and (extent is None or extent >= many))

    def write(self) -> Env:
        values = [reducer.value for reducer in self.loop.reducers]
        self.w.hoist(self.axis, self.loop.axis.extent, self.loop.body, values, self.env)
        extent = self.w.emitter.emit_index(self.loop.axis.extent, self.env)
        width = self.lanes if self.vector else self.env.lanes
        totals = self._initial(width)
        if self._is_window(extent):
            for place in range(int(extent.text)):
                index = self.b.const(place, "i64")
                totals = self._turn(self.env.with_index(self.axis, index), totals)
            return self._with_results(totals)
        unroll = self._unroll(extent)
        step = self.lanes * unroll
        start = self.b.const(0, "i64")
        if unroll > 1 or self._long(extent, step):
            whole = self._multiple(extent, step)
            totals = self._unrolled(start, whole, step, unroll, totals)
            start = whole
        totals = self.w.loop_over(
            self.axis, start, extent, self.lanes, self.env, self._turn, totals, self._narrowed
        )
        return self._with_results(totals)

    def _with_results(self, totals: list[Value]) -> Env:
        states = self._split(totals)
        env = self.outer
        for reducer, reduction, state in zip(self.loop.reducers, self.reductions, states, strict=True):
            if self.vector:
                state = reduction.across(self.b, state)
            env = env.with_local(reducer.name, reduction.result(self.b, state))
        return env

    # --- one turn -----------------------------------------------------------------------------------------------------

    def _turn(self, env: Env, carried: list[Value]) -> list[Value]:
        """One step: the body, then every reducer takes its value. Lanes past the end give the neutral value."""
        inner = self.w.statements(self.loop.body, env)
        position = None
        if self.loop.position is not None:
            position = self.w.emitter.emit_wide(self.loop.position, inner)
        after: list[Value] = []
        for reducer, reduction, state in zip(
            self.loop.reducers, self.reductions, self._split(carried), strict=True
        ):
            factors = _factors(reducer)
            if factors is not None:
                after.append(self._plus_product(state[0], factors, inner))
                continue
            value = self.w.emitter.emit_expr(reducer.value, inner)
            value = reduction.accept(self.b, value, inner.lanes)
            if self.vector and inner.vector is not None and inner.vector.mask is not None:
                value = self.b.select(inner.vector.mask, value, reduction.neutral)
                if position is not None:
                    position = self.b.select(inner.vector.mask, position, NOWHERE)
            after += reduction.add(self.b, state, value, position)
        return after

    def _plus_product(self, total: Value, factors: tuple[Expr, ...], inner: Env) -> Value:
        """The sum after one more product, rounded once."""
        left = self.w.emitter.emit_wide(factors[0], inner)
        right = left if factors[1] is factors[0] else self.w.emitter.emit_wide(factors[1], inner)
        after = self.b.fma(left, right, total)
        if self.vector and inner.vector is not None and inner.vector.mask is not None:
            return self.b.select(inner.vector.mask, after, total)
        return after

    # --- states as flat lists of values -------------------------------------------------------------------------------

    def _initial(self, width: int) -> list[Value]:
        return [value for reduction in self.reductions for value in reduction.initial(self.b, width)]

    def _split(self, values: list[Value]) -> list[State]:
        states: list[State] = []
        position = 0
        for reduction in self.reductions:
            size = len(reduction.initial(self.b, 1))
            states.append(values[position : position + size])
            position += size
        return states

    def _narrowed(self, values: list[Value]) -> list[Value]:
        scalars: list[Value] = []
        for reduction, state in zip(self.reductions, self._split(values), strict=True):
            scalars += reduction.across(self.b, state)
        return scalars

    def _merged(self, left: list[Value], right: list[Value]) -> list[Value]:
        merged: list[Value] = []
        for reduction, a, c in zip(self.reductions, self._split(left), self._split(right), strict=True):
            merged += reduction.merge(self.b, a, c)
        return merged

    def _is_window(self, extent: Value) -> bool:
        """Whether the loop is a few turns for a vector of results, as those over a pooling window are: written out,
        what the turns have in common (masks of rows and columns, addresses) is computed once."""
        if self.vector or self.env.lanes == 1 or not extent.const or self.loop.position is not None:
            return False
        values = [reducer.value for reducer in self.loop.reducers]
        turns = int(extent.text)
        inside = _turns_of(self.loop.body)
        work = cost([*expressions(self.loop.body), *values])
        return 0 < turns <= WINDOW and turns * inside * work <= WINDOW_WORK

    # --- unrolling and blocks -----------------------------------------------------------------------------------------

    def _unroll(self, extent: Value) -> int:
        if has_loops(self.loop.body):
            return 1
        values = [reducer.value for reducer in self.loop.reducers]
        if cost([*expressions(self.loop.body), *values]) > CHEAP:
            return 1
        if not self.vector:
            return self._rows_side_by_side(extent)
        if extent.const and int(extent.text) < self.lanes * UNROLL * 2:
            return 1
        return UNROLL

    def _rows_side_by_side(self, extent: Value) -> int:
        """Of a vector of reductions: so many rows at a time that there are UNROLL accumulators of one register."""
        registers = max(
            self.env.lanes // self.w.target.lanes(reduction.dtype) for reduction in self.reductions
        )
        unroll = UNROLL // registers if 0 < registers < UNROLL else 1
        enough = extent.const and int(extent.text) >= 4 * UNROLL
        return unroll if enough and not any(isinstance(s, Store) for s in self.loop.body) else 1

    def _long(self, extent: Value, step: int) -> bool:
        """Whether float32 sums are so long (or may be) that they are made in blocks."""
        if not any(r.op in ("sum", "prod") and r.dtype == "f32" for r in self.reductions):
            return False
        return not extent.const or int(extent.text) // step > BLOCK

    def _multiple(self, extent: Value, step: int) -> Value:
        if extent.const:
            return self.b.const(int(extent.text) // step * step, "i64")
        return self.b.mul(self.b.div(extent, step), step)

    def _unrolled(
        self, start: Value, whole: Value, step: int, unroll: int, totals: list[Value]
    ) -> list[Value]:
        if not self._long(whole, step):
            return self._accumulate(start, whole, step, unroll, totals, static=whole.const)
        turns = BLOCK
        if whole.const:
            # Blocks and blocks of blocks of about the same length lose the least.
            turns = max(16, isqrt(int(whole.text) // step))
        block = step * turns
        with self.b.loop(start, whole, block, totals, runs=whole.const) as outer:
            stop = self.b.add(outer.index, block)
            stop = self.b.select(self.b.cmp("lt", stop, whole), stop, whole)
            width = totals[0].lanes
            partial = self._accumulate(outer.index, stop, step, unroll, self._initial(width), static=True)
            outer.next = self._merged(outer.carried, partial)
        return outer.results

    def _accumulate(
        self, start: Value, stop: Value, step: int, unroll: int, first: list[Value], *, static: bool
    ) -> list[Value]:
        """`unroll` turns at a time over [start, stop), of chains of accumulators side by side that are merged at the
        end. `static`: not empty."""
        width, many = first[0].lanes, self._chains(unroll)
        chains = [first, *(self._initial(width) for _ in range(many - 1))]
        size = len(first)
        flat = [value for chain in chains for value in chain]
        inner = self.env
        if self.vector and self.lanes > 1:
            inner = self.w.vectorized(self.env, self.axis, self.lanes, self.lanes)
        target, ahead = self.w.target, self._fetched_ahead(step) if self.vector else []
        with self.b.loop(start, stop, step, flat, runs=static) as loop:
            states = [loop.carried[i * size : (i + 1) * size] for i in range(many)]
            for turn in range(unroll):
                index = self.b.add(loop.index, turn * self.lanes)
                here = inner.with_index(self.axis, index)
                for load in ahead:
                    if turn * self.lanes * itemsize(load.dtype) % target.cache_line == 0:
                        self.w.emitter.fetch_ahead(load, here, target.ahead_bytes)
                states[turn % many] = self._turn(here, states[turn % many])
            loop.next = [value for state in states for value in state]
        results = [loop.results[i * size : (i + 1) * size] for i in range(many)]
        while len(results) > 1:
            results = [self._merged(a, c) for a, c in zip(results[::2], results[1::2], strict=True)]
        return results[0]

    def _chains(self, unroll: int) -> int:
        """Of so many turns that are written side by side, how many have accumulators of their own: a power of two."""
        return unroll

    def _fetched_ahead(self, step: int) -> list[Load]:
        """The loads whose lines are fetched before their turn: of long rows of large buffers, whole lines a turn."""
        target, found = self.w.target, list[Load]()
        extent = self.loop.axis.extent.as_int() or 0
        for part in walk_once(*expressions(self.loop.body), *(each.value for each in self.loop.reducers)):
            if (
                not isinstance(part, Load)
                or part.mask is not None
                or part.buffer.name in self.w.emitter.written
            ):
                continue
            size, elements = itemsize(part.dtype), prod(length.as_int() or 0 for length in part.buffer.shape)
            is_long = elements * size >= target.ahead_from and extent * size >= target.ahead_bytes > 0
            if not is_long or step * size % target.cache_line:
                continue
            if offset_in(part.buffer, part.index).coefficient(self.axis) == ONE:
                found.append(part)
        return found


def _turns_of(stmts: Sequence[Stmt]) -> int:
    """The turns of the loops in a body, one in another; more than any limit where they are not numbers."""
    total = 1
    for stmt in stmts:
        if isinstance(stmt, ReduceLoop | Loop):
            total = max(total, (stmt.axis.extent.as_int() or WINDOW_WORK) * _turns_of(stmt.body))
    return total


def _factors(reducer: Reducer) -> tuple[Expr, ...] | None:
    """What a sum of products multiplies; None for other reductions."""
    value = reducer.value
    if reducer.op != "sum" or not isinstance(value, Op) or value.name != "product":
        return None
    return value.args if value.dtype == reducer.dtype else None


def _value_dtype(loop: ReduceLoop, position: int) -> DType:
    reducer = loop.reducers[position]
    if reducer.op in ("argmax", "argmin"):
        return reducer.value.dtype
    return reducer.dtype
