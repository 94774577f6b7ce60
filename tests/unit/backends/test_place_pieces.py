"""Concatenations whose pieces are written where they lie in the whole."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from instruction_sets import INSTRUCTION_SETS
from scalar_target import native_on, target_named
from torch import Tensor, nn

import lampwork
from lampwork.backends.native.place_pieces import ASSEMBLE

COUNT = int(os.environ.get("LAMPWORK_FUZZ", "6"))


def compiled(fn: Callable[..., Any], *inputs: Tensor, **options: Any) -> tuple[Any, dict[str, int], str]:
    """(results, counts, definitions) of a function, held to eager's results."""
    made = lampwork.compile(fn, **options)
    with torch.no_grad():
        expected, got = fn(*inputs), made(*inputs)
        assert_same(got, expected, inputs)
        again = made(*inputs)
        assert_same(again, expected, inputs)
    return got, made.stages.counts, made.stages.text("definitions")


def flat(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)


def assert_same(got: Any, expected: Any, inputs: tuple[Tensor, ...]) -> None:
    """Values, strides, and which results share memory with which, or with an input."""
    mine, eager = flat(got), flat(expected)
    for one, other in zip(mine, eager, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-4, equal_nan=True)
        assert one.stride() == other.stride()

    def sharing(tensors: list[Tensor]) -> list[list[bool]]:
        storages = [each.untyped_storage().data_ptr() for each in (*tensors, *inputs)]
        return [[a == b for a in storages] for b in storages]

    assert sharing(mine) == sharing(eager)


class Dense(nn.Module):
    def __init__(self, layers: int, first: int = 16, growth: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(4, first, 3, padding=1)
        sizes = [first + growth * layer for layer in range(layers)]
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in sizes)
        self.convs = nn.ModuleList(nn.Conv2d(size, growth, 3, padding=1) for size in sizes)
        self.last = nn.Conv2d(first + growth * layers, 8, 1)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        found = [self.stem(x).relu()]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            found.append(conv(norm(torch.cat(found, 1)).relu()))
        return self.last(torch.cat(found, 1))


def test_a_dense_block_copies_nothing() -> None:
    _, counts, text = compiled(Dense(11), torch.randn(2, 4, 9, 10))
    assert counts["ATen calls"] == 0
    assert text.count(ASSEMBLE) == 11  # all but the first, which has one piece, and with the last
    # Two convolutions and a batch norm's kernel for each layer at most.
    assert counts["kernel calls"] <= 2 * 11 + 6
    assert "where(" not in text


def test_branches_write_to_their_channels() -> None:
    torch.manual_seed(0)
    a, b, c = nn.Conv2d(8, 16, 1), nn.Conv2d(8, 24, 3, padding=1), nn.Conv2d(40, 8, 1)

    def fn(x: Tensor) -> Tensor:
        return c(torch.cat([a(x).relu(), b(x).sigmoid()], 1))

    _, _, text = compiled(fn, torch.randn(1, 8, 14, 14))
    assert text.count(ASSEMBLE) == 1
    assert "where(" not in text.split(ASSEMBLE)[1]


def test_a_concatenation_of_a_concatenation_is_one_buffer() -> None:
    torch.manual_seed(0)
    convs = [nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)]
    last = nn.Conv2d(24, 8, 1)

    def fn(x: Tensor) -> Tensor:
        pair = torch.cat([convs[0](x), convs[1](x)], 1)
        return last(torch.cat([pair, convs[2](x)], 1)) + last(torch.cat([pair, convs[2](x)], 1))

    _, counts, text = compiled(fn, torch.randn(1, 8, 6, 6))
    assert text.count(ASSEMBLE) >= 2
    assert counts["ATen calls"] == 0


def test_what_is_cheap_to_compute_where_it_is_read_stays_so() -> None:
    def rotated(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([-x, y * 2], -1) * 3

    _, counts, text = compiled(rotated, torch.randn(2, 5, 8), torch.randn(2, 5, 8))
    assert ASSEMBLE not in text
    assert counts["kernel calls"] == 1


def test_a_piece_that_leaves_has_memory_of_its_own() -> None:
    torch.manual_seed(0)
    a, b = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        p = a(x)
        return p, torch.cat([p, b(x), p, x], 1)

    made = lampwork.compile(fn)
    x = torch.randn(2, 8, 5, 5)
    with torch.no_grad():
        p, whole = made(x)
        before = whole.clone()
        p.zero_()
        assert torch.equal(whole, before)
        compiled(fn, x)


def test_many_pieces_that_are_inputs() -> None:
    inputs = [torch.randn(3, n, 4) for n in range(1, 12)]
    compiled(lambda *x: torch.cat(x, 1).softmax(1), *inputs)
    compiled(lambda *x: torch.cat([*x, *x], 1), *inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b, c = (nn.Linear(24, n).to(dtype) for n in (16, 40, 7))
    last = nn.Linear(63, 5).to(dtype)
    made = lampwork.compile(lambda x: last(torch.cat([a(x).relu(), b(x), c(x)], -1)))
    x = torch.randn(9, 24, dtype=dtype)
    with torch.no_grad():
        got = made(x)
        expected = last(torch.cat([a(x).relu(), b(x), c(x)], -1))
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


def test_two_threads_and_open_sizes() -> None:
    model = Dense(6)
    made = lampwork.compile(model, dynamic=True)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with torch.no_grad():
            for shape in ((2, 4, 9, 10), (3, 4, 20, 7), (2, 4, 1, 1)):
                x = torch.randn(*shape)
                assert_same(made(x), model(x), (x,))
    finally:
        torch.set_num_threads(threads)


# --- random networks --------------------------------------------------------------------------------------------------


class Drawn(nn.Module):
    """A random network of convolutions, pointwise operators, pools and concatenations, with some of its values as
    results."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.parts = nn.ModuleList()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        channels = [8]
        self.steps: list[tuple[str, list[int], int]] = []
        for _ in range(draw.randint(6, 14)):
            kind = draw.choice(["conv", "conv", "conv", "relu", "gate", "pool", "cat", "cat", "cat", "cut"])
            count = draw.randint(2, 11) if kind == "cat" else 2 if kind == "gate" else 1
            # Mostly what is new, as networks do.
            known = range(len(channels))
            read = [draw.choice(known[-6:]) for _ in range(count)]
            if kind == "cat" and draw.random() < 0.6:
                read = sorted(set(read))
            size = sum(channels[each] for each in read)
            if kind == "conv":
                wide, kernel = draw.choice([3, 8, 16, 24]), draw.choice([1, 3])
                self.parts.append(nn.Conv2d(channels[read[0]], wide, kernel, padding=kernel // 2))
                self.steps.append((kind, read, len(self.parts) - 1))
                channels.append(wide)
                continue
            if kind == "gate":
                other = [each for each in known if channels[each] == channels[read[0]]]
                read = [read[0], draw.choice(other)]
                size = channels[read[0]]
            if kind == "cat" and size > 300:
                continue
            cut = draw.randint(1, size) if kind == "cut" else 0
            self.steps.append((kind, read, cut))
            channels.append(cut or size)
        self.results = sorted({len(channels) - 1, *draw.sample(range(1, len(channels)), draw.randint(0, 2))})
        self.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        values = [x]
        for kind, read, number in self.steps:
            operands = [values[each] for each in read]
            if kind == "conv":
                values.append(self.parts[number](operands[0]))
            elif kind == "cat":
                values.append(torch.cat(operands, 1))
            elif kind == "gate":
                values.append(operands[0].sigmoid() * operands[1])
            elif kind == "pool":
                values.append(F.max_pool2d(operands[0], 3, 1, 1))
            elif kind == "cut":
                values.append(operands[0][:, :number])
            else:
                values.append(operands[0].relu())
        return tuple(values[each] for each in self.results)


@pytest.mark.parametrize("seed", range(COUNT))
@pytest.mark.parametrize("isa", [*INSTRUCTION_SETS, "scalar"])
def test_a_random_network(isa: str, seed: int) -> None:
    draw = random.Random(seed)
    model = Drawn(seed)
    x = torch.randn(draw.randint(1, 2), 8, draw.randint(1, 12), draw.randint(1, 12))
    if draw.random() < 0.3:
        x = x.to(memory_format=torch.channels_last)
    with native_on(target_named(isa)):
        made = lampwork.compile(model, dynamic=draw.random() < 0.3 or None)
        with torch.no_grad():
            expected = model(x)
            got = made(x)
            assert_same(got, expected, (x,))
            for each in got:
                if each.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
                    each.fill_(7.0)
            assert_same(made(x), expected, (x,))
