"""torch's own samples of its operators give eager's results on the GPU, compiled, and nearly all in one region."""

from __future__ import annotations

import opinfo_samples
import pytest
import torch
from opinfo_samples import EAGER, Outcome

import gpu

gpu.require()
gpu.stand_in_for_expecttest()

SHARDS = 24

# Operators that may run eager on a GPU alone, and the codes of their records.
EAGER_ON_GPU = {
    # torch knows no shapes of what a library of the card gives.
    **dict.fromkeys(
        (
            "geqrf",
            "linalg.eig",
            "linalg.eigvals",
            "linalg.lstsq",
            "linalg.lstsq.grad_oriented",
            "nn.functional.ctc_loss",
        ),
        "LW106",
    ),
    # Two of its results are numbers.
    "torch.ops.aten._efficient_attention_forward": "LW106",
    # They compile a kernel of the caller's on the first call.
    **dict.fromkeys(
        (
            "jiterator_unary",
            "jiterator_binary",
            "jiterator_4inputs_with_extra_args",
            "jiterator_binary_return_by_ref",
            "jiterator_2inputs_2outputs",
        ),
        "LW105",
    ),
}

# How many samples of each operator, by dtype.
SAMPLES = {
    torch.float32: 2,
    torch.bfloat16: 1,
    torch.float16: 1,
    torch.int64: 1,
    torch.bool: 1,
    torch.complex64: 1,
}


def wrong(found: list[Outcome]) -> str:
    return "\n".join(
        f"{o.sample}: {o.kind}: {o.detail}"[:400] for o in found if o.kind in ("wrong", "crashed")
    )


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("dtype", SAMPLES, ids=str)
def test_samples_on_gpu(dtype: torch.dtype, shard: int) -> None:
    found = [
        opinfo_samples.check(sample)
        for op in opinfo_samples.database()[shard::SHARDS]
        for sample in opinfo_samples.samples(op, dtype, SAMPLES[dtype], device=gpu.DEVICE)
    ]
    assert not wrong(found), wrong(found)
    if dtype is torch.float32:
        may = {**EAGER, **EAGER_ON_GPU}
        eager = [o for o in found if o.kind == "eager" and {*o.codes} != {may.get(o.sample.split()[0])}]
        assert not eager, "\n".join(f"{o.sample} ran eager: {o.detail}"[:400] for o in eager)
    assert sum(o.kind == "compiled" for o in found) >= len(found) // 2


@pytest.mark.parametrize("shard", range(SHARDS))
def test_samples_in_place_on_gpu(shard: int) -> None:
    found = [
        opinfo_samples.check(sample)
        for op in opinfo_samples.database()[shard::SHARDS]
        if op.inplace_variant is not None
        for sample in opinfo_samples.samples(op, torch.float32, 1, inplace=True, device=gpu.DEVICE)
    ]
    assert not wrong(found), wrong(found)
    assert sum(o.kind == "compiled" for o in found) >= len(found) // 2


@pytest.mark.parametrize("shard", range(SHARDS))
def test_gradients_of_samples_on_gpu(shard: int) -> None:
    found = [
        opinfo_samples.check_gradients(sample)
        for op in opinfo_samples.database()[shard::SHARDS]
        if op.supports_autograd
        for sample in opinfo_samples.samples(op, torch.float32, 1, requires_grad=True, device=gpu.DEVICE)
    ]
    outcomes = [outcome for outcome in found if outcome is not None]
    assert not wrong(outcomes), wrong(outcomes)
    assert sum(o.kind == "compiled" for o in outcomes) >= len(outcomes) // 2
