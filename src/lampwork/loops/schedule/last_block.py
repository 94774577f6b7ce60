"""What puts the results of pieces together, as the end of the kernel that makes them: the last block does it.

before: parallel c < 1024: reduce vector l < 16384: s = sum of x[16384*c + l]; p[c] = s
        reduce vector c < 1024: s = sum of p[c]; y[0] = s
after:  parallel c < 1024: reduce vector l < 16384: s = sum of x[16384*c + l]; p[c] = s
            when last of 1024:  reduce vector c < 1024: s = sum of p[c]; y[0] = s

A kernel that follows another one costs 2 to 3 us on a card, and so do few numbers that one block has to read; many are
left to a kernel of their own. Results of several rows or of several blocks of columns have a counter each, so whoever
comes last to one of them finishes it while the others go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import TypeVar

from lampwork.loops.ir.expr import loads, move
from lampwork.loops.ir.grid import AT_A_TIME, WARP, names_of, parallel_loop, shared_loops
from lampwork.loops.ir.index import ONE, ZERO, Index, as_index, bounds, simplify
from lampwork.loops.ir.kernel import is_finished_by_last, make_kernel, statements, stmt_exprs
from lampwork.loops.ir.machine import Machine
from lampwork.loops.ir.nodes import (
    Axis,
    Buffer,
    Expr,
    Kernel,
    Let,
    Load,
    Local,
    Loop,
    ReduceLoop,
    Reducer,
    ScanLoop,
    Stmt,
    Store,
    WhenLast,
)
from lampwork.loops.ir.traverse import rewrite
from lampwork.loops.schedule.grid import on_grid

MOST_WAVES = 2
"""In which the blocks of a card run, at most: with the counting a block ends some 2 us late, and loads nothing
meanwhile. Many blocks, one after the other on each multiprocessor, lose more than a kernel costs."""
MOST_LOADS = 1 << 15
"""Numbers that a block reads to finish something: more take longer than a kernel of many blocks and its launch."""
BLOCK = 256  # threads of a block that goes through many rows
FEW_ROWS = 1024  # of which each can have a block of its own, however short it is
_UNIT, _PIECE = "unit", "piece"  # loop variables of the proof alone

_Named = TypeVar("_Named", Axis, Let, Local, Reducer, ScanLoop)
_InBuffer = TypeVar("_InBuffer", Load, Store)


def in_last_block(kernels: Sequence[Kernel], machine: Machine) -> list[Kernel]:
    """The kernels, those that only put together what the one before them made being its end, where that can be."""
    found: list[Kernel] = []
    for kernel in reversed(kernels):
        both = finished(kernel, found[0], machine) if found and machine.processors else None
        found[: 0 if both is None else 1] = [kernel if both is None else both]
    return found


def finished(first: Kernel, second: Kernel, machine: Machine) -> Kernel | None:
    """A kernel as the end of the one before it; None where there is too much to do, the two go on side by side, or the
    blocks are many."""
    outer = parallel_loop(first)
    count = None if outer is None or outer.kind != "parallel" else outer.axis.extent.as_int()
    if outer is None or count is None or count < 2 or is_finished_by_last(first):
        return None
    if first.sizes or second.sizes or not shared_loops(outer.body):
        return None
    if count > FEW_ROWS and on_grid(first).groups > 1:
        return None  # a block for each of them would be much work
    second = _apart(second)
    if _buffers(second.body, stored=True) & (
        _buffers(first.body, stored=True) | _buffers(first.body, stored=False)
    ):
        return None
    last = _of_units(first, second, outer.axis, count) or _of_all(second, count)
    if last is None or _reads(last.body) > MOST_LOADS:
        return None
    whole = replace(outer, body=(*outer.body, last))
    both = make_kernel(first.name, [whole], (*first.scratch, *second.scratch), _origins(first, second))
    grid = on_grid(both)
    at_a_time = machine.processors * max(AT_A_TIME // (grid.threads * grid.groups), 1)
    return both if count <= MOST_WAVES * at_a_time * grid.groups else None


def end_of_rows(rows: Kernel, end: Kernel, unread: Set[str], machine: Machine) -> Kernel | None:
    """What all rows together give, as the end of their kernel; None where the two do not fit. Each group of threads
    goes through several rows, and reduces what they give; then the groups of a block are reduced, and then the blocks.

    before: parallel i < 262144: l = loss of row i; loss[i] = l
            reduce vector i < 262144: s = sum of loss[i]; y[0] = s / 262144
    after:  parallel p < 32768:
                reduce serial t < 8: l = loss of row 32768*t + p; s = sum of l
                part[p] = s
                when last of 64 of a block: reduce vector c < 64: s = sum of part[64*(p//64) + c]; parts[p//64] = s
                    when last of 512: reduce vector c < 512: s = sum of parts[c]; y[0] = s / 262144

    Args:
        unread: the buffers that nothing else reads.
    """
    outer, whole = parallel_loop(rows), end.body[0]
    count = None if outer is None or outer.kind != "parallel" else outer.axis.extent.as_int()
    if outer is None or count is None or rows.scratch or rows.sizes or end.sizes or end.scratch:
        return None
    if not isinstance(whole, ReduceLoop) or whole.axis.extent.as_int() != count or whole.position is not None:
        return None
    if not shared_loops(outer.body) or not all(isinstance(each, Let | Store) for each in whole.body):
        return None
    found = _pieces(rows, count, machine)
    if found is None:
        return None
    pieces, near = found
    end = _apart(end)
    whole = end.body[0]
    assert isinstance(whole, ReduceLoop)
    turn = Axis(f"{outer.axis.name}t", as_index(count // pieces))
    piece = Axis(f"{outer.axis.name}q", as_index(pieces))
    row = Index.var(turn.name) * pieces + Index.var(piece.name)
    extents = {turn.name: turn.extent, piece.name: piece.extent}
    stored = {
        stmt.buffer.name: stmt.value
        for stmt in outer.body
        if isinstance(stmt, Store) and stmt.index == (Index.var(outer.axis.name),)
    }
    made, here = _buffers(outer.body, stored=True), (Index.var(whole.axis.name),)
    for load in loads(*whole.body, *(each.value for each in whole.reducers)):
        if load.buffer.name in made and (load.index != here or load.buffer.name not in stored):
            return None
    if _buffers(end.body[1:], stored=False) & made or _buffers(end.body, stored=True) & _buffers(
        outer.body, stored=False
    ):
        return None

    def of_row(load: Load) -> Expr:
        return stored.get(load.buffer.name, load)

    own = [
        move(stmt, {outer.axis.name: row}, extents)
        for stmt in outer.body
        if not (isinstance(stmt, Store) and stmt.buffer.name in unread)
    ]
    taken = [move(rewrite(stmt, {Load: of_row}), {whole.axis.name: row}, extents) for stmt in whole.body]
    reducers = [
        replace(each, value=move(rewrite(each.value, {Load: of_row}), {whole.axis.name: row}, extents))
        for each in whole.reducers
    ]
    names = [f"{rows.name}_part{number or ''}" for number in range(len(reducers))]
    places = Index.var(piece.name)
    parts = [_room(name, each, pieces) for name, each in zip(names, reducers, strict=True)]
    body: list[Stmt] = [ReduceLoop(turn, "serial", (*own, *taken), tuple(reducers))]
    body += _stores(parts, reducers, places)
    if near > 1:
        blocks = [_room(f"{each.name}s", each, pieces // near) for each in parts]
        block = places // near
        inside = [_reduced(reducers, parts, near, f"{piece.name}n", block * near)]
        inside += _stores(blocks, reducers, block)
        last = WhenLast(ZERO, 1, pieces // near, _final(end, whole, blocks, pieces // near))
        if pieces == near:
            last_body = tuple(inside[:1]) + end.body[1:]
            body.append(WhenLast(block, pieces // near, near, last_body, near=True))
        else:
            body.append(WhenLast(block, pieces // near, near, (*inside, last), near=True))
    else:
        body.append(WhenLast(ZERO, 1, pieces, _final(end, whole, parts, pieces)))
    loop = replace(outer, axis=piece, body=tuple(body))
    return make_kernel(rows.name, [loop], (), _origins(rows, end))


def _pieces(rows: Kernel, count: int, machine: Machine) -> tuple[int, int] | None:
    """How many groups of threads take the rows, and how many of these are a block: as many as a card has at a time, so
    that few results are left in the end."""
    threads = on_grid(rows).threads
    near = max(BLOCK // threads, 1) if threads <= WARP else 1
    most = max(machine.processors * AT_A_TIME // threads, 2)
    while near > 1 and count % near:
        near //= 2
    turns = next((n for n in range(1, count + 1) if count % (n * near) == 0 and count // n <= most), None)
    if turns is None or count // turns < 2 or (turns > 1 and count // turns < most // 4):
        return None
    return count // turns, near


def _room(name: str, like: Reducer | Buffer, size: int) -> Buffer:
    return Buffer(name, like.dtype, (as_index(size),), (ONE,))


def _stores(rooms: Sequence[Buffer], reducers: Sequence[Reducer], place: Index) -> list[Stmt]:
    return [
        Store(room, (place,), Local(each.name, each.dtype))
        for room, each in zip(rooms, reducers, strict=True)
    ]


def _reduced(
    reducers: Sequence[Reducer], rooms: Sequence[Buffer], size: int, name: str, start: Index = ZERO
) -> ReduceLoop:
    """Results of pieces, reduced as these were."""
    place = start + Index.var(name)
    values = [replace(each, value=Load(room, (place,))) for each, room in zip(reducers, rooms, strict=True)]
    return ReduceLoop(Axis(name, as_index(size)), "vector", (), tuple(values))


def _final(end: Kernel, whole: ReduceLoop, rooms: Sequence[Buffer], size: int) -> tuple[Stmt, ...]:
    return _reduced(whole.reducers, rooms, size, whole.axis.name), *end.body[1:]


def _origins(*kernels: Kernel) -> str:
    return ", ".join(dict.fromkeys(name for each in kernels for name in each.origin.split(", ") if name))


def _of_all(second: Kernel, count: int) -> WhenLast | None:
    """The whole kernel, when all iterations have come."""
    body, loop = second.body, parallel_loop(second)
    if loop is not None and loop.axis.extent == ONE:
        body = tuple(move(stmt, {loop.axis.name: ZERO}, {}) for stmt in loop.body)
    elif loop is not None:
        if loop.kind != "parallel-vector":
            return None
        body = (replace(loop, kind="vector"),)
    return WhenLast(ZERO, 1, count, body)


def _of_units(first: Kernel, second: Kernel, axis: Axis, count: int) -> WhenLast | None:
    """An iteration of the second kernel, when those of the first have come that make what it reads."""
    loop = parallel_loop(second)
    units = None if loop is None else loop.axis.extent.as_int()
    if loop is None or units is None or units < 2 or count % units:
        return None
    pieces, unit, piece = count // units, Index.var(_UNIT), Index.var(_PIECE)
    here = Index.var(axis.name)
    for place, number in ((unit * pieces + piece, here // pieces), (piece * units + unit, here % units)):
        extents = {_UNIT: as_index(units), _PIECE: as_index(pieces)}
        made = move(first.body[0], {axis.name: place}, extents)
        taken = move(loop, {loop.axis.name: unit}, extents)
        if _is_by_unit([*statements([made])], [*statements([taken])], units, extents):
            number = simplify(number, {axis.name: axis.extent})
            body = [move(stmt, {loop.axis.name: number}, {axis.name: axis.extent}) for stmt in loop.body]
            return WhenLast(number, units, pieces, tuple(body))
    return None


def _is_by_unit(
    made: Sequence[Stmt], taken: Sequence[Stmt], units: int, extents: Mapping[str, Index]
) -> bool:
    """Whether what the one statements load is what the others store for the same unit: each place is a multiple of
    step * units, and step * unit, and less than a step."""
    stored: dict[str, list[Index]] = {}
    for stmt in made:
        if isinstance(stmt, Store):
            stored.setdefault(stmt.buffer.name, []).append(stmt.index[0])
    read: dict[str, list[Index]] = {}
    for load in loads(*(expr for stmt in taken for expr in stmt_exprs(stmt))):
        if load.buffer.name in stored:
            read.setdefault(load.buffer.name, []).append(load.index[0])
    if not read:
        return False
    inside = {
        stmt.axis.name: stmt.axis.extent
        for stmt in (*made, *taken)
        if isinstance(stmt, Loop | ReduceLoop | ScanLoop)
    }
    inside |= extents
    for name, places in read.items():
        step = _step(stored[name][0])
        if step is None or not all(
            _step(place) == step and _rest_is_less(place, step, units, inside)
            for place in (*stored[name], *places)
        ):
            return False
    return True


def _step(place: Index) -> int | None:
    factor = place.coefficient(_UNIT)
    found = None if factor is None else factor.as_int()
    return found if found else None


def _rest_is_less(place: Index, step: int, units: int, extents: Mapping[str, Index]) -> bool:
    rest = place.without(_UNIT)
    if _UNIT in rest.variables() or rest.indirects():
        return False
    within = Index(tuple((atoms, scale) for atoms, scale in rest.terms if scale % (step * units)))
    interval = bounds(within, extents)
    if interval is None:
        return False
    low, high = interval[0].as_int(), interval[1].as_int()
    return low is not None and high is not None and low >= 0 and high < step


def _buffers(body: Sequence[Stmt], *, stored: bool) -> set[str]:
    """The names of the buffers that statements store to, or load from."""
    inside = list(statements(body))
    if stored:
        return {stmt.buffer.name for stmt in inside if isinstance(stmt, Store)}
    exprs = [
        expr
        for stmt in inside
        for expr in ([stmt.value] if isinstance(stmt, Let | Store) else stmt_exprs(stmt))
    ]
    return {load.buffer.name for load in loads(*exprs)}


def _reads(body: Sequence[Stmt]) -> int:
    """How many loads are made, what is unknown counting as too many."""
    total = 0
    for stmt in body:
        if isinstance(stmt, WhenLast):
            total += _reads(stmt.body)
            continue
        own = [stmt.value] if isinstance(stmt, Store) else stmt_exprs(stmt)
        each = len(loads(*own))
        if not isinstance(stmt, Loop | ReduceLoop | ScanLoop):
            total += each
            continue
        after = stmt.after if isinstance(stmt, ScanLoop) else ()
        extent = stmt.axis.extent.as_int()
        total += (each + _reads((*stmt.body, *after))) * (MOST_LOADS if extent is None else extent)
    return total


def _apart(kernel: Kernel) -> Kernel:
    """A kernel with names of its own for all that it binds, and for its scratch."""
    own = names_of(kernel.scratch)
    variables = {
        stmt.axis.name: Index.var(f"{stmt.axis.name}z")
        for stmt in statements(kernel.body)
        if isinstance(stmt, Loop | ReduceLoop | ScanLoop)
    }

    def of_scratch(node: _InBuffer) -> _InBuffer:
        buffer = node.buffer
        return replace(node, buffer=replace(buffer, name=f"{buffer.name}z")) if buffer.name in own else node

    def named(node: _Named) -> _Named:
        return replace(node, name=f"{node.name}z")

    change = {
        Index: lambda index: index.substitute(variables, inside_data=False),
        Axis: named,
        Let: named,
        Local: named,
        Reducer: named,
        ScanLoop: named,
        Load: of_scratch,
        Store: of_scratch,
    }
    return replace(
        kernel,
        body=tuple(rewrite(stmt, change) for stmt in kernel.body),
        scratch=tuple(replace(buffer, name=f"{buffer.name}z") for buffer in kernel.scratch),
    )
