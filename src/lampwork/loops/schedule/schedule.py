"""From a fusion group to kernels: which axes are parallel, which are vector, in which order the loops stand.

    flat pointwise          parallel-vector i
    pointwise, broadcast    parallel i: vector j
    transposed copy         parallel (rest, block of j): i: vector j in the block
    softmax, layer norm     parallel row: one vector pass a phase
    sum over rows           parallel row: vector reduction
    sum over columns        parallel-vector j: reduction over i; of a card, blocks of columns by many lines at a time
    sum of everything       parallel chunk: vector reduction into partial sums; then a kernel that adds them up

Memory is addressed flatly (see nodes.Kernel).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from lampwork.errors import InvalidLoopsError
from lampwork.loops.fusion.group import Group, ends_of
from lampwork.loops.ir.addresses import stride_of
from lampwork.loops.ir.definitions import outs_of, reads_of
from lampwork.loops.ir.expr import indices
from lampwork.loops.ir.grid import WARP, scratch_bytes
from lampwork.loops.ir.index import ONE, Index, as_index
from lampwork.loops.ir.kernel import make_kernel
from lampwork.loops.ir.machine import Machine
from lampwork.loops.ir.nodes import Axis, Buffer, Definition, Kernel, Load, Loop, Stmt
from lampwork.loops.ir.symbols import NO_HINTS, likely
from lampwork.loops.ir.traverse import rewrite, walk_once
from lampwork.loops.schedule.build_nest import build_nest
from lampwork.loops.schedule.clusters import on_clusters, whole_rows
from lampwork.loops.schedule.column_blocks import column_blocks
from lampwork.loops.schedule.emit_nest import emit_phase
from lampwork.loops.schedule.last_block import end_of_rows, in_last_block
from lampwork.loops.schedule.nest import Item, Nest, Phase
from lampwork.loops.schedule.row_loops import collapse, wrap_parallel
from lampwork.loops.schedule.schedule_scan import schedule_scan
from lampwork.loops.schedule.split_choices import split_choices
from lampwork.loops.schedule.split_reduce import split_reduction
from lampwork.loops.schedule.split_rows import split_rows
from lampwork.loops.schedule.spread import spread
from lampwork.loops.schedule.tiles import through_tiles

LONG_COLUMN = 1024  # elements that one thread of a GPU should not go through alone
VECTORS = 4  # of rows side by side in a block, whose rows then give whole cache lines


def schedule(group: Group, name: str, machine: Machine, hints: Mapping[str, int] = NO_HINTS) -> list[Kernel]:
    """The kernels of a group, in order; usually one.

    A buffer among the params of several kernels of the list that is not one of the group's (`{name}_partial`) is
    temporary memory between them; its shape is its size.

    Args:
        group: of kind pointwise, rows or scan.
        name: the kernel's name; further kernels are `{name}_1`, …
        machine: what the kernels will run on.
        hints: likely values of symbols, to choose by.

    Raises:
        InvalidLoopsError: a group of another kind, or one that reads itself across rows.
    """
    if group.kind == "scan":
        return [schedule_scan(group, name, machine, hints)]
    if group.kind not in ("pointwise", "rows"):
        raise InvalidLoopsError(f"a {group.kind} group has no loop schedule")
    ends = ends_of(group)
    if ends:
        return _with_ends(group, ends, name, machine, hints)
    clustered = _by_clusters(group, name, machine, hints)
    if clustered is not None:
        return [clustered]
    kernels = _apart(group, name, machine, hints)
    return in_last_block(kernels, machine) if len(kernels) > 1 else kernels


def _apart(group: Group, name: str, machine: Machine, hints: Mapping[str, int]) -> list[Kernel]:
    """The kernels of a group, what puts results of pieces together being one of its own."""
    stages = split_rows(group, name, machine) or split_reduction(group, name, machine, hints)
    names = [name, *(f"{name}_{number}" for number in range(1, len(stages)))]
    first = _schedule_nest(stages[0], name, machine, hints)
    # Blocks of a second stage reduce as many columns as those of the first, so that one finishes what others began.
    width = _width(first) if machine.processors else None
    others = [
        _schedule_nest(stage, each, machine, hints, width)
        for stage, each in zip(stages[1:], names[1:], strict=True)
    ]
    return [first, *others]


def _by_clusters(group: Group, name: str, machine: Machine, hints: Mapping[str, int]) -> Kernel | None:
    whole = whole_rows(group, machine)
    return None if whole is None else on_clusters(_schedule_nest(whole, name, machine, hints), machine, hints)


def _width(kernel: Kernel) -> int | None:
    """How many columns a block of a kernel reduces, if it does (column_blocks.py)."""
    outer = kernel.body[0]
    last = outer.body[-1] if kernel.scratch and isinstance(outer, Loop) and outer.kind == "parallel" else None
    return last.axis.extent.as_int() if isinstance(last, Loop) and last.kind == "vector" else None


def _with_ends(
    group: Group, ends: Sequence[Definition], name: str, machine: Machine, hints: Mapping[str, int]
) -> list[Kernel]:
    """The kernels of rows, and what all of them together give: in the same kernel where that can be."""
    read = {found for each in ends for found in reads_of(each)}
    own = tuple(each for each in group.definitions if each not in ends)
    kernels = _apart(replace(group, definitions=own, private=group.private - read), name, machine, hints)
    results = frozenset(out.name for each in ends for out in outs_of(each))
    end = Group("rows", tuple(ends), (), group.private & results)
    last = _schedule_nest(end, f"{name}_end", machine, hints)
    if len(kernels) == 1:
        both = end_of_rows(kernels[0], last, group.private & read, machine)
        if both is not None:
            return [both]
    found = in_last_block([*kernels, last], machine)
    if len(found) <= len(kernels):
        return found
    return [*in_last_block(kernels, machine), *schedule(end, f"{name}_end", machine, hints)]


def _schedule_nest(
    group: Group, name: str, machine: Machine, hints: Mapping[str, int], width: int | None = None
) -> Kernel:
    """width: how many columns side by side a block has to reduce, where blocks do."""
    nest, scratch = build_nest(group, machine, hints)
    nest.tidy()
    origin = ", ".join(out.name for definition in group.definitions for out in outs_of(definition))
    if group.kind == "pointwise" and len(nest.phases) == 1:
        body = _pointwise(nest, scratch)
    else:
        body = _rows(nest, scratch, width)
    if scratch and machine.scratch_bytes is not None:
        needed = scratch_bytes(scratch)
        if needed is None or needed > machine.scratch_bytes:
            # What does not fit lies in memory as other buffers do.
            return _schedule_nest(replace(group, private=frozenset()), name, machine, hints)
    body = split_choices(body, nest.machine)
    return make_kernel(name, spread(body) if machine.tile_side else body, scratch, origin)


# --- pointwise --------------------------------------------------------------------------------------------------------


def _pointwise(nest: Nest, scratch: list[Buffer]) -> list[Stmt]:
    """The loops of one phase. `scratch` receives what they need."""
    phase = nest.phases[0]
    axes = phase.inner
    if not axes:
        return emit_phase(phase, None)
    vector = _best(axes, [phase], nest)
    rest = [axis for axis in axes if axis is not vector]
    if not rest:
        return [Loop(vector, "parallel-vector", tuple(_innermost(phase)))]
    strided = _contiguous_elsewhere(phase, vector, rest)
    if strided is not None:
        others = [axis for axis in rest if axis is not strided]
        tiled = through_tiles(nest, phase, vector, strided, others)
        if tiled is not None:
            scratch += tiled[1]
            return tiled[0]
    block = _block(phase, nest.machine)
    if strided is None or (vector.extent.as_int() or block) < block:
        return wrap_parallel(
            rest, [Loop(vector, "vector", tuple(_innermost(phase)))], nest.machine, nest.hints
        )
    return _blocked(nest, phase, vector, strided, [axis for axis in rest if axis is not strided], block)


def _innermost(phase: Phase) -> list[Stmt]:
    """The body of a phase without its loops."""
    return emit_phase(Phase([], phase.items), None)


def _block(phase: Phase, machine: Machine) -> int:
    """Lanes that fill a vector of the narrowest type stored."""
    return max(machine.lanes(item.buffer.dtype) for item in phase.items)


def _contiguous_elsewhere(phase: Phase, vector: Axis, rest: Sequence[Axis]) -> Axis | None:
    """The axis along which loads are contiguous that stride far along the vector axis."""
    votes: dict[str, int] = {}
    for index in _places(phase.items):
        if index.is_const or stride_of(index, vector.name) in (0, 1):
            continue
        for axis in rest:
            if stride_of(index, axis.name) == 1:
                votes[axis.name] = votes.get(axis.name, 0) + 1
    found = [axis for axis in rest if axis.name in votes and (axis.extent.as_int() or 2) > 1]
    return max(found, key=lambda axis: votes[axis.name]) if found else None


def _blocked(
    nest: Nest, phase: Phase, vector: Axis, strided: Axis, rest: list[Axis], block: int
) -> list[Stmt]:
    """before: rest: strided: vector v     after: parallel (rest, blocks of v): strided: vector v in the block

    Stores fill whole lines of memory, and the lines that loads touch stay in the cache until they are used up.
    """
    size = vector.extent
    blocks = Axis(f"{vector.name}b", (size + (block - 1)) // block)
    lane = Axis(f"{vector.name}v", as_index(block))
    start = Index.var(blocks.name) * block
    known = size.as_int()
    limit = None if known is not None and known % block == 0 else size - start
    phase.inner = [*rest, strided, blocks, lane]
    extents = nest.extents()
    for item in phase.items:
        item.substitute({vector.name: start + Index.var(lane.name)}, extents)

    original = strided
    pieces, strided = _share(original, [*rest, blocks], nest.machine)
    if pieces is not None:
        whole = Index.var(pieces.name) * strided.extent + Index.var(strided.name)
        phase.inner = [*rest, blocks, pieces, strided, lane]
        extents = nest.extents()
        for item in phase.items:
            item.substitute({original.name: whole}, extents)
        rest = [pieces, *rest]
    inner = Loop(lane, "vector", tuple(_innermost(phase)), limit)
    return wrap_parallel([*rest, blocks], [Loop(strided, "serial", (inner,))], nest.machine, nest.hints)


def _share(axis: Axis, rows: Sequence[Axis], machine: Machine) -> tuple[Axis | None, Axis]:
    """A serial axis cut in two, (pieces, the rest), where the rows alone are too few for the threads."""
    count, size, enough = 1, axis.extent.as_int(), machine.few_items
    for row in rows:
        count *= row.extent.as_int() or enough
    if size is None or count >= enough:
        return None, axis
    wanted = -(-enough // count)
    pieces = next(
        (n for n in range(wanted, 4 * wanted) if size % n == 0 and size // n >= machine.long_axis), None
    )
    if pieces is None:
        return None, axis
    return Axis(f"{axis.name}h", as_index(pieces)), Axis(f"{axis.name}l", as_index(size // pieces))


# --- rows -------------------------------------------------------------------------------------------------------------


def _rows(nest: Nest, scratch: list[Buffer], width: int | None = None) -> list[Stmt]:
    for phase in nest.phases:
        _single_position_axis(nest, phase)
    by_row = _best(nest.rows, nest.phases, nest) if nest.rows else None
    along_rows = 0.0 if by_row is None else _score(by_row, nest.phases, nest, inside=True)
    across = sum(
        max((_score(axis, [phase], nest, inside=True) for axis in phase.inner), default=0.0)
        for phase in nest.phases
        if phase.inner
    )
    only_row_values = all(not phase.inner for phase in nest.phases)
    blocks = (
        column_blocks(nest, by_row, width)
        if by_row is not None and along_rows > across and not scratch
        else None
    )
    if blocks is not None:
        scratch += blocks[1]
        return blocks[0]
    if by_row is not None and (only_row_values or (along_rows > across and not _are_few(nest))):
        return _columns(nest, scratch, by_row)

    body: list[Stmt] = []
    for phase in nest.phases:
        body.extend(emit_phase(phase, _best(phase.inner, [phase], nest) if phase.inner else None))
    return wrap_parallel(nest.rows, body, nest.machine, nest.hints)


def _are_few(nest: Nest) -> bool:
    """Whether long columns are too few for a thread of a GPU each: a group of threads for each is faster, though what
    they read lies apart."""
    if not nest.machine.tile_side:
        return False
    columns = _likely_product(nest.rows, nest)
    longest = max(_likely_product(phase.inner, nest) for phase in nest.phases)
    return columns < nest.machine.few_items * WARP and longest >= LONG_COLUMN


def _likely_product(axes: Sequence[Axis], nest: Nest) -> int:
    size = 1
    for axis in axes:
        size *= likely(axis.extent, nest.hints) or LONG_COLUMN
    return size


def _columns(nest: Nest, scratch: list[Buffer], vector: Axis) -> list[Stmt]:
    """Rows that lie side by side in memory: a vector of rows at once, each phase a serial loop.

    With scratch, a block of rows at once, so that it stays in the cache from one phase to the next:

    before: rows v, phases       after: parallel blocks of v: vector v in the block: phases
    """
    if not scratch:
        rest = [axis for axis in nest.rows if axis is not vector]
        return _rows_at_once(nest, vector, rest, None)
    lanes = min(nest.machine.lanes(buffer.dtype) for buffer in scratch)
    block = lanes * VECTORS
    known = vector.extent.as_int()
    limit, rest = None, [axis for axis in nest.rows if axis is not vector]
    if known is None or known > block:
        blocks = Axis(f"{vector.name}b", (vector.extent + (block - 1)) // block)
        lane = Axis(f"{vector.name}v", as_index(block))
        start = Index.var(blocks.name) * block
        limit = None if known is not None and known % block == 0 else vector.extent - start
        nest.rows = [*rest, blocks, lane]
        extents = nest.extents()
        for phase in nest.phases:
            for item in phase.items:
                item.substitute({vector.name: start + Index.var(lane.name)}, extents)
        vector, rest = lane, [*rest, blocks]
    _widen_scratch(nest, scratch, vector)
    return _rows_at_once(nest, vector, rest, limit)


def _rows_at_once(nest: Nest, vector: Axis, rest: Sequence[Axis], limit: Index | None) -> list[Stmt]:
    body = tuple(stmt for phase in nest.phases for stmt in emit_phase(phase, None))
    if not rest:
        return [Loop(vector, "parallel-vector", body)]
    return wrap_parallel(rest, [Loop(vector, "vector", body, limit)], nest.machine, nest.hints)


def _widen_scratch(nest: Nest, scratch: list[Buffer], vector: Axis) -> None:
    """Scratch of one row becomes scratch of all rows along `vector`, side by side."""
    names = {buffer.name for buffer in scratch}
    for position, buffer in enumerate(scratch):
        scratch[position] = Buffer(buffer.name, buffer.dtype, (buffer.shape[0] * vector.extent,), (ONE,))
    wide = {buffer.name: buffer for buffer in scratch}

    def widen(load: Load) -> Load:
        if load.buffer.name not in names:
            return load
        place = load.index[0] * vector.extent + Index.var(vector.name)
        return Load(wide[load.buffer.name], (place,), load.mask, load.other)

    for phase in nest.phases:
        for item in phase.items:
            item.value = rewrite(item.value, {Load: widen})
            if item.target is not None:
                item.target = rewrite(item.target, {Load: widen})


def _single_position_axis(nest: Nest, phase: Phase) -> None:
    """argmax and argmin run over one axis: several are collapsed, in row-major order."""
    if len(phase.inner) < 2 or all(item.position is None for item in phase.items):
        return
    collapsed, mapping = collapse(phase.inner, f"{phase.inner[-1].name}c")
    phase.inner = [collapsed]
    extents = nest.extents()
    for item in phase.items:
        item.substitute(mapping, extents)


# --- choosing ---------------------------------------------------------------------------------------------------------


def _best(axes: Sequence[Axis], phases: Sequence[Phase], nest: Nest) -> Axis:
    """The best vector axis; of equals the innermost."""
    if len(axes) == 1:
        return axes[0]
    return max(reversed(axes), key=lambda axis: _score(axis, phases, nest))


def _score(axis: Axis, phases: Sequence[Phase], nest: Nest, *, inside: bool = False) -> float:
    """What a vector along an axis gains: contiguous accesses count, stores more; short axes count less. `inside`: where
    rows are long only those that move along them, as the others are done once a row."""
    extent = likely(axis.extent, nest.hints)
    length = 1.0 if extent is None else min(1.0, extent / nest.machine.long_axis)
    total = 0.0
    of_long_rows = inside and any(_is_long(phase.inner, nest) for phase in phases)
    for phase in phases:
        loops = {inner.name for inner in phase.inner} if of_long_rows else None
        for item in phase.items:
            total += sum(_gain(index, axis.name) for index in _places([item]) if _moves(index, loops))
            if item.target is not None:
                stores = [index for index in indices(item.target) if _moves(index, loops)]
                total += 0.5 * sum(_gain(index, axis.name) for index in stores)
    return total * length


def _is_long(axes: Sequence[Axis], nest: Nest) -> bool:
    size = 1
    for axis in axes:
        size *= likely(axis.extent, nest.hints) or nest.machine.long_axis
    return size >= nest.machine.long_axis


def _moves(index: Index, loops: Set[str] | None) -> bool:
    """Whether an index depends on one of the loops; None: on whatever."""
    return loops is None or not loops.isdisjoint(index.variables())


def _places(items: Iterable[Item]) -> list[Index]:
    """Where memory is read and written, each place once. Indices that are values of their own touch no memory, and
    those that are taken from data are few beside what they choose."""
    nodes = walk_once(*(expr for item in items for expr in item.exprs()), data=False)
    places = {(node.buffer.name, node.index): node for node in nodes if isinstance(node, Load)}
    return [index for load in places.values() for index in load.index]


def _gain(index: Index, name: str) -> float:
    stride = stride_of(index, name)
    if stride == 0:
        return 0.0 if index.is_const else 0.5
    return 1.0 if stride == 1 else 0.0
