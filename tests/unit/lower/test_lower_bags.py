"""Bags of embeddings against eager bit by bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from bits import assert_as_eager, calls
from hypothesis import given, settings
from hypothesis import strategies as st

import lampwork

torch.manual_seed(13)
TABLE = torch.randn(20, 70)
BAGS = torch.randint(0, 20, (6, 5))
FLAT = torch.randint(0, 20, (11,))
STARTS = torch.tensor([0, 0, 4, 9, 11])
SHARES = torch.rand(11)

OWN = {
    "mean": (lambda w, i: F.embedding_bag(i, w), (TABLE, BAGS)),
    "max": (lambda w, i: F.embedding_bag(i, w, mode="max"), (TABLE, BAGS)),
    "mean of bags": (lambda w, i, o: F.embedding_bag(i, w, o), (TABLE, FLAT, STARTS)),
    "max of bags": (lambda w, i, o: F.embedding_bag(i, w, o, mode="max"), (TABLE, FLAT, STARTS)),
    "last offset": (
        lambda w, i, o: F.embedding_bag(i, w, o, include_last_offset=True),
        (TABLE, FLAT, STARTS),
    ),
    "padding": (lambda w, i, o: F.embedding_bag(i, w, o, padding_idx=3), (TABLE, FLAT, STARTS)),
    "sum with padding": (
        lambda w, i, o: F.embedding_bag(i, w, o, mode="sum", padding_idx=3),
        (TABLE, FLAT % 4, STARTS),
    ),
    "max with padding": (
        lambda w, i, o: F.embedding_bag(i, w, o, mode="max", padding_idx=3),
        (TABLE, FLAT % 4, STARTS),
    ),
    "of what is computed": (lambda w, i: F.embedding_bag(i // 2, w * 2).relu(), (TABLE, BAGS)),
    "of columns": (lambda w, i: F.embedding_bag(i, w[:, 3:19], mode="max"), (TABLE, BAGS)),
}
ATEN = {
    "sum": (lambda w, i: F.embedding_bag(i, w, mode="sum"), (TABLE, BAGS)),
    "weighted": (
        lambda w, i, o, s: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=s),
        (TABLE, FLAT, STARTS, SHARES),
    ),
    "weighted with padding": (
        lambda w, i, o, s: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=s, padding_idx=3),
        (TABLE, FLAT % 4, STARTS, SHARES),
    ),
    "half precision": (lambda w, i: F.embedding_bag(i, w), (TABLE.bfloat16(), BAGS)),
}


@pytest.mark.parametrize("name", OWN | ATEN)
@pytest.mark.parametrize("dynamic", [None, True])
def test_as_eager(name, dynamic):
    fn, inputs = (OWN | ATEN)[name]
    assert_as_eager(fn, *inputs, dynamic=dynamic)


@pytest.mark.parametrize("name", OWN | ATEN)
def test_who_is_called(name):
    fn, inputs = (OWN | ATEN)[name]
    assert ("lampwork::embedding_bag" in calls(fn, *inputs)) is (name in OWN)


@pytest.mark.parametrize("name", OWN)
def test_special_values(name):
    fn, (table, *rest) = OWN[name]
    for number in (float("nan"), float("-inf"), -0.0):
        assert_as_eager(fn, table.masked_fill(torch.rand(table.shape) < 0.3, number), *rest)


@pytest.mark.parametrize("name", ["mean", "max", "mean of bags", "sum with padding"])
def test_out_of_range(name):
    fn, (table, indices, *rest) = OWN[name]
    for bad in (20, -1):
        wrong = indices.clone()
        wrong.view(-1)[2] = bad
        assert_as_eager(fn, table, wrong, *rest)


def test_bags_that_are_none():
    fn = OWN["mean of bags"][0]
    for starts in ([1, 4], [0, 12], [0, 5, 3]):
        assert_as_eager(fn, TABLE, FLAT, torch.tensor(starts))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random(data):
    width, rows = data.draw(st.sampled_from([1, 3, 16, 32, 63, 64, 65, 130])), data.draw(st.integers(1, 9))
    counts = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=5))
    starts = torch.tensor([0, *counts]).cumsum(0)
    indices = torch.randint(0, rows, (int(starts[-1]),))
    mode = data.draw(st.sampled_from(["sum", "mean", "max"]))
    padding = data.draw(st.sampled_from([None, 0, rows - 1]))
    assert_as_eager(
        lambda w, i, o: F.embedding_bag(i, w, o, mode=mode, padding_idx=padding, include_last_offset=True),
        torch.randn(rows, width),
        indices,
        starts,
    )


def test_gradients():
    table = TABLE.clone().requires_grad_()

    def loss(w, i):
        return F.embedding_bag(i, w, mode="max").square().sum()

    lampwork.compile(loss)(table, BAGS).backward()
    found, table.grad = table.grad, None
    loss(table, BAGS).backward()
    assert torch.equal(found, table.grad)
