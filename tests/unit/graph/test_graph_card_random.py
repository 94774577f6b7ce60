"""What is recorded of random numbers that CUDA devices draw: as arithmetic where it is sure to be eager's."""

from __future__ import annotations

import devices
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from curand import Device, States, dropout_mask, grid_stride
from devices import CUDA, record_on, skip_where_torch_asks_the_driver
from torch import fx

from lampwork.errors import UnsupportedOpError
from lampwork.graph import canonical_on_cards, card_trial
from lampwork.graph.card_random import Card
from lampwork.graph.record import Recorder
from lampwork.runtime.program import CallAten

SMALL = Card(3, 1024)
DEVICE = Device(3, 1024)
X = torch.randn(64, 48)
STATE = torch.ops.lampwork.philox_state.default
WORDS = torch.ops.lampwork.philox_words.default


@pytest.fixture(autouse=True)
def card(monkeypatch):
    skip_where_torch_asks_the_driver()
    monkeypatch.setattr(canonical_on_cards, "card_of", lambda index: SMALL)
    monkeypatch.setattr(card_trial, "agrees", lambda *asked: True)
    monkeypatch.setattr(devices, "Recorder", lambda: Recorder(draws_on_cards=True))


def names(fn, x=X) -> list[str]:
    """The operators that draw, in order."""
    return [node.target._opname for node in record_on(fn, [x]).graph.nodes if node.meta.get("random")]


def run(graph: fx.Graph, inputs, seed: int, offset: int):
    """The graph's results on the CPU, and the offset behind it."""
    values, given = {}, iter(inputs)
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = next(given)
        elif node.op == "output":
            results = fx.map_arg(node.args[0], values.__getitem__)
        elif node.target is STATE:
            values[node] = torch.tensor([seed, offset])
            offset += node.args[0]
        else:
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **{k: v for k, v in kwargs.items() if k != "device"})
    return results, offset


def kept(p: float, count: int, vector: int, seed: int, offset: int) -> torch.Tensor:
    return torch.from_numpy(dropout_mask(DEVICE, count, vector, 1 - p, seed, offset, False))


def test_the_device_that_is_asked_has_its_number():
    def fn(x):
        return torch.randint(0, 9, (5,), device="cuda") + 1, torch.rand(3, device="cuda")

    (state,) = [node for node in record_on(fn, [X]).graph.nodes if node.target is STATE]
    assert state.args == (8, CUDA) and state.meta["val"].device == CUDA


def test_operators_in_a_row_take_their_places_at_once():
    def fn(x):
        y = F.dropout(x * 2, 0.2)
        z = torch.rand_like(x)
        return y, z, F.dropout(y.relu(), 0.5), torch.randint(0, 9, (5,), device=x.device)

    assert names(fn) == ["philox_state"]
    results, offset = run(record_on(fn, [X]).graph, [X], 11, 8)
    n = X.numel()
    steps = [DEVICE.counter_offset(n, 4)] * 3 + [4]
    starts = [8 + sum(steps[:i]) for i in range(5)]
    assert offset == starts[4]
    first = kept(0.2, n, 4, 11, starts[0]).view_as(X)
    assert torch.equal(results[0], X * 2 * (first * torch.tensor(1 / np.float32(0.8))))
    uniform = torch.from_numpy(grid_stride(DEVICE, n, 11, starts[1], States.uniform4, np.float32)).view_as(X)
    assert torch.equal(results[1], torch.where(uniform == 1, 0, uniform))
    assert torch.equal(results[2], results[0].relu() * (kept(0.5, n, 4, 11, starts[2]).view_as(X) * 2.0))
    words = grid_stride(DEVICE, 5, 11, starts[3], States.curand4, np.uint32).astype(np.int64)
    assert results[3].tolist() == (words % 9).tolist()


def test_what_draws_between_parts_them():
    def fn(x):
        return F.dropout(x * 2, 0.2) + torch.randn_like(x) + F.dropout(x + 1, 0.2)

    assert names(fn) == ["philox_state", "randn_like", "philox_state"]


@pytest.mark.parametrize(
    ("fn", "drawn"),
    [
        (lambda x: F.dropout(x * 2, 0.2, inplace=True), "philox_state"),
        (lambda x: torch.bernoulli(x, 0.3), "philox_state"),
        (lambda x: (x * 2).bernoulli_(0.3), "philox_state"),
        (lambda x: (x * 2).uniform_(), "philox_state"),
        (lambda x: (x * 2).uniform_(0, 0.1), "philox_state"),
        (lambda x: (x * 2).uniform_(-1, 1), "philox_state"),
        (lambda x: (x * 2).uniform_(-0.1, 0.2), "uniform"),
        (lambda x: x.half().uniform_(-1, 1), "uniform"),
        (lambda x: torch.rand(3, 4, device=x.device, dtype=torch.float64), "philox_state"),
        (lambda x: torch.rand_like(x.t()), "philox_state"),
        (lambda x: (x * 2).random_(-5, 5), "random"),
        (lambda x: x.int().random_(-5, 5), "philox_state"),
        (lambda x: torch.randint(0, 2**28, (5,), device=x.device), "randint"),
        (lambda x: torch.randint(0, 2**28 - 1, (5,), device=x.device), "philox_state"),
        (lambda x: torch.randn_like(x), "randn_like"),
        (lambda x: torch.bernoulli(x.sigmoid()), "bernoulli"),
        (lambda x: (x * 2).exponential_(), "exponential"),
        (lambda x: F.alpha_dropout(x, 0.3, True), "alpha_dropout"),
        (lambda x: torch.multinomial(x.abs(), 3), "multinomial"),
    ],
)
def test_what_is_arithmetic(fn, drawn):
    assert names(fn) == [drawn]


# --- where dropout's tensor lies --------------------------------------------------------------------------------------


def width_of(fn, x=X) -> int | None:
    """Elements that a thread takes at a turn; None where dropout is a call of ATen."""
    graph = record_on(fn, [x]).graph
    found = [node for node in graph.nodes if node.op == "call_function"]
    assert any(node.meta.get("random") for node in found)
    words = [node for node in found if node.target is WORDS]
    return words[0].args[6] if words else None


def drop(x):
    return F.dropout(x, 0.5)


def writes_a_part(x):
    y = x * 2
    part = y.narrow(0, 1, 63)
    part.relu_()
    return drop(part)


@pytest.mark.parametrize(
    ("fn", "width"),
    [
        (lambda x: drop(x * 2), 4),
        (lambda x: drop((x * 2).half()), 8),
        (lambda x: drop((x * 2).double()), 2),
        (lambda x: drop((x * 2).t()), 4),
        (lambda x: drop((x * 2).narrow(1, 0, 3)), 1),
        (lambda x: drop((x * 2).view(-1).narrow(0, 4, 3068)), 4),
        (lambda x: drop((x * 2).view(-1).narrow(0, 2, 3068)), 2),
        (lambda x: drop((x * 2).view(-1).narrow(0, 1, 3070)), 1),
        (lambda x: drop((x * 2).relu_()), 4),
        (writes_a_part, 4),
        (lambda x: drop((x * 2).view(-1).narrow(0, 2, 3070).relu_()), 2),
        (lambda x: drop((x * 2).max(1)[0]), 4),
        (lambda x: drop((x * 2).split(32)[1]), 4),
        (lambda x: drop(F.max_pool1d(x, 2)), 4),
    ],
)
def test_alignment(fn, width):
    assert width_of(fn) == width


def test_inputs_of_unknown_address_are_dropped_by_aten():
    assert width_of(drop) is None
    assert width_of(lambda x: drop(x.view(-1).narrow(0, 0, 3071))) == 1, (
        "an odd number of elements is never taken in vectors"
    )


@pytest.mark.parametrize(("p", "is_arithmetic"), [(0.1, True), (0.15, False)])
def test_gradients_that_are_scaled_otherwise_are_atens(p, is_arithmetic):
    """float32(1 / 0.85) is not 1 / float32(0.85), by which eager multiplies in forward."""
    drawn = "philox_state" if is_arithmetic else "dropout"
    assert names(lambda x: F.dropout(x * 2, p), X.clone().requires_grad_()) == [drawn]
    assert names(lambda x: F.dropout(x * 2, p)) == ["philox_state"]


# --- what is left to ATen ---------------------------------------------------------------------------------------------


def test_a_family_can_be_left_to_aten(monkeypatch):
    monkeypatch.setattr(canonical_on_cards, "TAKEN", frozenset({"uniform"}))
    assert names(lambda x: F.dropout(x * 2, 0.5) + torch.rand_like(x)) == ["dropout", "philox_state"]


def test_a_family_that_does_otherwise_is_left_to_aten(monkeypatch):
    asked = []
    monkeypatch.setattr(card_trial, "agrees", lambda *key: asked.append(key[:3]))
    assert names(lambda x: F.dropout(x.half(), 0.5) + torch.rand_like(x)) == ["dropout", "rand_like"]
    assert asked == [(0, "dropout", torch.float16), (0, "uniform", torch.float32)]


def test_generators_of_the_caller_are_not_recorded():
    with pytest.raises(UnsupportedOpError, match="a generator of its own"):
        names(lambda x: (x * 2).uniform_(generator=torch.Generator()))


def test_the_cpu_draws_as_ever():
    graph = record_on(lambda x: F.dropout(x, 0.5), [X], ["cpu"]).graph
    assert [n.target._opname for n in graph.nodes if n.meta.get("random")] == ["dropout"]


def test_programs_ask_the_generator_of_their_device():
    """One call of the generator, and kernels; there is no such generator here."""
    recorded = record_on(lambda x: F.dropout(F.dropout(x * 2, 0.5) + 1, 0.5), [X])
    program = devices.compile_on(recorded.graph)
    called = [step for step in program.instructions if isinstance(step, CallAten)]
    assert [(step.op, step.args) for step in called] == [("lampwork::philox_state.default", (8, CUDA))]
    with pytest.raises(RuntimeError, match="there is no CUDA generator for cpu"):
        devices.run_on_cpu(recorded, [X])
