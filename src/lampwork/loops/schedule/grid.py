"""From the loops of a kernel to a grid of threads: how many share an iteration, and where they wait for each other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lampwork.errors import CodegenError
from lampwork.loops.ir.grid import (
    NONE,
    PIECE_THREADS,
    WARP,
    Grid,
    Shared,
    has_own_reductions,
    is_shared,
    lanes_of,
    names_of,
    parallel_loop,
    shared_loops,
)
from lampwork.loops.ir.kernel import is_finished_by_last, statements, stmt_exprs
from lampwork.loops.ir.nodes import (
    Barrier,
    DType,
    Kernel,
    Let,
    Load,
    Loop,
    Op,
    ReduceLoop,
    Stmt,
    Store,
    WhenLast,
)
from lampwork.loops.ir.symbols import NO_HINTS, likely
from lampwork.loops.ir.traverse import walk_once
from lampwork.loops.schedule.clusters import cluster_grid, cluster_variants, is_cluster_grid

BLOCK = 256  # threads of a flat kernel's block
SMALL_BLOCK = 128  # threads of a block of several groups, about
MOST_THREADS = 1024  # of a group
SHARED = 48 << 10  # bytes of shared memory of a block of several groups, which leave room for another block
FEW_THREADS = 1 << 16  # that a device runs at a time, about: with fewer, each takes fewer elements
MANY_THREADS = 1 << 17  # that keep a device busy: with so many, each takes several turns
LEAST_THREADS = 4  # of a group, whose elements side by side are as much as memory moves at a time
TURNS = 4  # of a thread, of which all loads are on the way at the same time
FLAT_TURNS = 2  # of a thread of a flat kernel that reads one tensor
UNKNOWN = 1024  # turns of a loop whose extent nothing is known of


def on_grid(kernel: Kernel, hints: Mapping[str, int] = NO_HINTS, sums: frozenset[DType] = NONE) -> Grid:
    """How a kernel lies on a grid: as its variant says, or else the model. `hints`: likely values of symbols, to choose
    by; the grid is right for all. `sums`: as a `Grid` has them.

    before: kernel with the variant "threads 64, groups 2, lanes 4"
    after:  64 threads share an iteration, 2 such groups are a block, and each takes up to 4 elements at a time

    Raises:
        CodegenError: there is no such variant of this kernel.
    """
    grid = _by_model(kernel, hints, sums)
    if not kernel.variant:
        return grid
    found = _VARIANT.fullmatch(kernel.variant)
    if found is not None:
        threads, groups, lanes, cluster = (int(number or 1) for number in found.groups())
        varied = replace(grid, threads=threads, groups=groups, lanes=lanes, turns=1, cluster=cluster)
        if _is_variant(varied, grid):
            return varied
    raise CodegenError(f"there is no grid {kernel.variant!r} of kernel {kernel.name}")


_VARIANT = re.compile(r"threads (\d{1,5}), groups (\d{1,4}), lanes (\d{1,2})(?:, clusters of (\d{1,2}))?")


def grid_variants(kernel: Kernel, hints: Mapping[str, int] = NO_HINTS) -> list[str]:
    """Other grids that are worth a measurement: each differs from the model's in one number, or in the two that make
    up a block."""
    grid = _by_model(kernel, hints, NONE)
    wide = replace(grid, lanes=_most_lanes(grid), turns=1)
    if grid.cluster > 1:
        found = cluster_variants(grid)
    elif grid.is_flat:
        found = [
            replace(wide, lanes=lanes, groups=groups)
            for lanes in (wide.lanes, 4, 2, 1)
            for groups in (128, 256, 512)
        ]
    else:
        several = (grid.threads // 4, grid.threads // 2, grid.threads * 2, grid.threads * 4)
        found = [replace(grid, threads=threads) for threads in several if threads]
        found += [
            replace(each, groups=max(1, SMALL_BLOCK // each.threads))
            for each in found
            if each.threads <= WARP
        ]
        found += [replace(grid, groups=grid.groups * 2**step // 2) for step in (0, 2, 3)]
        found += [replace(grid, lanes=wide.lanes // 2**step) for step in (0, 1, 2)]
    names = (_grid_name(each) for each in found if _is_variant(each, grid) and each != grid)
    return list(dict.fromkeys(names))


def _grid_name(grid: Grid) -> str:
    clusters = f", clusters of {grid.cluster}" if grid.cluster > 1 else ""
    return f"threads {grid.threads}, groups {grid.groups}, lanes {grid.lanes}{clusters}"


def _is_variant(varied: Grid, grid: Grid) -> bool:
    """Whether a grid is right wherever the model's is."""
    if max(varied.cluster, grid.cluster) > 1:
        return grid.cluster > 1 and is_cluster_grid(varied)
    threads, groups, lanes = varied.threads, varied.groups, varied.lanes
    if not all(number > 0 and number & (number - 1) == 0 for number in (threads, groups, lanes)):
        return False
    if varied.is_flat != grid.is_flat or threads * groups > MOST_THREADS or lanes > _most_lanes(grid):
        return False
    if is_finished_by_last(grid.kernel) and groups != grid.groups:
        return False
    if grid.is_flat:
        # Iterations that all use the same places of scratch stay one after the other.
        return groups >= WARP and grid.groups >= WARP and not grid.kernel.scratch
    if threads < 2 or threads * groups < min(WARP, grid.threads * grid.groups):
        return False
    return (threads <= WARP or groups == 1) and varied.shared_bytes <= max(SHARED, grid.shared_bytes)


def _most_lanes(grid: Grid) -> int:
    """The neighbouring elements that a thread may take at a time, at most."""
    kernel = grid.kernel
    outer = parallel_loop(kernel)
    if grid.is_flat:
        return 1 if outer is None else lanes_of(outer)
    loops = shared_loops(kernel.body if outer is None else outer.body)
    return max((lanes_of(loop, names_of(kernel.scratch), grid.sums) for loop in loops), default=1)


def _by_model(kernel: Kernel, hints: Mapping[str, int], sums: frozenset[DType]) -> Grid:
    """The grid that is guessed to be the best.

    before: parallel i < 512: reduce vector j < 64: s; vector j < 64: y[i, j] = x[i, j] / s
    after:  16 threads a row and 8 rows a block: each thread 4 elements of x, the sum across 16, 4 elements of y
    """
    outer = parallel_loop(kernel)
    body = kernel.body if outer is None else outer.body
    # Iterations side by side are threads: of columns that are scanned, each its own.
    loops = [] if outer is not None and outer.kind == "parallel-vector" else shared_loops(body)
    if not loops:
        if kernel.scratch and outer is not None and outer.kind == "parallel":
            return Grid(kernel, 1, 1)  # all iterations use the same places of scratch: one at a time
        if outer is None:
            return Grid(kernel, 1, BLOCK)
        lanes = _flat_lanes(outer, hints)
        return Grid(kernel, 1, BLOCK, lanes, turns=1 if kernel.scratch else _flat_turns(outer, lanes))
    rows = 1 if outer is None else likely(outer.axis.extent, hints) or UNKNOWN
    if kernel.cluster > 1:
        return cluster_grid(kernel, rows)
    if is_finished_by_last(kernel):
        rows *= _turns(body, hints)
    lanes = max(lanes_of(loop, names_of(kernel.scratch), sums) for loop in loops)
    several = Grid(kernel, 1, 1, lanes, sums)
    threads = max(_threads(loop, several.lanes_of(loop), rows, hints) for loop in loops)
    placed = _Barriers(frozenset(buffer.name for buffer in kernel.scratch)).row(body)
    whole = placed if outer is None else (replace(outer, kind="parallel", body=placed),)
    grid = Grid(replace(kernel, body=whole), threads, 1, lanes, sums)
    if is_finished_by_last(kernel):
        return _finished(grid)
    groups = SMALL_BLOCK // threads
    while groups > 1 and groups * grid.scratch_bytes > SHARED:
        groups //= 2
    return replace(grid, groups=groups) if threads <= WARP else grid


def _turns(body: Sequence[Stmt], hints: Mapping[str, int]) -> int:
    """How many rows a group takes one after another."""
    found = [
        likely(stmt.axis.extent, hints) or 1
        for stmt in body
        if isinstance(stmt, Loop | ReduceLoop) and not is_shared(stmt) and shared_loops(stmt.body)
    ]
    return max(found, default=1)


def _finished(grid: Grid) -> Grid:
    """Of a kernel whose last iteration finishes it: as many groups in a block as it says, by default one."""
    lasts = [stmt for stmt in statements(grid.kernel.body) if isinstance(stmt, WhenLast)]
    groups = next((stmt.among for stmt in lasts if stmt.near), 1)
    outer = parallel_loop(grid.kernel)
    loops = [] if outer is None else [each for each in outer.body if isinstance(each, Loop | ReduceLoop)]
    reads_once = len(loops) == 1 and is_shared(loops[0])
    most = min(MOST_THREADS // groups, WARP) if groups > 1 else PIECE_THREADS if reads_once else MOST_THREADS
    return replace(grid, threads=min(max(grid.threads, WARP // groups, 2), most), groups=groups)


def _flat_lanes(loop: Loop, hints: Mapping[str, int]) -> int:
    lanes = lanes_of(loop)
    turns = likely(loop.axis.extent, hints)
    while lanes > 1 and turns is not None and turns < lanes * FEW_THREADS:
        lanes //= 2
    return lanes


def _flat_turns(loop: Loop, lanes: int) -> int:
    """Several where a thread would have no more than the 16 bytes of one tensor on the way, and computes meanwhile."""
    extent, each = loop.axis.extent.as_int(), lanes * FLAT_TURNS
    if extent is None or lanes == 1 or extent % (BLOCK * each) or extent < 2 * MANY_THREADS * each:
        return 1
    if not all(isinstance(stmt, Let | Store) for stmt in loop.body):
        return 1
    parts = list(walk_once(*(stmt.value for stmt in loop.body if isinstance(stmt, Let | Store))))
    read = {(part.buffer.name, part.index) for part in parts if isinstance(part, Load)}
    computes = any(isinstance(part, Op) and part.name != "cast" for part in parts)
    return FLAT_TURNS if computes and len(read) == 1 else 1


def _threads(loop: Shared, lanes: int, rows: int, hints: Mapping[str, int]) -> int:
    """How many threads share the turns of a loop, so many lanes at a time: few turns each, but enough to pay for what
    they do together; of two numbers the one that leaves fewer threads idle in the last turn."""
    turns = -(-(likely(loop.axis.extent, hints) or UNKNOWN) // lanes)
    # Short rows that are written are so by more threads side by side.
    each = 1 if has_own_reductions(loop) else 2 if isinstance(loop, Loop) and turns < WARP else TURNS
    while each > 1 and (turns < each * LEAST_THREADS or rows * turns < each * MANY_THREADS):
        each //= 2
    if each > 1 and WARP * each < turns < SMALL_BLOCK * each // 2 + 1:
        each //= 2  # several warps, but too few for a block
    wanted = min(1 << max(-(-turns // each) - 1, 1).bit_length(), MOST_THREADS)
    choices = [wanted >> shift for shift in range(3) if shift == 0 or wanted >> shift >= WARP]
    return min(choices, key=lambda threads: (-(-turns // threads) * threads, -threads))


# --- barriers ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Barriers:
    """Places barriers among the statements that all threads of a group run.

    written, read: the buffers that threads may have written since the last barrier, and those that the kernel writes
    and threads have read.
    """

    scratch: frozenset[str]
    stored: frozenset[str] = frozenset()
    written: set[str] = field(default_factory=set[str])
    read: set[str] = field(default_factory=set[str])

    def row(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """One iteration of the parallel loop. What it leaves in scratch the next one meets."""
        self.stored = _stores(body)
        while True:
            written, read = set(self.written), set(self.read)
            placed = self._statements(body)
            self.written = written | self.written & self.scratch
            self.read = read | self.read & self.scratch
            if (self.written, self.read) == (written, read):
                return tuple(placed)

    def _barrier(self) -> Barrier:
        self.written.clear()
        self.read.clear()
        return Barrier()

    def _statements(self, body: Sequence[Stmt]) -> list[Stmt]:
        placed: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, WhenLast):
                # All that was stored before is there, for whoever goes on.
                self.written, self.read = set(), set()
                placed.append(replace(stmt, body=tuple(self._statements(stmt.body))))
                continue
            loads, stores = _loads([stmt]) & self.stored, _stores([stmt])
            if loads & self.written or stores & (self.read | self.written):
                placed.append(self._barrier())
            if isinstance(stmt, Loop | ReduceLoop) and not is_shared(stmt):
                placed.append(self._serial(stmt))
                continue
            if isinstance(stmt, ReduceLoop):
                # Its threads wait for each other at its end, and what they stored in it is there.
                self.written, self.read = set(), set()
            else:
                self.written |= stores
                self.read |= loads
            placed.append(stmt)
        return placed

    def _serial(self, loop: Loop | ReduceLoop) -> Stmt:
        """A loop whose turns all threads run together. A turn may meet what came before the loop, and what the turn
        before it left: it is placed for both, until no more comes to these."""
        while True:
            written, read = set(self.written), set(self.read)
            turn = self._turn(loop)
            left = self.written, self.read
            self.written, self.read = written | left[0], read | left[1]
            if (self.written, self.read) == (written, read):
                break
        if (loop.axis.extent.as_int() or 0) > 0 and not (isinstance(loop, Loop) and loop.limit is not None):
            self.written, self.read = left
        return turn

    def _turn(self, loop: Loop | ReduceLoop) -> Stmt:
        body = self._statements(loop.body)
        own = _loads([replace(loop, body=())]) & self.stored
        if own & self.written:
            body.append(self._barrier())
        self.read |= own
        return replace(loop, body=tuple(body))


def _stores(body: Sequence[Stmt]) -> frozenset[str]:
    return frozenset(stmt.buffer.name for stmt in statements(body) if isinstance(stmt, Store))


def _loads(body: Sequence[Stmt]) -> frozenset[str]:
    exprs = []
    for stmt in statements(body):
        exprs += [stmt.value] if isinstance(stmt, Let | Store) else stmt_exprs(stmt)
        if isinstance(stmt, Store):
            exprs += [value for index in stmt.index for value in index.data()]
        if isinstance(stmt, Loop) and stmt.limit is not None:
            exprs += stmt.limit.data()
    return frozenset(part.buffer.name for part in walk_once(*exprs) if isinstance(part, Load))
