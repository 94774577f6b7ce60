"""Calls under a default device: `with torch.device(...)` around them, or torch.set_default_device before them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from devices import skip_where_torch_asks_the_driver, without_lazy_init
from torch import nn
from torch.nn import functional as F

import lampwork
from lampwork.capture import capture
from lampwork.capture.state.contexts import beyond_function_modes, default_device, surroundings
from lampwork.graph.record import Recorder
from lampwork.runtime import nodes

X = torch.randn(3, 4)
CUDA = torch.device("cuda:0")


@contextmanager
def default(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


AROUND = {"with": torch.device, "default": default}


def devices_of(fn: Any, *args: Any, device: str = "cuda:0") -> list[torch.device]:
    """The devices of what the captured region returns."""
    skip_where_torch_asks_the_driver()
    with without_lazy_init(), Recorder():
        torch.empty(0, device="cuda")  # torch tries to initialize a device once
    with torch.device(device), beyond_function_modes():
        graph = capture(fn, args, {}).graph
    return [node.meta["val"].device for node in graph.output_node().args[0]]


MADE = {
    "zeros": lambda: torch.zeros(3),
    "full": lambda: torch.full((2,), 3.0),
    "arange": lambda: torch.arange(3),
    "rand": lambda: torch.rand(3),
    "none": lambda: torch.ones(3, device=None),
}


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_lies_on_the_default_device(name: str) -> None:
    assert devices_of(MADE[name]) == [CUDA]


def test_a_device_that_is_named_wins() -> None:
    assert devices_of(lambda: (torch.zeros(3, device="cpu") + 1, torch.ones(2))) == [
        torch.device("cpu"),
        CUDA,
    ]


def test_functions_of_torch_nn_make_theirs_where_torch_does() -> None:
    def made(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(3)

    def function(x: torch.Tensor) -> Any:
        if torch.overrides.has_torch_function_unary(x):
            return torch.overrides.handle_torch_function(function, (x,), x)
        return torch.zeros(3), made(x)

    assert devices_of(lambda x: (*function(x), torch.ones(2)), X) == [*[torch.device("cpu")] * 2, CUDA]


def test_the_default_device_is_known() -> None:
    assert devices_of(lambda x: x + (2 if torch.get_default_device().index == 1 else 3), X, device="cuda:1")
    with torch.device("cpu"), beyond_function_modes():
        region = capture(lambda x: x * (2 if torch.get_default_device().type == "cpu" else 3), (X,), {})
    assert not region.breaks


@pytest.mark.parametrize("around", AROUND)
def test_calls_are_compiled(around: str) -> None:
    lampwork.reset_stats()
    compiled = lampwork.compile(lambda x: F.gelu(x) + torch.arange(4))
    for _ in range(2):
        with AROUND[around]("cpu"):
            for _ in range(2):
                torch.testing.assert_close(compiled(X), F.gelu(X) + torch.arange(4))
        torch.testing.assert_close(compiled(X), F.gelu(X) + torch.arange(4))
    stats = lampwork.stats()
    assert stats["compiled_calls"] == 6 and stats["eager_calls"] == 0 and stats["regions"] == 2
    assert stats["recompiles"] == 1


def test_a_version_serves_its_own_default_device_only() -> None:
    """Under another one, and under other modes, there is another version, or none."""
    compiled = lampwork.compile(lambda x: x + torch.zeros(4))
    with torch.device("cpu"):
        compiled(X)
    before = lampwork.stats()["regions"]
    with torch.device("cpu", 0):
        compiled(X)
    with torch.device("cpu"):
        compiled(X)
    assert lampwork.stats()["regions"] == before + 1


def test_what_is_around() -> None:
    assert surroundings() == "plain" and default_device() is None
    with torch.device("cpu"):
        assert surroundings() == "device" and default_device() == torch.device("cpu")
        assert not nodes.modes_are_on()
        with torch.overrides.TorchFunctionMode():
            assert surroundings() == "foreign" and default_device() is None and nodes.modes_are_on()
    with torch.device("meta"):
        assert surroundings() == "foreign"
    with without_lazy_init(), torch.device("cuda"):
        assert default_device() == torch.device("cuda")


@pytest.mark.parametrize("around", AROUND)
def test_breaks_go_on_under_the_default_device(around: str, capsys: pytest.CaptureFixture[str]) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x + torch.ones(4)
        print("here")
        return y * torch.full((4,), 2.0)

    lampwork.reset_stats()
    compiled = lampwork.compile(fn)
    with AROUND[around]("cpu"):
        for _ in range(2):
            torch.testing.assert_close(compiled(X), fn(X))
    assert lampwork.stats()["partial_calls"] == 2 and lampwork.stats()["regions"] == 2


def test_backwards_are_compiled() -> None:
    w = torch.randn(4, requires_grad=True)
    compiled = lampwork.compile(lambda x, w: (F.gelu(x * w) * torch.arange(4)).sum())
    lampwork.reset_stats()
    with torch.device("cpu"):
        for _ in range(3):
            (got,) = torch.autograd.grad(compiled(X, w), [w])
            (want,) = torch.autograd.grad((F.gelu(X * w) * torch.arange(4)).sum(), [w])
            torch.testing.assert_close(got, want)
    assert lampwork.stats()["compiled_backwards"] >= 2


def test_attention_takes_eagers_path() -> None:
    """A mode keeps eager from its fast path, whose result is laid out otherwise."""
    layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    compiled = lampwork.compile(layer)
    x = torch.randn(5, 5, 8)
    with torch.no_grad(), torch.device("cpu"):
        for _ in range(2):
            got, want = compiled(x, x, x), layer(x, x, x)
            for mine, other in zip(got, want, strict=True):
                assert mine.stride() == other.stride()
                torch.testing.assert_close(mine, other)
    with torch.no_grad():
        assert compiled(x, x, x)[0].stride() == layer(x, x, x)[0].stride() != want[0].stride()
