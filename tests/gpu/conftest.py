"""A device error ends what the process can do on the card: then the process ends too, and pytest-xdist goes on in
another. The tests that say most come first."""

from __future__ import annotations

import os

import pytest
import torch

import gpu

ORDER = (
    "runtime", "networks", "tuning", "graphs", "optimizers", "training", "place", "programs_fuzz", "operators",
    "conformance", "driver",
)  # fmt: skip


def _place(item: pytest.Item) -> int:
    name = item.path.stem.removeprefix("test_gpu_")
    return ORDER.index(name) if name in ORDER else len(ORDER)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of other folders stay where they are."""
    places = [i for i, item in enumerate(items) if item.path.parent.name == "gpu"]
    ours = sorted((items[i] for i in places), key=_place)
    for place, item in zip(places, ours, strict=True):
        items[place] = item


def pytest_runtest_logfinish() -> None:
    """After the report of a test has been sent."""
    if not gpu.ON_GPU or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        if "PYTEST_XDIST_WORKER" in os.environ:
            os._exit(1)
        pytest.exit(f"the device takes no more work from this process: {error}", returncode=1)
