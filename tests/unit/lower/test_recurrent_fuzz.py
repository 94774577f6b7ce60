"""Random recurrent layers on every instruction set, between pages without access, against eager in float64."""

from __future__ import annotations

import os
import random

import pytest
import torch
from recurrent_layers import Layer
from test_recurrent_code import TARGETS, check

_COUNT = int(os.environ.get("LAMPWORK_FUZZ", "12"))


@pytest.mark.parametrize("seed", range(_COUNT))
def test_recurrent_fuzz(seed: int) -> None:
    rng = random.Random(seed)
    kind = rng.choice(["lstm", "lstm", "gru", "tanh", "relu"])
    units = rng.choice([1, 2, 7, 15, 16, 17, 31, 48, 65, 100, 193])
    layer = Layer(
        kind,
        rng.choice([1, 1, 2, 3]),
        rng.random() < 0.5,
        rng.random() < 0.5,
        rng.random() < 0.7,
        rng.random() < 0.7,
        projected=rng.randint(1, units - 1) if kind == "lstm" and units > 1 and rng.random() < 0.3 else 0,
        steps=rng.choice([1, 2, 5, 11]),
        batch=rng.choice([1, 2, 3, 5, 8, 13, 24]),
        inputs=rng.choice([1, 3, 16, 70]),
        units=units,
        lengths=tuple(sorted(rng.choices(range(1, 9), k=rng.choice([1, 2, 5, 13, 24])), reverse=True))
        if rng.random() < 0.4
        else (),
    )
    dtype, target = rng.choice([torch.float32, torch.float32, torch.float64]), rng.choice(TARGETS)
    if rng.random() < 0.4:
        dtype = rng.choice([torch.bfloat16, torch.float16])
    print(f"seed {seed}: {layer} of {dtype} for {target}")
    check(layer, dtype, target, front=rng.random() < 0.5)
