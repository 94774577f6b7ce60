"""detach_(), detach() and .data: memory, gradients and versions are three things, in compiled code as in eager."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn as nn
from torch.utils._pytree import tree_leaves

import lampwork
from lampwork.runtime import autograd

pytestmark = pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")


@pytest.fixture(autouse=True, params=["nodes of our own", "compiled backward"])
def strategy(request, monkeypatch):
    """Each test runs with a first backward that is eager's, and with backwards that are compiled before the first."""
    monkeypatch.setattr(autograd, "AHEAD", request.param == "compiled backward")


def agree(make):
    """`make(transform)` gives the same, or raises the same, for eager and compiled."""
    found = []
    for transform in (lambda f: f, partial(lampwork.compile, options={"strict": False})):
        try:
            found.append(tree_leaves(make(transform)))
        except RuntimeError as error:
            found.append([str(error)])
    assert len(found[0]) == len(found[1])
    for a, b in zip(*found, strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b)
            assert (a.requires_grad, a.is_leaf) == (b.requires_grad, b.is_leaf)
        else:
            assert a == b


def defined(body, result):
    """A function of w and x with this body."""
    namespace = {"torch": torch}
    exec(f"def f(w, x):\n    h = torch.zeros(4)\n    {body}\n    return {result}", namespace)
    return namespace["f"]


# --- detach_() --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("h = w * 2; h.detach_()", "h * w, h.requires_grad, h.is_leaf"),
        ("h = torch.tanh(w); y = h * 3; h.detach_()", "h, y"),
        ("h = w * 2; h.detach_(); h.add_(w)", "h, h * w"),
        ("h = w * 2; v = h.view(2, 2); h.detach_()", "v, h"),
        ("h = w * 2; v = h.view(2, 2); h.detach_(); v.mul_(2)", "v"),
        ("h = w * 2; v = h.view(2, 2); h.detach_(); v.mul_(w.view(2, 2))", "h"),
        ("h = w * 2; v = h.view(2, 2); v.detach_()", "v * w.view(2, 2)"),
        ("h = (w * 2).detach(); h.detach_()", "h * w"),
        ("h.view(2, 2).detach_()", "h * w"),
        ("h = w.detach_()", "h * x, w.requires_grad"),
    ],
)
def test_detached_in_place(body, result):
    def make(transform):
        w = torch.arange(1.0, 5.0).requires_grad_()
        results = transform(defined(body, result))(w, torch.ones(4, requires_grad=True))
        tensors = [t for t in tree_leaves(results) if isinstance(t, torch.Tensor) and t.requires_grad]
        sum(t.sum() for t in tensors).backward()
        return results, w.grad

    agree(make)


def test_truncated_backpropagation_detaches_what_is_kept():
    def make(transform):
        w, state = torch.ones(3, requires_grad=True), {"h": torch.zeros(3)}

        def step(x):
            state["h"].detach_()
            state["h"] = torch.tanh(x * w + state["h"])
            return state["h"].sum()

        run = transform(step)
        for i in range(4):
            run(torch.full((3,), i / 4)).backward()
        return w.grad, state["h"]

    agree(make)


# --- writes that autograd or versions do not see ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "h.data.copy_(w)",
        "h.detach().copy_(w)",
        "h.data[:] = w",
        "h.data.view(2, 2).copy_(w.view(2, 2))",
        "h.data.add_(w)",
        "h.detach().add_(w); h.data.mul_(2)",
        "d = h.data; d.copy_(w); h = h + d",
        "d = h.detach(); d[0] = w[0]; h = h * d",
        "d = h.data; v = d[1:]; v.copy_(w[1:]); h = h + d",
        "d = h.data; e = h.data; d.copy_(w); h = h + e",
        "h.data.as_strided((2,), (1,), 0).copy_(w[:2])",
        "h.data[1:].as_strided((2,), (1,)).copy_(w[:2])",
        "torch.add(w, 1, out=h.data)",
        "torch._foreach_add_([h.data], [w])",
        "h.data.clamp_(1, 2); y = h * w; h.data.add_(1); h = h + y",
        "y = h * w; h.data.add_(1); h = y",
        "y = h * w; h.detach().add_(1); h = y",
    ],
)
def test_a_write_to_a_detached_alias_gives_the_memory_no_gradient(body):
    def make(transform):
        w = torch.arange(4.0).requires_grad_()
        y = transform(defined(body, "h * w"))(w, None)
        y.sum().backward()
        return y, w.grad

    agree(make)


@pytest.mark.parametrize("write", ["h.copy_(w)", "h[1:] = w[1:]", "h.view(2, 2)[0] = w[:2]"])
def test_a_write_without_gradients_gives_none(write):
    source = f"def f(w):\n h = torch.zeros(4)\n with torch.no_grad():\n  {write}\n return h * w, h"
    namespace = {"torch": torch}
    exec(source, namespace)

    def make(transform):
        w = torch.arange(4.0).requires_grad_()
        y, h = transform(namespace["f"])(w)
        y.sum().backward()
        return y, h, w.grad

    agree(make)


def test_an_alias_that_is_read_without_gradients_keeps_them():
    def f(w):
        h = w * 2
        v = h[0]
        h.add_(1)
        with torch.no_grad():
            least = v * 2
        return v * w[0] + least

    def make(transform):
        w = torch.ones(3, requires_grad=True)
        y = transform(f)(w)
        y.backward()
        return y, w.grad

    agree(make)


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize(
    "body",
    [
        "w.data.add_(1)",
        "w.data.clamp_(-1, 1)",
        "w.data.copy_(x)",
        "w.data[0] = 3",
        "torch.nn.init.ones_(w.data)",
        "torch._foreach_mul_([w.data], 2)",
        "torch.add(x.detach(), 1, out=w.data)",
        "w.data.mul_(0.5).add_(x.data, alpha=0.5)",
        "w.data.add_(1); w.data.add_(1)",
        "w.detach().mul_(1)",
    ],
)
def test_a_write_to_data_moves_no_version(body, wanted):
    """Neither does it spoil what an earlier call saved, nor is it hidden from that call's backward."""

    def make(transform):
        x, w = torch.arange(4.0).requires_grad_(), torch.full((4,), 2.0).requires_grad_(wanted)
        run = transform(defined(body, "x * w"))
        first, second = run(w, x), run(w, x)
        version = w._version
        (first + second).sum().backward()
        return first, second, x.grad, w.grad, version

    agree(make)


def test_versions_of_what_is_written_both_ways():
    def f(b, x):
        b.data.add_(1)
        b.add_(2)
        b.data.mul_(2)
        return b * x

    def make(transform):
        run, b = transform(f), torch.ones(3)
        results = [run(b, torch.ones(3)) for _ in range(2)]
        with torch.no_grad():
            transform(lambda b: b.data.add_(1))(b)
        return results, b, b._version

    agree(make)


def test_data_that_is_returned_has_a_version_of_its_own():
    def make(transform):
        w, layer = torch.ones(3, requires_grad=True), nn.Linear(2, 2)
        h, data = transform(lambda w: ((h := w * 2), h.data))(w)
        data.add_(1)
        held = transform(lambda: layer.weight.data)()
        held.zero_()
        h.sum().backward()
        return h, data, h._version, data._version, layer.weight._version, layer.weight, w.grad

    agree(make)


def test_batch_norm_moves_no_version_of_its_statistics():
    def make(transform):
        layer = nn.BatchNorm1d(4)
        run = transform(layer)
        for _ in range(2):
            run(torch.ones(3, 4))
        return [buffer._version for buffer in layer.buffers()]

    agree(make)


def test_what_autograd_has_nothing_of_to_remember(monkeypatch):
    def never(*args):
        raise AssertionError("a region that autograd knows nothing of needs no node")

    monkeypatch.setattr(autograd.DifferentiableCall, "__call__", never)

    def make(transform):
        w = torch.arange(6.0, requires_grad=True)
        h = (w * 2).view(2, 3)
        looked = transform(lambda h: (h.detach(), h.t().detach()[1:], h.detach() * 2 + 1))(h)
        looked[0].add_(1)
        h.sum().backward()
        shown = [(x._version, x.data_ptr() == h.data_ptr()) for x in looked]
        return *looked, str(shown), h._version, w.grad

    agree(make)
