"""The fuzzers of programs, gradients, training steps, indices and layers, with tensors on the GPU, against eager there.

Each runs for 20 seconds (`LAMPWORK_FUZZ` of them), from seed 0 (`LAMPWORK_FUZZ_SEED`). A failure prints its seed.
"""

from __future__ import annotations

import copy
import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import card_programs
import pytest
import torch
from indexing_programs import generate
from program_generator import Generator
from torch import Tensor, nn

import gpu
import lampwork

gpu.require()

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "fuzz"), str(TESTS / "models")]

import test_gradient_uses_fuzz as gradient_uses  # noqa: E402
import test_training_steps_fuzz as training_steps  # noqa: E402
from random_chains import random_chain  # noqa: E402

SECONDS = float(os.environ.get("LAMPWORK_FUZZ", "20"))
FIRST = int(os.environ.get("LAMPWORK_FUZZ_SEED", "0"))

# Writes of several elements to one place: on a card the last one is any of them, in eager too.
RACES = re.compile(r"unfold\(.*\)\.mul_|as_strided\(.*\)\.add_|scatter_\(|\.copy_\(y\[")

pytestmark = pytest.mark.timeout(SECONDS * 3 + 120)


def each_seed(check: Callable[[int], object]) -> None:
    """A check of one seed after the other, as long as there is time."""
    end = time.monotonic() + SECONDS
    for seed in _until(end):
        try:
            check(seed)
        except BaseException:
            print(f"seed {seed}: LAMPWORK_FUZZ=0 LAMPWORK_FUZZ_SEED={seed} repeats it")
            raise


def _until(end: float) -> Iterator[int]:
    for seed in itertools.count(FIRST):
        yield seed
        if time.monotonic() > end:
            print(f"seeds {FIRST} to {seed}")
            return


def test_random_programs_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(seed: int) -> None:
        source = Generator(seed, breaks=seed % 3 == 0).source()
        path = Path(f"fuzz_{seed}.py")
        with monkeypatch.context() as patch:
            report, _ = gpu.run_program(path, compile(source, str(path), "exec"), "f", patch)
        assert report.wrong is None, f"{report.wrong}\n{source[source.index('@program') :]}"

    each_seed(check)


def test_programs_of_cards_on_gpu() -> None:
    """Those of tests/unit/codegen/test_card_programs_fuzz.py."""
    each_seed(lambda seed: card_programs.check(seed, gpu.DEVICE))


def test_gradients_on_gpu() -> None:
    each_seed(lambda seed: gradient_uses.compare(seed, gpu.DEVICE))


def test_training_steps_on_gpu() -> None:
    """In double precision; on a card eager's sums of a loss and of a norm are in another order."""
    each_seed(lambda seed: training_steps.compare(seed, gpu.DEVICE, rounding=1e-8))


def test_indices_on_gpu() -> None:
    """Of programs that the CPU does not refuse: on a card an index out of range ends the process, as in eager."""

    def check(seed: int) -> None:
        program = generate(seed)
        if RACES.search(program.source):
            return
        try:
            program.function()(*program.inputs())
        except Exception:  # noqa: BLE001
            return
        want, got = (copy.deepcopy(gpu.on_device(program.inputs())) for _ in range(2))
        try:
            expected: Any = program.function()(*want)
        except RuntimeError as error:  # the program has made a tensor on the CPU
            with pytest.raises(type(error)):
                lampwork.compile(program.function())(*got)
            return
        found = lampwork.compile(program.function())(*got)
        torch.testing.assert_close(
            (found, got), (expected, want), rtol=1e-5, atol=1e-5, equal_nan=True, msg=_with(program.source)
        )

    each_seed(check)


def test_chains_of_layers_on_gpu() -> None:
    def check(seed: int) -> None:
        rng = Random(seed)
        torch.manual_seed(seed)
        model, x = random_chain(rng)
        model, x = model.to(gpu.DEVICE), x.to(gpu.DEVICE)
        twin = copy.deepcopy(model)
        compiled = lampwork.compile(twin)
        for number in range(2):
            want, have = _trained(model, model, x, number), _trained(twin, compiled, x, number)
            for a, b in zip(want, have, strict=True):
                assert a.stride() == b.stride(), str(model)
                far = 1e-3 * (1 + a.abs().max().item()) if a.dtype is torch.float32 else 0
                torch.testing.assert_close(b, a, rtol=1e-3, atol=far, msg=_with(str(model)))

    each_seed(check)


def _trained(model: nn.Module, function: nn.Module, x: Tensor, seed: int) -> list[Tensor]:
    """Results without and with gradients, the gradients, and where the generators stand."""
    torch.manual_seed(seed)
    model.zero_grad()
    with torch.no_grad():
        plain = function(x)
    leaf = x.detach().clone().requires_grad_()
    result = function(leaf)
    result.cos().sum().backward()
    gradients = [p.grad for p in (leaf, *model.parameters()) if p.grad is not None]
    return [plain, result.detach(), *gradients, *gpu.random_states(), *(b.clone() for b in model.buffers())]


def _with(source: str) -> Callable[[str], str]:
    return lambda message: f"{message}\n{source}"


def test_a_difference_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is compiled to something else."""
    real = lampwork.compile

    def wrong(function: Any, **options: Any) -> Any:
        compiled = real(function, **options)
        return lambda *args: compiled(*(arg + 1 if isinstance(arg, Tensor) else arg for arg in args))

    monkeypatch.setattr(lampwork, "compile", wrong)
    with pytest.raises(AssertionError):
        for seed in range(20):
            gradient_uses.compare(seed, gpu.DEVICE)
