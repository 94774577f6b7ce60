"""Kernels of a card over rows of tensors, launched on a driver that runs them on the CPU: tables, launches, errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from device_support import Fake, with_driver
from torch import Tensor

from lampwork import _C
from lampwork.errors import DriverError, RuntimeFailure

TILE = 4096
MOST = (512 - 3) // 4  # rows of a launch: of 512 words, two sizes, a count, and four words a row


def rows_kernel(image: str = "fake:rows") -> tuple[_C.DeviceKernel, int, int]:
    return _C.DeviceKernel(image.encode(), "rows", 0, 0), 256, TILE


def run(columns: tuple[list[Any], ...], code: Any, steps: list[Tensor] | None = None) -> None:
    """c0 += 0.5 * c1."""
    _C.run_rows(code, columns, (0, 1), steps or [], list(range(len(columns[0]))), (0.5, None), 1)


def launches(fake: Fake) -> list[str]:
    return [line for line in fake.log() if line.startswith("launch")]


@pytest.mark.parametrize("count", [1, MOST, MOST + 1, 3 * MOST])
def test_rows_of_any_lengths_and_numbers(count: int) -> None:
    def job(fake: Fake) -> None:
        lengths = [(7, TILE, 0, TILE + 1, 3 * TILE - 1)[number % 5] for number in range(count)]
        params, grads = ([torch.randn(length) for length in lengths] for _ in range(2))
        want = [param + 0.5 * grad for param, grad in zip(params, grads, strict=True)]
        versions = [param._version for param in params]
        run((params, grads), rows_kernel())
        torch.testing.assert_close(params, want)
        assert [param._version - was for param, was in zip(params, versions, strict=True)] == [1] * count
        whole = sum(length > 0 for length in lengths)
        shapes = launches(fake)
        assert len(shapes) == -(-whole // MOST)
        tiles = sum(-(-length // TILE) for length in lengths)
        assert sum(int(line.split("grid ")[1].split("x")[0]) for line in shapes) == tiles
        assert all("block 256x1x1 shared 0" in line for line in shapes)

    with_driver(job)


def test_nothing_is_launched_for_empty_rows() -> None:
    def job(fake: Fake) -> None:
        run(([torch.empty(0)], [torch.empty(0)]), rows_kernel())
        assert launches(fake) == []

    with_driver(job)


def test_steps_are_counted() -> None:
    def job(fake: Fake) -> None:
        steps = [torch.tensor(3.0)]
        run(([torch.ones(5)], [torch.ones(5)]), rows_kernel(), steps)
        assert steps[0].item() == 4

    with_driver(job)


def test_a_kernel_that_does_not_load_changes_nothing() -> None:
    def job(fake: Fake) -> None:
        params, steps = [torch.ones(5)], [torch.tensor(3.0)]
        fake.fail("cuModuleLoadDataEx", 2)
        with pytest.raises(DriverError, match="there is no memory on cuda:0 to load kernel 'rows'"):
            run((params, [torch.ones(5)]), rows_kernel(), steps)
        fake.fail("", 0)
        assert torch.equal(params[0], torch.ones(5)) and steps[0].item() == 3 and params[0]._version == 0
        run((params, [torch.ones(5)]), rows_kernel(), steps)
        assert torch.equal(params[0], torch.full((5,), 1.5))

    with_driver(job)


def test_a_launch_that_fails_names_its_kernel() -> None:
    def job(fake: Fake) -> None:
        fake.fail("cuLaunchKernel", 700)
        with pytest.raises(RuntimeFailure, match="kernel 'rows' could not be launched.*ILLEGAL_ADDRESS"):
            run(([torch.ones(5)], [torch.ones(5)]), rows_kernel())

    with_driver(job)


def test_rows_of_too_many_columns() -> None:
    def job(fake: Fake) -> None:
        columns = tuple([torch.ones(3)] for _ in range(600))
        with pytest.raises(RuntimeFailure, match="too many columns"):
            _C.run_rows(rows_kernel(), columns, tuple(range(600)), [], [0], (None,), 1)

    with_driver(job)


@pytest.mark.parametrize("code", [(1, 2, 3), ("kernel",), (None, 256, TILE), "x"])
def test_code_that_is_none(code: Any) -> None:
    with pytest.raises(TypeError):
        run(([torch.ones(5)], [torch.ones(5)]), code)
    with_driver(lambda fake: pytest.raises(ValueError, run, ([], []), (rows_kernel()[0], 0, TILE)))
