"""Kernels as LLVM IR: `emit_kernel` walks the loop tree of a `Kernel` and writes one function.

A vector loop runs over whole vectors, then over its tail: once more under a mask where the target has cheap masks
(AVX-512), else element by element. A parallel loop without loops inside is a vector loop too: its iterations are
independent. A long loop with a long chain of operations first takes turns of several vectors.

Parameters that a kernel stores to must not overlap its other parameters, or only so that each element is read where it
is written, in one loop body: loads of other buffers are made once, and before loops, where that is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from lampwork.codegen.llvm import emit_reduce, emit_tile, philox
from lampwork.codegen.llvm.analysis import cost, draws, expressions, has_loops, invariants, lanes_for
from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.codegen.llvm.emit import Emitter
from lampwork.codegen.llvm.emit_choice import write_choices
from lampwork.codegen.llvm.env import Env, VectorAxis
from lampwork.codegen.llvm.reduce import Reduction
from lampwork.codegen.llvm.types import is_float, itemsize
from lampwork.codegen.target import Target
from lampwork.errors import CodegenError
from lampwork.loops.ir.bounds import offset_in
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.kernel import statements
from lampwork.loops.ir.nodes import (
    Buffer,
    Expr,
    Kernel,
    Let,
    Load,
    Loop,
    Op,
    ReduceLoop,
    ScanLoop,
    Stmt,
    Store,
    WhenLast,
)
from lampwork.loops.ir.traverse import walk_once

STACK_LIMIT = 16 * 1024
WIDE = 4  # vectors side by side: of columns that are reduced (each row then gives whole cache lines), and of long loops
# Operations of a body of little work. Its time is that of loads and stores, and a load waits for an earlier store to an
# address with the same low 12 bits: loads of several vectors come first.
STREAMED = 8
# Operations of a body whose vectors wait for their own results: of several, one computes while another waits.
LATENT = 14
ANGLES = frozenset(("sin", "cos", "tan"))
DIVISIONS = frozenset(("floordiv", "truncdiv", "rem", "fmod"))
LONG = (
    64  # vectors of a loop for which a second one, of several vectors a turn, is worth the time to compile it
)
SIGNATURE = "define i64 @{name}(ptr %buffers, ptr %sizes, i64 %begin, i64 %end) #0"
# With a frame pointer LLVM aligns the stack for the vectors that it spills: one that lies in two pages costs as much as
# the rest of a body.
ATTRIBUTES = (
    'attributes #0 = { nounwind "frame-pointer"="all" }\nattributes #1 = { nounwind willreturn memory(none) }'
)
Turn = Callable[[Env, list[Value]], list[Value]]


def emit_kernel(kernel: Kernel, target: Target, name: str | None = None) -> str:
    """The LLVM IR of a module with the one function `name` (the kernel's own by default).

    Raises CodegenError for loop code that there is no rule for.
    """
    module = Module()
    add_kernel(module, kernel, target, name or kernel.name)
    return module_text(module)


def module_text(module: Module) -> str:
    return f"{module.text}\n{ATTRIBUTES}\n"


def add_kernel(module: Module, kernel: Kernel, target: Target, name: str) -> None:
    """Add one function to a module."""
    if any(isinstance(stmt, Store) and stmt.combine for stmt in statements(kernel.body)):
        raise CodegenError(f"{target.name} has no code for what {kernel.name} combines with memory")
    KernelWriter(module, kernel, target).write(name)


class KernelWriter:
    """Writes one kernel. `loop_over` is the one place that knows how a vector loop and its tail are made."""

    def __init__(self, module: Module, kernel: Kernel, target: Target) -> None:
        self.module = module
        self.kernel = kernel
        self.target = target
        self.b = Builder(module, target)
        self.emitter = self._emitter(_written(kernel.body))

    def _emitter(self, written: frozenset[str]) -> Emitter:
        streamed = streamed_buffers(self.kernel, self.target, written)
        return Emitter(self.b, written=written, error_flag="%error", streamed=streamed)

    def write(self, name: str) -> None:
        self.b.line("%error = alloca i64")
        self.b.line("store i64 0, ptr %error")
        env, heap = self._scratch(Env(sizes=self._sizes(), bases=self._parameters()))
        self.statements(self.kernel.body, env)
        if heap is not None:
            self.module.declare("free", "declare void @free(ptr)")
            self.b.line(f"call void @free(ptr {heap})")
        if self.emitter.streamed:
            fence = self.target.stream_fence
            self.module.declare(fence, f"declare void @{fence}()")
            self.b.line(f"call void @{fence}()")
        status = self.b.emit("load i64, ptr %error", "i64", 1, pure=False)
        self.b.line(f"ret i64 {status.text}")
        self.module.functions.append(f"{SIGNATURE.format(name=name)} {{\n{self.b.body()}\n}}\n")

    # --- entry --------------------------------------------------------------------------------------------------------

    def _parameters(self) -> dict[str, str]:
        bases: dict[str, str] = {}
        for position, buffer in enumerate(self.kernel.params):
            slot = self.b.name("slot")
            base = self.b.name("p")
            self.b.line(f"{slot} = getelementptr ptr, ptr %buffers, i64 {position}")
            self.b.line(f"{base} = load ptr, ptr {slot}")
            bases[buffer.name] = base
        return bases

    def _sizes(self) -> dict[str, Value]:
        sizes: dict[str, Value] = {}
        for position, symbol in enumerate(self.kernel.sizes):
            slot = self.b.name("slot")
            self.b.line(f"{slot} = getelementptr i64, ptr %sizes, i64 {position}")
            sizes[symbol] = self.b.emit(f"load i64, ptr {slot}", "i64", 1)
        return sizes

    def _scratch(self, env: Env) -> tuple[Env, str | None]:
        """Room for the scratch buffers: on the stack if small, else one block of the heap, which is returned."""
        if not self.kernel.scratch:
            return env, None
        bases = dict(env.bases)
        known = [_bytes(buffer) for buffer in self.kernel.scratch]
        static = [size for size in known if size is not None]
        if len(static) == len(known) and sum(static) <= STACK_LIMIT:
            for buffer, size in zip(self.kernel.scratch, static, strict=True):
                bases[buffer.name] = self.b.alloca(f"[{max(size, 1)} x i8]", 64)
            return Env(sizes=env.sizes, bases=bases), None
        total = self.b.const(0, "i64")
        offsets: list[Value] = []
        for buffer in self.kernel.scratch:
            offsets.append(total)
            elements = self.emitter.emit_index(_span(buffer), env)
            size = self.b.mul(elements, itemsize(buffer.dtype))
            total = self.b.add(total, self.b.and_(self.b.add(size, 63), -64))
        self.module.declare("aligned_alloc", "declare noalias ptr @aligned_alloc(i64, i64)")
        heap = self.b.name("heap")
        self.b.line(f"{heap} = call ptr @aligned_alloc(i64 64, i64 {total.text})")
        for buffer, offset in zip(self.kernel.scratch, offsets, strict=True):
            base = self.b.name("scratch")
            self.b.line(f"{base} = getelementptr i8, ptr {heap}, i64 {offset.text}")
            bases[buffer.name] = base
        return Env(sizes=env.sizes, bases=bases), heap

    # --- statements ---------------------------------------------------------------------------------------------------

    def statements(self, stmts: Sequence[Stmt], env: Env) -> Env:
        """Write `stmts`; the environment returned also knows the names they bind."""
        for stmt in stmts:
            env = self._statement(stmt, env)
        return env

    def _statement(self, stmt: Stmt, env: Env) -> Env:
        if isinstance(stmt, Let):
            return env.with_local(stmt.name, self.emitter.emit_expr(stmt.value, env))
        if isinstance(stmt, Store):
            self.emitter.write(stmt, env)
            return env
        if isinstance(stmt, Loop):
            self._loop(stmt, env)
            return env
        if isinstance(stmt, ReduceLoop):
            return self._reduce(stmt, env)
        if isinstance(stmt, ScanLoop):
            return self._scan(stmt, env)
        raise CodegenError("threads wait for each other in a kernel of one thread")

    def _reduce(self, loop: ReduceLoop, env: Env) -> Env:
        return emit_reduce.emit_reduce(self, loop, env)

    def _loop(self, loop: Loop, env: Env) -> None:
        tile = emit_tile.find_tile(self, loop, env)
        if tile is not None:
            emit_tile.write_tile(self, tile, loop, env)
        elif not write_choices(self, loop, env):
            self.plain_loop(loop, env)

    def plain_loop(self, loop: Loop, env: Env) -> None:
        """A loop, turn after turn or vectors of turns."""

        def turn(inner: Env, carried: list[Value]) -> list[Value]:
            self.statements(loop.body, inner)
            return carried

        extent = loop.axis.extent
        limits = () if loop.limit is None else (loop.limit - 1 - Index.var(loop.axis.name),)
        env = env.in_loop(loop.axis, *limits)
        self.hoist(loop.axis.name, extent, loop.body, [], env)
        parallel = loop.kind in ("parallel", "parallel-vector")
        vector = loop.kind in ("vector", "parallel-vector") or (parallel and not has_loops(loop.body))
        lanes = lanes_for(self.target, loop.axis.name, loop.body) if vector and env.vector is None else 1
        wide = 0
        if lanes > 1:
            lanes *= self._side_by_side(loop, lanes)
            wide = WIDE * lanes if self._hides_latency(loop, lanes) else 0
        if parallel:
            start, end = Value("%begin", "i64"), Value("%end", "i64")
        else:
            start, end = self.b.const(0, "i64"), self.emitter.emit_index(extent, env)
        if loop.limit is not None:
            limit = self.emitter.emit_index(loop.limit, env)
            end = self.b.select(self.b.cmp("lt", limit, end), limit, end)
        aligned = 1
        if lanes > 1 and parallel and draws(expressions(loop.body)):
            # Random numbers of elements side by side are made four at a time.
            start, aligned = self._up_to_multiple(loop.axis.name, start, end, env, turn), philox.WORDS
        if wide:
            middle = self.b.add(start, self._multiple(self.b.sub(end, start), wide))
            self._whole_vectors(loop.axis.name, start, middle, wide, env, turn, [], aligned)
            start = middle
        self.loop_over(loop.axis.name, start, end, lanes, env, turn, [], lambda parts: parts, aligned)

    def _up_to_multiple(self, axis: str, start: Value, end: Value, env: Env, turn: Turn) -> Value:
        """Run the turns before the first multiple of four."""
        after = self.b.and_(self.b.add(start, philox.WORDS - 1), -philox.WORDS)
        first = self.b.intrinsic("smin", after, end)
        self._serial(axis, start, first, env, turn, [])
        return first

    def _side_by_side(self, loop: Loop, lanes: int) -> int:
        """How many vectors of a loop are computed at a time: of no more lanes than a mask has."""
        if lanes * WIDE > emit_reduce.MOST_LANES:
            return 1
        known = loop.axis.extent.as_int()
        if _reduces_cheaply(loop):
            if known is None:
                return WIDE if self.target.has_masks else 1
            return WIDE if known >= WIDE * lanes else 2 if known >= 2 * lanes else 1
        if known == WIDE * lanes and any(map(_keeps_values, loop.body)):
            return WIDE if self.target.has_masks or loop.limit is None else 1
        is_long = known is None or known >= WIDE * lanes
        if is_long and _is_straight(loop) and draws(expressions(loop.body)):
            return WIDE if self.target.has_masks or (known or 0) % (WIDE * lanes) == 0 else 1
        streams = self.target.has_masks and is_long and _cost(loop) <= STREAMED and _is_straight(loop)
        return WIDE if streams else 1

    def _hides_latency(self, loop: Loop, lanes: int) -> bool:
        """Whether as many vectors as are computed at a time are worth their code: of a long body, whose operations wait
        for each other, in a loop of many turns."""
        known = loop.axis.extent.as_int()
        is_long = known is None or known >= LONG * lanes
        if lanes * WIDE > emit_reduce.MOST_LANES or not is_long or _cost(loop) < LATENT:
            return False
        return _is_straight(loop) and not any(map(_gains_nothing, walk_once(*expressions(loop.body))))

    def hoist(self, axis: str, extent: Index, body: Sequence[Stmt], values: Sequence[Expr], env: Env) -> None:
        """Compute what a loop does not change before it: the body, written later, finds the values in the builder.

        LLVM would not move the loads: it has to assume that the loop's stores change them.
        """
        if extent.as_int() == 0:
            return
        for expr in invariants(axis, body, values, self.emitter.written):
            self.emitter.emit_expr(expr, env)

    def loop_over(
        self,
        axis: str,
        start: Value,
        end: Value,
        lanes: int,
        env: Env,
        turn: Turn,
        carried: list[Value],
        narrow: Callable[[list[Value]], list[Value]],
        aligned: int = 1,
    ) -> list[Value]:
        """for axis in range(start, end): carried = turn(env, carried), `lanes` iterations at a time.

        `narrow` makes the scalar values that a scalar tail goes on with from the vector ones that whole vectors
        carried. What is returned is vector values if no scalar tail was needed, else scalar ones. `aligned`: start is a
        multiple of this, or nothing is left to do.
        """
        if lanes == 1:
            return self._serial(axis, start, end, env, turn, carried)
        count = self.b.sub(end, start)
        whole = self._multiple(count, lanes)
        middle = self.b.add(start, whole)
        aligned = lanes if start.const and int(start.text) % lanes == 0 else aligned
        if not (whole.const and int(whole.text) <= 0):
            carried = self._whole_vectors(axis, start, middle, lanes, env, turn, carried, aligned)
        if count.const and int(count.text) % lanes == 0:
            return carried
        if self.target.has_masks:
            return self._masked_tail(axis, middle, end, lanes, env, turn, carried, aligned)
        return self._serial(axis, middle, end, env, turn, narrow(carried))

    def _multiple(self, count: Value, lanes: int) -> Value:
        """The largest multiple of `lanes`, a power of two, up to `count`."""
        if count.const:
            return self.b.const(int(count.text) // lanes * lanes, "i64")
        return self.b.and_(count, -lanes)

    def _serial(
        self, axis: str, start: Value, end: Value, env: Env, turn: Turn, carried: list[Value]
    ) -> list[Value]:
        if start.const and end.const:
            turns = int(end.text) - int(start.text)
            if turns <= 0:
                return carried
            if turns == 1:
                return turn(env.with_index(axis, start), carried)
        runs = start.const and end.const
        with self.b.loop(start, end, 1, carried, runs=runs) as loop:
            loop.next = turn(env.with_index(axis, loop.index), loop.carried)
        return loop.results

    def _whole_vectors(
        self,
        axis: str,
        start: Value,
        middle: Value,
        lanes: int,
        env: Env,
        turn: Turn,
        carried: list[Value],
        aligned: int,
    ) -> list[Value]:
        inner = self.vectorized(env, axis, lanes, aligned)
        if start.const and middle.const and int(middle.text) - int(start.text) == lanes:
            return turn(inner.with_index(axis, start), carried)
        runs = start.const and middle.const
        with self.b.loop(start, middle, lanes, carried, runs=runs) as loop:
            loop.next = turn(inner.with_index(axis, loop.index), loop.carried)
        return loop.results

    def _masked_tail(
        self,
        axis: str,
        middle: Value,
        end: Value,
        lanes: int,
        env: Env,
        turn: Turn,
        carried: list[Value],
        aligned: int,
    ) -> list[Value]:
        rest = self.b.sub(end, middle)
        inner = self.vectorized(env, axis, lanes, aligned, self.b.first_lanes(rest, lanes))
        inner = inner.with_index(axis, middle)
        if rest.const:
            return turn(inner, carried)
        tail, done = self.b.new_label("tail"), self.b.new_label("done")
        before = self.b.block
        self.b.branch_if(self.b.cmp("gt", rest, 0), tail, done)
        self.b.start(tail)
        with self.b.scope():
            after = turn(inner, carried)
        inside = self.b.block
        self.b.branch(done)
        self.b.start(done)
        results: list[Value] = []
        for old, new in zip(carried, after, strict=True):
            text = f"phi {new.type} [ {new.text}, %{inside} ], [ {old.text}, %{before} ]"
            results.append(self.b.emit(text, new.dtype, new.lanes, pure=False))
        return results

    def vectorized(self, env: Env, axis: str, lanes: int, aligned: int = 1, mask: Value | None = None) -> Env:
        """`env` with loop variable `axis` running along the lanes."""
        return replace(env, vector=VectorAxis(axis, lanes, mask, aligned))

    def _scan(self, scan: ScanLoop, env: Env) -> Env:
        reduction = Reduction(scan.op, scan.dtype, self.target.has_maximum)
        start = reduction.initial(self.b, env.lanes)
        end = self.emitter.emit_index(scan.axis.extent, env)
        result = env
        with self.b.loop(self.b.const(0, "i64"), end, 1, start) as loop:
            inner = self.statements(scan.body, env.in_loop(scan.axis).with_index(scan.axis.name, loop.index))
            value = reduction.accept(self.b, self.emitter.emit_expr(scan.value, inner), env.lanes)
            state = reduction.add(self.b, loop.carried, value, None)
            running = inner.with_local(scan.name, reduction.result(self.b, state))
            self.statements(scan.after, running)
            loop.next = state
        return result.with_local(scan.name, reduction.result(self.b, loop.results))


def streamed_buffers(kernel: Kernel, target: Target, written: frozenset[str]) -> frozenset[str]:
    """The buffers that a kernel writes past the caches: those that it does not read, where it touches so much memory
    that they would not stay there."""
    sizes = {buffer.name: _bytes(buffer) or 0 for buffer in kernel.params}
    if not target.stream_fence or sum(sizes.values()) < target.stream_bytes:
        return frozenset()
    read = {part.buffer.name for part in walk_once(*kernel.body) if isinstance(part, Load)}
    large = {name for name, size in sizes.items() if size >= target.stream_bytes // 4}
    return frozenset(written & large - read)


def _reduces_cheaply(loop: Loop) -> bool:
    """Whether the body is short reductions: their latency and their strided rows leave room for more vectors."""
    if not any(isinstance(stmt, ReduceLoop) for stmt in loop.body):
        return False
    simple = all(isinstance(stmt, ReduceLoop | Let | Store) for stmt in loop.body)
    return simple and cost(list(expressions(loop.body))) <= emit_reduce.CHEAP


def _keeps_values(stmt: Stmt) -> bool:
    """Whether it is a reduction that stores what it reduces: a row of a block that later loops read again."""
    return isinstance(stmt, ReduceLoop) and any(isinstance(each, Store) for each in stmt.body)


def _cost(loop: Loop) -> int:
    return cost(list(expressions(loop.body)))


def _gains_nothing(part: object) -> bool:
    """Whether it is an operation whose code is long, and as fast vector after vector: a division or an angle, with its
    branches."""
    return isinstance(part, Op) and (
        part.name in ANGLES or (part.name in DIVISIONS and not is_float(part.dtype))
    )


def _is_straight(loop: Loop) -> bool:
    """Whether the body is operations on what lies side by side, without loops, masks and gathers."""
    if not all(isinstance(stmt, Let | Store) for stmt in loop.body):
        return False
    places = [(stmt.buffer, stmt.index) for stmt in loop.body if isinstance(stmt, Store)]
    for part in walk_once(*expressions(loop.body)):
        if isinstance(part, Load):
            if part.mask is not None:
                return False
            places.append((part.buffer, part.index))
    steps = [offset_in(*place).coefficient(loop.axis.name) for place in places]
    return all(step is not None and step.as_int() in (0, 1) for step in steps)


def _written(stmts: Sequence[Stmt]) -> frozenset[str]:
    """The names of all buffers that are stored to."""
    names: set[str] = set()
    for stmt in stmts:
        if isinstance(stmt, Store):
            names.add(stmt.buffer.name)
        elif isinstance(stmt, Loop | ReduceLoop):
            names |= _written(stmt.body)
        elif isinstance(stmt, ScanLoop):
            names |= _written(stmt.body) | _written(stmt.after)
        elif isinstance(stmt, WhenLast):
            names |= _written(stmt.body)
    return frozenset(names)


def _span(buffer: Buffer) -> Index:
    """Elements from the first to the last of a buffer, for nonnegative strides."""
    span = Index.const(1)
    for size, stride in zip(buffer.shape, buffer.strides, strict=True):
        span = span + (size - 1) * stride
    return span


def _bytes(buffer: Buffer) -> int | None:
    span = _span(buffer).as_int()
    return None if span is None else max(span, 0) * itemsize(buffer.dtype)
