"""The transforms of minimal filtering: m outputs of a filter of r taps by m + r - 1 multiplications.

    y = A (G w * B d)          d: m + r - 1 neighbours, w: r taps, y: m outputs, * element by element

Cook and Toom's construction: what is filtered are polynomials, multiplied by their values at m + r - 2 points and at
infinity. Of two dimensions y = A ((G w Gt) * (B d Bt)) At. Sources: Winograd, "Arithmetic complexity of computations"
(1980); Lavin and Gray, "Fast algorithms for convolutional neural networks" (2016).

The larger m is, the fewer multiplications, and the larger rounding errors: numbers near each other are subtracted.
"""

from __future__ import annotations

from fractions import Fraction

from lampwork.records import record

Matrix = tuple[tuple[Fraction, ...], ...]

TAPS = 3
"""Of the filters in each dimension."""

_POINTS = {
    2: tuple(map(Fraction, (0, 1, -1))),
    4: tuple(Fraction(each, 4) for each in (0, 3, -3, 6, -6)),
}
"""Where polynomials are evaluated, by the number of outputs. Of the points that are exact in binary, those of least
rounding errors: 0, 1, -1, 2, -2 have four times as large ones."""


@record
class Transforms:
    """What makes `outputs` outputs of one dimension out of `points` inputs. inputs: B, (points, points); weights: G,
    (points, taps); results: A, (outputs, points)."""

    outputs: int
    inputs: Matrix
    weights: Matrix
    results: Matrix

    @property
    def points(self) -> int:
        return self.outputs + TAPS - 1


def _transforms(outputs: int) -> Transforms:
    """By Cook and Toom, for `outputs` at neighbouring places."""
    finite = _POINTS[outputs]
    inputs, weights = list[tuple[Fraction, ...]](), list[tuple[Fraction, ...]]()
    for point in finite:
        others = [other for other in finite if other != point]
        scale = Fraction(1)
        for other in others:
            scale *= point - other
        inputs.append((*_product(others), Fraction(0)))
        weights.append(tuple(point**k / scale for k in range(TAPS)))
    inputs.append(_product(list(finite)))
    weights.append((*[Fraction(0)] * (TAPS - 1), Fraction(1)))
    results = tuple(
        (*(point**k for point in finite), Fraction(int(k == outputs - 1))) for k in range(outputs)
    )
    return Transforms(outputs, tuple(inputs), tuple(weights), results)


def _product(roots: list[Fraction]) -> tuple[Fraction, ...]:
    """The coefficients of the polynomial with these roots, those of low powers first."""
    found = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *found], [*(-root * each for each in found), Fraction(0)]
        found = [x + y for x, y in zip(shifted, scaled, strict=True)]
    return tuple(found)


TRANSFORMS = {outputs: _transforms(outputs) for outputs in _POINTS}
"""By number of outputs. Made while the package is imported: what `fractions` computes with may be replaced later."""
