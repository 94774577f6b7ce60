"""Single operators whose compiled answer was once not eager's, and torch's own samples of the common ones."""

from __future__ import annotations

import pytest
import torch

import lampwork


def agree(fn, *inputs) -> None:
    """Compiled and eager give the same values, dtypes and strides, and every call runs compiled."""
    lampwork.reset_stats()
    compiled = lampwork.compile(fn)
    for _ in range(2):
        got, want = compiled(*inputs), fn(*inputs)
        for ours, theirs in zip(_tensors(got), _tensors(want), strict=True):
            assert ours.dtype == theirs.dtype
            assert ours.stride() == theirs.stride()
            torch.testing.assert_close(ours, theirs, equal_nan=True)
    assert lampwork.stats()["compiled_calls"] == 2, lampwork.stats()


def _tensors(value) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [t for v in value for t in _tensors(v)]


@pytest.mark.parametrize("dim", [-3, -2, -1, 0, 2])
def test_dimensions_of_operators_that_add_one(dim):
    x = torch.randn(4, 5)
    agree(lambda x: (x.unsqueeze(dim), torch.unsqueeze_copy(x, dim), torch.stack([x, x + 1], dim)), x)


@pytest.mark.parametrize("dims", [(-2, -1), (0, 1), (-1, 0), (2, -3)])
@pytest.mark.parametrize("offset", [0, 1, -2])
def test_diag_embed(dims, offset):
    agree(lambda x: torch.diag_embed(x, offset, *dims), torch.randn(4, 5))


@pytest.mark.parametrize("bounds", [(1.5, 5.2, 1.3), (-2.7, 3.1, 1.9), (5, 0.5, -1.5), (0, 7, 2)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.float64, torch.bfloat16])
def test_arange_between_fractions(bounds, dtype):
    agree(lambda: torch.arange(*bounds, dtype=dtype))


def test_a_constant_that_no_weight_feeds():
    agree(lambda: 1 - torch.linspace(-1, 1, 5).abs())
    agree(lambda x: x + torch.arange(4).float().softmax(0), torch.randn(3, 4))


@pytest.mark.parametrize("name", ["dropout", "dropout2d", "alpha_dropout", "feature_alpha_dropout"])
def test_dropout_draws_anew_each_time_and_backward_the_same(name):
    dropout = getattr(torch.nn.functional, name)

    def program(x):
        return dropout(x, 0.5, True) + 2 * dropout(x, 0.5, True) + torch.rand(2, 3, 4, 5)

    x = torch.randn(2, 3, 4, 5, requires_grad=True)
    found = []
    for fn in (program, lampwork.compile(program)):
        torch.manual_seed(3)
        result = fn(x)
        found.append((result, *torch.autograd.grad((result * result).sum(), x)))
    torch.testing.assert_close(found[1], found[0])


INF, NAN = float("inf"), float("nan")
WIDE = [[0.5, 2.0], [0.5, 0.5], [1, INF], [NAN, 1], [3e9, 1], [-1.5, 255.9], [4e4, 4e4], [-0.25, 0]]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int16, torch.int32, torch.int64, torch.float64], ids=str)
@pytest.mark.parametrize(
    "given", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64], ids=str
)
def test_sums_and_products_in_another_type_convert_the_elements_first(given, dtype):
    rows = torch.tensor(WIDE, dtype=torch.float64)
    rows = rows.nan_to_num(7, 2.0**32) if given is torch.int64 else rows
    x = torch.cat([rows, rows.flip(1)]).to(given)
    agree(lambda x: (torch.sum(x, 1, dtype=dtype), torch.sum(x.T, 0, dtype=dtype)), x)
    agree(lambda x: torch.sum(x[0], dtype=dtype), x)
    if not dtype.is_floating_point:  # A product that is not finite is eager's to compute.
        agree(lambda x: (torch.prod(x, 1, dtype=dtype), torch.prod(x[0], dtype=dtype)), x)


def test_a_product_of_integers_in_bool_does_not_overflow():
    agree(
        lambda x: (torch.prod(x, dtype=torch.bool), torch.sum(x, dtype=torch.bool)),
        torch.tensor([2**32, 2**32]),
    )
    agree(lambda x: (torch.sum(x, dtype=torch.bool), torch.prod(x, dtype=torch.bool)), torch.tensor([1, -1]))


def test_a_product_in_float16_of_what_float16_does_not_hold():
    x = torch.tensor([[70000, 0], [300, 2]])
    got = lampwork.compile(lambda x: torch.prod(x, 1, dtype=torch.float16))(x)
    torch.testing.assert_close(got, torch.tensor([NAN, 600]).half(), equal_nan=True)


@pytest.mark.parametrize("shape", [(16, 7, 2), (2, 7, 5), (1, 7, 3), (3, 7, 1)])
def test_pools_of_sequences_in_channels_last_order(shape):
    pools = torch.nn.functional

    def pooled(x):
        x = x.transpose(1, 2)
        return (
            pools.avg_pool1d(x, 2),
            pools.avg_pool1d(x, 3, 1, 1),
            pools.avg_pool1d(x, 7),
            pools.lp_pool1d(x, 2.0, 2),
        )

    agree(pooled, torch.randn(shape))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_integers_that_eager_does_not_resize(mode, dynamic):
    compiled = lampwork.compile(
        lambda x: torch.nn.functional.interpolate(x, scale_factor=2, mode=mode), dynamic=dynamic
    )
    for size in (4, 6):
        with pytest.raises(NotImplementedError, match="upsample_nearest2d_channels_last"):
            compiled(torch.ones(2, 3, size, 5, dtype=torch.int64))


EMPTY = [(2, 8, 9, 0), (0, 8, 9, 3), (2, 0, 9, 3), (0, 0, 0, 0), (2, 1, 9, 0)]


@pytest.mark.parametrize("shape", EMPTY, ids=str)
def test_empty_tensors_in_channels_last_order(shape):
    def ordered(x):
        last = x.contiguous(memory_format=torch.channels_last)
        volume = x.relu().unsqueeze(2).contiguous(memory_format=torch.channels_last_3d)
        return (
            last,
            volume,
            x.permute(0, 2, 3, 1).contiguous(memory_format=torch.channels_last),
            last.contiguous(),
        )

    agree(ordered, torch.ones(shape))


def test_channels_shuffled_of_nothing_are_an_alias():
    def shuffled(x):
        return torch.nn.functional.channel_shuffle(x, 2)

    x = torch.randn(100)[3:3].view(2, 4, 0, 3)
    agree(lambda x: (shuffled(x), shuffled(x.new_ones(2, 4, 1, 3))), x)
    got = lampwork.compile(shuffled)(x)
    assert got.storage_offset() == 3 and got.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
