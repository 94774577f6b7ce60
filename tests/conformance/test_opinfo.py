"""torch's own samples of its operators give eager's results compiled, and nearly all of them in one region.

Here the first samples of each; all of them with LAMPWORK_FUZZ set, as in `make fuzz`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import opinfo_samples
import pytest
from opinfo_samples import DTYPES, Outcome

pytest.importorskip("expecttest")

FULL = "LAMPWORK_FUZZ" in os.environ
SHARDS = 8

# float32 operators that may run eager, and why; all others are compiled in one region.
EAGER = {
    # What they give depends on data: Python numbers, or as many elements as there happen to be.
    **dict.fromkeys(
        (
            "__getitem__ allclose argwhere equal index_put item masked_select narrow nonzero tensor_split unique "
            "unique_consecutive repeat_interleave nn.functional.gaussian_nll_loss nn.functional.ctc_loss linalg.lstsq "
            "linalg.lstsq.grad_oriented"
        ).split(),
        "LW102",
    ),
    # They change the shape of an argument, give sparse tensors, or look at memory before the argument's.
    **dict.fromkeys(
        ("resize_", "resize_as_", "to_sparse", "as_strided", "as_strided.partial_views"), "LW106"
    ),
    # The conjugate of a tensor that is not dense.
    **dict.fromkeys(("fft.hfft", "fft.hfftn"), "LW106"),
    # Arguments are sparse.
    **dict.fromkeys(("sparse.sampled_addmm", "sparse.mm.reduce"), "LW107"),
}


def outcomes(shard: int, dtype: str, limit: int, *, inplace: bool = False) -> Iterator[Outcome]:
    for op in opinfo_samples.database()[shard::SHARDS]:
        if inplace and op.inplace_variant is None:
            continue
        for sample in opinfo_samples.samples(op, DTYPES[dtype], None if FULL else limit, inplace=inplace):
            yield opinfo_samples.check(sample)


def is_right(found: Iterator[Outcome]) -> list[Outcome]:
    """All outcomes, none of them wrong."""
    every = list(found)
    bad = [o for o in every if o.kind in ("wrong", "crashed")]
    assert not bad, "\n".join(f"{o.sample}: {o.kind}: {o.detail}" for o in bad)
    return every


@pytest.mark.parametrize("shard", range(SHARDS))
def test_opinfo_fuzz_float32(shard: int) -> None:
    found = is_right(outcomes(shard, "float32", 2))
    eager = [o for o in found if o.kind == "eager" and {*o.codes} != {EAGER.get(o.sample.split()[0])}]
    assert not eager, "\n".join(f"{o.sample} ran eager: {o.detail}" for o in eager)


# Half of the operators for each of the other dtypes, unless all is asked for.
EVEN, ODD = (range(SHARDS), range(SHARDS)) if FULL else (range(0, SHARDS, 2), range(1, SHARDS, 2))


@pytest.mark.parametrize(
    ("dtype", "shard"),
    [
        *((dtype, shard) for dtype in ("int64", "complex64") for shard in EVEN),
        *((dtype, shard) for dtype in ("bool", "bfloat16") for shard in ODD),
    ],
)
def test_opinfo_fuzz(dtype: str, shard: int) -> None:
    is_right(outcomes(shard, dtype, 1))


@pytest.mark.parametrize("shard", range(SHARDS))
def test_opinfo_fuzz_in_place(shard: int) -> None:
    is_right(outcomes(shard, "float32", 1, inplace=True))


@pytest.mark.parametrize("shard", range(SHARDS))
def test_opinfo_fuzz_gradients(shard: int) -> None:
    found: list[Outcome | None] = []
    for op in opinfo_samples.database()[shard::SHARDS]:
        if op.supports_autograd:
            limit = None if FULL else 1
            every = opinfo_samples.samples(op, DTYPES["float32"], limit, requires_grad=True)
            found.extend(opinfo_samples.check_gradients(sample) for sample in every)
    is_right(o for o in found if o is not None)
