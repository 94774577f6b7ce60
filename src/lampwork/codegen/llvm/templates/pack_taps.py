"""Rearranging the weight of a convolution into panels where its taps are what runs along memory.

    before:  w[n, channel, tap], or w[channel, n, tap], the taps in either order
    after:   panel[tap * channels + channel, n]

Columns are read for all taps of a channel, and square blocks transposed in registers: taps that a block lacks are read
as zeros, and not stored.
"""

from __future__ import annotations

from collections.abc import Mapping

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    branch,
    count,
    evaluate,
    least,
    less,
    mul,
    place,
    sub,
    value_of,
)
from lampwork.codegen.llvm.templates.microkernel import Tile, store_vector
from lampwork.codegen.llvm.templates.transpose import load_first, transpose
from lampwork.loops.ir.index import FloorDiv, Index, Mod, simplify
from lampwork.loops.ir.nodes import PackB
from lampwork.records import record

_TAP, _CHANNEL = Index.var("tap"), Index.var("channel")


@record
class Taps:
    """B's offset over batch, n, "tap" and "channel", of so many each; `step`: 1 or -1, from a tap to the next."""

    offset: Index
    taps: int
    channels: Index
    step: int


def taps_of(pack: PackB, offset: Index) -> Taps | None:
    """How the taps lie, if they run along memory; None if they do not, or there is one."""
    divisors = {
        atom.b
        for atom in offset.atoms()
        if isinstance(atom, FloorDiv | Mod) and atom.a == Index.var(pack.k.name)
    }
    channels = next(iter(divisors)) if len(divisors) == 1 else None
    taps = None if channels is None else (pack.k.extent // channels).as_int()
    if channels is None or taps is None or pack.k.extent != channels * taps:
        return None
    if pack.out.steps != 1 or pack.b.mask is not None:
        return None
    extents = {axis.name: axis.extent for axis in (*pack.batch, pack.n)}
    extents |= {"tap": Index.const(taps), "channel": channels}
    found = simplify(offset.substitute({pack.k.name: _TAP * channels + _CHANNEL}), extents)
    step = found.coefficient("tap")
    number = None if step is None else step.as_int()
    others = ("channel", pack.n.name, *(axis.name for axis in pack.batch))
    if number not in (1, -1) or any(found.coefficient(name) is None for name in others):
        return None
    return Taps(found, taps, channels, number)


def pack_taps(
    b: Builder, tile: Tile, pack: PackB, taps: Taps, base: str, out: str, n0: Int, env: Mapping[str, Int]
) -> None:
    """A whole panel of the columns from n0 on."""
    lanes, size, channels = tile.lanes, evaluate(b, pack.n.extent, env), evaluate(b, taps.channels, env)
    with count(b, 0, tile.width, lanes) as column:
        start = add(b, n0, column)
        to = place(b, out, column, tile.dtype)
        full = less(b, add(b, start, lanes - 1), size)

        def copy(cut: bool, start: Int = start, to: str = to) -> None:
            left = sub(b, size, start) if cut else lanes
            with count(b, 0, channels) as channel:
                inside = {**env, "channel": channel}
                at = place(b, to, mul(b, channel, tile.width), tile.dtype)
                _blocks(b, tile, taps, base, at, pack.n.name, start, left, channels, inside)

        branch(b, full, lambda copy=copy: copy(cut=False), lambda copy=copy: copy(cut=True))


def _blocks(
    b: Builder,
    tile: Tile,
    taps: Taps,
    base: str,
    to: str,
    n: str,
    start: Int,
    left: Int,
    channels: Int,
    env: Mapping[str, Int],
) -> None:
    """All taps of a channel, for the vector of columns from `start` on, of which `left` are before the end."""
    lanes = tile.lanes
    for first in range(0, taps.taps, lanes):
        here = min(lanes, taps.taps - first)
        lowest = first if taps.step == 1 else first + here - 1
        columns: list[Value] = []
        for lane in range(lanes):
            # Past the end the last column is read once more.
            column = add(b, start, lane if left == lanes else least(b, lane, sub(b, left, 1)))
            at = evaluate(b, taps.offset, {**env, "tap": lowest, n: column})
            columns.append(load_first(b, tile, place(b, base, at, tile.source), here))
        rows = transpose(b, columns)[:here]
        for number, row in enumerate(rows if taps.step == 1 else reversed(rows)):
            if left != lanes:
                row = b.select(b.first_lanes(value_of(b, left), lanes), row, b.const(0, row.dtype))
            store_vector(b, row, place(b, to, mul(b, channels, (first + number) * tile.width), tile.dtype))
