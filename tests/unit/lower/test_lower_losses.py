"""Losses of classification, encodings of classes, windows: against eager, by the reference and by generated code."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from lower_harness import check
from test_lower_generated import check_table

import lampwork

torch.manual_seed(3)
LOGITS = torch.randn(6, 5) * 8
SHARES = LOGITS.sigmoid()
TARGET = torch.rand(6, 5)
CLASSES = torch.tensor([0, 4, 2, 2, 3, 1])
WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 0.0, 1.5])
MAPS = torch.randn(2, 5, 3, 7)
LABELS = torch.randint(0, 5, (2, 3, 7))
IMAGE = torch.randn(2, 3, 9, 13)

LOSSES = {}
for _reduction in ("none", "mean", "sum"):
    LOSSES[f"bce {_reduction}"] = lambda x, p, t, w, r=_reduction: F.binary_cross_entropy(p, t, reduction=r)
    LOSSES[f"bce weighted {_reduction}"] = lambda x, p, t, w, r=_reduction: F.binary_cross_entropy(
        p, t, p + t, reduction=r
    )
    LOSSES[f"logits {_reduction}"] = lambda x, p, t, w, r=_reduction: F.binary_cross_entropy_with_logits(
        x, t, reduction=r
    )
    LOSSES[f"logits weighted {_reduction}"] = lambda x, p, t, w, r=_reduction: (
        F.binary_cross_entropy_with_logits(x, t, w, reduction=r, pos_weight=w + 0.5)
    )

CLASS_LOSSES = {}
for _reduction in ("none", "mean", "sum"):
    CLASS_LOSSES[f"nll {_reduction}"] = lambda x, c, w, r=_reduction: F.nll_loss(x, c, reduction=r)
    CLASS_LOSSES[f"nll weighted {_reduction}"] = lambda x, c, w, r=_reduction: F.nll_loss(
        x, c, w, reduction=r
    )
    CLASS_LOSSES[f"nll ignored {_reduction}"] = lambda x, c, w, r=_reduction: F.nll_loss(
        x, torch.where(c == 2, -7, c), w, ignore_index=-7, reduction=r
    )
    CLASS_LOSSES[f"cross entropy {_reduction}"] = lambda x, c, w, r=_reduction: F.cross_entropy(
        x, c, reduction=r
    )

WINDOWS = {
    "unfold": lambda x: F.unfold(x, 3),
    "unfold padded": lambda x: F.unfold(x, (3, 2), padding=(2, 1), stride=(2, 3)),
    "unfold dilated": lambda x: F.unfold(x, (2, 3), dilation=(2, 3), padding=1),
    "unfold patches": lambda x: F.unfold(x, 4, stride=4),
    "unfold one": lambda x: F.unfold(x, (9, 13)),
    "unfold channels_last": lambda x: F.unfold(x.contiguous(memory_format=torch.channels_last), 3, padding=1),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
    "sinc": torch.sinc,
    "sinc of 0": lambda x: torch.sinc(x * 0),
}

# Their positions are taken out of the graph by a pass, if nothing reads them: so these run compiled.
MAXIMA = {
    "adaptive max": lambda x: F.adaptive_max_pool2d(x, (3, 1)),
    "adaptive max uneven": lambda x: F.adaptive_max_pool2d(x, (4, 5)),
    "adaptive max wide": lambda x: F.adaptive_max_pool2d(x, (9, 20)),
    "adaptive max 1d": lambda x: F.adaptive_max_pool1d(x[0], 4),
    "adaptive max 3d": lambda x: F.adaptive_max_pool3d(x, (2, 4, 5)),
    "adaptive max of nan": lambda x: F.adaptive_max_pool2d(torch.where(x > 1, math.nan, x), 2),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss(name):
    check(LOSSES[name], LOGITS, SHARES, TARGET, WEIGHTS, scale=4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_losses_generated(dtype):
    check_table(LOSSES, list(LOSSES), [x.to(dtype) for x in (LOGITS, SHARES, TARGET, WEIGHTS)], 8)


@pytest.mark.parametrize("name", CLASS_LOSSES)
def test_class_loss(name):
    check(CLASS_LOSSES[name], LOGITS, CLASSES, WEIGHTS, scale=4)
    check(CLASS_LOSSES[name], MAPS, LABELS, WEIGHTS, scale=4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_class_losses_generated(dtype):
    check_table(CLASS_LOSSES, list(CLASS_LOSSES), [LOGITS.to(dtype), CLASSES, WEIGHTS.to(dtype)], 8)
    check_table(CLASS_LOSSES, list(CLASS_LOSSES), [MAPS.to(dtype), LABELS, WEIGHTS.to(dtype)], 8)


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name):
    check(WINDOWS[name], IMAGE, scale=4)


def test_windows_generated():
    check_table(WINDOWS, list(WINDOWS), [IMAGE], 4)


@pytest.mark.parametrize("name", MAXIMA)
def test_adaptive_maxima(name):
    compiled = lampwork.compile(MAXIMA[name], options={"strict": True})
    assert torch.equal(compiled(IMAGE).nan_to_num(99), MAXIMA[name](IMAGE).nan_to_num(99))
    assert "aten::" not in str(compiled.stages.definitions)


def test_one_hot():
    check(lambda c: F.one_hot(c, 5), CLASSES)
    check(lambda c: F.one_hot(c, 9).float() * 2, LABELS)
    check_table({"one hot": lambda c: F.one_hot(c, 19)}, ["one hot"], [LABELS])


@pytest.mark.parametrize(
    ("fn", "good", "bad"),
    [
        (lambda x: F.one_hot(x, 4), torch.tensor([0, 3]), torch.tensor([0, 4])),
        (lambda x: F.one_hot(x, 4), torch.tensor([0, 3]), torch.tensor([-1, 0])),
        (lambda x: F.nll_loss(LOGITS[:2], x), torch.tensor([0, 3]), torch.tensor([0, 5])),
        (lambda x: F.nll_loss(LOGITS[:2], x), torch.tensor([0, 3]), torch.tensor([0, -1])),
        (lambda x: F.binary_cross_entropy(x, x), torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.5])),
        (lambda x: F.binary_cross_entropy(x, x), torch.tensor([0.0, 1.0]), torch.tensor([0.0, math.nan])),
    ],
)
def test_what_eager_refuses_is_refused(fn, good, bad):
    compiled = lampwork.compile(fn, options={"strict": True})
    torch.testing.assert_close(compiled(good), fn(good))
    with pytest.raises((RuntimeError, IndexError)) as expected:
        fn(bad)
    with pytest.raises(type(expected.value)) as got:
        compiled(bad)
    assert str(got.value) == str(expected.value)


@pytest.mark.parametrize("shifts", [(3, -1), (13, 2), (0, 1), (-40, 5)])
def test_roll_over_the_dimension_that_lies_side_by_side(shifts):
    table = {
        "two": lambda x: x.roll(shifts, (3, 2)),
        "last": lambda x: x.roll(shifts[0], -1),
        "twice": lambda x: x.roll(shifts, (3, 3)),
        "strided": lambda x: x.transpose(1, 3).roll(shifts, (1, 3)),
        "sliced": lambda x: x[..., 1::2].roll(shifts, (2, 3)),
    }
    for fn in table.values():
        check(fn, IMAGE)
    check_table(table, list(table), [IMAGE], 0)
