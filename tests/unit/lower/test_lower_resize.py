"""Interpolation against eager: by the reference, and by generated code on each instruction set."""

from __future__ import annotations

import os
import random

import pytest
import torch
import torch.nn.functional as F
from lower_harness import check
from scalar_target import native_on, target_named
from test_lower_generated import check_table

import lampwork

torch.manual_seed(5)
IMAGE = torch.randn(2, 3, 5, 9)


def beside(x, times):
    """Of `times` the channels, which lie side by side."""
    return x.repeat(1, times, 1, 1).contiguous(memory_format=torch.channels_last)


OWN = {
    "bilinear 2": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear 4": lambda x: F.interpolate(x, scale_factor=4, mode="bilinear"),
    "bilinear 8 and 3": lambda x: F.interpolate(x, size=(15, 72), mode="bilinear"),
    "bilinear rows": lambda x: F.interpolate(x, size=(7, 9), mode="bilinear"),
    "bilinear fewer rows": lambda x: F.interpolate(x, size=(2, 18), mode="bilinear"),
    "bilinear corners of rows": lambda x: F.interpolate(x, size=(11, 9), mode="bilinear", align_corners=True),
    "bilinear one row": lambda x: F.interpolate(x, size=(1, 9), mode="bilinear", align_corners=True),
    "bilinear the same": lambda x: F.interpolate(x, size=(5, 9), mode="bilinear"),
    "bilinear a column": lambda x: F.interpolate(x[..., :1], scale_factor=2, mode="bilinear"),
    "bilinear wide": lambda x: F.interpolate(x.repeat(1, 1, 1, 5)[..., :40], scale_factor=2, mode="bilinear"),
    "bilinear sliced": lambda x: F.interpolate(x[:, :, 1:, 2:], scale_factor=2, mode="bilinear"),
    "corners": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
    "fractions": lambda x: F.interpolate(x, size=(7, 20), mode="bilinear"),
    "fewer": lambda x: F.interpolate(x, size=(3, 4), mode="bilinear"),
    "fewer rows, more columns": lambda x: F.interpolate(x, size=(2, 21), mode="bilinear", align_corners=True),
    "one element": lambda x: F.interpolate(x[..., :1, :1], size=(3, 5), mode="bilinear", align_corners=True),
    "to two elements": lambda x: F.interpolate(x, size=(1, 2), mode="bilinear", align_corners=True),
    "wide fractions": lambda x: F.interpolate(x.repeat(1, 1, 1, 5), size=(9, 77), mode="bilinear"),
    "sliced fractions": lambda x: F.interpolate(x[:, 1:, 1:, 2:], size=(9, 10), mode="bilinear"),
    "a factor that is not the sizes'": lambda x: torch.ops.aten.upsample_bilinear2d(
        x, [10, 18], False, 2.1, 2.1
    ),
    "trilinear corners": lambda x: F.interpolate(
        x[None], size=(4, 9, 5), mode="trilinear", align_corners=True
    ),
    "cubic 2": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "cubic corners": lambda x: F.interpolate(x, size=(11, 21), mode="bicubic", align_corners=True),
    "cubic fewer": lambda x: F.interpolate(x, size=(3, 4), mode="bicubic"),
    "cubic rows": lambda x: F.interpolate(x, size=(8, 9), mode="bicubic"),
    "cubic the same": lambda x: F.interpolate(x, size=(5, 9), mode="bicubic"),
    "cubic one element": lambda x: F.interpolate(x[..., :1, :1], size=(3, 5), mode="bicubic"),
    "cubic of a factor": lambda x: F.interpolate(x, scale_factor=(1.3, 2.7), mode="bicubic"),
    "cubic fused": lambda x: F.interpolate(x.relu(), size=(9, 40), mode="bicubic") * 2 + 1,
    "linear 2": lambda x: F.interpolate(x[:, 0], scale_factor=2, mode="linear"),
    "linear 4 of 32": lambda x: F.interpolate(x.reshape(2, 5, 27)[..., :16], scale_factor=4, mode="linear"),
    "trilinear 2": lambda x: F.interpolate(x[None], scale_factor=2, mode="trilinear"),
    "nearest 2": lambda x: F.interpolate(x, scale_factor=2),
    "nearest 3": lambda x: F.interpolate(x, scale_factor=3),
    "nearest 4 wide": lambda x: F.interpolate(x.repeat(1, 1, 1, 4)[..., :32], scale_factor=4),
    "nearest 1 and 8": lambda x: F.interpolate(x, size=(5, 72)),
    "nearest 1d": lambda x: F.interpolate(x[0], scale_factor=2),
    "nearest 3d": lambda x: F.interpolate(x[None], scale_factor=2),
    "nearest-exact 2": lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact"),
    "nearest-exact 1d": lambda x: F.interpolate(x[0], scale_factor=4, mode="nearest-exact"),
    "channels 2": lambda x: F.interpolate(beside(x, 6), scale_factor=2, mode="bilinear"),
    "channels corners": lambda x: F.interpolate(
        beside(x, 7)[:, 1:], size=(7, 20), mode="bilinear", align_corners=True
    ),
    "channels fewer": lambda x: F.interpolate(beside(x, 6)[..., 2:], size=(3, 4), mode="bilinear"),
    "cubic channels": lambda x: F.interpolate(beside(x, 6), size=(11, 20), mode="bicubic"),
    "cubic channels fewer": lambda x: F.interpolate(beside(x, 12)[:, :, 1:], size=(3, 4), mode="bicubic"),
    "cubic channels rows": lambda x: F.interpolate(beside(x, 6), size=(8, 9), mode="bicubic"),
    "fused": lambda x: F.interpolate(x.relu(), scale_factor=2, mode="bilinear") * 2 + 1,
    "nearest fused": lambda x: (
        F.interpolate(x.relu(), scale_factor=2) + F.interpolate(x, scale_factor=2).exp()
    ),
    "repeated": lambda x: x.repeat_interleave(4, -1) + x.repeat_interleave(4, 3).exp(),
}

ATEN = {
    "rows alone": lambda x: F.interpolate(x[:, 0], size=(20,), mode="linear"),
    "an eighth of each row": lambda x: F.interpolate(x.repeat(1, 1, 1, 5), size=(5, 5), mode="bicubic"),
    "cubic of channels side by side": lambda x: F.interpolate(beside(x, 1), scale_factor=2, mode="bicubic"),
    "channels side by side": lambda x: F.interpolate(beside(x, 1), scale_factor=2, mode="bilinear"),
    "many channels side by side": lambda x: F.interpolate(beside(x, 12), scale_factor=2, mode="bilinear"),
}


@pytest.mark.parametrize("name", OWN)
def test_loops(name):
    check(OWN[name], IMAGE, scale=4)


@pytest.mark.parametrize("name", ATEN)
def test_calls_of_aten(name):
    check(ATEN[name], IMAGE, extern=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_generated(dtype):
    check_table(OWN, list(OWN), [IMAGE.to(dtype)], 8)


@pytest.mark.parametrize("isa", ["avx2", "sse4", "scalar"])
def test_other_machines(isa):
    def every(x):
        return [fn(x) for fn in OWN.values()]

    with native_on(target_named(isa)):
        results = lampwork.compile(every, options={"strict": True})(IMAGE)
    for result, expected in zip(results, every(IMAGE), strict=True):
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_repeated_integers(dtype):
    x = torch.randint(0, 2, (3, 40), dtype=dtype)
    compiled = lampwork.compile(lambda x: x.repeat_interleave(2, -1).logical_not(), options={"strict": True})
    assert torch.equal(compiled(x), x.repeat_interleave(2, -1).logical_not())


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_open_batches(mode):
    compiled = lampwork.compile(
        lambda x: F.interpolate(x, size=(11, 13), mode=mode), dynamic=True, options={"strict": True}
    )
    for batch in (1, 2, 5):
        x = torch.randn(batch, 3, 5, 9)
        torch.testing.assert_close(compiled(x), F.interpolate(x, size=(11, 13), mode=mode))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_spreads_as_in_eager(mode, value):
    x = torch.randn(1, 2, 6, 7)
    x[0, 0, 2, 3] = x[0, 1, 5, 6] = value

    def resized(x):
        return F.interpolate(x, size=(9, 20), mode=mode, align_corners=True)

    compiled = lampwork.compile(resized, options={"strict": True})
    torch.testing.assert_close(compiled(x), resized(x), equal_nan=True)


EDGES = {
    "the same": ((5, 6), (5, 6)),
    "one more row": ((5, 6), (6, 6)),
    "one more column": ((5, 6), (5, 7)),
    "twice": ((3, 4), (6, 8)),
    "fourfold, from one column": ((4, 1), (16, 4)),
    "eightfold along rows alone": ((4, 3), (4, 24)),
    "three times, onto elements": ((7, 7), (21, 21)),
}


@pytest.mark.parametrize("corners", [False, True], ids=["", "corners"])
@pytest.mark.parametrize("channels_last", [False, True], ids=["rows", "channels"])
@pytest.mark.parametrize("name", EDGES)
def test_neighbours_of_weight_zero_make_nan_of_infinity(name, channels_last, corners):
    size, wanted = EDGES[name]
    x = torch.randn(2, 18, *size)
    chance = torch.rand(x.shape)
    x[chance < 0.2] = float("inf")
    x[chance > 0.9] = -float("inf")
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)

    def resized(x):
        row = x[:, :, 0]
        return [
            F.interpolate(x, wanted, mode="bilinear", align_corners=corners),
            F.interpolate(x, wanted, mode="bicubic", align_corners=corners),
            F.interpolate(row, wanted[1], mode="linear", align_corners=corners),
            F.interpolate(x[:, :, None], (2, *wanted), mode="trilinear", align_corners=corners),
            F.interpolate(x[:, :, None], (1, *wanted), mode="trilinear", align_corners=corners),
        ]

    for dtype in (torch.float32, torch.float64):
        given = x.to(dtype)
        for ours, theirs in zip(lampwork.compile(resized)(given), resized(given), strict=True):
            torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_random_sizes():
    """Sizes, factors and modes drawn at random, results and strides against eager's in float64."""
    generator = random.Random(7)
    for _ in range(int(os.environ.get("LAMPWORK_FUZZ", "0")) or 12):
        shape = [generator.choice([1, 2, 3]), generator.choice([1, 3, 20])]
        shape += [generator.choice([1, 2, 5, 16, 33]) for _ in range(2)]
        size = [generator.choice([1, 2, 7, 16, 31, 64]) for _ in range(2)]
        mode, corners = generator.choice(["bilinear", "bicubic"]), generator.random() < 0.5
        x = torch.randn(shape)[..., generator.choice([0, 0, shape[3] // 2]) :]

        def resized(x, size=size, mode=mode, corners=corners):
            return F.interpolate(x, size=size, mode=mode, align_corners=corners)

        result, expected = lampwork.compile(resized, options={"strict": True})(x), resized(x)
        case = (shape, size, mode, corners)
        assert result.stride() == expected.stride(), case
        error = (result.double() - resized(x.double())).abs().max()
        allowed = 4 * (expected.double() - resized(x.double())).abs().max() + 2e-6
        assert error <= allowed, case


@pytest.mark.parametrize("dynamic", (False, True))
@pytest.mark.parametrize("dtype", (torch.bool, torch.int8, torch.int32, torch.int64), ids=str)
def test_integers_that_eager_refuses(dtype, dynamic):
    def nearest(x):
        return F.interpolate(x, scale_factor=2.0)

    x = torch.ones(1, 3, 4, 4, dtype=dtype)
    with pytest.raises(NotImplementedError) as wanted:
        nearest(x)
    with pytest.raises(NotImplementedError) as found:
        lampwork.compile(nearest, dynamic=dynamic)(x)
    assert str(found.value) == str(wanted.value)
