"""Programs around graph breaks through the whole compiler, and how much is compiled for them."""

from __future__ import annotations

import copy
import gc
import threading
import weakref

import pytest
import torch
import torch.nn as nn
from break_check import outcome
from capture_reference import same
from test_capture_breaks_callees import PROGRAMS as CALLEES
from test_capture_breaks_handlers import PROGRAMS as HANDLERS
from test_capture_breaks_loops import PROGRAMS as LOOPS

import lampwork
from lampwork.api import function_of

X = torch.arange(6.0).reshape(2, 3)
ALL = [*LOOPS, *[(fn, (X,)) for fn in HANDLERS], *[(fn, (X, *more)) for fn, more in CALLEES]]


def compare(compiled, fn, args):
    eager_args, our_args = copy.deepcopy(args), copy.deepcopy(args)
    expected, got = outcome(fn, eager_args), outcome(compiled, our_args)
    assert got.error == expected.error
    assert got.text == expected.text
    assert got.frames == expected.frames
    assert got.warned == expected.warned
    same(got.result, expected.result)
    same(our_args, eager_args)


@pytest.mark.parametrize(("fn", "args"), ALL, ids=[f"{fn.__name__}-{i}" for i, (fn, _) in enumerate(ALL)])
def test_as_eager(fn, args):
    lampwork.reset_stats()
    compiled = lampwork.compile(fn)
    for _ in range(3):
        compare(compiled, fn, args)


def test_ten_thousand_breaks():
    def loop(x, n):
        for i in range(n):
            x = x * 0.5 + 1
            print(i)
        return x

    lampwork.reset_stats()
    compiled = lampwork.compile(loop)
    compare(compiled, loop, (X, 10_000))
    regions = lampwork.stats()["regions"]
    assert regions <= 5
    compare(compiled, loop, (X, 10_000))
    assert lampwork.stats()["regions"] == regions


def test_ten_thousand_breaks_that_use_the_counter():
    def loop(x, n):
        for i in range(n):
            x = x * 0.5 + i
            print(i)
        return x

    lampwork.reset_stats()
    compiled = lampwork.compile(loop)
    compare(compiled, loop, (X, 10_000))
    assert lampwork.stats()["regions"] <= 20


def test_while_on_data():
    def loop(x):
        while x.sum() < 1e6:
            x = x * 1.01 + 0.5
        return x

    lampwork.reset_stats()
    compiled = lampwork.compile(loop)
    compare(compiled, loop, (X,))
    assert lampwork.stats()["regions"] <= 4
    compare(compiled, loop, (X * 1000,))
    assert lampwork.stats()["regions"] <= 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.Linear(8, 8)
        self.output = nn.Linear(8, 8)

    def forward(self, hidden, mask):
        return torch.relu(self.output(self.attention(hidden) * mask)) + hidden


class Encoder(nn.Module):
    """As DeBERTa's: a loop over layers that keeps all hidden states."""

    def __init__(self, n):
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(n)])
        self.gradient_checkpointing = False

    def forward(self, hidden, mask, output_hidden_states=True):
        states = () if output_hidden_states else None
        for i, layer in enumerate(self.layers):
            if output_hidden_states:
                states = states + (hidden,)
            hidden = layer(hidden, mask)
            print("layer", i, hidden.shape)
        return hidden, states


@pytest.mark.parametrize("n", [3, 12])
def test_an_encoder_that_prints_in_each_layer(n):
    torch.manual_seed(0)
    model = Encoder(n)
    lampwork.reset_stats()
    compiled = lampwork.compile(model)
    args = (torch.randn(2, 5, 8), torch.ones(2, 5, 1))
    with torch.no_grad():
        for _ in range(2):
            compare(compiled, model, args)
        regions = lampwork.stats()["regions"]
        assert regions <= 3 * n
        compare(compiled, model, args)
    assert lampwork.stats()["regions"] == regions
    assert lampwork.stats()["eager_calls"] == 0


def test_deep_recursion_of_breaks_in_callees():
    def down(x, n):
        if n == 0:
            return x
        print(n)
        return down(x + 1, n - 1) * 0.5

    lampwork.reset_stats()
    compare(lampwork.compile(down), down, (X, 50))


def test_gradients_through_breaks():
    def f(x, w):
        for i in range(3):
            x = torch.tanh(x @ w)
            print(i)
        return x.sum()

    lampwork.reset_stats()
    compiled = lampwork.compile(f)
    weights = [torch.eye(3, requires_grad=True) for _ in range(2)]
    for _ in range(2):
        for call, weight in zip((f, compiled), weights, strict=True):
            weight.grad = None
            call(X, weight).backward()
        torch.testing.assert_close(weights[0].grad, weights[1].grad)


def test_many_threads_in_one_loop():
    seen = []

    def loop(x, k):
        for i in range(20):
            x = x + k
            seen.append(i)
            if x.sum() > 1e9:
                x = x * 0
        return x

    lampwork.reset_stats()
    compiled = lampwork.compile(loop)
    results, errors = {}, []

    def run(k):
        try:
            results[k] = [compiled(X, float(k)) for _ in range(5)]
        except BaseException as error:  # noqa: BLE001  (asserted on below)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(results) == list(range(4))
    for k, found in results.items():
        for one in found:
            torch.testing.assert_close(one, X + 20 * k)
    assert len(seen) == 4 * 5 * 20


def test_a_race_leaves_nothing_eager_for_good():
    """Another thread changes what a call reads, while it is captured and after: it is captured again, or eager once."""
    state, done = [0.0], threading.Event()

    def f(x):
        return x + len(state)

    def change():
        while not done.is_set():
            state.append(0.0)
            del state[1:]

    lampwork.reset_stats()
    compiled = lampwork.compile(f)
    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(10):
            assert compiled(X)[0, 0] in (1, 2)
    finally:
        done.set()
        thread.join()
    assert not function_of(compiled).refused
    torch.testing.assert_close(compiled(X), X + 1)


def test_tensors_do_not_outlive_their_iteration():
    alive, counts = [], []

    @torch.compiler.disable
    def note(x):
        alive.append(weakref.ref(x))
        counts.append(sum(ref() is not None for ref in alive))

    def loop(x):
        for _ in range(10):
            x = x * 1.5
            note(x)
        return x

    compiled = lampwork.compile(loop)
    compiled(X)
    gc.collect()
    alive.clear()
    counts.clear()
    gc.disable()
    try:
        compiled(X)
    finally:
        gc.enable()
    assert len(counts) == 10
    assert max(counts) <= 3, counts
