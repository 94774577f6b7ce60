"""Random single convolutions, transposed ones among them, of every dtype, layout and grouping: strides, values, and
where an inf of the input reaches."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lampwork

_COUNT = int(os.environ.get("LAMPWORK_FUZZ", "60"))
_LAYERS: dict[tuple[int, bool], Any] = {
    (1, False): nn.Conv1d,
    (2, False): nn.Conv2d,
    (3, False): nn.Conv3d,
    (1, True): nn.ConvTranspose1d,
    (2, True): nn.ConvTranspose2d,
    (3, True): nn.ConvTranspose3d,
}
_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}
_ERRORS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def layer(pick: random.Random) -> tuple[nn.Module, Tensor]:
    """A convolution and an input of it."""
    rank, transposed = pick.choice((1, 2, 2, 3)), pick.random() < 0.4
    groups = pick.choice((1, 1, 2, 3, 5))
    inputs, outputs = (groups * pick.choice((1, 1, 2, 3, 4, 5, 8, 16)) for _ in range(2))

    def each(*values: int) -> tuple[int, ...]:
        return tuple(pick.choice(values) for _ in range(rank))

    stride, dilation = each(1, 1, 2, 3), each(1, 1, 2)
    extra: dict[str, Any] = {"bias": pick.random() < 0.5, "groups": groups, "dilation": dilation}
    if transposed:
        most = [max(s, d) - 1 for s, d in zip(stride, dilation, strict=True)]
        extra["output_padding"] = tuple(pick.randint(0, each) for each in most)
    made = _LAYERS[rank, transposed](inputs, outputs, each(1, 2, 3), stride, each(0, 1, 2), **extra)
    sizes = [pick.choice((5, 6, 9)) for _ in range(rank)]
    x = torch.randn(pick.choice((1, 2, 3)), inputs, *sizes)
    return made.eval(), x


def laid_out(pick: random.Random, x: Tensor) -> Tensor:
    kind = pick.choice(("rows", "last", "last", "part"))
    if kind == "last" and x.dim() - 2 in _LAST:
        return x.to(memory_format=_LAST[x.dim() - 2])
    return torch.cat([x, x], 1)[:, : x.shape[1]] if kind == "part" else x


@pytest.mark.parametrize("seed", range(_COUNT))
def test_random_layers(seed: int) -> None:
    pick = random.Random(seed)
    torch.manual_seed(seed)
    module, x = layer(pick)
    dtype = pick.choice(list(_ERRORS))
    module, x = module.to(dtype), laid_out(pick, x.to(dtype))
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=pick.random() < 0.85):
        compiled = lampwork.compile(module)
        for number in (1.0, float("inf")):
            # In the middle, where no tap is over padding alone.
            x[(0, pick.randrange(x.shape[1]), *(size // 2 for size in x.shape[2:]))] = number
            eager, found = module(x), compiled(x)
            exact = module.double()(x.double())
            module.to(dtype)
            assert found.stride() == eager.stride() and found.dtype is dtype, f"{module} of {x.stride()}"
            # oneDNN makes nan of some that are inf or finite; where it is eager's doing, it may be ours.
            reached = found.isfinite()
            assert any(torch.equal(reached, each.isfinite()) for each in (exact, eager)), f"{module}"
            least = float(exact.nan_to_num(0, 0, 0).abs().max()) * _ERRORS[dtype]
            both = reached & exact.isfinite()
            torch.testing.assert_close(found.double()[both], exact[both], rtol=0, atol=least)


VOLUME = torch.randn(2, 4, 5, 5, 5).to(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize(
    "module",
    [
        nn.ConvTranspose3d(4, 4, 3, dilation=2, output_padding=1),
        nn.Conv3d(4, 4, 1),
        nn.Conv3d(4, 4, 3),
    ],
    ids=["padded by a stride", "single taps", "many taps"],
)
def test_the_order_of_volumes_is_eagers(module: nn.Module, enabled: bool, threads: int) -> None:
    before, compiled = torch.get_num_threads(), lampwork.compile(module)
    try:
        with torch.no_grad(), torch.backends.mkldnn.flags(enabled=enabled):
            for count in (3 - threads, threads):
                torch.set_num_threads(count)
                assert compiled(VOLUME).stride() == module(VOLUME).stride()
    finally:
        torch.set_num_threads(before)


def test_an_inf_stays_in_its_group() -> None:
    for inputs, outputs, groups in ((6, 10, 2), (6, 12, 6), (15, 15, 5)):
        module = nn.Conv2d(inputs, outputs, 3, padding=1, groups=groups, bias=False).bfloat16()
        x = torch.randn(1, inputs, 6, 13).bfloat16()
        x[0, inputs // groups, 1, 6] = float("inf")
        with torch.no_grad():
            found = lampwork.compile(module)(x)
        reached = (~found.isfinite()).any(3).any(2)[0].view(groups, -1).any(1)
        assert reached.tolist() == [group == 1 for group in range(groups)]
