"""Random writes to the weights of random models, through random channels: the next call answers as eager does.

A failure names the seed and the last write. `LAMPWORK_FUZZ=n` tries n / 10 models.
"""

from __future__ import annotations

import os
from random import Random

import pytest
import torch
from weight_writes import EVERYWHERE, MEMORY, floats, models, somewhere

import lampwork

_COUNT = int(os.environ.get("LAMPWORK_FUZZ", "140")) // 10
_FIRST = int(os.environ.get("LAMPWORK_FUZZ_SEED", "0"))
_WRITES = 40


@pytest.mark.parametrize("seed", range(_FIRST, _FIRST + _COUNT))
def test_every_write_is_seen(seed: int) -> None:
    rng = Random(seed)
    torch.manual_seed(seed)
    in_inference_mode = rng.random() < 0.1
    with torch.inference_mode(in_inference_mode):
        model, x = models(rng)
        keep: dict[object, object] = {}
        place = rng.choice(MEMORY)
        channels = [*EVERYWHERE, *place(model, keep)]
        if in_inference_mode:
            channels = [channel for channel in channels if channel.__name__ in _FOR_INFERENCE_TENSORS]
        compiled = lampwork.compile(model)
        mode = torch.enable_grad if rng.random() < 0.2 else torch.no_grad
        _same(compiled, model, x, mode, f"seed {seed}, {place.__name__}: first call")
        for _ in range(_WRITES):
            done: list[str] = []
            for _ in range(rng.choice((1, 1, 1, 2, 4))):
                tensor = rng.choice(floats(model))
                channel = rng.choice(channels)
                channel(tensor, somewhere(rng, tensor), rng.uniform(0.5, 4.0), keep)
                done.append(channel.__name__)
            if rng.random() < 0.1:
                keep.clear()
            for _ in range(rng.choice((1, 1, 2))):
                _same(compiled, model, x, mode, f"seed {seed}, {place.__name__}: {done}")


# Autograd and torch.utils.swap_tensors refuse the others.
_FOR_INFERENCE_TENSORS = {
    "in_inference_mode",
    "data",
    "data_add",
    "numpy",
    "numpy_kept",
    "dlpack",
    "dlpack_kept",
    "storage",
    "storage_kept",
    "storage_slice",
    "address",
    "lerp",
    "through_the_buffer",
    "through_the_array",
    "through_the_map",
    "in_a_child",
}


def _same(compiled, model, x, mode, message: str) -> None:
    with mode():
        expected, got = model(x), compiled(x)
    size = expected.abs().max().item()
    torch.testing.assert_close(
        got, expected, rtol=1e-3, atol=1e-3 * max(size, 1.0), msg=lambda text: f"{message}\n{text}"
    )
