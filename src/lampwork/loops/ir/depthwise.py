"""How the A of a product with digits is read where each column has channels of its own: a depthwise convolution, or
one in groups of few channels.

    a(rows, taps, channel, n) =
        x[line(rows, taps) + step * (stride * r + dilation * t) + inputs * (n // outputs) + channel]

r is the last digit of m, a pixel in its line; t the last tap, along that line. Neighbouring columns read neighbouring
channels, so columns are what lies in the lanes of a vector, and a pixel that several taps read is loaded once.
"""

from __future__ import annotations

from math import gcd

from lampwork.loops.ir.bounds import offset_in
from lampwork.loops.ir.index import ZERO, FloorDiv, Index, simplify
from lampwork.loops.ir.nodes import Axis, Gemm
from lampwork.loops.ir.windows import Place, is_read_inside, places_of
from lampwork.records import record


@record
class Pixels:
    """Along a line: neighbouring positions lie `step` elements apart; a pixel of the result starts at position
    `stride * r`, and its tap t reads `dilation * t` further on."""

    step: int
    stride: int
    dilation: int


@record
class Depthwise:
    """line: the flat offset of A over the digits of m but the last and those of k but the last two, at the line's first
    position and channel 0.

    lines: the conditions on lines. across: that on positions, over the last digit of m, with tap 0; each position
    further on is `apart` further.
    inputs, outputs: channels of a group.
    """

    line: Index
    pixels: Pixels
    lines: tuple[Place, ...]
    across: Place | None
    apart: int
    inputs: int
    outputs: int


def depthwise(gemm: Gemm) -> Depthwise | None:
    """How A is read, for a product whose A depends on n. None if templates cannot read it so: its parts are not affine
    or not of known size, or an access is not proven to stay in the buffer."""
    a, n = gemm.a, gemm.n
    if not gemm.is_depthwise or gemm.batch or len(gemm.depth) < 2:
        return None
    *_, tap, channel = gemm.depth
    pixel = gemm.rows[-1]
    axes = (*gemm.rows, *gemm.depth, n)
    extents = {axis.name: axis.extent for axis in axes}
    offset = simplify(offset_in(a.buffer, a.index), extents)
    inputs, columns = channel.extent.as_int(), n.extent.as_int()
    if inputs is None or columns is None or offset.indirects():
        return None
    outputs = _outputs(offset, n)
    group = Index.var(n.name) // outputs
    own = simplify(group * inputs + Index.var(channel.name), extents)
    rest = offset - own
    if columns % outputs or rest.variables() & {n.name, channel.name}:
        return None
    if any(rest.coefficient(axis.name) is None for axis in axes):
        return None
    along = pixels_of(rest, pixel, tap)
    places = places_of(a, [axis.name for axis in axes])
    if along is None or places is None or not is_read_inside(a, gemm.rows, extents):
        return None
    across = [place for place in places if place.index.variables() & {pixel.name, tap.name}]
    lines = tuple(place for place in places if place not in across)
    if len(across) > 1:
        return None
    line = rest.substitute({pixel.name: ZERO, tap.name: ZERO})
    if not across:
        return Depthwise(line, along, lines, None, 0, inputs, outputs)
    index = simplify(across[0].index, extents)
    apart = apart_of(index, along, pixel, tap)
    if apart is None:
        return None
    start = Place(index.substitute({tap.name: ZERO}), across[0].last)
    return Depthwise(line, along, lines, start, apart, inputs, outputs)


def _outputs(offset: Index, n: Axis) -> int:
    """What n is divided by; 1 if it is not."""
    for atom in offset.atoms():
        if isinstance(atom, FloorDiv) and atom.a == Index.var(n.name):
            return atom.b.as_int() or 1
    return 1


def _factor(index: Index, axis: Axis) -> int | None:
    factor = index.coefficient(axis.name)
    return None if factor is None else factor.as_int()


def pixels_of(offset: Index, pixel: Axis, tap: Axis) -> Pixels | None:
    """How a line is read at its pixels and taps; None unless both steps are known and not negative."""
    stride, dilation = _factor(offset, pixel), _factor(offset, tap)
    if stride is None or dilation is None or stride < 0 or dilation < 0:
        return None
    step = gcd(stride, dilation)
    return Pixels(step, stride // step, dilation // step) if step else Pixels(0, 0, 0)


def apart_of(index: Index, pixels: Pixels, pixel: Axis, tap: Axis) -> int | None:
    """How far a place moves from a position to the next; None if not by pixels of the result as by taps."""
    by_pixel, by_tap = _factor(index, pixel), _factor(index, tap)
    if by_pixel is None or by_tap is None:
        return None
    apart = by_pixel // pixels.stride if pixels.stride else by_tap // max(1, pixels.dilation)
    moves = (apart * pixels.stride, apart * pixels.dilation)
    return apart if moves == (by_pixel, by_tap) else None
