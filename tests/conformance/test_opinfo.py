"""torch's own samples of its operators give eager's results compiled, and nearly all of them in one region.

Here the first samples of each; all of them with LAMPWORK_FUZZ set, as in `make fuzz`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import opinfo_samples
import pytest
import torch
from opinfo_samples import DTYPES, EAGER, Outcome

from lampwork.runtime import autograd

pytest.importorskip("expecttest")

FULL = "LAMPWORK_FUZZ" in os.environ
SHARDS = 8


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


@pytest.mark.parametrize("ahead", [False, True], ids=["eager backward", "compiled backward"])
@pytest.mark.parametrize("shard", range(SHARDS))
def test_opinfo_fuzz_gradients(shard: int, ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if ahead:
        monkeypatch.setattr(autograd, "AHEAD", True)
    found: list[Outcome | None] = []
    for op in opinfo_samples.database()[shard::SHARDS]:
        if op.supports_autograd:
            limit = None if FULL else 1
            every = opinfo_samples.samples(op, DTYPES["float32"], limit, requires_grad=True)
            found.extend(opinfo_samples.check_gradients(sample) for sample in every)
    is_right(o for o in found if o is not None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_randomized_decompositions_are_held_to_what_is_unique(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(2, 5, 3, dtype=dtype) @ torch.randn(2, 3, 4, dtype=dtype)
    u, s, v = torch.svd_lowrank(matrix, q=3)
    turned = torch.tensor([1, -1, 1] if dtype is torch.float32 else [1j, -1, 1], dtype=dtype)
    want = opinfo_samples.promised((u, s, v))

    def difference(*parts: torch.Tensor) -> str | None:
        return opinfo_samples.compare(want, opinfo_samples.promised(parts), None)

    assert difference(u * turned, s, v * turned) is None
    assert difference(u * turned, s, v) is not None
    assert difference(u, s * 1.0001, v) is not None
    assert difference(u * 2, s, v / 2) is not None
    assert difference(u.flip(-1), s, v.flip(-1)) is not None
