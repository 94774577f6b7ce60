"""How a product is read that is the gradient of a convolution's weight:

    dw[tap, channel, n] = sum over pixels of x[pixel at the tap, channel] * g[pixel, n]

m is (taps..., channel), k is (image, ..., y, x). Neighbouring channels are what lies in the lanes of a vector, so the
sums over the pixels of a line need neither a transposed x nor a transposed g. Of a depthwise convolution

    dw[tap, n] = sum over pixels of x[pixel at the tap, n] * g[pixel, n]

m is (taps...), and the channels are n.
"""

from __future__ import annotations

from lampwork.loops.ir.bounds import offset_in
from lampwork.loops.ir.depthwise import Pixels, apart_of, pixels_of
from lampwork.loops.ir.index import ONE, Index, simplify
from lampwork.loops.ir.nodes import Axis, Gemm
from lampwork.loops.ir.windows import Place, is_read_inside, places_of
from lampwork.records import record


@record
class Steps:
    """One of the two inner dimensions: the axes of its pixels and taps, how they step, and the condition on where
    position 0 lies, over the pixel, with tap 0 (None: there is no padding); each position further on is `apart`
    further."""

    pixel: Axis
    tap: Axis
    pixels: Pixels
    place: Place | None
    apart: int

    def positions(self, count: int) -> int:
        """How many `count` pixels read."""
        taps = self.tap.extent.as_int() or 1
        return (count - 1) * self.pixels.stride + (taps - 1) * self.pixels.dilation + 1


@record
class WeightGradient:
    """x: the flat offset of A over all digits. g: that of B over k, and n with the factor 1. planes: the conditions on
    the outer dimensions; lines, columns: the two inner ones."""

    x: Index
    g: Index
    planes: tuple[Place, ...]
    lines: Steps
    columns: Steps


def weight_gradient(gemm: Gemm) -> WeightGradient | None:
    """How A and B are read. None if templates cannot read them so: something is not affine or not of known size, or an
    access is not proven to stay in its buffer."""
    taps = gemm.rows if gemm.is_depthwise else gemm.rows[:-1]
    if not gemm.is_weight_gradient or len(taps) < 2 or len(gemm.depth) < 3:
        return None
    axes = gemm.a_axes
    extents = {axis.name: axis.extent for axis in (*axes, gemm.n, gemm.k)}
    if any(axis.extent.as_int() is None for axis in (*gemm.rows, *gemm.depth[-2:], gemm.n)):
        return None
    x = simplify(offset_in(gemm.a.buffer, gemm.a.index), extents)
    g = simplify(offset_in(gemm.b.buffer, gemm.b.index), extents)
    names = [axis.name for axis in axes]
    if any(x.coefficient(name) is None for name in names):
        return None
    outer = (*(axis.name for axis in gemm.batch), gemm.k.name, gemm.n.name)
    if any(g.coefficient(name) is None for name in outer) or g.coefficient(gemm.n.name) != ONE:
        return None
    places = places_of(gemm.a, names)
    if places is None or gemm.b.mask is not None or not is_read_inside(gemm.a, gemm.depth, extents):
        return None
    *_, y, x_pixel = gemm.depth
    *_, y_tap, x_tap = taps
    lines = _steps(x, y, y_tap, places, extents)
    columns = _steps(x, x_pixel, x_tap, places, extents)
    if lines is None or columns is None:
        return None
    inner = {axis.name for axis in (y, x_pixel, y_tap, x_tap)}
    planes = tuple(place for place in places if not place.index.variables() & inner)
    return WeightGradient(x, g, planes, lines, columns)


def _steps(
    offset: Index, pixel: Axis, tap: Axis, places: tuple[Place, ...], extents: dict[str, Index]
) -> Steps | None:
    pixels = pixels_of(offset, pixel, tap)
    found = [place for place in places if place.index.variables() & {pixel.name, tap.name}]
    if pixels is None or len(found) > 1:
        return None
    if not found:
        return Steps(pixel, tap, pixels, None, 0)
    index = simplify(found[0].index, extents)
    apart = apart_of(index, pixels, pixel, tap)
    if apart is None or not index.variables() <= {pixel.name, tap.name}:
        return None
    start = index.substitute({tap.name: Index.const(0)})
    return Steps(pixel, tap, pixels, Place(start, found[0].last), apart)
