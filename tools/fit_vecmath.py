"""Fits the polynomials of the vector math functions and prints src/lampwork/codegen/llvm/coefficients.py.

    python tools/fit_vecmath.py > src/lampwork/codegen/llvm/coefficients.py

Least squares at Chebyshev nodes in 60-digit arithmetic (mpmath, which torch brings along), weighted by how much an
error of the polynomial counts in the function. float32 coefficients are rounded one by one, lowest power first, and
the rest is fitted again to what the rounding left over.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mpmath import lu_solve, matrix, mp, mpf

Real = Any
Function = Callable[[Real], Real]

HEADER = '''\
"""Polynomial coefficients of the vector math functions, lowest power first. `tools/fit_vecmath.py` prints this file."""

from __future__ import annotations
'''


def to_f32(value: Real) -> Real:
    return mpf(struct.unpack("<f", struct.pack("<f", float(value)))[0])


def to_f64(value: Real) -> Real:
    return mpf(float(value))


def one(_: Real) -> Real:
    return mpf(1)


@dataclass(frozen=True, slots=True)
class Fit:
    """`terms` coefficients for `function` on [low, high]."""

    name: str
    function: Function
    low: Real
    high: Real
    terms: int
    single: bool
    weight: Function = one


def least_squares(function: Function, nodes: Sequence[Real], powers: range, weight: Function) -> list[Real]:
    rows = matrix([[weight(x) * x**k for k in powers] for x in nodes])
    right = matrix([weight(x) * function(x) for x in nodes])
    return list(lu_solve(rows.T * rows, rows.T * right))


def solve(fit: Fit) -> list[Real]:
    low, high, n = mpf(fit.low), mpf(fit.high), fit.terms
    angles = [mp.pi * (k + mpf(1) / 2) / (4 * n) for k in range(4 * n)]
    nodes = [(low + high) / 2 + (high - low) / 2 * mp.cos(angle) for angle in angles]
    values = {x: fit.function(x) for x in nodes}
    coefficients: list[Real] = []
    if not fit.single:
        return [to_f64(c) for c in least_squares(values.__getitem__, nodes, range(n), fit.weight)]
    for k in range(n):

        def rest(x: Real) -> Real:
            return values[x] - sum(c * x**j for j, c in enumerate(coefficients))

        coefficients.append(to_f32(least_squares(rest, nodes, range(k, n), fit.weight)[0]))
    return coefficients


def error_bits(fit: Fit, coefficients: Sequence[Real]) -> float:
    points = [fit.low + (fit.high - fit.low) * (mpf(k) + mpf("0.37")) / 400 for k in range(400)]
    worst = max(
        fit.weight(x) * abs(fit.function(x) - sum(c * x**j for j, c in enumerate(coefficients)))
        for x in points
    )
    return float(mp.log(worst, 2))


def exp2_rest(x: Real) -> Real:
    return (mpf(2) ** x - 1) / x if x else mp.log(2)


def fits() -> list[Fit]:
    half_ln2 = mp.log(2) / 2 * mpf("1.002")
    log_high = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2 * mpf("1.01")
    angle = (mp.pi / 4 * mpf("1.01")) ** 2
    third = mpf(1) / 3

    def exp_rest(r: Real) -> Real:  # exp r = 1 + r + r² q(r)
        return (mp.exp(r) - 1 - r) / r**2

    def exp2_rest(t: Real) -> Real:  # 2^t = 1 + t q(t)
        return mp.expm1(t * mp.log(2)) / t

    def tanh_rest(z: Real) -> Real:  # tanh x = x + x³ q(x²)
        return (mp.tanh(mp.sqrt(z)) / mp.sqrt(z) - 1) / z

    def erf_rest(z: Real) -> Real:  # erf x = x + x q(x²)
        return mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1

    def erf_exponent(t: Real) -> Real:  # erf x = 1 - exp(-q(x - 2))
        return -mp.log(mp.erfc(t + 2))

    def log_rest(z: Real) -> Real:  # 2 atanh s = 2 s + s³ q(s²)
        return (2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 2) / z

    def log_tail(z: Real) -> Real:  # 2 atanh s = 2 s + 2/3 s³ + s⁵ q(s²)
        return (log_rest(z) - mpf(2) / 3) / z

    def tail_exponent(a: Real) -> Real:  # the normal distribution function at -a is 2^-q(a)
        return -mp.log(mp.erfc(a / mp.sqrt(2)) / 2, 2)

    def root_of_tail(a: Real) -> Real:
        return mp.sqrt(mp.erfc(a / mp.sqrt(2)) / 2)

    def log_of(base: Real) -> Function:  # log(1 + f) = f log e + f² q(f), to this base
        return lambda f: (mp.log(1 + f) - f) / f**2 / mp.log(base)

    def log1p_rest(t: Real) -> Real:  # log(1 + t) = t + t² q(t)
        return (mp.log(1 + t) - t) / t**2

    def sin_rest(z: Real) -> Real:  # sin x = x + x³ q(x²)
        return (mp.sin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z

    def cos_rest(z: Real) -> Real:  # cos x = 1 - x²/2 + x⁴ q(x²)
        return (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2

    def atan_rest(z: Real) -> Real:  # atan x = x + x³ q(x²)
        return (mp.atan(mp.sqrt(z)) / mp.sqrt(z) - 1) / z

    def asin_rest(z: Real) -> Real:  # asin x = x + x³ q(x²)
        return (mp.asin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z

    def sinh_rest(z: Real) -> Real:  # sinh x = x + x³ q(x²)
        return (mp.sinh(mp.sqrt(z)) / mp.sqrt(z) - 1) / z

    def erfc_scaled(q: Real) -> Real:  # erfc a = exp(-a²) p(q) / (1 + 2a), q = (a - 3) / (a + 3)
        a = 3 * (1 + q) / (1 - q)
        return mp.exp(a * a) * mp.erfc(a) * (1 + 2 * a)

    def erfc_of_ratio(q: Real) -> Real:  # erfc a, q = (a - 3) / (a + 3)
        return mp.erfc(3 * (1 + q) / (1 - q))

    def erfcx(q: Real) -> Real:  # erfc a = exp(-a²) p(q)
        return mp.exp((3 * (1 + q) / (1 - q)) ** 2) * erfc_of_ratio(q)

    def erfc_scaled_f64(q: Real) -> Real:  # erfc a = exp(-a²) p(q) / (1 + 2a), q = (a - 3.5) / (a + 3.5)
        a = mpf("3.5") * (1 + q) / (1 - q)
        return mp.exp(a * a) * mp.erfc(a) * (1 + 2 * a)

    def linear(x: Real) -> Real:
        return x

    def square(x: Real) -> Real:
        return x * x

    return [
        Fit("EXP_F32", exp_rest, -half_ln2, half_ln2, 5, True, square),
        Fit("EXP2_SHORT_F32", exp2_rest, mpf(-1) / 2, mpf(1) / 2, 5, True, lambda x: x / mpf(2) ** x),
        Fit("EXP_SHORT", exp_rest, -half_ln2, half_ln2, 7, False, square),
        Fit("EXP_F64", exp_rest, -half_ln2, half_ln2, 10, False, square),
        Fit("EXP2_F32", exp2_rest, mpf("-0.5"), mpf("0.5"), 7, True, linear),
        Fit("TANH_F32", tanh_rest, mpf(0), mpf("0.4") ** 2, 4, True, linear),
        Fit("TANH_WIDE_F32", tanh_rest, mpf(0), mpf("0.55") ** 2, 5, True, linear),
        Fit("ERF_F32", erf_rest, mpf(0), mpf("0.92") ** 2, 7, True),
        Fit("ERF_TAIL_F32", erf_exponent, mpf("-1.1"), mpf(2), 9, True),
        Fit("LOG_F64", log_rest, mpf(0), log_high, 7, False, linear),
        Fit("LOG_SHORT", log_rest, mpf(0), log_high, 5, False, linear),
        Fit("NDTR_F32", tail_exponent, mpf(0), mpf("5.7"), 9, True, root_of_tail),
        *(
            Fit(name, log_of(base), mp.sqrt(mpf(1) / 2) - 1, mp.sqrt(2) - 1, 9, True, linear)
            for name, base in (("LOG_F32", mp.e), ("LOG2_F32", mpf(2)), ("LOG10_F32", mpf(10)))
        ),
        Fit("LOG1P_UNIT_F32", log1p_rest, mpf(0), mpf(1), 10, True, linear),
        Fit("SIN", sin_rest, mpf(0), angle, 5, False, linear),
        Fit("COS", cos_rest, mpf(0), angle, 5, False, square),
        Fit("SIN_F32", sin_rest, mpf(0), angle, 3, True, linear),
        Fit("COS_F32", cos_rest, mpf(0), angle, 3, True, square),
        Fit("ATAN", atan_rest, mpf(0), mpf(1), 13, False),
        Fit("ASIN", asin_rest, mpf(0), third * 3 / 4, 9, False, linear),
        Fit("ERFC", erfc_scaled, mpf(-1), (mpf("10.6") - 3) / (mpf("10.6") + 3), 16, False),
        Fit("ERF_F64", erf_rest, mpf(0), mpf("0.75") ** 2, 11, False),
        Fit("ERF_TAIL_F64", erfcx, mpf("-0.6"), third, 13, False, erfc_of_ratio),
        Fit("ERFC_F64", erfc_scaled_f64, mpf("-0.65"), mpf("23.8") / mpf("30.8"), 20, False),
        Fit("LOG_TAIL_F64", log_tail, mpf(0), log_high, 8, False, square),
        Fit("SIN_F64", sin_rest, mpf(0), angle, 6, False, linear),
        Fit("COS_F64", cos_rest, mpf(0), angle, 6, False, square),
        Fit("ATAN_F64", atan_rest, mpf(0), (mp.sqrt(2) - 1) ** 2 * mpf("1.01"), 12, False, linear),
        Fit("ASIN_F64", asin_rest, mpf(0), mpf(1) / 4, 13, False, linear),
        Fit("SINH_F64", sinh_rest, mpf(0), mpf(1), 7, False, linear),
    ]


def main() -> None:
    mp.dps = 60
    print(HEADER)
    for fit in fits():
        coefficients = solve(fit)
        print(f"{fit.name} = (  # error 2^{error_bits(fit, coefficients):.1f}")
        for coefficient in coefficients:
            print(f"    {float(coefficient)!r},")
        print(")")


if __name__ == "__main__":
    main()
