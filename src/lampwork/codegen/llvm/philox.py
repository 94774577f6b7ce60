"""Philox4x32-10, the random numbers of a counter (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011).

A counter and a key give four words of 32 bits; element e of a tensor has word e % 4 of counter e // 4. So what lies
side by side shares counters: 16 elements take 4 of them. `loops.ir.philox` is the same in numpy.

A word is the lower half of an i64 lane, whose upper half is anything: that is what an instruction for products of
32-bit numbers reads, and all that it reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.loops.ir.philox import MULTIPLIERS, ROUNDS, STEPS, WORD, WORDS


def of_lanes(b: Builder, key: Value, element: Value, part: Value) -> Value:
    """The i32 of each element, wherever they are."""
    name = f"philox {key.text} {element.text} {element.lanes} {part.text} {part.lanes}"
    known = b.recall(name)
    if known is not None:
        return known
    lanes = max(key.lanes, element.lanes, part.lanes)
    key, element, part = (b.widen(each, lanes) for each in (key, element, part))
    words = (_words_of_32_bits if b.target.multiplies_words else _words)(b, key, b.lshr(element, 2), part)
    odd, upper = (b.cmp("ne", b.and_(element, bit), 0) for bit in (1, 2))
    low, high = (b.select(odd, words[i + 1], words[i]) for i in (0, 2))
    word = b.select(upper, high, low)
    return b.remember(name, word if word.dtype == "i32" else b.convert("trunc", word, "i32"))


def side_by_side(b: Builder, key: Value, first: Value, part: Value, lanes: int, *, aligned: bool) -> Value:
    """The i32 of `lanes` elements from `first` on, which is a multiple of 4 if they are `aligned`."""
    name = f"philox {key.text} from {first.text} {lanes} {part.text}"
    return b.recall(name) or b.remember(name, _side_by_side(b, key, first, part, lanes, aligned))


def _side_by_side(b: Builder, key: Value, first: Value, part: Value, lanes: int, aligned: bool) -> Value:
    if aligned:
        return _from_counter(b, key, b.lshr(first, 2), part, lanes // WORDS)
    counters = b.target.lanes("f64")  # of a vector: they have twice the words that are taken of them
    most = min(lanes, counters * WORDS // 2)
    return _joined(b, [_from_any(b, key, b.add(first, at), part, most) for at in range(0, lanes, most)])


def _from_any(b: Builder, key: Value, first: Value, part: Value, lanes: int) -> Value:
    """By way of the stack, which is read from the place of the first element on."""
    words = _from_counter(b, key, b.lshr(first, 2), part, b.target.lanes("f64"))
    room = b.alloca(f"[{words.lanes} x i32]", 64)
    b.line(f"store {words.type} {words.text}, ptr {room}, align 64")
    place = b.element(room, "i32", b.and_(first, WORDS - 1))
    return b.emit(f"load <{lanes} x i32>, ptr {place.text}, align 4", "i32", lanes)


def _from_counter(b: Builder, key: Value, counter: Value, part: Value, count: int) -> Value:
    """The words of `count` counters in their order.

    before: w0 = <a0, b0>, w1 = <a1, b1>, ...        after: <a0, a1, a2, a3, b0, b1, b2, b3>
    """
    counters = b.add(b.widen(counter, count), b.iota("i64", count)) if count > 1 else counter
    words = _words(b, key, counters, part)
    low, high = (b.or_(b.and_(words[i], WORD), b.shl(words[i + 1], 32)) for i in (0, 2))
    pairs = _shuffled(b, low, high, [each for i in range(count) for each in (i, count + i)])
    return b.emit(f"bitcast {pairs.type} {pairs.text} to <{4 * count} x i32>", "i32", 4 * count)


def _words(b: Builder, key: Value, counter: Value, part: Value) -> tuple[Value, Value, Value, Value]:
    """The four words of each counter, whose upper half `part` is, as i64."""
    c0, c1, c2, c3 = counter, b.lshr(counter, 32), part, b.const(0, "i64")
    k0, k1 = key, b.lshr(key, 32)
    for turn in range(ROUNDS):
        p0, p1 = (b.mul(b.and_(c, WORD), by) for c, by in zip((c0, c2), MULTIPLIERS, strict=True))
        n0, n1 = (b.add(k, turn * step) for k, step in zip((k0, k1), STEPS, strict=True))
        c0, c1, c2, c3 = (
            b.xor(b.xor(b.lshr(p1, 32), c1), n0),
            p1,
            b.xor(b.xor(b.lshr(p0, 32), c3), n1),
            p0,
        )
    c0, c1, c2, c3 = (b.widen(c, counter.lanes) for c in (c0, c1, c2, c3))
    return c0, c1, c2, c3


def _words_of_32_bits(
    b: Builder, key: Value, counter: Value, part: Value
) -> tuple[Value, Value, Value, Value]:
    """The same as i32, whose products are of 64 bits: both halves by one instruction of 32-bit registers."""
    c0, c2, k0 = (b.convert("trunc", each, "i32") for each in (counter, part, key))
    c1, k1 = (b.convert("trunc", b.lshr(each, 32), "i32") for each in (counter, key))
    c3 = b.widen(b.const(0, "i32"), counter.lanes)
    for turn in range(ROUNDS):
        (h0, l0), (h1, l1) = (_halves(b, c, by) for c, by in zip((c0, c2), MULTIPLIERS, strict=True))
        n0, n1 = (b.add(k, _signed(turn * step)) for k, step in zip((k0, k1), STEPS, strict=True))
        c0, c1, c2, c3 = b.xor(b.xor(h1, c1), n0), l1, b.xor(b.xor(h0, c3), n1), l0
    return c0, c1, c2, c3


def _halves(b: Builder, x: Value, by: int) -> tuple[Value, Value]:
    """The upper and the lower half of a product of unsigned numbers."""
    product = b.mul(b.convert("zext", x, "i64"), by)
    return b.convert("trunc", b.lshr(product, 32), "i32"), b.convert("trunc", product, "i32")


def _signed(number: int) -> int:
    """An i32 of the same bits."""
    return (number + 2**31) % 2**32 - 2**31


def _joined(b: Builder, parts: Sequence[Value]) -> Value:
    """Vectors one after the other, of which there is a power of two."""
    while len(parts) > 1:
        lanes = 2 * parts[0].lanes
        parts = [_shuffled(b, x, y, range(lanes)) for x, y in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _shuffled(b: Builder, x: Value, y: Value, order: Sequence[int]) -> Value:
    if x.lanes == 1:
        one = b.emit(f"insertelement <2 x {x.type}> poison, {x.type} {x.text}, i64 0", x.dtype, 2)
        return b.emit(f"insertelement {one.type} {one.text}, {y.type} {y.text}, i64 1", x.dtype, 2)
    mask = ", ".join(f"i32 {i}" for i in order)
    text = f"shufflevector {x.type} {x.text}, {y.type} {y.text}, <{len(order)} x i32> <{mask}>"
    return b.emit(text, x.dtype, len(order))
