"""Normalisations of tensors whose channels lie side by side."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lower_harness import check
from symbolic_harness import check_sizes, compile_symbolic
from test_lower_generated import check_table

torch.manual_seed(4)
IMAGE = torch.randn(3, 12, 5, 7).contiguous(memory_format=torch.channels_last) * 3 + 1
W = torch.randn(12)

TABLE = {
    "groups": lambda x, w: F.group_norm(x, 3),
    "affine": lambda x, w: F.group_norm(x, 4, w, w + 1),
    "weight": lambda x, w: F.group_norm(x, 6, w),
    "one group": lambda x, w: F.group_norm(x, 1, w, w, 0.1),
    "single channels": lambda x, w: F.group_norm(x, 12, w, w),
    "statistics": lambda x, w: torch.native_group_norm(x, w, w, 3, 12, 35, 4, 1e-5),
    "rows": lambda x, w: F.group_norm(x[:, :, :, 2], 3, w, w),
    "one place": lambda x, w: F.group_norm(x[:, :, :1, :1], 3, w, w),
}


@pytest.mark.parametrize("name", TABLE)
def test_group_norm(name):
    check(TABLE[name], IMAGE, W, scale=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_group_norm_generated(dtype):
    check_table(TABLE, list(TABLE), [IMAGE.to(dtype), W.to(dtype)], 8)


def test_group_norm_of_open_sizes():
    def fn(x, w):
        return F.group_norm(x.transpose(1, 2), 4, w, w)

    inputs, names = [torch.randn(2, 6, 12), W], [["a", "b", None], [None]]
    compiled = compile_symbolic(fn, inputs, names)
    sizes = [{"a": a, "b": b} for a, b in ((2, 6), (5, 17), (3, 64), (2, 2))]
    assert check_sizes(compiled, fn, inputs, names, sizes) == 4
