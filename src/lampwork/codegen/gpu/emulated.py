"""Kernels on a grid for this CPU: the threads of a group one after the other, between barriers.

The function is one of a CPU's kernels (loops/ir/kernel.py), for tensors in the host's memory: what runs on a GPU can be
tried without one. What a group computes is split among its threads as there; how they wait is by the order of the
loops.
"""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.codegen.gpu.writer import NOTHING, Carried, GridEmitter, GridWriter
from lampwork.codegen.llvm.builder import Module, Value
from lampwork.codegen.llvm.emit_kernel import ATTRIBUTES, SIGNATURE, Turn
from lampwork.codegen.llvm.env import Env
from lampwork.codegen.llvm.reduce import Reduction, State
from lampwork.codegen.target import Target
from lampwork.loops.ir.grid import Grid, parallel_loop
from lampwork.loops.ir.kernel import statements
from lampwork.loops.ir.nodes import Store, WhenLast


class EmulatedWriter(GridWriter):
    """One kernel as a function of this CPU. Each part of the range is what some blocks would take."""

    def _emitter(self, written: frozenset[str]) -> GridEmitter:
        return GridEmitter(self.b, written=written, error_flag="%error")

    def write(self, name: str) -> None:
        b = self.b
        b.line("%error = alloca i64")
        b.line("store i64 0, ptr %error")
        env, heap = self._scratch(Env(sizes=self._sizes(), bases=self._parameters()))
        self._count_places()
        begin, end, loop = Value("%begin", "i64"), Value("%end", "i64"), parallel_loop(self.kernel)
        lanes = self.grid.lanes if self.grid.is_flat else 1
        if lanes > 1 and loop is not None:
            # Threads start at multiples of their lanes.
            first = b.intrinsic("smin", b.and_(b.add(begin, lanes - 1), -lanes), end)
            last = b.add(first, b.and_(b.sub(end, first), -lanes))
            for start, stop, step in ((begin, first, 1), (first, last, lanes), (last, end, 1)):
                with b.loop(start, stop, step) as turns:
                    self.iteration(loop, turns.index, step, env)
        else:
            with b.loop(begin, end, 1) as turns:
                self.iteration(loop, turns.index, 1, env)
        if heap is not None:
            self.module.declare("free", "declare void @free(ptr)")
            b.line(f"call void @free(ptr {heap})")
        status = b.emit("load i64, ptr %error", "i64", 1, pure=False)
        b.line(f"ret i64 {status.text}")
        self.module.functions.append(f"{SIGNATURE.format(name=name)} {{\n{b.body()}\n}}\n")

    def barrier(self) -> None:
        pass

    def _count_places(self) -> None:
        """Room for the counters. That of neighbours is one: they come one after another."""
        lasts = [each for each in statements(self.kernel.body) if isinstance(each, WhenLast)]
        sizes = [1 if each.near else each.counters for each in lasts]
        self._places = {id(each): sum(sizes[:number]) for number, each in enumerate(lasts)}
        if not lasts:
            return
        self._counters = self.b.alloca(f"[{sum(sizes)} x i32]", 4)
        self.module.declare("memset", "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        self.b.line(
            f"call void @llvm.memset.p0.i64(ptr {self._counters}, i8 0, i64 {4 * sum(sizes)}, i1 false)"
        )

    def when_last(self, last: WhenLast, env: Env) -> None:
        """Iterations come one after another, all of them in one call."""
        b = self.b
        inside, done = b.new_label("last"), b.new_label("others")
        number = b.const(0, "i64") if last.near else self.emitter.emit_index(last.counter, env)
        place = b.element(self._counters, "i32", b.add(number, self._places[id(last)])).text
        came = b.add(b.emit(f"load i32, ptr {place}", "i32", 1, pure=False), 1)
        is_last = b.cmp("eq", came, last.among)
        left = b.select(is_last, 0, came)
        b.line(f"store i32 {left.text}, ptr {place}")
        b.branch_if(is_last, inside, done)
        b.start(inside)
        with b.scope():
            self.statements(last.body, env)
        b.branch(done)
        b.start(done)

    def first_thread(self, store: Store, env: Env) -> None:
        self.emitter.write(store, env)

    def share(
        self, axis: str, end: Value, lanes: int, env: Env, turn: Turn, carried: Carried = NOTHING
    ) -> list[Value]:
        b, threads = self.b, self.grid.threads
        zero, whole = b.const(0, "i64"), self._multiple(end, lanes)
        with b.loop(zero, b.const(threads, "i64"), 1, carried.initial(1), runs=True) as group:
            state = carried.initial(lanes)
            if lanes > 1:
                inner = self.vectorized(env, axis, lanes, lanes)
                with b.loop(b.mul(group.index, lanes), whole, threads * lanes, state) as loop:
                    loop.next = turn(inner.with_index(axis, loop.index), loop.carried)
                state = carried.narrow(loop.results)
            inner = self.vectorized(env, axis, 1)
            start = b.add(whole, group.index) if lanes > 1 else group.index
            with b.loop(start, end, threads, state) as loop:
                loop.next = turn(inner.with_index(axis, loop.index), loop.carried)
            group.next = carried.merge(group.carried, loop.results)
        return group.results

    def across_group(self, reductions: Sequence[Reduction], states: Sequence[State]) -> list[State]:
        return list(states)


def emit_emulated(grid: Grid, target: Target, name: str) -> str:
    """The LLVM IR of a module with one function `name`."""
    module = Module()
    EmulatedWriter(module, grid, target).write(name)
    return f"{module.text}\n{ATTRIBUTES}\n"
