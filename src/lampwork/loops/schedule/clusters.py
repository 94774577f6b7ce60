"""Long rows of a card, each by a cluster of blocks, which keep it in registers from loop to loop: it is read once.

before: m = max_j x[i, j]; s = sum_j exp(x[i, j] - m); y[i, j] = exp(x[i, j] - m) / s       for i < 64, j < 262144
after:  64 clusters of 8 blocks of 1024 threads: 32 elements of x a thread, the maximum and the sum across the cluster,
        32 elements of y

The blocks of a cluster are one group of threads (loops/ir/grid.py), and the kernel is that of one row after the other.
Which values are kept is not written down anywhere: a thread has the same elements in every loop, all its turns are
written out, and what was computed once is at hand.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lampwork.loops.fusion.group import Group
from lampwork.loops.ir.addresses import ITEM_BYTES
from lampwork.loops.ir.definitions import points
from lampwork.loops.ir.grid import (
    AT_A_TIME,
    HELD,
    PORTABLE,
    REGISTER,
    WARP,
    Grid,
    Shared,
    is_shared,
    lanes_of,
    parallel_loop,
    shared_loops,
)
from lampwork.loops.ir.kernel import parallel_extent
from lampwork.loops.ir.machine import Machine
from lampwork.loops.ir.nodes import (
    DType,
    Expr,
    Kernel,
    Let,
    Load,
    Local,
    Loop,
    Map,
    Op,
    Reduce,
    ReduceLoop,
    Store,
)
from lampwork.loops.ir.ops import OPS
from lampwork.loops.ir.symbols import likely
from lampwork.loops.ir.traverse import walk_once
from lampwork.loops.schedule.split_rows import PIECE, by_themselves, inner_axes, is_few
from lampwork.records import record

MODEL = (16, 512)
"""The blocks of a cluster and the threads of a block that the model takes, at most. Others are left to a measurement:
(8, 1024) holds as much, but one such block fills a multiprocessor, which does not read while it writes."""
THREADS = 1024  # of a block, at most
LEAST_THREADS = 256
MOST_VALUES = 64  # elements of a thread: they are written out
FEW_VALUES = 16  # elements of a thread, up to which smaller blocks are as good
LEAST_VALUES = 8  # elements of a thread, which pay for what threads do together
MOST_WORK = 40  # operations for an element, in additions, beside which registers hold so many
FEW_BLOCKS = 128  # that a card runs at a time, about


@record
class HeldRow:
    """A row that is kept in registers. lanes: neighbours that a thread takes at a time. registers: for each element
    that a thread keeps, at most, and several times as many where arithmetic needs them."""

    length: int
    lanes: int
    registers: int

    def values(self, threads: int) -> int:
        """The elements of each of so many threads."""
        return -(-self.length // (threads * self.lanes)) * self.lanes

    def fits(self, blocks: int, threads: int) -> bool:
        """Whether so many blocks of so many threads have registers for it."""
        values = self.values(blocks * threads)
        return values <= MOST_VALUES and values * self.registers * threads <= HELD

    def is_shared(self, threads: int) -> bool:
        """Whether so many threads have registers for it, each those that there are if a multiprocessor is full."""
        return self.values(threads) * self.registers <= HELD // AT_A_TIME


# --- rows and kernels -------------------------------------------------------------------------------------------------


def whole_rows(group: Group, machine: Machine) -> Group | None:
    """The group of long rows with its values of points computed where they are read, so that all a row needs to be kept
    for is in registers; None for other groups, and for machines that have no clusters."""
    if group.kind != "rows" or machine.cluster <= 1:
        return None
    own = [each for each in group.definitions if isinstance(each, Map | Reduce)]
    lengths = [points(inner_axes(each, group.rows)).as_int() or 0 for each in own]
    if max(lengths, default=0) < 2 * PIECE:
        return None
    definitions = by_themselves(group)
    if definitions is None:
        return None
    made = {each.out.name for each in definitions}
    return Group("rows", tuple(definitions), group.rows, group.private & made)


def on_clusters(kernel: Kernel, machine: Machine, hints: Mapping[str, int]) -> Kernel | None:
    """The kernel for clusters; None where a block can hold a row and there are rows enough, where no cluster can hold
    one, where rows are read once anyway, and where reading them twice is as fast."""
    row = held_row(kernel)
    if row is None or not row.fits(PORTABLE, THREADS) or not pays(kernel):
        return None
    rows = likely(parallel_extent(kernel), hints)
    if row.fits(1, THREADS) and (rows is None or not is_few(rows, row.length, machine)):
        return None
    return replace(kernel, cluster=machine.cluster)


def pays(kernel: Kernel) -> bool:
    """Whether clusters are faster than kernels of pieces, which read rows twice but keep the memory busy all the time:
    where whole rows of float32 are written. Rows of half types are half as long to read again, and pieces whose results
    are a few numbers are not read again at all. See benchmarks/gpu_clusters.py."""
    outer = parallel_loop(kernel)
    stored: list[DType] = [
        stmt.buffer.dtype
        for loop in shared_loops(kernel.body if outer is None else outer.body)
        for stmt in loop.body
        if isinstance(stmt, Store)
    ]
    return bool(stored) and all(ITEM_BYTES[dtype] >= REGISTER for dtype in stored)


def held_row(kernel: Kernel) -> HeldRow | None:
    """What threads keep of a row, of a kernel whose loops all go over whole rows; None for other kernels, and where
    there is nothing to keep."""
    outer = parallel_loop(kernel)
    body = kernel.body if outer is None else outer.body
    loops = [stmt for stmt in body if isinstance(stmt, Loop | ReduceLoop)]
    if (
        kernel.scratch
        or len(loops) < 2
        or not all(isinstance(s, Let | Store | Loop | ReduceLoop) for s in body)
    ):
        return None
    if not all(_is_plain(loop) for loop in loops):
        return None
    stored = [each.buffer.name for stmt in body for each in (stmt, *_inside(stmt)) if isinstance(each, Store)]
    numbers = _Numbers(loops[0].axis.name)
    registers = numbers.kept(loops)
    if len(set(stored)) < len(stored) or not numbers.reads.isdisjoint(stored):
        return None
    length, lanes = loops[0].axis.extent.as_int(), min(map(lanes_of, loops))
    if not registers or not length or any(loop.axis != loops[0].axis for loop in loops):
        return None
    if max(map(_work, loops)) > MOST_WORK:
        registers *= 3
    return HeldRow(length, lanes if length % lanes == 0 else 1, registers)


def _is_plain(loop: Shared) -> bool:
    if not is_shared(loop) or (isinstance(loop, Loop) and loop.limit is not None):
        return False
    if isinstance(loop, ReduceLoop) and loop.position is not None:
        return False
    return all(isinstance(s, Let) or (isinstance(s, Store) and s.combine is None) for s in loop.body)


def _work(loop: Loop | ReduceLoop) -> int:
    """The operations for an element."""
    return sum(OPS[part.name].cost for part in walk_once(loop) if isinstance(part, Op))


def _inside(stmt: object) -> Sequence[object]:
    return stmt.body if isinstance(stmt, Loop | ReduceLoop) else ()


@dataclass(slots=True)
class _Numbers:
    """Numbers of values: equal ones for what the same element has in several loops. `reads`: buffers that are read."""

    axis: str
    reads: set[str] = field(default_factory=set[str])
    _known: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    _of: dict[int, int] = field(default_factory=dict[int, int])
    _locals: dict[str, int] = field(default_factory=dict[str, int])
    _below: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    _registers: dict[int, int] = field(default_factory=dict[int, int])

    def kept(self, loops: Sequence[Loop | ReduceLoop]) -> int:
        """The registers for an element that are in use from one loop to the next, at most."""
        roots = [self._roots(loop) for loop in loops]
        made: set[int] = set()
        most = 0
        for number, _ in enumerate(loops[1:], 1):
            made |= self._all(roots[number - 1])
            later = [root for each in roots[number:] for root in each]
            most = max(most, sum(self._registers[each] for each in self._first(later, made)))
        return most

    def _roots(self, loop: Loop | ReduceLoop) -> list[int]:
        """What a loop stores and reduces."""
        found: list[int] = []
        for stmt in loop.body:
            assert isinstance(stmt, Let | Store)
            number = self.of(stmt.value)
            if isinstance(stmt, Let):
                self._locals[stmt.name] = number
            else:
                found.append(number)
        return found + [
            self.of(each.value) for each in (loop.reducers if isinstance(loop, ReduceLoop) else ())
        ]

    def of(self, expr: Expr) -> int:
        number = self._of.get(id(expr))
        if number is None:
            number = self._of[id(expr)] = self._new(expr)
        return number

    def _new(self, expr: Expr) -> int:
        if isinstance(expr, Local) and expr.name in self._locals:
            return self._locals[expr.name]
        below: tuple[int, ...] = ()
        key: Hashable = expr
        moves = False
        if isinstance(expr, Op):
            below = tuple(map(self.of, expr.args))
            key = (expr.name, expr.dtype, below)
            moves = any(self._registers[each] for each in below)
        elif isinstance(expr, Load):
            data = [value for index in expr.index for value in index.data()]
            below = tuple(self.of(value) for value in (*data, *(() if expr.mask is None else (expr.mask,))))
            self.reads.add(expr.buffer.name)
            moves = any(self.axis in index.variables() for index in expr.index)
        number = self._known.setdefault(key, len(self._known))
        self._below[number] = below
        # Doubles take two, and their arithmetic what is left.
        self._registers[number] = 0 if not moves else 1 if ITEM_BYTES[expr.dtype] <= REGISTER else HELD
        return number

    def _all(self, roots: Sequence[int]) -> set[int]:
        found: set[int] = set()
        todo = list(roots)
        while todo:
            number = todo.pop()
            if number not in found:
                found.add(number)
                todo += self._below[number]
        return found

    def _first(self, roots: Sequence[int], made: set[int]) -> set[int]:
        """Of the values that are computed from `made` ones, those made ones that are used directly."""
        found: set[int] = set()
        seen: set[int] = set()
        todo = list(roots)
        while todo:
            number = todo.pop()
            if number in seen:
                continue
            seen.add(number)
            if number in made and self._registers[number]:
                found.add(number)
            else:
                todo += self._below[number]
        return found


# --- grids ------------------------------------------------------------------------------------------------------------


def cluster_grid(kernel: Kernel, rows: int) -> Grid:
    """How a kernel for clusters lies on a grid: as few blocks as hold a row, or more, up to PORTABLE, where there are
    few rows; and as few threads as have some elements each."""
    row = _row_of(kernel)
    blocks, (most, threads) = 2, MODEL
    most = min(most, kernel.cluster)
    if not row.is_shared(most * threads):
        most, threads = PORTABLE, THREADS
    while not row.is_shared(blocks * threads):
        blocks *= 2
    while (
        blocks < min(most, PORTABLE)
        and rows * blocks < FEW_BLOCKS
        and row.values(2 * blocks * LEAST_THREADS) >= LEAST_VALUES
    ):
        blocks *= 2
    while (
        blocks <= PORTABLE
        and threads > LEAST_THREADS
        and row.values(blocks * threads // 2) <= FEW_VALUES
        and row.fits(blocks, threads // 2)
    ):
        threads //= 2
    return Grid(kernel, blocks * threads, 1, row.lanes, cluster=blocks)


def cluster_variants(grid: Grid) -> list[Grid]:
    """Other grids for clusters that are worth a measurement."""
    found = [
        replace(grid, threads=blocks * threads, cluster=blocks)
        for blocks in (2, 4, 8, 16)
        for threads in (1024, 512, 256)
    ]
    return [each for each in found if is_cluster_grid(each)]


def at_a_time(grid: Grid) -> int:
    """The blocks of a cluster that a multiprocessor has to run at a time; 0 where threads may want its registers."""
    row = held_row(grid.kernel)
    if row is None or not row.is_shared(grid.threads):
        return 0
    return AT_A_TIME // (grid.threads // grid.cluster)


def is_cluster_grid(grid: Grid) -> bool:
    """Whether a kernel for clusters can run so."""
    row, threads = _row_of(grid.kernel), grid.threads // max(grid.cluster, 1)
    if not 2 <= grid.cluster <= grid.kernel.cluster or grid.groups != 1 or grid.lanes != row.lanes:
        return False
    return WARP <= threads <= THREADS and row.fits(grid.cluster, threads)


def _row_of(kernel: Kernel) -> HeldRow:
    row = held_row(kernel)
    assert row is not None, "clusters are for kernels that they can hold the rows of"
    return row
