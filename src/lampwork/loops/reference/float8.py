"""float8 for the interpreters: its numbers in order, so that rounding is a search for the nearest one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lampwork.loops.ir.nodes import DType

Array = NDArray[Any]


def _numbers(exponents: int, mantissas: int, has_infinity: bool) -> Array:
    """The numbers of the codes without a sign, from zero on."""
    numbers = [np.ldexp(m, 2 - (1 << (exponents - 1)) - mantissas.bit_length() + 1) for m in range(mantissas)]
    for exponent in range(1, 1 << exponents):
        power = exponent - (1 << (exponents - 1)) + 1
        numbers += [np.ldexp(1 + m / mantissas, power) for m in range(mantissas)]
    found = np.array(numbers, np.float32)
    if has_infinity:
        found[-mantissas], found[-mantissas + 1 :] = np.inf, np.nan
    else:
        found[-1] = np.nan
    return found


NUMBERS: Mapping[DType, Array] = MappingProxyType(
    {"f8e4m3": _numbers(4, 8, has_infinity=False), "f8e5m2": _numbers(5, 4, has_infinity=True)}
)
"""Of the codes 0 to 127; the others are their negatives."""


def as_codes(x: Array, dtype: DType) -> Array:
    """float32 numbers rounded to the nearest code, ties to even ones, as bytes."""
    finite = NUMBERS[dtype][np.isfinite(NUMBERS[dtype])].astype(np.float64)
    steps = np.append(finite, 2 * finite[-1] - finite[-2])
    with np.errstate(invalid="ignore"):
        magnitude = np.abs(x).astype(np.float64)
    below = np.clip(np.searchsorted(steps, magnitude, side="right") - 1, 0, len(finite) - 1)
    middle = (steps[below] + steps[below + 1]) / 2
    is_up = (magnitude > middle) | ((magnitude == middle) & (below % 2 == 1))
    # What is rounded beyond the last number is the code after it: infinite, or nan.
    code = np.where(np.isnan(x), 0x7F, below + is_up)
    return (code | np.signbit(x) * 0x80).astype(np.uint8)


def from_codes(codes: Array, dtype: DType) -> Array:
    numbers = NUMBERS[dtype][codes & 0x7F]
    return np.where(codes & 0x80, -numbers, numbers).astype(np.float32)


def round_float8(x: Array, dtype: DType) -> Array:
    """float32 numbers rounded to those of `dtype`, as float32."""
    return from_codes(as_codes(x, dtype), dtype)
