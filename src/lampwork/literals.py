"""Numbers of programs as texts that tell them apart."""

from __future__ import annotations

from typing import Any

from lampwork.standard import math, struct

NAN_BITS = 0x7FF8 << 48
"""Of `math.nan`."""
_DIGITS = 16


def bits_of_nan(value: float) -> int:
    """The bits of a float64, as a number without a sign."""
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def nan_of_bits(bits: int) -> float:
    """The nan with these bits.

    Raises:
        ValueError: they are not those of a nan.
    """
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    if not math.isnan(value):
        raise ValueError(f"{bits:#x} are the bits of {value}")
    return value


def nan_of_text(text: str) -> float:
    """The nan of a `literal_text` that tells its bits.

    Raises:
        ValueError: it is no such text.
    """
    inside = text.removeprefix("nan(0x").removesuffix(")")
    if len(inside) == _DIGITS and not inside.strip("0123456789abcdef") and int(inside, 16) != NAN_BITS:
        value = nan_of_bits(int(inside, 16))
        if literal_text(value) == text:
            return value
    raise ValueError(f"{text!r} is no nan")


def literal_text(value: Any) -> str:
    """The repr of a value; of a nan that is not `math.nan` the bits, as `copysign`, `signbit` and views read them."""
    if type(value) is complex and value != value:
        return f"complex({literal_text(value.real)}, {literal_text(value.imag)})"
    if isinstance(value, float) and value != value and (bits := bits_of_nan(value)) != NAN_BITS:
        return f"nan({bits:#x})"
    return repr(value)
