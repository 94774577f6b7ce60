"""Random numbers of a counter: known answers, and code of every vector width against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from codegen_support import const, dense, load, run_kernel, var

from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Axis, IndexValue, Kernel, Loop, Op, Store
from lampwork.loops.ir.philox import philox

KEY = dense("key", "i64")


def philox4x32_10(counter: list[int], key: list[int]) -> list[int]:
    """The definition, in integers."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & 0xFFFFFFFF, p0 >> 32 ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_known_answers(counter, key, words):
    """The known answers of Random123."""
    assert philox4x32_10(counter, key) == words


@pytest.mark.parametrize(("first", "part", "key"), [(0, 0, 0), (1, 2, -1), (2**40 + 7, 1, 2**62 + 5)])
def test_numpy(first, part, key):
    got = philox(np.int64(key), np.arange(first, first + 9), np.int64(part))
    halves = [key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF]
    expected = [
        philox4x32_10([e // 4 & 0xFFFFFFFF, e // 4 >> 32, part, 0], halves)[e % 4]
        for e in range(first, first + 9)
    ]
    np.testing.assert_array_equal(got, np.array(expected, np.uint32).view(np.int32))


def drawn(index: Index, part: int = 0) -> Op:
    return Op("philox", (load(KEY), IndexValue(index, "i64"), const(part, "i64")), "i32")


def check(isa: str, kernel: Kernel, expected: np.ndarray, key: int, begin: int, end: int) -> None:
    out = np.zeros(expected.shape, np.int32)
    assert run_kernel(kernel, isa, [out, np.array(key)], begin=begin, end=end) == 0
    inside = np.zeros(expected.shape, np.bool_)
    inside[begin:end] = True
    np.testing.assert_array_equal(out, np.where(inside, expected, 0))


@pytest.mark.parametrize(("begin", "end"), [(0, 1), (0, 4), (1, 3), (0, 700), (3, 697), (5, 6), (700, 700)])
@pytest.mark.parametrize(("step", "start"), [(1, 0), (1, 6), (3, 1), (0, 9), (4, 1 << 40)])
def test_one_loop(isa, begin, end, step, start):
    """Each piece of a range gives what the whole range gives."""
    n = 700
    out = dense("out", "i32", n)
    index = var("i") * step + start
    body = (Store(out, (var("i"),), drawn(index)),)
    kernel = Kernel("drawn", (out, KEY), (), (), (Loop(Axis("i", Index.const(n)), "parallel-vector", body),))
    key = 0x7F4A7C15_9E3779B9
    expected = np.broadcast_to(philox(np.int64(key), np.arange(n) * step + start, np.int64(0)), (n,))
    check(isa, kernel, expected, key, begin, end)


@pytest.mark.parametrize("width", [1, 3, 16, 64, 99, 128, 256])
@pytest.mark.parametrize("turned", [False, True])
def test_rows(isa, width, turned):
    """Rows that begin anywhere, read along their elements or across them."""
    rows, key, part = 7, -5, 3
    out = dense("out", "i32", rows, width)
    index = var("j") * rows + var("i") if turned else var("i") * width + var("j")
    inner = Loop(
        Axis("j", Index.const(width)), "vector", (Store(out, (var("i"), var("j")), drawn(index, part)),)
    )
    kernel = Kernel("drawn", (out, KEY), (), (), (Loop(Axis("i", Index.const(rows)), "parallel", (inner,)),))
    i, j = np.meshgrid(np.arange(rows), np.arange(width), indexing="ij")
    expected = philox(np.int64(key), j * rows + i if turned else i * width + j, np.int64(part))
    check(isa, kernel, expected, key, 0, rows)
