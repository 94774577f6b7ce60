"""The device that tests/gpu runs on, and what compiled code is held to there."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import os
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import pytest
import torch
from torch.utils import _pytree as pytree

import lampwork
from lampwork.api import function_of
from lampwork.inspect.explain import explanation_of
from lampwork.testing.compare import difference, exact_result

# "cpu" tries the tests themselves where there is no card.
DEVICE = os.environ.get("LAMPWORK_TEST_DEVICE", "cuda")
ON_GPU = DEVICE == "cuda"


def require() -> None:
    """Skips the test file that calls this, where its device is not there."""
    if ON_GPU and not torch.cuda.is_available():
        pytest.skip("no CUDA device", allow_module_level=True)


def kernel_calls(compiled: Callable[..., Any]) -> int:
    """How many calls of generated kernels there are in what a function was compiled to, callees included."""
    regions = explanation_of(function_of(compiled)).regions
    return sum(region.counts.get("kernel calls", 0) for region in regions)


def assert_compiled(
    compiled: Callable[..., Any], calls: int = 1, *, kernels: int = 1, partial: bool = False
) -> None:
    """So many calls since `lampwork.reset_stats()`, and all of them, ran compiled, by so many kernels of ours at least.

    partial: they have graph breaks.
    """
    stats = lampwork.stats()
    records = [f"{r.code} {r.cause}" for f in function_of(compiled).tree() for r in f.records]
    assert stats["eager_calls"] == 0, (stats, records)
    if partial:
        assert stats["partial_calls"] >= 1 and stats["regions"] >= 1, (stats, records)
    else:
        assert stats["compiled_calls"] == calls and stats["partial_calls"] == 0, (stats, records)
    assert kernel_calls(compiled) >= kernels, f"{kernel_calls(compiled)} kernels, {stats}"


def assert_near(fn: Callable[..., Any], got: Any, args: tuple[Any, ...], *, strides: bool = True) -> None:
    """`got` is as near to `fn(*args)` in double precision, on the same device, as eager's result."""
    text = difference(got, fn(*args), exact_result(fn, args), strides=strides)
    assert not text, text


def check(fn: Callable[..., Any], *args: Any, kernels: int = 1, partial: bool = False, calls: int = 2) -> Any:
    """Compile `fn`, call it with clones of `args` and hold the results, and the tensors afterwards, to eager's.

    Returns the compiled function.
    """

    def seen(call: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
        return call(*inputs), list(inputs)

    compiled = lampwork.compile(fn)
    lampwork.reset_stats()
    for number in range(calls):
        want, got = cloned(args), cloned(args)
        torch.manual_seed(number)
        expected = seen(fn, want), random_states()
        torch.manual_seed(number)
        found = seen(compiled, got), random_states()
        text = difference(found, expected)
        assert not text, f"call {number}: {text}"
    assert_compiled(compiled, calls, kernels=kernels, partial=partial)
    return compiled


def cloned(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tensors of their own, with the strides that they had."""

    def copied(x: torch.Tensor) -> torch.Tensor:
        return x.detach().clone().requires_grad_(x.requires_grad)

    return pytree.tree_map_only(torch.Tensor, copied, args)


def random_states() -> list[torch.Tensor]:
    """The states of the generators of the CPU and of the current device."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if ON_GPU else [])]


def on_device(value: Any) -> Any:
    """Tensors and modules of a tree on the device."""
    if isinstance(value, torch.nn.Module):
        return value.to(DEVICE)
    return pytree.tree_map_only(torch.Tensor, lambda x: x.to(DEVICE), value)


# --- conformance programs ---------------------------------------------------------------------------------------------


class DeviceSide(harness.Side):
    """A side of a conformance program whose globals, modules and arguments are made on the device.

    everywhere: so are the tensors that the program makes while it runs, without naming a device. `said`: what each call
    raised, "" if nothing.
    """

    def __init__(self, *args: Any, said: list[str], everywhere: bool = False, **kwargs: Any) -> None:
        with torch.device(DEVICE):
            super().__init__(*args, **kwargs)
        self.said = said
        within = self.program.within

        @contextlib.contextmanager
        def entered() -> Iterator[None]:
            with torch.device(DEVICE) if everywhere else contextlib.nullcontext(), within():
                yield

        self.program = dataclasses.replace(
            self.program, kwargs=_made_on_device(self.program.kwargs), within=entered
        )

    def call(self, inputs: Callable[[], tuple[Any, ...]]) -> harness.Call:
        call = super().call(_made_on_device(inputs))
        raised = call.parts["exception"].items
        self.said.append("" if raised[0][1] is None else str(raised))
        return call


def _made_on_device(make: Callable[[], Any]) -> Callable[[], Any]:
    def made() -> Any:
        with torch.device(DEVICE):
            return make()

    return made


def run_program(
    path: Path, code: types.CodeType, name: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[harness.Report, bool]:
    """The report of a conformance program on the device, and whether a call of it raised.

    A program that mixes its arguments with tensors of its own on the CPU makes those on the device too.
    """
    state = harness._torch_state
    monkeypatch.setattr(harness, "_torch_state", lambda: [*state(), *random_states()])
    for everywhere in (False, True):
        said: list[str] = []
        side = functools.partial(DeviceSide, said=said, everywhere=everywhere)
        monkeypatch.setattr(harness, "Side", side)
        report = harness.run(path, code, name)
        if not any(words in text for words in _MIXED for text in said):
            break
    return report, any(said)


# What cannot be on a card: a quantized tensor is not compared with another there, lengths are of the CPU, and a first
# import of torch's compiler warns there.
CPU_ALONE = frozenset(
    {
        "torch_kinds::quantized_argument",
        "torch_layers::packed_sequence_as_argument",
        "torch_marks::compiler_is_reset",
    }
)

# In what eager says of operands on the CPU and on the device.
_MIXED = ("same device", "on cpu", "cuda:0 and cpu", "cpu and cuda")


# --- torch's samples of operators -------------------------------------------------------------------------------------


def stand_in_for_expecttest() -> None:
    """torch's database of operators imports the package expecttest, and takes only a base class of tests from it."""
    if importlib.util.find_spec("expecttest") is None:
        stand_in = types.ModuleType("expecttest")
        vars(stand_in).update(TestCase=unittest.TestCase, ACCEPT=False)
        sys.modules["expecttest"] = stand_in
