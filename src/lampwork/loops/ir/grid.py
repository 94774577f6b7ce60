"""Kernels on a grid of threads: what a GPU runs.

The iterations of a kernel's parallel loop go to *groups* of threads, several to a block, and the blocks stride over
them. A group of one thread runs the body as it stands (a *flat* kernel). In a group of several, all threads run what
stands outside of vector loops alike; they share the turns of a vector loop, and reduce across the group what a vector
ReduceLoop reduces, so that each has the result; those of a ScanLoop in none of these they share as many at a time as
there are threads; a Store outside of vector loops is made by the first thread, which alone reads what it is made of.
Scratch belongs to the group, in shared memory; that of a flat kernel to the block, and each iteration has places of its
own in it. A `Barrier` stands wherever a thread might otherwise miss what another
wrote, or write what another has yet to read; the reduction of a vector ReduceLoop is one too. The body of a WhenLast is
run by all threads of a block as by one group.

A group may be the threads of several blocks, which are a *cluster* then: they run at the same time, and wait for each
other as the threads of a block do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set

from lampwork.loops.ir.addresses import ITEM_BYTES
from lampwork.loops.ir.bounds import offset_in
from lampwork.loops.ir.index import ONE, FloorDiv, Index, Mod, Var
from lampwork.loops.ir.kernel import counters_of
from lampwork.loops.ir.nodes import (
    Buffer,
    DType,
    Kernel,
    Let,
    Load,
    Loop,
    ReduceLoop,
    ScanLoop,
    Stmt,
    Store,
)
from lampwork.loops.ir.symbols import evaluate
from lampwork.loops.ir.traverse import walk_once
from lampwork.records import record
from lampwork.standard import functools

WARP = 32
ALIGNED = 16
"""Bytes that a thread reads or writes at a time, at most: vectors are aligned to their size."""
BANK = 4
"""Bytes of shared memory that lie side by side in a bank of it."""
NONE: frozenset[DType] = frozenset()
BANKS = 32
MOST_CONFLICTS = 2
"""Words of one bank that threads of a warp may want at a time where each takes several elements: as many as of elements
of 8 bytes anyway."""


PORTABLE = 8
"""Blocks of a cluster that every card runs which has clusters."""
REGISTER = 4
"""Bytes of one; larger elements are not held."""
HELD = 1 << 15
"""Elements of a row that the registers of a block hold, at most: 32 of each of 1024 threads."""
AT_A_TIME = 1024
"""Threads that a multiprocessor surely runs at a time: as many as it holds of those that take 64 registers."""
PIECE_THREADS = 512
"""Of a block that reduces a piece of something and reads it once: two of them are at a multiprocessor."""


@record
class Grid:
    """A kernel with its barriers, and how it lies on a grid.

    threads: of a group, a power of two. groups: of a block; 1 if a group is more than a warp. lanes: neighbouring
    iterations that the thread of a flat kernel takes at a time, or turns of shared loops that another's does at most.
    sums: the dtypes of which a thread adds several neighbours to memory by one instruction. turns: of a thread of a
    flat kernel, of so many lanes each, whose loads are on the way together; whole blocks of them are all there is.
    cluster: blocks that are one group together.
    """

    kernel: Kernel
    threads: int
    groups: int
    lanes: int = 1
    sums: frozenset[DType] = NONE
    turns: int = 1
    cluster: int = 1

    @property
    def counters(self) -> int:
        """Of the device's memory, which are zero before and after a launch: for the WhenLasts."""
        return counters_of(self.kernel)

    @property
    def is_flat(self) -> bool:
        return self.threads == 1

    @property
    def block(self) -> tuple[int, int]:
        """Threads of a block along x and y."""
        return (self.groups, 1) if self.is_flat else (self.threads // self.cluster, self.groups)

    @property
    def per_block(self) -> int:
        """Iterations of the parallel loop that a block takes at a time, or a cluster."""
        return self.groups * self.lanes * self.turns if self.is_flat else self.groups

    def lanes_of(self, loop: Shared) -> int:
        """The neighbouring turns of a shared loop that a thread takes at a time: the same ones in each loop over its
        axis that takes several, so that a thread has at hand what it read in another."""
        outer, scratch = parallel_loop(self.kernel), names_of(self.kernel.scratch)
        lanes = lanes_of(loop, scratch, self.sums)
        if lanes == 1:
            return 1
        others = shared_loops(self.kernel.body if outer is None else outer.body)
        several = [
            lanes_of(each, scratch, self.sums)
            for each in others
            if each.axis.name == loop.axis.name and each is not loop
        ]
        return min(lanes, self.lanes, *(number for number in several if number > 1))

    @property
    def scratch_bytes(self) -> int:
        """Of shared memory for the scratch of a group, or of a block of a flat kernel."""
        return scratch_bytes(self.kernel.scratch) or 0

    @property
    def shared_bytes(self) -> int:
        """Of shared memory for the scratch of a block."""
        return self.scratch_bytes * (1 if self.is_flat else self.groups)


def scratch_bytes(scratch: Sequence[Buffer]) -> int | None:
    """Bytes of scratch buffers side by side, each aligned; None if that depends on symbols."""
    total = 0
    for buffer in scratch:
        elements = buffer.shape[0].as_int()
        if elements is None:
            return None
        total += -(-max(elements, 0) * ITEM_BYTES[buffer.dtype] // ALIGNED) * ALIGNED
    return total


def parallel_loop(kernel: Kernel) -> Loop | None:
    """The loop whose iterations the groups share, if there is one: it stands alone then."""
    first = kernel.body[0] if kernel.body else None
    return first if isinstance(first, Loop) and first.kind.startswith("parallel") else None


Shared = Loop | ReduceLoop | ScanLoop


def is_shared(stmt: Stmt) -> bool:
    """Whether the threads of a group share the turns of a statement, of which it is not inside of another."""
    return isinstance(stmt, ScanLoop) or (isinstance(stmt, Loop | ReduceLoop) and stmt.kind == "vector")


def shared_loops(body: Sequence[Stmt]) -> list[Shared]:
    """The outermost loops whose turns are shared, at any depth of serial ones."""
    found: list[Shared] = []
    for stmt in body:
        if isinstance(stmt, Loop | ReduceLoop | ScanLoop):
            found += [stmt] if is_shared(stmt) else shared_loops(stmt.body)
    return found


def names_of(buffers: Sequence[Buffer]) -> frozenset[str]:
    return frozenset(buffer.name for buffer in buffers)


def lanes_of(loop: Shared, scratch: Set[str] = frozenset(), sums: Set[DType] = NONE) -> int:
    """The neighbouring turns that a thread can take at a time: as many as make the widest element that it reads or
    writes side by side 16 bytes, scratch aside, if its accesses lie so that these are aligned wherever the buffers are.

    Accesses move along the axis element by element or not at all, without masks; other dimensions are multiples. Those
    to scratch may lie anywhere as far as lanes fit into a bank, or threads side by side hardly meet in one. A turn may
    reduce something of its own. What is combined with memory is so element by element, but for sums of the dtypes
    `sums`: neighbouring threads take neighbours.
    """
    if isinstance(loop, ScanLoop):
        return 1
    updates = [each for each in loop.body if isinstance(each, Store) and each.combine is not None]
    if any(each.combine != "sum" or each.buffer.dtype not in sums for each in updates):
        return 1
    values = [reducer.value for reducer in loop.reducers] if isinstance(loop, ReduceLoop) else []
    inside = list(_inside(loop.body))
    if not all(isinstance(stmt, Let | Store) or _is_own(stmt) for stmt in inside):
        return 1
    if isinstance(loop, ReduceLoop) and loop.position is not None:
        return 1
    places = [(stmt.buffer, stmt.index) for stmt in inside if isinstance(stmt, Store)]
    exprs = [stmt.value for stmt in inside if isinstance(stmt, Let | Store)]
    exprs += [each.value for stmt in inside if isinstance(stmt, ReduceLoop) for each in stmt.reducers]
    for part in walk_once(*exprs, *values, data=False):
        if not isinstance(part, Load):
            continue
        if part.mask is not None:
            return 1
        places.append((part.buffer, part.index))
    offsets = [(buffer, offset_in(buffer, index)) for buffer, index in places]
    moving = [(buffer, offset) for buffer, offset in offsets if loop.axis.name in _names(offset)]
    if not moving:
        return 1
    sizes = [ITEM_BYTES[buffer.dtype] for buffer, _ in moving if buffer.name not in scratch]
    lanes = ALIGNED // max(sizes or [ITEM_BYTES[buffer.dtype] for buffer, _ in moving])
    while lanes > 1 and not all(
        is_side_by_side(offset, loop.axis.name, lanes)
        or (buffer.name in scratch and _is_quick(offset, loop.axis.name, lanes, ITEM_BYTES[buffer.dtype]))
        for buffer, offset in moving
    ):
        lanes //= 2
    return lanes


@functools.lru_cache(maxsize=256)
def _is_quick(offset: Index, axis: str, lanes: int, size: int) -> bool:
    """Whether lanes of elements of `size` bytes in shared memory cost about what they would side by side: few threads
    of a warp want different words of one bank at a time."""
    if lanes * size <= BANK:
        return True
    if offset.symbols() or offset.indirects() or offset.variables() != frozenset({axis}):
        return False
    place = offset.substitute({axis: Index.sym(axis)})
    for lane in range(lanes):
        places = {evaluate(place, {axis: thread * lanes + lane}) * size // BANK for thread in range(WARP)}
        banks = Counter(place % BANKS for place in places)
        if max(banks.values()) > MOST_CONFLICTS:
            return False
    return True


def _inside(body: Sequence[Stmt]) -> Iterator[Stmt]:
    """The statements of a body and of the reductions in it."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, ReduceLoop):
            yield from _inside(stmt.body)


def _is_own(stmt: Stmt) -> bool:
    """Whether a statement is a reduction that each turn of a shared loop makes for itself."""
    return isinstance(stmt, ReduceLoop) and stmt.kind == "serial" and stmt.position is None


def has_own_reductions(loop: Shared) -> bool:
    """Whether each turn of a shared loop reduces something of its own: it takes a thread as long as many turns."""
    return any(_is_own(stmt) for stmt in loop.body)


def is_side_by_side(offset: Index, axis: str, number: int) -> bool:
    """Whether `number` neighbours along `axis`, from any multiple of it on, lie one after the other from a multiple on.

    64*i + j does along j, by 4; so does 4096*(j // 64) + j % 64.
    """
    steps = 0
    for monomial, scale in offset.terms:
        if not any(axis in Index.of_atom(atom).variables() for atom in monomial):
            if scale % number:
                return False
            continue
        (atom,) = monomial if len(monomial) == 1 else (None,)
        if isinstance(atom, Var):
            steps += scale
        elif not isinstance(atom, FloorDiv | Mod) or not _is_whole(atom, axis, number):
            return False
        elif isinstance(atom, Mod):
            steps += scale
        elif scale % number:
            return False
    return steps == 1


def _is_whole(atom: FloorDiv | Mod, axis: str, number: int) -> bool:
    """Whether no `number` neighbours from a multiple of it on lie on both sides of a multiple of the divisor."""
    divisor = atom.b.as_int()
    return (
        divisor is not None
        and divisor % number == 0
        and atom.a.coefficient(axis) == ONE
        and all(scale % number == 0 for _, scale in atom.a.without(axis).terms)
    )


def _names(index: Index) -> frozenset[str]:
    """The loop variables that an index depends on, by its data too."""
    return frozenset(index.variables())
