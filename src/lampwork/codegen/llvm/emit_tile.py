"""Tiles: a serial loop over a vector loop whose memory is contiguous along the serial axis.

    before: serial i < 256: vector v < 16: y[256*i + v] = x[i + 256*v]         a gather for each i
    after:  serial i in steps of 16: 16 loads of x[i ... i + 15 + 256*v], a transposition in registers, 16 bodies

    before: serial i < 2: vector v < 16: y[2*v + i] = (a[v] if i < 1 else b[v])      a scatter for each i
    after:  two bodies, whose values are interleaved and stored as two vectors

A block that is not whole (`limit`), and the turns that are left over, are written as other loops are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lampwork.codegen.llvm.analysis import cost, expressions, lanes_for
from lampwork.codegen.llvm.builder import Value
from lampwork.codegen.llvm.env import Env
from lampwork.codegen.llvm.shuffles import interleaved, transposed
from lampwork.loops.ir.bounds import offset_in
from lampwork.loops.ir.index import ONE, Index
from lampwork.loops.ir.nodes import Buffer, Expr, Let, Load, Local, Loop, Stmt, Store
from lampwork.loops.ir.traverse import rewrite, walk_once
from lampwork.records import record

if TYPE_CHECKING:
    from lampwork.codegen.llvm.emit_kernel import KernelWriter

MOST_LANES = 16
MOST_TILES = 2  # loads that are transposed: a tile of 16 lanes fills half of the registers
MOST_WORK = 24  # operations of a body, which is written once for each lane
MOST_PARTS = 4  # vectors that are interleaved


@record
class Tile:
    """loads: those that are transposed, the body reading `{name}` for each. parts: the turns of the serial loop whose
    stores are interleaved; 0 where it is the loads that are rearranged."""

    inner: Loop
    lanes: int
    loads: dict[Load, str]
    parts: int = 0


def find_tile(writer: KernelWriter, loop: Loop, env: Env) -> Tile | None:
    """The tile of a serial loop, if it is one. `env`: outside of it."""
    if loop.kind != "serial" or loop.limit is not None or env.vector is not None or len(loop.body) != 1:
        return None
    inner = loop.body[0]
    if not isinstance(inner, Loop) or inner.kind != "vector":
        return None
    if not all(isinstance(stmt, Let | Store) for stmt in inner.body):
        return None
    lanes = lanes_for(writer.target, inner.axis.name, inner.body)
    turns = loop.axis.extent.as_int()
    whole = inner.axis.extent.as_int() == lanes and 4 <= lanes <= MOST_LANES
    if not whole or turns == 0 or cost(list(expressions(inner.body))) > MOST_WORK:
        return None
    stores = [stmt for stmt in inner.body if isinstance(stmt, Store)]
    if turns is not None and 2 <= turns <= MOST_PARTS and _interleaves(writer, stores, loop, inner, env):
        return Tile(inner, lanes, {}, turns)
    if turns is not None and turns < lanes:
        return None
    loads = _transposed_loads(writer, loop, inner, env)
    rows = all(_strides(store.buffer, store.index, loop, inner)[1] == ONE for store in stores)
    return Tile(inner, lanes, loads) if rows and 0 < len(loads) <= MOST_TILES else None


def _interleaves(writer: KernelWriter, stores: Sequence[Store], loop: Loop, inner: Loop, env: Env) -> bool:
    """Whether the one store of the body puts the turns of the serial loop side by side, vectors after one another."""
    if len(stores) != 1:
        return False
    buffer, index = stores[0].buffer, stores[0].index
    along, across = _strides(buffer, index, loop, inner)
    inside = _inside(loop, inner, env)
    side_by_side = along == ONE and across is not None and across == loop.axis.extent
    return side_by_side and writer.emitter.is_proven(Load(buffer, index), inside)


def _strides(
    buffer: Buffer, index: tuple[Index, ...], loop: Loop, inner: Loop
) -> tuple[Index | None, Index | None]:
    """Of a place: along the serial and along the vector axis; None where they vary."""
    offset = offset_in(buffer, index)
    found = [offset.coefficient(axis.name) for axis in (loop.axis, inner.axis)]
    along, across = (None if each is None or each.variables() else each for each in found)
    return along, across


def _transposed_loads(writer: KernelWriter, loop: Loop, inner: Loop, env: Env) -> dict[Load, str]:
    """The loads that are contiguous along the serial axis and not along the vectors, a name for each."""
    inside = _inside(loop, inner, env)
    found: dict[Load, str] = {}
    for part in walk_once(*expressions(inner.body), data=False):
        if not isinstance(part, Load) or part in found or part.mask is not None:
            continue
        along, across = _strides(part.buffer, part.index, loop, inner)
        moves = across is not None and bool(across.terms) and across != ONE
        offset = offset_in(part.buffer, part.index)
        if along != ONE or not moves or offset.indirects() or part.buffer.name in writer.emitter.written:
            continue
        if writer.emitter.is_proven(part, inside):
            found[part] = f"tile{len(found)} {inner.axis.name}"
    return found


def _inside(loop: Loop, inner: Loop, env: Env) -> Env:
    limits = () if inner.limit is None else (inner.limit - 1 - Index.var(inner.axis.name),)
    return env.in_loop(loop.axis).in_loop(inner.axis, *limits)


def write_tile(writer: KernelWriter, tile: Tile, loop: Loop, env: Env) -> None:
    """The serial loop; blocks that are not whole as they stand."""
    b, inner = writer.b, tile.inner
    if inner.limit is None:
        _write_whole(writer, tile, loop, env)
        return
    limit = writer.emitter.emit_index(inner.limit, env)
    if limit.const:
        (_write_whole if int(limit.text) >= tile.lanes else _write_plain)(writer, tile, loop, env)
        return
    whole, part, done = (b.new_label(hint) for hint in ("whole", "part", "done"))
    b.branch_if(b.cmp("ge", limit, tile.lanes), whole, part)
    for label, write in ((whole, _write_whole), (part, _write_plain)):
        b.start(label)
        with b.scope():
            write(writer, tile, loop, env)
        b.branch(done)
    b.start(done)


def _write_plain(writer: KernelWriter, tile: Tile, loop: Loop, env: Env) -> None:
    writer.plain_loop(loop, env)


def _write_whole(writer: KernelWriter, tile: Tile, loop: Loop, env: Env) -> None:
    b, inner, lanes = writer.b, tile.inner, tile.lanes
    env = _inside(loop, inner, env)
    zero = b.const(0, "i64")
    vector = writer.vectorized(env, inner.axis.name, lanes, lanes).with_index(inner.axis.name, zero)
    if tile.parts:
        _write_interleaved(writer, tile, loop, vector)
        return
    body = tuple(_with_names(stmt, tile) for stmt in inner.body)
    extent = writer.emitter.emit_index(loop.axis.extent, env)
    count = int(extent.text) // lanes * lanes if extent.const else None
    end = b.mul(b.div(extent, lanes), lanes) if count is None else b.const(count, "i64")
    with b.loop(zero, end, lanes, runs=count is not None) as turns:
        columns = {
            name: _columns(writer, load, tile, loop, env, turns.index) for load, name in tile.loads.items()
        }
        for turn in range(lanes):
            here = vector.with_index(loop.axis.name, b.add(turns.index, turn))
            for name, values in columns.items():
                here = here.with_local(name, values[turn])
            with b.scope():
                writer.statements(body, here)
    if count is None or count < int(extent.text):

        def turn_left(at: Env, carried: list[Value]) -> list[Value]:
            writer.statements(inner.body, at)
            return carried

        writer.loop_over(loop.axis.name, end, extent, 1, vector, turn_left, [], lambda values: values)


def _with_names(stmt: Stmt, tile: Tile) -> Stmt:
    def named(load: Load) -> Expr:
        name = tile.loads.get(load)
        return load if name is None else Local(name, load.dtype)

    return rewrite(stmt, {Load: named})


def _columns(writer: KernelWriter, load: Load, tile: Tile, loop: Loop, env: Env, first: Value) -> list[Value]:
    """The values of a load for as many turns as there are lanes, from turn `first` on."""
    b, axis = writer.b, tile.inner.axis.name
    offset = offset_in(load.buffer, load.index)
    here = env.with_index(loop.axis.name, first)
    rows: list[Value] = []
    for lane in range(tile.lanes):
        place = writer.emitter.emit_index(offset.substitute({axis: Index.const(lane)}), here)
        rows.append(writer.emitter.emit_row(load.buffer, place, tile.lanes, here))
    columns = transposed(b, rows)
    return [b.cmp("ne", column, 0) for column in columns] if load.dtype == "bool" else columns


def _write_interleaved(writer: KernelWriter, tile: Tile, loop: Loop, vector: Env) -> None:
    b = writer.b
    store = next(stmt for stmt in tile.inner.body if isinstance(stmt, Store))
    values: list[Value] = []
    for turn in range(tile.parts):
        here = vector.with_index(loop.axis.name, b.const(turn, "i64"))
        for stmt in tile.inner.body:
            if isinstance(stmt, Let):
                here = here.with_local(stmt.name, writer.emitter.emit_expr(stmt.value, here))
        values.append(writer.emitter.as_stored(store.buffer, writer.emitter.emit_wide(store.value, here)))
    offset = offset_in(store.buffer, store.index)
    first = offset.substitute({tile.inner.axis.name: Index.const(0), loop.axis.name: Index.const(0)})
    place = writer.emitter.emit_index(first, replace(vector, vector=None))
    for part, value in enumerate(interleaved(b, values)):
        writer.emitter.store_row(store.buffer, b.add(place, part * tile.lanes), value, vector)
