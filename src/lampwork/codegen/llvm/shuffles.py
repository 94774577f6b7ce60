"""Vectors rearranged in registers: transposed, and interleaved."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.types import itemsize

_CHUNK = 16  # bytes that shuffles rearrange at no cost of their own


def shuffle(b: Builder, left: Value, right: Value, order: Sequence[int]) -> Value:
    """The lanes `order` of left and right, counted on; as many as both have."""
    lanes = ", ".join(f"i32 {lane}" for lane in order)
    return b.emit(
        f"shufflevector {left.type} {left.text}, {right.type} {right.text}, <{len(order)} x i32> <{lanes}>",
        left.dtype,
        len(order),
    )


def by_register(b: Builder, rule: Callable[..., Value | None], *values: Value) -> Value | None:
    """rule(b, *values) of equally long vectors: of those longer than a register, for the lanes of each register."""
    lanes, width = values[0].lanes, b.target.lanes(values[0].dtype)
    if lanes <= width:
        return rule(b, *values)
    parts: list[Value] = []
    for start in range(0, lanes, width):
        taken = range(start, start + width)
        part = rule(b, *(shuffle(b, value, value, taken) for value in values))
        if part is None:
            return None
        parts.append(part)
    while len(parts) > 1:
        whole = range(2 * parts[0].lanes)
        parts = [shuffle(b, left, right, whole) for left, right in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def transposed(b: Builder, rows: Sequence[Value]) -> list[Value]:
    """As many vectors as they have lanes, a power of two: lane r of vector c of the result is lane c of row r.

    Neighbours first, within 16 bytes, then blocks of 16 bytes: each step is one instruction on x86.
    """
    found, size = list(rows), len(rows)
    step = 1
    if itemsize(rows[0].dtype) == 4 and size >= 4:
        for start in range(0, size, 4):
            found[start : start + 4] = _four(b, found[start : start + 4])
        step = 4
    while step < size:
        for row in range(size):
            if row & step == 0:
                found[row], found[row + step] = _exchanged(b, found[row], found[row + step], step)
        step *= 2
    return found


def _four(b: Builder, rows: Sequence[Value]) -> list[Value]:
    """Each 4 x 4 block of four rows transposed where it is."""
    w, x, y, z = rows
    size = w.lanes
    low = [lane + part for chunk in range(0, size, 4) for lane in (chunk, chunk + 1) for part in (0, size)]
    high = [lane + 2 for lane in low]
    wx, yz = shuffle(b, w, x, low), shuffle(b, y, z, low)
    wx_high, yz_high = shuffle(b, w, x, high), shuffle(b, y, z, high)
    first = [chunk + lane for chunk in range(0, size, 4) for lane in (0, 1, size, size + 1)]
    second = [lane + 2 for lane in first]
    return [
        shuffle(b, wx, yz, first),
        shuffle(b, wx, yz, second),
        shuffle(b, wx_high, yz_high, first),
        shuffle(b, wx_high, yz_high, second),
    ]


def _exchanged(b: Builder, above: Value, below: Value, step: int) -> tuple[Value, Value]:
    """The blocks of `step` lanes at odd places of the one changed for those at even places of the other."""
    size = above.lanes
    upper = [lane if lane & step == 0 else size + lane - step for lane in range(size)]
    lower = [lane + step if lane & step == 0 else size + lane for lane in range(size)]
    return shuffle(b, above, below, upper), shuffle(b, above, below, lower)


def interleaved(b: Builder, values: Sequence[Value]) -> list[Value]:
    """As many vectors: the first lanes of all, then the second lanes of all, and so on."""
    count, size = len(values), values[0].lanes
    found: list[Value] = []
    for part in range(count):
        owners = [divmod(part * size + lane, count) for lane in range(size)]
        vector = values[0]
        for number, other in enumerate(values[1:], 1):
            order = [
                size + lane if owner == number else lane if number == 1 else place
                for place, (lane, owner) in enumerate(owners)
            ]
            vector = shuffle(b, vector, other, order)
        found.append(vector)
    return found


def sums_across(b: Builder, vectors: Sequence[Value]) -> list[Value]:
    """The sum of the lanes of each vector, which has a power of two of them.

    Two vectors become one, half of whose lanes belong to each, for one shuffle, one blend and one addition:
    a reduction for each costs a shuffle and an addition for every halving.

        a = a0 a1 | a2 a3, b = b0 b1 | b2 b3    ->    a0 + a2, a1 + a3 | b0 + b2, b1 + b3
    """
    lanes = vectors[0].lanes
    if lanes == 1:
        return list(vectors)
    # By vector: what it holds sums of, block by block; each block is summed in the end.
    held = [(vector, [number]) for number, vector in enumerate(vectors)]
    block = lanes
    while block > 1:
        half = block // 2
        kept = [lane if lane % block < half else lanes + lane for lane in range(lanes)]
        turned = [lane + half if lane % block < half else lanes + lane - half for lane in range(lanes)]
        following: list[tuple[Value, list[int]]] = []
        for first in range(0, len(held), 2):
            left, owners = held[first]
            right, others = held[first + 1] if first + 1 < len(held) else held[first]
            total = b.add(shuffle(b, left, right, kept), shuffle(b, left, right, turned))
            following.append((total, [each for pair in zip(owners, others, strict=True) for each in pair]))
        held, block = following, half
    sums: dict[int, Value] = {}
    for vector, owners in held:
        for lane, owner in enumerate(owners):
            if owner not in sums:
                sums[owner] = b.emit(f"extractelement {b.typed(vector)}, i64 {lane}", vector.dtype, 1)
    return [sums[number] for number in range(len(vectors))]
