"""Angles of any size less multiples of pi/2, by the method of Payne and Hanek.

A double is m * 2^e with an integer m below 2^53. Of m * 2^e * 2/pi only the quotient modulo 4 and the fraction matter,
and so of the digits of 2/pi only those 192 bits whose products with m are not multiples of 4, nor too small to count:
m times these, in integers, has n modulo 4 in its two highest bits and the fraction below. No double is nearer to a
multiple of pi/2 than 2^-62 of it, so that 126 bits of fraction are enough for 64 right ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.codegen.llvm.branches import lane_by_lane, unless_any_of
from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.standard import itertools, math

HALF_PI = math.pi / 2
HALF_PI_LOW = 6.123233995736766e-17  # pi/2 is the sum of both to 2^-108
_SMALLEST = 2.0**20
_LEAST_EXPONENT = 1023 + 20  # biased: that of _SMALLEST
_GREATEST_EXPONENT = 2046
_DIGITS = int(
    "145F306DC9C882A53F84EAFA3EA69BB81B6C52B3278872083FCA2C757BD778AC36E48DC74849BA5C00C925DD413A3243"
    "9FC3BD63962534E7DD1046BEA5D768909D338E04D68BEFC827323AC7306A673E93908BF177BF250763FF12FFFBC0B301"
    "FDE5E2316B414DA3EDA6CFD9E4F96136E9E8C7ECD3CBFD45AEA4F758FD7CBE2F67A0E73EF14A525D4D7F6BF623F1ABA1"
    "0AC",
    16,
)
"""2/pi times 2^1161."""
_WORDS = 19
_SHIFT = 2046  # the digits from bit _SHIFT - exponent on are those that count


def large_angles(b: Builder, x: Value, limit: float, usual: Sequence[Value]) -> list[Value]:
    """`usual`, which is n modulo 4 at the low end of an i64, r (and what r lacks), of x = n pi/2 + r; or, by a branch,
    the same for the lanes that are larger than `limit`, at least 2^20. x and r are f64."""
    assert limit >= _SMALLEST, "smaller ones are zero bits of the table"
    large = b.cmp("gt", b.fabs(x), limit)

    def reduced(b: Builder, x: Value) -> list[Value]:
        return list(_reduced(b, x)[: len(usual)])

    def rare() -> list[Value]:
        found = lane_by_lane(b, reduced, x)
        return [b.select(large, new, old) for new, old in zip(found, usual, strict=True)]

    return unless_any_of(b, large, usual, rare)


def _reduced(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """n, r and what r lacks of one number of magnitude 2^20 and more."""
    bits = b.bitcast(x, "i64")
    exponent = b.and_(b.lshr(bits, 52), 0x7FF)
    exponent = b.select(b.cmp("lt", exponent, _LEAST_EXPONENT), _LEAST_EXPONENT, exponent)
    exponent = b.select(b.cmp("gt", exponent, _GREATEST_EXPONENT), _GREATEST_EXPONENT, exponent)
    mantissa = b.or_(b.and_(bits, (1 << 52) - 1), 1 << 52)
    product = _product(b, mantissa, _window(b, b.sub(_SHIFT, exponent)))
    n, fraction = _quotient(b, product)
    high, low = _angle(b, fraction)
    negative = b.cmp("lt", bits, 0)
    # Of infinities and NaN there is none.
    high = b.select(b.cmp("lt", b.fabs(x), float("inf")), high, float("nan"))
    flipped = [b.select(negative, b.neg(value), value) for value in (n, high, low)]
    return flipped[0], flipped[1], flipped[2]


def _window(b: Builder, shift: Value) -> list[Value]:
    """192 bits of the digits from bit `shift` on: three words, lowest first."""
    name = "lw_two_over_pi"
    words = ", ".join(f"i64 {_signed(_DIGITS >> 64 * k & (1 << 64) - 1)}" for k in range(_WORDS))
    b.module.declare(name, f"@{name} = internal unnamed_addr constant [{_WORDS} x i64] [{words}], align 8")
    first, rest = b.lshr(shift, 6), b.and_(shift, 63)
    loaded = [
        b.emit(f"load i64, ptr {b.element('@' + name, 'i64', b.add(first, k)).text}, align 8", "i64", 1)
        for k in range(4)
    ]
    return [
        b.emit(f"call i64 @llvm.fshr.i64(i64 {high.text}, i64 {low.text}, i64 {rest.text})", "i64", 1)
        for low, high in itertools.pairwise(loaded)
    ]


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _emit(b: Builder, text: str) -> str:
    """One instruction on integers of 128 bits, which the loop language does not have: the name of its result."""
    return b.emit(text, "i64", 1).text


def _product(b: Builder, mantissa: Value, window: Sequence[Value]) -> str:
    """The upper 128 of 192 bits of mantissa * window."""
    low, middle, high, factor = (_emit(b, f"zext i64 {v.text} to i128") for v in (*window, mantissa))
    upper = _emit(b, f"or i128 {_emit(b, f'shl i128 {high}, 64')}, {middle}")
    carried = _emit(b, f"lshr i128 {_emit(b, f'mul i128 {low}, {factor}')}, 64")
    return _emit(b, f"add i128 {_emit(b, f'mul i128 {upper}, {factor}')}, {carried}")


def _quotient(b: Builder, product: str) -> tuple[Value, str]:
    """n, rounded to nearest, and the fraction between -1/2 and 1/2, times 2^128."""
    fraction = _emit(b, f"shl i128 {product}, 2")
    up = b.lshr(_word(b, fraction, 64), 63)
    return b.add(b.lshr(_word(b, product, 64), 62), up), fraction


def _word(b: Builder, wide: str, shift: int) -> Value:
    moved = _emit(b, f"lshr i128 {wide}, {shift}") if shift else wide
    return b.emit(f"trunc i128 {moved} to i64", "i64", 1)


def _angle(b: Builder, fraction: str) -> tuple[Value, Value]:
    """The fraction times pi/2, as a sum."""
    negative = b.lshr(_word(b, fraction, 64), 63)
    below = _emit(b, f"icmp slt i128 {fraction}, 0")
    size = _emit(b, f"select i1 {below}, i128 {_emit(b, f'sub i128 0, {fraction}')}, i128 {fraction}")
    zeros = b.emit(f"call i64 @llvm.ctlz.i64(i64 {_word(b, size, 64).text}, i1 false)", "i64", 1)
    digits = _emit(b, f"shl i128 {size}, {_emit(b, f'zext i64 {zeros.text} to i128')}")
    upper, lower = _word(b, digits, 64), _word(b, digits, 0)
    following = b.or_(b.shl(b.and_(upper, 0x7FF), 42), b.lshr(lower, 22))
    scale = b.bitcast(b.or_(b.shl(b.sub(1023, zeros), 52), b.shl(negative, 63)), "f64")
    high = b.mul(b.mul(b.convert("uitofp", b.lshr(upper, 11), "f64"), 2.0**-53), scale)
    low = b.mul(b.mul(b.convert("uitofp", following, "f64"), 2.0**-106), scale)
    angle = b.mul(high, HALF_PI)
    rest = b.fma(high, HALF_PI_LOW, b.mul(low, HALF_PI))
    return angle, b.add(b.fma(high, HALF_PI, b.neg(angle)), rest)
