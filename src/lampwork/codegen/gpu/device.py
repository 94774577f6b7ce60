"""Kernels for NVIDIA cards: LLVM IR for the NVPTX back end.

Block (x, y) has `threads` threads of a group along x, and groups along y; a flat kernel has its threads along x. The
parameters are the buffers' addresses, the sizes and the range of the parallel loop, of 8 bytes each. Loads and stores
of several neighbours need aligned buffers: whether they are is looked up once, and else the kernel takes them one by
one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from lampwork.codegen.gpu.cluster import ClusterWriter
from lampwork.codegen.gpu.updates import add_half, add_neighbours
from lampwork.codegen.gpu.writer import NOTHING, Carried, GridEmitter
from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.codegen.llvm.convert import convert
from lampwork.codegen.llvm.emit import STREAM
from lampwork.codegen.llvm.emit_kernel import Turn
from lampwork.codegen.llvm.env import Env
from lampwork.codegen.llvm.reduce import Reduction, State
from lampwork.codegen.llvm.types import BITS, REGISTER, memory_type
from lampwork.codegen.target import Target
from lampwork.errors import CodegenError
from lampwork.loops.ir.grid import (
    ALIGNED,
    AT_A_TIME,
    PIECE_THREADS,
    WARP,
    Grid,
    is_shared,
    parallel_loop,
    scratch_bytes,
)
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.kernel import statements
from lampwork.loops.ir.nodes import (
    Buffer,
    CombineOp,
    DType,
    Load,
    Loop,
    ReduceLoop,
    ScanLoop,
    Stmt,
    Store,
    WhenLast,
)
from lampwork.loops.ir.traverse import walk_once
from lampwork.loops.schedule.clusters import at_a_time
from lampwork.loops.schedule.grid import MOST_THREADS

TRIPLE = "nvptx64-nvidia-cuda"
LAYOUT = "e-i64:64-i128:128-v16:16-v32:32-n16:32:64"
TURNS, MOST_VALUES = 8, 32  # of a thread that are written one after the other, and what they hold
SEVERAL = 4  # turns of a long loop at a time
MORE = 8  # of one whose turns are cheap, by a whole block: the registers of as many loads are there
ALL = "-1"  # lanes of a warp
UNCHANGED = STREAM + 1  # the number of the metadata of a load from memory that the kernel does not change

_ASSERT = "declare void @__assertfail(ptr, ptr, i32, ptr, i64) #9"


class DeviceEmitter(GridEmitter):
    """Where a check fails the device reports an assertion, as eager's kernels do: nothing is read back.

    kept: the scratch buffers of which a thread reads what it wrote itself, in the code that is being written: their
    values stay in registers.
    """

    kept: frozenset[str] = frozenset()
    only_updates = False
    """Whether the kernel stores to nothing that anybody reads before it has ended: loads may then come before updates
    that stand before them."""

    def combine(self, op: CombineOp, address: str, value: Value, dtype: DType) -> None:
        if op == "sum" and dtype in ("f16", "bf16") and dtype in self.target.atomics:
            add_half(self.b, address, value, dtype)
        else:
            super().combine(op, address, value, dtype)

    def combine_neighbours(self, op: CombineOp, address: str, value: Value, dtype: DType) -> bool:
        if op != "sum" or dtype not in self.target.neighbour_sums:
            return False
        add_neighbours(self.b, address, value, dtype)
        return True

    def _from_memory(self, text: str, dtype: DType, lanes: int, pure: bool) -> Value:
        if self.only_updates and pure and text.startswith("load "):
            self.b.module.declare("unchanged", f"!{UNCHANGED} = !{{}}")
            text = f"{text}, !invariant.load !{UNCHANGED}"
        return super()._from_memory(text, dtype, lanes, pure)

    def keep(self, store: Store, env: Env) -> None:
        """A store to a buffer that is kept."""
        value = convert(self.b, self.emit_expr(store.value, env), store.buffer.dtype)
        self.b.remember(self._key(store.buffer, store.index, env), self.b.widen(value, env.lanes))

    def _load(self, load: Load, env: Env, memo: dict[int, Value]) -> Value:
        if load.buffer.name not in self.kept:
            return super()._load(load, env, memo)
        found = self.b.recall(self._key(load.buffer, load.index, env))
        if found is None:
            raise CodegenError(f"{load.buffer.name} is read where the thread has not written it")
        return found

    def _key(self, buffer: Buffer, index: tuple[Index, ...], env: Env) -> str:
        return f"kept {buffer.name} {self.emit_index(index[0], replace(env, vector=None)).text}"

    def _raise_flag(self, bad: Value) -> None:
        failed, passed = self.b.new_label("failed"), self.b.new_label("passed")
        self.b.branch_if(bad, failed, passed)
        self.b.start(failed)
        self._fail()
        self.b.branch(passed)
        self.b.start(passed)

    def _fail(self) -> None:
        """What a thread does whose check has failed."""
        module = self.b.module
        module.declare("__assertfail", _ASSERT)
        texts = [c_string(module, name) for name in ("an index is out of range", "lampwork", "kernel")]
        what, file, where = texts
        self.b.line(f"call void @__assertfail(ptr {what}, ptr {file}, i32 0, ptr {where}, i64 1)")


def c_string(module: Module, text: str) -> str:
    """A C string of the module, as an address."""
    name = "@text_" + "".join(c if c.isalnum() else "_" for c in text)
    module.declare(name, f'{name} = private addrspace(1) constant [{len(text) + 1} x i8] c"{text}\\00"')
    return f"addrspacecast (ptr addrspace(1) {name} to ptr)"


class DeviceWriter(ClusterWriter):
    """One kernel as a function of the device. What cards of other makers differ in, they override."""

    def __init__(self, module: Module, grid: Grid, target: Target) -> None:
        super().__init__(module, grid, target)
        self._wide = True
        self._alone = False  # whether threads want the registers that there are if a block is alone
        # Of a row's last turn, which not all threads have: whether this one does.
        self._inside: Value | None = None
        self._block = grid.threads, grid.groups
        # Whether all threads of a block are one group, in the code that is being written.
        self._is_whole = False

    def _emitter(self, written: frozenset[str]) -> GridEmitter:
        emitter = DeviceEmitter(self.b, written=written, error_flag="")
        stores = [each for each in statements(self.kernel.body) if isinstance(each, Store)]
        emitter.only_updates = all(each.combine is not None for each in stores)
        return emitter

    @property
    def wide(self) -> bool:
        return self._wide

    # --- the function -------------------------------------------------------------------------------------------------

    def write(self, name: str) -> None:
        kernel, b = self.kernel, self.b
        buffers = {buffer.name: self._address(number) for number, buffer in enumerate(kernel.params)}
        sizes = {size: Value(f"%s{number}", "i64") for number, size in enumerate(kernel.sizes)}
        env = Env(sizes=sizes, bases={**buffers, **self._shared_memory()})
        if self.has_vectors():
            self._for_both(list(buffers.values()), env)
        else:
            self._wide = False
            self._blocks(env)
        b.line("ret void")
        self.module.functions.append(f"{self._head(name)} {{\n{b.body()}\n}}\n")

    def _address(self, number: int) -> str:
        """The address that is the parameter of this number, as a pointer to any memory."""
        return f"%b{number}"

    def _signature(self, pointer: str = "ptr") -> str:
        """The parameters of the function, with their types."""
        buffers, sizes = len(self.kernel.params), len(self.kernel.sizes)
        return ", ".join(
            [
                *(f"{pointer} %b{number}" for number in range(buffers)),
                *(f"i64 %s{number}" for number in range(sizes)),
                "i64 %extent",
                *([f"{pointer} %counters"] if self.grid.counters else []),
            ]
        )

    def _head(self, name: str) -> str:
        """The line that the function begins with, up to its body."""
        x, y = self.grid.block
        clusters = ' "nvvm.cluster_dim"="0"' if self._is_cluster else ""  # as a launch says
        least = self._blocks_at_a_time()
        at_once = f' "nvvm.minctasm"="{least}"' if least else ""
        return (
            f'define ptx_kernel void @{name}({self._signature()}) "nvvm.maxntid"="{x * y}"{at_once}{clusters}'
        )

    def _blocks_at_a_time(self) -> int:
        """The blocks that a multiprocessor has to run at a time, which bounds their registers; 0: the assembler
        decides."""
        if self._is_cluster and (several := at_a_time(self.grid)) > 1:
            return several
        if self.grid.counters:
            # As many as there are for whole rows run at the same time, if their threads take no more registers.
            x, y = self.grid.block
            return max(AT_A_TIME // (x * y), 1)
        return 1 if self._alone else 0

    def _for_both(self, buffers: Sequence[str], env: Env) -> None:
        """The code for aligned buffers, and that for others."""
        b = self.b
        together = b.const(0, "i64")
        for base in buffers:
            number = b.emit(f"ptrtoint ptr {base} to i64", "i64", 1)
            together = number if together.const else b.or_(together, number)
        aligned, other, done = (b.new_label(hint) for hint in ("aligned", "other", "end"))
        b.branch_if(b.cmp("eq", b.and_(together, ALIGNED - 1), 0), aligned, other)
        for label, wide in ((aligned, True), (other, False)):
            b.start(label)
            self._wide = wide
            self._device.aligned = wide
            with b.scope():
                self._blocks(env)
            b.branch(done)
        b.start(done)

    def _blocks(self, env: Env) -> None:
        """The iterations of a group, or of the thread of a flat kernel."""
        b, grid, loop = self.b, self.grid, parallel_loop(self.kernel)
        thread, (block, blocks) = self._thread(), self._own_block()
        extent = Value("%extent", "i64")
        if grid.is_flat:
            position, total = b.add(b.mul(block, grid.groups), thread), b.mul(blocks, grid.groups)
            lanes = grid.lanes if self._wide else 1
            if lanes > 1 and grid.turns > 1:
                self._turns_of_blocks(loop, block, thread, blocks, env)
                return
            whole = self._multiple(extent, lanes)
            with Stride(b, b.mul(position, lanes), b.mul(total, lanes), whole) as index:
                self.iteration(loop, index, lanes, env)
            if lanes > 1:
                with Stride(b, b.add(whole, position), total, extent) as index:
                    self.iteration(loop, index, 1, env)
            return
        self._device.kept = self._kept(loop)
        first = b.add(b.mul(block, grid.groups), self._register("tid.y")) if grid.groups > 1 else block
        step = b.mul(blocks, grid.groups)
        if self._is_cluster:
            self._begin_cluster()
        with Stride(b, first, step, extent) as index:
            self.iteration(loop, index, 1, env)
        if self._is_cluster:
            self._end_cluster()

    def _own_block(self) -> tuple[Value, Value]:
        """The number of the block or cluster, and how many there are."""
        if self._is_cluster:
            return self._register("clusterid.x"), self._register("nclusterid.x")
        return self._register("ctaid.x"), self._register("nctaid.x")

    @contextmanager
    def _where(self, condition: Value) -> Generator[None]:
        """Code that the threads run where the condition holds."""
        b = self.b
        inside, done = b.new_label("inside"), b.new_label("past")
        b.branch_if(condition, inside, done)
        b.start(inside)
        with b.scope():
            yield
        b.branch(done)
        b.start(done)

    def _turns_of_blocks(
        self, loop: Loop | None, block: Value, thread: Value, blocks: Value, env: Env
    ) -> None:
        """The iterations of a thread of a flat kernel that takes several turns in each block: what all of them read
        comes before what the first computes."""
        b, grid = self.b, self.grid
        elements = None if loop is None else loop.axis.extent.as_int()
        if loop is None or elements is None or elements % grid.per_block:
            raise CodegenError(
                f"blocks of {grid.per_block} iterations do not divide those of {self.kernel.name}"
            )
        first = b.add(b.mul(block, grid.per_block), b.mul(thread, grid.lanes))
        with Stride(b, first, b.mul(blocks, grid.per_block), Value("%extent", "i64")) as index:
            places = [b.add(index, turn * grid.groups * grid.lanes) for turn in range(grid.turns)]
            for place in places:
                inside = env.in_loop(loop.axis).with_index(loop.axis.name, place)
                self.read_early(loop, self.vectorized(inside, loop.axis.name, grid.lanes, grid.lanes))
            for place in places:
                self.iteration(loop, place, grid.lanes, env)

    @property
    def _device(self) -> DeviceEmitter:
        assert isinstance(self.emitter, DeviceEmitter)
        return self.emitter

    def _kept(self, loop: Loop | None) -> frozenset[str]:
        """The scratch buffers that need no memory: loops that are written out, of the same threads for the same turns,
        write them and read them turn by turn."""
        body = self.kernel.body if loop is None else loop.body
        kept = {buffer.name for buffer in self.kernel.scratch}
        shapes: dict[str, set[tuple[str, int]]] = {}
        for stmt in body:
            used = kept & {part.buffer.name for part in walk_once(stmt) if isinstance(part, Load | Store)}
            if not used:
                continue
            if not isinstance(stmt, Loop | ReduceLoop) or not is_shared(stmt) or _has_limit(stmt):
                kept -= used
                continue
            lanes, place = self.grid.lanes_of(stmt) if self._wide else 1, (Index.var(stmt.axis.name),)
            whole = self._turns(self.b.const(stmt.axis.extent.as_int() or 0, "i64"), lanes) is not None
            for part in walk_once(stmt):
                if isinstance(part, Load | Store) and part.buffer.name in used:
                    plain = isinstance(part, Store) or part.mask is None
                    if not whole or part.index != place or not plain:
                        kept.discard(part.buffer.name)
                    shapes.setdefault(part.buffer.name, set()).add((str(stmt.axis.extent), lanes))
        return frozenset(name for name in kept if len(shapes.get(name, ())) == 1)

    def _statement(self, stmt: Stmt, env: Env) -> Env:
        if isinstance(stmt, Store) and stmt.buffer.name in self._device.kept:
            self._device.keep(stmt, env)
            return env
        if isinstance(stmt, Store) and self._inside is not None:
            with self._where(self._inside):
                return super()._statement(stmt, env)
        return super()._statement(stmt, env)

    def _thread(self) -> Value:
        """The number of this thread in its group."""
        return self._thread_of_cluster() if self._is_cluster else self._thread_of_block()

    def _thread_of_block(self) -> Value:
        """The number of this thread in its group, or in its block if the group is a cluster."""
        b, thread = self.b, self._register("tid.x")
        if not self._is_whole or self._block == (self.grid.threads, 1):
            return thread
        return b.add(b.mul(self._register("tid.y"), self._block[0]), thread)

    def _register(self, name: str) -> Value:
        """A special register, as i64."""
        intrinsic = f"llvm.nvvm.read.ptx.sreg.{name}"
        self.module.declare(intrinsic, f"declare i32 @{intrinsic}()")
        return self.b.convert("zext", self.b.emit(f"call i32 @{intrinsic}()", "i32", 1), "i64")

    # --- memory of a group --------------------------------------------------------------------------------------------

    def _shared_memory(self) -> dict[str, str]:
        """The addresses of scratch buffers in shared memory: in the part of a group, or of a block of a flat kernel."""
        if not self.kernel.scratch:
            return {}
        b = self.b
        self._declare_shared()
        place = b.const(0, "i64")
        if self.grid.groups > 1 and not self.grid.is_flat:
            place = b.mul(self._register("tid.y"), self.grid.scratch_bytes)
        found: dict[str, str] = {}
        for number, buffer in enumerate(self.kernel.scratch):
            before = scratch_bytes(self.kernel.scratch[:number]) or 0
            base = b.emit("addrspacecast ptr addrspace(3) @shared to ptr", "i64", 1)
            found[buffer.name] = b.element(base.text, "i8", b.add(place, before)).text
        return found

    def _declare_shared(self) -> None:
        self.module.declare("shared", f"@shared = external addrspace(3) global [0 x i8], align {ALIGNED}")

    # --- the last iteration -------------------------------------------------------------------------------------------

    def when_last(self, last: WhenLast, env: Env) -> None:
        """All threads of the block run the body as one group.

        That the block which comes last sees what the others stored: their stores come before the barrier of their
        block, that before the fence of its first thread, and the fence before the thread's addition to the counter. The
        additions to one counter have an order, and the last one finds those of all others done; after it come a fence,
        the barrier of the block, and the loads. A fence of the device's scope and a barrier of the block's carry on
        whatever came before them (PTX's causality order, in which an atomic operation of any strength between two such
        fences synchronizes), so no load of the body is before any of these stores. The body's loads are plain ones: the
        fence behind the addition sees to it that none is served from what the multiprocessor's own cache has of before.
        """
        b, grid, outer = self.b, self.grid, self._is_whole
        self.grid, self._is_whole = replace(grid, threads=grid.threads * grid.groups, groups=1), True
        self.barrier()
        inside, done = b.new_label("last"), b.new_label("others")
        if not last.near:
            b.branch_if(self._comes_last(last, env), inside, done)
            b.start(inside)
        with b.scope():
            self.statements(last.body, replace(env, bases={**env.bases, **self._shared_memory()}))
        if not last.near:
            b.branch(done)
            b.start(done)
        self.grid, self._is_whole = grid, outer

    def _comes_last(self, last: WhenLast, env: Env) -> Value:
        """Count this block. The counter starts again from 0 where all have come."""
        b = self.b
        counter = b.element(self._counters(), "i32", self.counter(last, env)).text
        room = self._room(0, "i32", 1, "came")
        first, counted = b.new_label("count"), b.new_label("counted")
        b.branch_if(b.cmp("eq", self._thread(), 0), first, counted)
        b.start(first)
        scope = f'syncscope("{self._device.scope}")'
        b.line(f"fence {scope} acq_rel")
        count = f"atomicrmw uinc_wrap ptr {counter}, i32 {last.among - 1} {scope} monotonic, align 4"
        came = b.emit(count, "i32", 1, pure=False)
        b.line(f"fence {scope} acq_rel")
        b.line(f"store i32 {came.text}, ptr {room}")
        b.branch(counted)
        b.start(counted)
        self.barrier()
        return b.cmp("eq", b.emit(f"load i32, ptr {room}", "i32", 1, pure=False), last.among - 1)

    def _counters(self) -> str:
        """The address of the counters, as a pointer to any memory."""
        return "%counters"

    # --- groups -------------------------------------------------------------------------------------------------------

    def barrier(self) -> None:
        if self._is_cluster:
            self._wait_for_cluster()
        elif self.grid.threads > WARP:
            self._wait_for_block()
        elif self.grid.threads > 1:
            self._wait_for_lanes()

    def _wait_for_block(self) -> None:
        """All threads of the block wait for each other."""
        self.module.declare("barrier", "declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32) #8")
        self.b.line("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")

    def _wait_for_lanes(self) -> None:
        """The threads of a group, lanes of one warp, wait for each other."""
        self.module.declare("syncwarp", "declare void @llvm.nvvm.bar.warp.sync(i32) #8")
        self.b.line(f"call void @llvm.nvvm.bar.warp.sync(i32 {self._members()})")

    def _members(self) -> str:
        """The lanes of the warp that belong to this group, as a mask."""
        threads = self.grid.threads
        if threads >= WARP:
            return ALL
        b = self.b
        group = b.convert("trunc", self._register("tid.y"), "i32")
        place = b.mul(b.and_(group, WARP // threads - 1), threads)
        return b.shl(b.const((1 << threads) - 1, "i32"), place).text

    def first_thread(self, store: Store, env: Env) -> None:
        b = self.b
        inside, done = b.new_label("first"), b.new_label("after")
        b.branch_if(b.cmp("eq", self._thread(), 0), inside, done)
        b.start(inside)
        with b.scope():
            self.emitter.write(store, env)
        b.branch(done)
        b.start(done)

    def share(
        self, axis: str, end: Value, lanes: int, env: Env, turn: Turn, carried: Carried = NOTHING
    ) -> list[Value]:
        b, threads = self.b, self.grid.threads
        thread = self._thread()
        whole, state = b.const(0, "i64"), carried.initial(lanes)
        if (turns := self._turns(end, lanes)) is not None:
            # One after the other: what a thread has read once is at hand in later loops over the same elements.
            inner = self.vectorized(env, axis, lanes, lanes)
            for number in range(turns):
                index = b.add(b.mul(thread, lanes), number * threads * lanes)
                if (number + 1) * threads * lanes > int(end.text):
                    # The threads that are past the end do the last elements once more, and leave their results.
                    self._inside = b.cmp("lt", index, end)
                    last = b.intrinsic("smin", index, b.sub(end, lanes))
                    after = turn(inner.with_index(axis, last), state)
                    state = [b.select(self._inside, *each) for each in zip(after, state, strict=True)]
                    self._inside = None
                else:
                    state = turn(inner.with_index(axis, index), state)
            return carried.narrow(state) if lanes > 1 else state
        if lanes > 1:
            whole = self._multiple(end, lanes)
            inner = self.vectorized(env, axis, lanes, lanes)
            # Several turns of a long row at a time: their loads are on the way together.
            step = threads * lanes
            is_piece = threads == PIECE_THREADS and self.grid.counters > 0
            more = MORE if carried.cheap and (threads == MOST_THREADS or is_piece) else SEVERAL
            choices = (more, SEVERAL) if end.const else ()
            several = next((each for each in choices if int(end.text) % (step * each) == 0), 1)
            self._alone = self._alone or several == MORE
            with b.loop(b.mul(thread, lanes), whole, step * several, state) as loop:
                loop.next = loop.carried
                for number in range(several):
                    index = b.add(loop.index, number * step)
                    loop.next = turn(inner.with_index(axis, index), loop.next)
            state = carried.narrow(loop.results)
            if end.const and int(end.text) % lanes == 0:
                return state
        inner = self.vectorized(env, axis, 1)
        with b.loop(b.add(whole, thread), end, threads, state) as loop:
            loop.next = turn(inner.with_index(axis, loop.index), loop.carried)
        return loop.results

    def _turns(self, end: Value, lanes: int) -> int | None:
        """How many turns each thread has, if all have as many, and few; of a cluster, whose rows are kept, as many as
        there are, the last of some threads."""
        if not end.const:
            return None
        if self.grid.cluster > 1:
            return -(-int(end.text) // (self.grid.threads * lanes))
        turns, rest = divmod(int(end.text), self.grid.threads * lanes)
        return turns if rest == 0 and 0 < turns <= TURNS and turns * lanes <= MOST_VALUES else None

    def across_group(self, reductions: Sequence[Reduction], states: Sequence[State]) -> list[State]:
        threads = self.grid.block[0]
        merged = [
            self._across_lanes(r, state, min(threads, WARP))
            for r, state in zip(reductions, states, strict=True)
        ]
        if threads > WARP:
            merged = self._across_warps(reductions, merged, threads // WARP)
        if self._is_cluster:
            return self._across_blocks(reductions, merged)
        self.barrier()
        return merged

    def _across_lanes(self, reduction: Reduction, state: State, lanes: int) -> State:
        """A state merged with those of the neighbours, at a distance of 16, 8, ... lanes."""
        distance = lanes // 2
        while distance:
            state = reduction.merge(self.b, state, [self._from_lane(value, distance) for value in state])
            distance //= 2
        return state

    def _scan(self, scan: ScanLoop, env: Env) -> Env:
        """Of a group: as many places at a time as there are threads, each taking the states of those before it."""
        if env.vector is not None or self.grid.is_flat:
            return super()._scan(scan, env)
        b, threads = self.b, self.grid.threads
        reduction = Reduction(scan.op, scan.dtype, self.target.has_maximum)
        thread, zero = self._thread(), b.const(0, "i64")
        end = self.emitter.emit_index(scan.axis.extent, env)
        with b.loop(zero, end, threads, reduction.initial(b, 1)) as loop:
            place = b.add(loop.index, thread)
            inside = b.cmp("lt", place, end)
            last = b.sub(end, 1)
            here = self.vectorized(env.in_loop(scan.axis), scan.axis.name, 1)
            here = here.with_index(scan.axis.name, b.select(inside, place, last))
            here = self.statements(scan.body, here)
            value = reduction.accept(b, self.emitter.emit_expr(scan.value, here), 1)
            value = b.select(inside, value, b.const(reduction.neutral, reduction.dtype))
            state, total = self._prefixes(reduction, reduction.add(b, reduction.initial(b, 1), value, None))
            state = reduction.merge(b, loop.carried, state)
            loop.next = reduction.merge(b, loop.carried, total)
            store, done = b.new_label("scanned"), b.new_label("next")
            b.branch_if(inside, store, done)
            b.start(store)
            with b.scope():
                self.statements(scan.after, here.with_local(scan.name, reduction.result(b, state)))
            b.branch(done)
            b.start(done)
        return env.with_local(scan.name, reduction.result(b, loop.results))

    def _prefixes(self, reduction: Reduction, state: State) -> tuple[State, State]:
        """The states of a thread and all before it in the group, and those of all."""
        b, threads = self.b, self.grid.threads
        within = min(threads, WARP)
        lane = b.and_(self._thread(), within - 1)
        state = self._up_to(reduction, state, lane, within)
        total = [self._shuffled(value, "idx", within - 1, within) for value in state]
        if threads <= WARP:
            return state, total
        warps, warp = threads // WARP, b.lshr(self._thread(), 5)
        rooms = [self._room(number, value.dtype, warps) for number, value in enumerate(state)]
        self._leave(rooms, total, b.cmp("eq", lane, 0), warp)
        self.barrier()
        place = b.and_(lane, warps - 1)
        taken = [self._take(room, value.dtype, place) for room, value in zip(rooms, state, strict=True)]
        taken = self._up_to(reduction, taken, place, warps)
        total = [self._shuffled(value, "idx", warps - 1, WARP) for value in taken]
        before = b.intrinsic("smax", b.sub(warp, 1), b.const(0, "i64"))
        earlier = [self._shuffled(value, "idx", before, WARP) for value in taken]
        merged = reduction.merge(b, earlier, state)
        first = b.cmp("eq", warp, 0)
        self.barrier()
        return [b.select(first, own, both) for own, both in zip(state, merged, strict=True)], total

    def _up_to(self, reduction: Reduction, state: State, lane: Value, lanes: int) -> State:
        """The states of a lane and those before it."""
        b, distance = self.b, 1
        while distance < lanes:
            earlier = [self._shuffled(value, "up", distance, min(self.grid.threads, WARP)) for value in state]
            merged = reduction.merge(b, earlier, state)
            has = b.cmp("ge", lane, distance)
            state = [b.select(has, both, own) for own, both in zip(state, merged, strict=True)]
            distance *= 2
        return state

    def _across_warps(
        self, reductions: Sequence[Reduction], states: Sequence[State], warps: int
    ) -> list[State]:
        """Each warp leaves its state in shared memory, and each lane takes that of a warp from there."""
        b = self.b
        thread = self._thread_of_block()
        lane, warp = b.and_(thread, WARP - 1), b.lshr(thread, 5)
        values = [value for state in states for value in state]
        rooms = [self._room(number, value.dtype, warps) for number, value in enumerate(values)]
        self._leave(rooms, values, b.cmp("eq", lane, 0), warp)
        self._wait_for_block()
        return self._from_rooms(reductions, states, rooms, warps)

    def _from_rooms(
        self, reductions: Sequence[Reduction], states: Sequence[State], rooms: Sequence[str], count: int
    ) -> list[State]:
        """The states of which `count` lie in rooms, side by side, merged; `states`: of this thread, as they are."""
        b = self.b
        mine = b.and_(b.and_(self._thread_of_block(), WARP - 1), count - 1)
        values = [value for state in states for value in state]
        taken = [self._take(room, value.dtype, mine) for room, value in zip(rooms, values, strict=True)]
        found: list[State] = []
        for reduction, state in zip(reductions, states, strict=True):
            part, taken = taken[: len(state)], taken[len(state) :]
            found.append(self._across_lanes(reduction, part, count))
        return found

    def _leave(self, rooms: Sequence[str], values: Sequence[Value], condition: Value, place: Value) -> None:
        """Put values into shared memory, in the threads where the condition holds."""
        b = self.b
        inside, done = b.new_label("leader"), b.new_label("left")
        b.branch_if(condition, inside, done)
        b.start(inside)
        with b.scope():
            for room, value in zip(rooms, values, strict=True):
                self._put(room, value, place)
        b.branch(done)
        b.start(done)

    def _put(self, room: str, value: Value, place: Value) -> None:
        b = self.b
        wide = b.convert("zext", value, "u8") if value.dtype == "bool" else value
        b.line(f"store {wide.type} {wide.text}, ptr {b.element(room, value.dtype, place).text}")

    def _take(self, room: str, dtype: DType, place: Value) -> Value:
        b = self.b
        address = b.element(room, dtype, place).text
        if dtype == "bool":
            return b.cmp("ne", b.emit(f"load i8, ptr {address}", "u8", 1, pure=False), 0)
        return b.emit(f"load {REGISTER[dtype]}, ptr {address}", dtype, 1, pure=False)

    def _room(self, number: int, dtype: DType, warps: int, of: str = "slot") -> str:
        """Shared memory for a value of each warp, or of what `of` says."""
        name = f"@{self._identifier}_{of}{number}_{dtype}"
        self.module.declare(
            name, f"{name} = internal addrspace(3) global [{warps} x {memory_type(dtype)}] poison, align 8"
        )
        return self.b.emit(f"addrspacecast ptr addrspace(3) {name} to ptr", "i64", 1).text

    @property
    def _identifier(self) -> str:
        return "".join(c if c.isalnum() else "_" for c in self.kernel.name)

    def _from_lane(self, value: Value, distance: int) -> Value:
        """The value of the thread whose number differs in one bit."""
        return self._shuffled(value, "bfly", distance, WARP)

    def _shuffled(self, value: Value, how: str, by: int | Value, lanes: int) -> Value:
        """The value of another thread of the warp, or of its part of so many lanes: "bfly" the one at this distance in
        either direction, "up" so many before, "idx" this one."""
        b, bits = self.b, BITS[value.dtype]
        if value.dtype == "bool":
            return b.cmp("ne", self._shuffled(b.convert("zext", value, "i32"), how, by, lanes), 0)
        if bits == 64:
            whole = b.bitcast(value, "i64") if value.dtype == "f64" else value
            low, high = b.convert("trunc", whole, "i32"), b.convert("trunc", b.lshr(whole, 32), "i32")
            parts = [b.convert("zext", self._shuffled(part, how, by, lanes), "i64") for part in (low, high)]
            joined = b.or_(parts[0], b.shl(parts[1], 32))
            return b.bitcast(joined, "f64") if value.dtype == "f64" else joined
        if value.dtype == "f32":
            return b.bitcast(self._shuffled(b.bitcast(value, "i32"), how, by, lanes), "f32")
        if bits < 32:
            wide = b.emit(f"zext {value.type} {value.text} to i32", "i32", 1)
            other = self._shuffled(wide, how, by, lanes)
            return b.emit(f"trunc i32 {other.text} to {REGISTER[value.dtype]}", value.dtype, 1)
        return self._other_lane(value, how, by, lanes)

    def _other_lane(self, value: Value, how: str, by: int | Value, lanes: int) -> Value:
        """`_shuffled` of 32 bits."""
        b = self.b
        name = f"llvm.nvvm.shfl.sync.{how}.i32"
        self.module.declare(name, f"declare i32 @{name}(i32, i32, i32, i32) #8")
        place = b.convert("trunc", by, "i32").text if isinstance(by, Value) else by
        bounds = (WARP - lanes) << 8 | (0 if how == "up" else WARP - 1)
        return b.emit(
            f"call i32 @{name}(i32 {self._members()}, i32 {value.text}, i32 {place}, i32 {bounds})",
            "i32",
            1,
            pure=False,
        )


class Stride:
    """for index in range(first, end, step), with a step that is known at run time only."""

    def __init__(self, b: Builder, first: Value, step: Value, end: Value) -> None:
        self.b, self.first, self.step, self.end = b, first, step, end

    def __enter__(self) -> Value:
        b = self.b
        self.before = b.block
        self.head, self.exit = b.new_label("grid"), b.new_label("over")
        b.branch_if(b.cmp("lt", self.first, self.end), self.head, self.exit)
        b.start(self.head)
        self.index = Value(b.name("i"), "i64")
        self.write = b.reserve()
        self.scope = b.scope()
        self.scope.__enter__()
        return self.index

    def __exit__(self, *raised: object) -> None:
        b = self.b
        self.scope.__exit__(None, None, None)
        if raised[0] is not None:
            return
        bumped = b.emit(f"add i64 {self.index.text}, {self.step.text}", "i64", 1, pure=False)
        again = b.emit(f"icmp slt i64 {bumped.text}, {self.end.text}", "bool", 1, pure=False)
        latch = b.block
        b.line(f"br i1 {again.text}, label %{self.head}, label %{self.exit}")
        self.write(
            f"{self.index.text} = phi i64 [ {self.first.text}, %{self.before} ], [ {bumped.text}, %{latch} ]"
        )
        b.start(self.exit)


def _has_limit(stmt: Loop | ReduceLoop) -> bool:
    return isinstance(stmt, Loop) and stmt.limit is not None


ATTRIBUTES = "attributes #8 = { convergent nounwind }\nattributes #9 = { noreturn nounwind }"


def emit_device(grid: Grid, target: Target, name: str) -> str:
    """The LLVM IR of a module with one kernel `name`.

    Raises CodegenError for loop code that there is no rule for.
    """
    module = Module()
    DeviceWriter(module, grid, target).write(name)
    return f'target triple = "{TRIPLE}"\ntarget datalayout = "{LAYOUT}"\n{module.text}\n{ATTRIBUTES}\n'
