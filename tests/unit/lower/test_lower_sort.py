"""sort and topk against eager: values and places, with ties, nan and signed zeros among them, of all dtypes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import lampwork
from lampwork.lower import sort as rules

torch.manual_seed(3)


def rows(*shape):
    """Tensors of a shape: all different, many equal, special values, ordered, one value."""
    x = torch.randn(shape)
    special = x.clone()
    for number in (float("nan"), -float("nan"), 0.0, -0.0, float("inf")):
        special[torch.rand(shape) < 0.15] = number
    ordered = torch.arange(x.numel()).float().view(shape)
    return [x, torch.randint(0, 4, shape).float(), special, ordered, -ordered, torch.zeros(shape)]


def same(a, b):
    # Bits, but for those of a nan.
    return all(
        x.shape == y.shape
        and x.stride() == y.stride()
        and torch.allclose(x, y, rtol=0, atol=0, equal_nan=True)
        and (not x.is_floating_point() or torch.equal(x.signbit() & (x == 0), y.signbit() & (y == 0)))
        for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize(
    "shape",
    [(1, 1), (5, 2), (9, 8), (4, 16), (4, 17), (3, 33), (3, 64), (2, 128), (3, 129), (2, 700), (1, 5000)],
)
@pytest.mark.parametrize("stable", [False, True])
def test_sort(shape, stable):
    def fn(x):
        return *torch.sort(x, stable=stable), *torch.sort(x, dim=-1, descending=True, stable=stable)

    compiled = lampwork.compile(fn, options={"strict": True})
    for x in rows(*shape):
        assert same(fn(x), compiled(x))


@pytest.mark.parametrize("shape", [(5, 2), (9, 8), (4, 40), (3, 128), (3, 200), (2, 600), (3, 3000)])
def test_topk(shape):
    counts = sorted({min(k, shape[1]) for k in (1, 2, 8, 9, 50, 1000)})

    def fn(x):
        return [
            part
            for k in counts
            for largest in (True, False)
            for part in torch.topk(x, k, -1, largest=largest)
        ]

    compiled = lampwork.compile(fn, options={"strict": True})
    for x in rows(*shape):
        assert same(fn(x), compiled(x))


WHOLE = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


@pytest.mark.parametrize("dtype", [*WHOLE, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_dtypes(dtype):
    def fn(x):
        sorts = [
            torch.sort(x, stable=stable, descending=descending)
            for stable in (True, False)
            for descending in (True, False)
        ]
        few = [torch.topk(x, k, largest=largest) for k in (1, 3) for largest in (True, False)]
        return [*(part for found in (*sorts, *few) for part in found), torch.sort(x)[0], torch.argsort(x)]

    compiled = lampwork.compile(fn, options={"strict": True})
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    for shape in ((4, 17), (3, 64), (2, 65), (2, 130), (2, 700), (1, 5000)):
        given = [x * 40 for x in rows(*shape)]
        given = [x if dtype.is_floating_point else x.nan_to_num(0, 9, -9).remainder(100) for x in given]
        for x in (each.to(dtype) for each in given):
            x.view(-1)[1], x.view(-1)[-1] = limits.min, limits.max
            assert same(fn(x), compiled(x))


PROGRAMS = {
    "values only": lambda x: (torch.sort(x, -1)[0],),
    "places only": lambda x: (torch.argsort(x, -1), torch.argsort(x, dim=0, stable=True)),
    "another dimension": lambda x: (*torch.sort(x, 0), *torch.topk(x, 3, 1)),
    "transposed": lambda x: (*torch.sort(x.transpose(0, 2), 1), *torch.topk(x.transpose(1, 2), 2)),
    "of what is computed": lambda x: (*torch.sort(x[:, ::2] * 2, -1), *torch.topk(torch.softmax(x, -1), 2)),
    "in what follows": lambda x: (torch.topk(x, 4)[0].sum(-1), x.gather(-1, x.argsort(-1))),
    "msort": lambda x: (torch.msort(x),),
    "another dtype": lambda x: (*torch.sort(x.double(), -1), *torch.topk(x.bfloat16(), 3), *x.int().sort(1)),
    "a number": lambda x: (*torch.sort(x[0, 0, 0]), *torch.topk(x[0, 0, 0], 1)),
    "nothing": lambda x: (*torch.sort(x[:, :0], 1), *torch.topk(x, 0), *torch.sort(x[:0], -1)),
    "not sorted": lambda x: (torch.topk(x, 5, sorted=False)[0].sum(-1),),
    "gate": lambda x: (*torch.topk(torch.softmax(x.reshape(-1, 8), -1), 2),),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    fn = PROGRAMS[name]
    compiled = lampwork.compile(fn, options={"strict": True})
    for x in rows(4, 6, 40):
        for expected, found in zip(fn(x), compiled(x), strict=True):
            assert expected.stride() == found.stride()
            torch.testing.assert_close(found, expected, equal_nan=True)


def test_open_sizes():
    compiled = lampwork.compile(lambda x: (*torch.sort(x, -1), *torch.topk(x, 2)), dynamic=True)
    for shape in ((3, 9), (4, 700), (2, 2)):
        x = torch.randn(shape)
        assert same((*torch.sort(x, -1), *torch.topk(x, 2)), compiled(x))


def test_too_many_wanted():
    with pytest.raises(RuntimeError, match="out of range"):
        lampwork.compile(lambda x: torch.topk(x, 9))(torch.randn(2, 8))


def test_operators_have_rules():
    assert {"aten::sort", "aten::sort.stable", "aten::topk"} <= rules.rules.rules.keys()


FIRST_OF_A_PROCESS = """
import struct
import torch
import lampwork

def numbers(count, block):
    start = 0x7F0000007F000000 + 997 * block
    return bytearray(struct.pack(f"<{count}Q", *range(start, start + count)))

x = torch.arange(1500).view(1, 1500)
expected = torch.topk(x, 13)
# Memory that was given back, with numbers in it and behind it that are all different.
sizes = [(100, 250), (200, 2)]
pairs = [(numbers(first, k), numbers(second, k)) for first, second in sizes for k in range(3000)]
kept = [second for _, second in pairs]
del pairs
assert all(map(torch.equal, torch.ops.lampwork.topk(x, 13, True), expected))
"""


def test_first_topk_of_a_process():
    """What compares topk with ATen before its first use reads nothing behind its rows."""
    filled = {**os.environ, "MALLOC_PERTURB_": "165"}  # what is not written holds large numbers
    command = [sys.executable, "-c", FIRST_OF_A_PROCESS]
    done = subprocess.run(command, env=filled, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "dtype", [*WHOLE, torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
def test_all_sizes(dtype):
    for size in [*range(1, 300, 7), 64, 65, 128, 129, 256, 257, 512, 1024]:
        x = torch.stack([torch.randperm(size), torch.randint(0, 9, (size,))]).to(dtype)
        for stable in (False, True):
            found = torch.ops.lampwork.sort(x, False, stable, True)
            assert same(found, torch.sort(x, dim=-1, stable=stable))
        for k in {k for k in (1, 2, 8, 9, 13, 64, 65, 256, 257, size // 2, size) if 0 < k <= size}:
            assert same(torch.ops.lampwork.topk(x, k, True), torch.topk(x, k))
