"""What a compiled function may ask of torch.cuda, and what ends a region."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from devices import CUDA, pretend, skip_where_torch_asks_the_driver, without_lazy_init

import lampwork
from lampwork.capture.capture import capture
from lampwork.capture.interpreter import CaptureOptions
from lampwork.capture.model.evaluate import holds
from lampwork.capture.state.lifting import LiesAt
from lampwork.graph import canonical_on_cards, card_trial
from lampwork.graph.card_random import Card
from lampwork.graph.devices import main_device

X = torch.randn(4)


def records(fn: Any) -> list[str]:
    """The causes of the breaks of a call."""
    return [str(record) for record in capture(fn, (X,), {}).breaks]


def synchronized(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch.cuda.synchronize()
    return y * 2


def of_a_stream(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    with torch.cuda.stream(None):
        return y * 2


def on_a_device(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch.cuda.set_device(0)
    return y * 2


def with_a_device(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    with torch.cuda.device(0):
        return y * 2


def emptied(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch.cuda.empty_cache()
    return y * 2


def streaming(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    return y * (torch.cuda.current_stream() is not None)


@pytest.mark.parametrize("fn", [synchronized, of_a_stream, on_a_device, with_a_device, emptied, streaming])
def test_what_acts_on_a_device_ends_the_region(fn: Any) -> None:
    (record,) = records(fn)
    assert record.startswith("[LW105]") and "torch.cuda" in record


def test_an_emptied_cache_runs() -> None:
    compiled = lampwork.compile(emptied)
    torch.testing.assert_close(compiled(X), emptied(X))


def test_questions_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def current_device() -> int:
        return number

    current_device.__module__ = "torch.cuda"
    number = 3
    monkeypatch.setattr(torch.cuda, "current_device", current_device)
    region = capture(lambda x: x * torch.cuda.current_device(), (X,), {})
    assert not region.breaks

    def all_hold() -> bool:
        return all(holds(guard, (X,), {}) for guard in region.guards)

    assert all_hold()
    number = 5
    assert not all_hold()


def test_settled_questions_need_no_guard() -> None:
    region = capture(lambda x: x + 1 if not torch.cuda.is_available() else x, (X,), {})
    assert not region.breaks
    assert not any("is_available" in str(guard.source) for guard in region.guards)


@pytest.fixture
def pretending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors say that they are on cuda:0."""
    pretend(monkeypatch)


def test_autocast_of_cuda_is_guarded(pretending: None, monkeypatch: pytest.MonkeyPatch) -> None:
    region = capture(lambda x: x + 1, (X,), {})
    assert region.graph is not None and main_device(region.graph) == CUDA
    (guard,) = [each for each in region.guards if "autocast" in str(each.source)]
    assert holds(guard, (X,), {})
    torch.set_autocast_enabled("cuda", True)
    try:
        assert not holds(guard, (X,), {})
        cast = capture(lambda x: x + 1, (X,), {})
        asked = [each for each in cast.guards if "autocast" in str(each.source)]
        assert [each.expected for each in asked] == [True, torch.get_autocast_dtype("cuda")]
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert not any("autocast" in str(each.source) for each in capture(lambda: torch.ones(2), (), {}).guards)


@pytest.mark.parametrize(("start", "other"), [(0, 4), (2, 0), (1, 3)])
def test_dropout_of_an_input_is_guarded_by_its_address(
    start: int, other: int, pretending: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canonical_on_cards, "card_of", {0: Card(2, 1024)}.__getitem__)
    for family in ("dropout", "uniform"):
        monkeypatch.setitem(card_trial._found, (0, family, torch.float32), True)
    memory = torch.zeros(64)
    x = memory[start : start + 32]
    drops = CaptureOptions(is_native=True)
    region = capture(lambda x: F.dropout(x, 0.5), (x,), {}, drops)
    (guard,) = [each for each in region.guards if isinstance(each.expected, LiesAt)]
    assert holds(guard, (x,), {}) and holds(guard, (memory[start + 4 : start + 36],), {})
    assert holds(guard, (memory[other : other + 32],), {}) == ((start - other) % 4 == 0)
    for fn in (lambda x: F.dropout(x * 2, 0.5), lambda x: torch.rand_like(x)):
        guards = capture(fn, (x,), {}, drops).guards
        assert not any(isinstance(each.expected, LiesAt) for each in guards)


def test_the_current_device_is_guarded_where_none_is_named() -> None:
    skip_where_torch_asks_the_driver()
    with without_lazy_init(), contextlib.suppress(RuntimeError):
        torch.empty(0, device="cuda")
    region = capture(lambda: torch.zeros(3, device="cuda") + 1, (), {})
    assert any("current_device" in str(guard.source) for guard in region.guards)
    region = capture(lambda: torch.zeros(3, device="cuda:0") + 1, (), {})
    assert region.graph is not None
    assert not any("current_device" in str(guard.source) for guard in region.guards)


def test_autocast_of_cuda_casts_what_is_recorded(pretending: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", functools.partial(bool, 0))
    weight = torch.randn(4, 4)

    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.float16):
            return torch.nn.functional.linear(x, weight).exp()

    state = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    region = capture(fn, (X,), {})
    assert (torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")) == state
    assert not region.breaks and region.graph is not None
    dtypes = {node.name: node.meta["val"].dtype for node in region.graph.nodes if node.op == "call_function"}
    assert dtypes["linear"] is torch.float16 and dtypes["exp"] is torch.float32
