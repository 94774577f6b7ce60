"""The operands of a product on tensor cores: how they lie in memory, on their way through shared memory, and in the
registers of a warp.

A tile of an operand lies in shared memory in lines as in global memory: along k where neighbours along k are neighbours
there, else along m (or n). Which 16 bytes of a line lie where changes from line to line, so that eight lines' chunks of
one number, which `ldmatrix` reads at once, lie in different banks:

    chunk c of line r is at  r * line + 16 * (c ^ turn(r))
"""

from __future__ import annotations

from collections.abc import Mapping

from lampwork.codegen.gpu.mma.instructions import copy_chunk, load_matrices, rounded, shared_pointer
from lampwork.codegen.gpu.mma.tiles import CHUNK, SMALL, STEP, Tile
from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    branch,
    div,
    evaluate,
    less,
    mod,
    mul,
    sub,
    value_of,
)
from lampwork.codegen.llvm.types import itemsize
from lampwork.loops.ir.bounds import offset_in
from lampwork.loops.ir.index import ONE, Index, simplify
from lampwork.loops.ir.nodes import Axis, Buffer, Gemm, Load
from lampwork.records import record
from lampwork.standard import functools

BANKS = 128  # bytes of all banks of shared memory


@record
class Operand:
    """A matrix of a batch: element (place, k) is at start + place * across + k of its buffer, or at
    start + place + k * across, where it is not `along_k`. size: how many places there are."""

    buffer: Buffer
    along_k: bool
    start: Index
    across: Index
    size: Index
    depth: Index

    @property
    def line(self) -> Index:
        """The elements of a line in memory."""
        return self.depth if self.along_k else self.size

    @property
    def multiples(self) -> list[Index]:
        """What has to be a multiple of the elements that are copied together."""
        return [self.start, self.across, self.line]

    @property
    def width(self) -> int:
        """Bytes that may be copied together, as far as it is known: 16, 8 or 4; 0: elements one by one."""
        size = itemsize(self.buffer.dtype)
        for width in (CHUNK, CHUNK // 2, CHUNK // 4):
            if all(is_multiple(index, width // size) is not False for index in self.multiples):
                return width
        return 0

    @property
    def neighbours(self) -> int:
        """Elements that may be copied together."""
        return max(1, self.width // itemsize(self.buffer.dtype))


def operands_of(gemm: Gemm) -> tuple[Operand, Operand] | None:
    """A and B; None if they do not lie in lines, or are masked."""
    batch = frozenset(axis.name for axis in gemm.batch)
    extents = {axis.name: axis.extent for axis in (*gemm.batch, gemm.m, gemm.n, gemm.k)}
    left = _operand(gemm.a, gemm.m, gemm.k, batch, extents)
    right = _operand(gemm.b, gemm.n, gemm.k, batch, extents)
    return None if left is None or right is None else (left, right)


def _operand(
    load: Load, places: Axis, k: Axis, batch: frozenset[str], extents: Mapping[str, Index]
) -> Operand | None:
    if load.mask is not None:
        return None
    offset = simplify(offset_in(load.buffer, load.index), extents)
    along, across = offset.coefficient(k.name), offset.coefficient(places.name)
    if along is None or across is None:
        return None
    start = offset.without(k.name).without(places.name)
    if start.variables() - batch or start.indirects() or along.variables() or across.variables():
        return None
    if along == ONE:
        return Operand(load.buffer, True, start, across, places.extent, k.extent)
    if across == ONE:
        return Operand(load.buffer, False, start, along, places.extent, k.extent)
    return None


def is_multiple(index: Index, number: int) -> bool | None:
    """Whether an index is a multiple of a number; None if that depends on what is not known yet."""
    if all(scale % number == 0 for _, scale in index.terms):
        return True
    return False if index.is_const else None


@record
class Room:
    """Where a tile of an operand lies in shared memory: `lines` of so many bytes. words: it is read word by word.
    panel: bytes of a line that lie there together, the same ones of all lines before the next ones; 0: all of them."""

    lines: int
    line: int
    words: bool
    panel: int = 0

    @staticmethod
    def of(operand: Operand, places: int, tile: Tile) -> Room:
        size = itemsize(operand.buffer.dtype)
        if operand.along_k:
            return Room(places, tile.k * size, False)
        return Room(tile.k, places * size, size == 4)

    @property
    def bytes(self) -> int:
        return self.lines * self.line

    @property
    def chunks(self) -> int:
        """Of a line."""
        return self.line // CHUNK

    @property
    def pitch(self) -> int:
        """Bytes from a line to the next."""
        return self.panel or self.line

    @property
    def period(self) -> int:
        """After so many lines the places of chunks are the same again."""
        return 4 if self.words else 8

    def turn(self, b: Builder, line: Value) -> Value:
        """What the numbers of chunks in a line are changed by."""
        if self.words:
            # A warp reads two chunks of each of four lines.
            return b.and_(b.shl(line, 1), min(6, self.chunks - 1))
        lines = max(1, BANKS // self.pitch)  # that fill all banks
        moved = line if lines == 1 else b.lshr(line, lines.bit_length() - 1)
        return b.and_(moved, min(8, self.chunks) - 1)

    def place(self, b: Builder, line: Value, chunk: Value) -> Value:
        """The offset of a chunk in a line."""
        start = b.mul(line, self.pitch)
        if self.panel:
            chunks = self.panel // CHUNK
            panel = b.lshr(chunk, chunks.bit_length() - 1)
            start = b.add(start, b.mul(panel, self.lines * self.panel))
            chunk = b.and_(chunk, chunks - 1)
        return b.add(start, b.shl(b.xor(chunk, self.turn(b, line)), 4))


# --- to shared memory -------------------------------------------------------------------------------------------------


class Copies:
    """Brings tile after tile of an operand to shared memory, in copies of `Operand.width` bytes that threads make.

    first: the tile's first place. `address`: what this thread copies first of the next tile, as an i64 that the loop
    over k carries.
    """

    def __init__(
        self,
        b: Builder,
        operand: Operand,
        room: Room,
        tile: Tile,
        thread: Value,
        base: str,
        first: Int,
        env: Mapping[str, Int],
    ) -> None:
        self.b, self.operand, self.room, self.tile = b, operand, room, tile
        self.width = operand.width
        units, parts = room.line // self.width, CHUNK // self.width  # copies of a line and of a chunk
        self.step = max(1, tile.threads // units)  # lines from one copy of a thread to the next
        self.turns = -(-room.lines // self.step)
        self.line = b.lshr(thread, units.bit_length() - 1)
        unit = b.and_(thread, units - 1)
        chunk = b.lshr(unit, parts.bit_length() - 1) if parts > 1 else unit
        rest = room.lines % self.step  # lines of the last turn, if fewer than others have
        self.takes_part = b.cmp("lt", self.line, rest) if rest else None
        self.to = [
            room.place(b, b.add(self.line, turn * self.step) if turn else self.line, chunk)
            for turn in range(1 if self.step % room.period == 0 else self.turns)
        ]
        if parts > 1:
            inside_chunk = b.mul(b.and_(unit, parts - 1), self.width)
            self.to = [b.add(place, inside_chunk) for place in self.to]
        line = b.convert("zext", self.line, "i64")
        inside = b.mul(b.convert("zext", unit, "i64"), operand.neighbours)
        across = evaluate(b, operand.across, env)
        size, depth = (evaluate(b, each, env) for each in (operand.size, operand.depth))
        start = evaluate(b, operand.start, env)
        self.ahead: Int  # elements from a tile to the next one
        self.wanted: list[Value | bool] = []  # by turns
        if operand.along_k:
            row = add(b, first, line)
            start = add(b, add(b, start, mul(b, row, across)), inside)
            self.ahead = tile.k
            whole = operand.size.as_int()
            if whole is not None and whole % room.lines == 0:
                self.wanted = [True] * self.turns
            else:
                self.wanted = [less(b, add(b, row, turn * self.step), size) for turn in range(self.turns)]
            self.left = sub(b, depth, inside)  # where k stands, it must be below this
        else:
            column = add(b, first, inside)
            start = add(b, add(b, start, mul(b, line, across)), column)
            self.ahead = mul(b, across, tile.k)
            self.wanted = [less(b, column, size)] * self.turns
            self.left = sub(b, depth, line)
        self.between = mul(
            b, across, self.step * itemsize(operand.buffer.dtype)
        )  # bytes from a turn to the next
        address = b.element(base, operand.buffer.dtype, value_of(b, start)).text
        self.address = b.emit(f"ptrtoint ptr {address} to i64", "i64", 1)

    def issue(self, address: Value, room: Value, k: Value) -> Value:
        """Start the copies of the tile at k (zeros past the end), to the room at an address; gives the `address` for
        the next one."""
        b = self.b
        inside: Value | bool = less(b, k, self.left)
        for turn in range(self.turns):
            if not self.operand.along_k and turn and (self.operand.depth % self.tile.k).as_int() != 0:
                inside = less(b, add(b, k, turn * self.step), self.left)
            wanted = self._all(inside, self.wanted[turn])
            to, offset = self.to[0], turn * self.step * self.room.pitch
            if len(self.to) > 1:
                to, offset = self.to[turn], 0
            source = b.add(address, value_of(b, mul(b, self.between, turn))) if turn else address
            pointer = b.emit(f"inttoptr i64 {source.text} to ptr addrspace(1)", "i64", 1).text
            place = shared_pointer(b, b.add(room, to), offset)
            copy = functools.partial(copy_chunk, b, place, pointer, wanted, self.width)
            takes_part = self.takes_part if turn == self.turns - 1 else None
            branch(b, True if takes_part is None else takes_part, copy)
        bytes_ahead = mul(b, self.ahead, itemsize(self.operand.buffer.dtype))
        return b.add(address, value_of(b, bytes_ahead))

    def _all(self, *conditions: Value | bool | None) -> Value | None:
        found: Value | None = None
        for each in conditions:
            if isinstance(each, Value):
                found = each if found is None else self.b.and_(found, each)
        return found


def copy_elements(
    b: Builder,
    operand: Operand,
    room: Room,
    tile: Tile,
    thread: Value,
    base: str,
    first: Int,
    k: Value,
    to: Value,
    env: Mapping[str, Int],
) -> None:
    """A tile to shared memory element by element: however it is aligned."""
    dtype, size = operand.buffer.dtype, itemsize(operand.buffer.dtype)
    type_ = f"i{8 * size}"
    across, start = evaluate(b, operand.across, env), evaluate(b, operand.start, env)
    elements = room.line // size
    begin = b.convert("zext", thread, "i64")
    with b.loop(begin, b.const(room.lines * elements, "i64"), tile.threads) as loop:
        line, column = div(b, loop.index, elements), mod(b, loop.index, elements)
        place, depth = (line, column) if operand.along_k else (column, line)
        place, depth = add(b, first, place), add(b, k, depth)
        offset = (
            add(b, mul(b, place, across), depth) if operand.along_k else add(b, place, mul(b, depth, across))
        )
        bounds = [(place, operand.size), (depth, operand.depth)]
        inside = b.and_(*(value_of_condition(b, less(b, at, evaluate(b, end, env))) for at, end in bounds))
        read, done, before = b.new_label("read"), b.new_label("after"), b.block
        b.branch_if(inside, read, done)
        b.start(read)
        with b.scope():
            address = b.element(base, dtype, value_of(b, add(b, start, offset))).text
            value = b.emit(f"load {type_}, ptr {address}, align {size}", "i32", 1, pure=False)
        b.branch(done)
        b.start(done)
        found = b.emit(f"phi {type_} [ {value.text}, %{read} ], [ 0, %{before} ]", "i32", 1, pure=False)
        line32, column32 = (b.convert("trunc", value_of(b, each), "i32") for each in (line, column))
        chunk, rest = b.lshr(column32, (CHUNK // size).bit_length() - 1), b.and_(column32, CHUNK // size - 1)
        place32 = b.add(room.place(b, line32, chunk), b.mul(rest, size))
        pointer = shared_pointer(b, b.add(to, place32))
        b.line(f"store {type_} {found.text}, ptr addrspace(3) {pointer}, align {size}")


def value_of_condition(b: Builder, condition: Value | bool) -> Value:
    return b.const(condition, "bool") if isinstance(condition, bool) else condition


# --- to registers -----------------------------------------------------------------------------------------------------


class Fragments:
    """What a lane of a warp holds of an operand for one step along k: for each 16 places four words.

    With k' = 32 bytes of k in two halves, the words are of A (place 0-7, first half), (8-15, first), (0-7, second),
    (8-15, second), and of B (0-7, first), (0-7, second), (8-15, first), (8-15, second), as `multiply` takes them.

    place: the warp's first one in the tile. slice: which of the slices the warp is of.
    """

    def __init__(
        self,
        b: Builder,
        operand: Operand,
        room: Room,
        tile: Tile,
        lane: Value,
        place: Value,
        slice_: Value,
        *,
        left: bool,
    ) -> None:
        self.b, self.operand, self.room, self.left = b, operand, room, left
        self.places = tile.warp_m if left else tile.warp_n
        self.slices = tile.slices
        self.rounds = operand.buffer.dtype == "f32"
        self.size = itemsize(operand.buffer.dtype)
        eighth, half = b.and_(lane, 7), b.and_(b.lshr(lane, 3), 1)
        high = b.lshr(lane, 4)
        # Of the four matrices, lanes 8-15 point to the second one, and lanes 16-23 to the third.
        second_place, second_half = (half, high) if left else (high, half)
        if operand.along_k:
            line = b.add(b.add(place, eighth), b.shl(second_place, 3))
            chunk = b.add(b.shl(slice_, 1), second_half)
            self.start = room.place(b, line, chunk)
        elif not room.words:
            line = b.add(b.add(b.mul(slice_, STEP // self.size), eighth), b.shl(second_half, 3))
            chunk = b.add(b.lshr(place, 3), second_place)
            self.start = room.place(b, line, chunk)
        else:
            row, column = b.lshr(lane, 2), b.and_(lane, 3)
            line = b.add(b.mul(slice_, STEP // self.size), column)
            chunk = b.add(b.lshr(place, 2), b.lshr(row, 2))
            self.start = b.add(room.place(b, line, chunk), b.shl(b.and_(row, 3), 2))

    def load(self, room: Value, step: int) -> list[list[Value]]:
        """Those of a step along k of this warp, from the room at an address: lists of four words."""
        b, found = self.b, []
        for part in range(self.places // SMALL):
            if self.operand.along_k:
                # 16 lines are whole periods: they change nothing in a line.
                place = b.xor(self.start, step * self.slices * STEP) if step else self.start
                pointer = shared_pointer(b, b.add(room, place), part * SMALL * self.room.line)
                words = load_matrices(b, pointer, transposed=False)
            elif not self.room.words:
                place = b.xor(self.start, part * SMALL * self.size) if part else self.start
                lines = step * self.slices * (STEP // self.size)
                words = load_matrices(
                    b, shared_pointer(b, b.add(room, place), lines * self.room.line), transposed=True
                )
            else:
                words = [self._word(room, step, part, matrix) for matrix in range(4)]
            found.append([rounded(b, word) for word in words] if self.rounds else words)
        return found

    def _word(self, room: Value, step: int, part: int, matrix: int) -> Value:
        b = self.b
        second_place, second_half = (matrix % 2, matrix // 2) if self.left else (matrix // 2, matrix % 2)
        distance = (part * SMALL + second_place * 8) * self.size
        place = b.xor(self.start, distance) if distance else self.start
        lines = step * self.slices * (STEP // self.size) + second_half * 4
        pointer = shared_pointer(b, b.add(room, place), lines * self.room.line)
        return b.emit(f"load i32, ptr addrspace(3) {pointer}, align 4", "i32", 1, pure=False)
