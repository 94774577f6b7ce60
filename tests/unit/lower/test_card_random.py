"""Random numbers of CUDA devices: what is recorded, and compiled of it, against torch's kernels thread after thread."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np
import pytest
import torch
from curand import Device, States, dropout_mask, grid_stride, vector_size
from scalar_target import native_on, target_named
from simulated import simulating_target

import lampwork
from lampwork.codegen.gpu.nvidia import emulated
from lampwork.codegen.llvm.isa.x86 import host_flags, widest
from lampwork.graph import card_trial
from lampwork.graph.canonical_on_cards import proposed
from lampwork.graph.card_random import Card, dropping, filling, uniform, words_below
from lampwork.graph.record import Recorder
from lampwork.graph.spec import TensorSpec, contiguous_strides

CPU = torch.device("cpu")
SMALL = Card(3, 1024)
"""A device of 3072 threads, so that small tensors take several turns."""
SEEDS = ((0, 0), (2**64 - 1, 4), (0x9E3779B97F4A7C15, 2**40 + 8), (5, 2**34 - 4))
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Generator:
    """Stands where a CUDA generator would."""

    def __init__(self, seed: int, offset: int) -> None:
        self.seed, self.offset = seed, offset

    def initial_seed(self) -> int:
        return self.seed

    def get_offset(self) -> int:
        return self.offset


def device_of(card: Card) -> Device:
    return Device(card.processors, card.threads)


def as_torch(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype)


def drawn_on(card: Card):
    """What eager draws there, in place of `card_trial._drawn`."""

    def draw(family, op, x, more, generator):
        device, numel, dtype = device_of(card), x.numel(), x.dtype
        seed, offset, wide = generator.seed, generator.offset, dtype is torch.float64
        kind, unroll = (
            ((States.uniform2_double, np.float64), 2) if wide else ((States.uniform4, np.float32), 4)
        )
        if family == "dropout":
            generator.offset += device.counter_offset(numel, 4)
            kept = 1 - more[0]
            vector = vector_size(x.data_ptr(), numel, x.element_size())
            mask = dropout_mask(device, numel, vector, kept, seed, offset, wide)
            inner = torch.float64 if wide else torch.float32
            scale = torch.tensor(1 / kept if wide else np.float32(1.0 / float(np.float32(kept))), dtype=inner)
            return (x.to(inner) * torch.from_numpy(mask).to(inner) * scale).to(dtype)
        if family == "randint":
            generator.offset += device.counter_offset(numel, 4)
            low, high = more
            words = grid_stride(device, numel, seed, offset, States.curand4, np.uint32).astype(np.int64)
            return as_torch(words % (high - low) + low, dtype)
        generator.offset += device.counter_offset(numel, unroll)
        numbers = grid_stride(device, numel, seed, offset, *kind)
        if family == "bernoulli":
            return as_torch(numbers < (more[0] if wide else np.float32(more[0])), dtype)
        value = as_torch(numbers, dtype)
        return torch.where(value == 1, torch.zeros_like(value), value)

    return draw


FAMILIES = [
    *((family, dtype) for family in ("dropout", "bernoulli", "uniform") for dtype in FLOATS),
    ("bernoulli", torch.bool),
    ("bernoulli", torch.int64),
    *(("randint", dtype) for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)),
]


def agrees(card: Card, family: str, dtype: torch.dtype, count: int, seed: int, offset: int) -> bool:
    return card_trial.same(card, CPU, Generator(seed, offset), family, dtype, count, proposed, drawn_on(card))


@pytest.mark.parametrize(("family", "dtype"), FAMILIES, ids=str)
def test_numbers_and_offsets(family, dtype):
    for count in (1, 2, 3, 4, 8, 255, 256, 257, 1000, 3071, 3072, 3073, *card_trial.counts(SMALL)):
        for seed, offset in SEEDS[:2] if count > 4096 else SEEDS:
            assert agrees(SMALL, family, dtype, count, seed, offset), (count, seed, offset)


@pytest.mark.parametrize("card", [Card(132, 2048), Card(108, 2048), Card(82, 1536)], ids=str)
def test_devices(card):
    for family, dtype in (
        ("dropout", torch.float32),
        ("dropout", torch.bfloat16),
        ("uniform", torch.float64),
    ):
        assert agrees(card, family, dtype, 2 * card.processors * card.threads + 2, 7, 16)


def test_while_something_is_recorded():
    """A device is tried in the middle of a capture."""
    with Recorder() as recorder, torch._C._DisableTorchDispatch(), torch.no_grad():
        for family, dtype in FAMILIES:
            assert agrees(SMALL, family, dtype, 1000, 3, 4)
    assert not list(recorder.graph.nodes)[:-1]


def test_a_device_that_draws_otherwise_is_noticed():
    for wrong in (Card(4, 1024), Card(3, 2048)):
        for family, dtype in FAMILIES:
            sizes = card_trial.counts(SMALL)
            results = [
                card_trial.same(SMALL, CPU, Generator(1, 0), family, dtype, n, proposed, drawn_on(wrong))
                for n in sizes
            ]
            assert not all(results), (wrong, family, dtype)


@pytest.mark.parametrize("wide", [False, True])
def test_an_offset_that_moves_otherwise_is_noticed(wide):
    def draw(family, op, x, more, generator):
        found = drawn_on(SMALL)(family, op, x, more, generator)
        generator.offset += 4
        return found

    dtype = torch.float64 if wide else torch.float32
    assert not card_trial.same(SMALL, CPU, Generator(1, 0), "uniform", dtype, 9, proposed, draw)


def test_uniform_numbers():
    """Of all words near the ends and of many between: those of numpy's float32, and they never fall."""
    words = np.unique(
        np.concatenate([np.arange(300), 2**32 - 1 - np.arange(300), np.arange(0, 2**32, 9973 * 401)])
    )
    expected = words.astype(np.uint32).astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    assert [uniform(int(word)) for word in words] == expected.tolist()
    assert (np.diff(expected) >= 0).all()


@pytest.mark.parametrize("p", [0.0, 2.0**-34, 1e-7, 0.1, 0.3, 0.5, 0.9, 1 - 2.0**-24, 1.0])
def test_words_below(p):
    p = float(np.float32(p))
    limit = words_below(p)
    assert limit == 0 or uniform(limit - 1) < p
    assert limit == 2**32 or uniform(limit) >= p


def spec_of(shape, strides=None, dtype=torch.float32) -> TensorSpec:
    return TensorSpec(shape, contiguous_strides(shape) if strides is None else strides, dtype, CPU)


def test_what_one_kernel_does_not_fill():
    assert filling(SMALL, spec_of((2**29 - 1,))) is not None
    assert filling(SMALL, spec_of((2**29,))) is None, "ATen fills it in pieces"
    assert filling(SMALL, spec_of((0, 3))) is None
    assert filling(SMALL, spec_of((4, 4), (8, 1))) is None, "memory with gaps"


def test_width_of_dropout():
    for dtype in FLOATS:
        size = dtype.itemsize
        for place in range(0, 16, size):
            for count in (1, 2, 4, 6, 8, 12, 16):
                stream = dropping(SMALL, spec_of((count,), dtype=dtype), place)
                assert stream is not None
                assert stream.width == vector_size(512 + place, count, size), (dtype, place, count)
    assert dropping(SMALL, spec_of((6,)), None) is None, "the address is not known"
    assert dropping(SMALL, spec_of((7,)), None) is not None, "it does not matter"


def test_order_of_dropout():
    """Vectors go along memory, single elements along rows."""
    turned = dropping(SMALL, spec_of((4, 6), (1, 4)), 0)
    assert turned is not None and turned.order == (1, 4) and turned.width == 4
    odd = dropping(SMALL, spec_of((3, 5), (1, 3)), 0)
    assert odd is not None and odd.order == (5, 1) and odd.width == 1
    wide = dropping(SMALL, spec_of((4, 6), (12, 2)), 0)
    assert wide is not None and wide.order == (6, 1) and wide.width == 1


# --- compiled ---------------------------------------------------------------------------------------------------------

words_of = torch.ops.lampwork.philox_words
TARGETS = {
    "host": lambda: target_named(widest(host_flags())),
    "scalar": lambda: target_named("scalar"),
    "grid": emulated,
    "simulated": simulating_target,
}
SHAPES = [(7,), (31, 41), (64, 48), (2, 3000)]


def drawing(x, state, stream, part=0):
    return words_of(
        state,
        list(x.shape),
        list(x.stride()),
        list(stream.order),
        8,
        stream.threads,
        stream.width,
        stream.words,
        part,
    )


def dropped(x, state, stream):
    kept = (drawing(x, state, stream) ^ -(2**31)) <= 1234567890
    return x.exp() * (kept.to(x.dtype) * 1.25) + 1


def numbers(x, state, stream):
    low, high = (
        drawing(x, state, stream, part).to(torch.int64) & 0xFFFFFFFF for part in (0, stream.words - 1)
    )
    return (low ^ (high * 2**21)).to(torch.float64) * 2.0**-53 + 2.0**-54, (low % 97).to(x.dtype) * 2


def streams(x):
    spec = TensorSpec(tuple(x.shape), tuple(x.stride()), x.dtype, CPU)
    found = [
        filling(SMALL, spec),
        filling(SMALL, spec, 2),
        *(dropping(SMALL, spec, place) for place in (0, 8)),
    ]
    return [stream for stream in found if stream is not None]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_compiled(shape, target):
    """What is fused and vectorized gives the bits of the operators one by one, for open seeds and offsets."""
    with native_on(TARGETS[target]()):
        for x in (
            torch.linspace(-1, 1, prod(shape)).reshape(shape),
            torch.ones(shape[::-1]).permute(*range(len(shape))[::-1]),
        ):
            for stream in streams(x):
                for fn in (dropped, numbers):
                    compiled = lampwork.compile(partial(fn, stream=stream), options={"strict": True})
                    for seed, offset in ((-3, 4 * 2**32 - 12), (2**63 - 5, 2**40)):
                        state = torch.tensor([seed, offset])
                        got, want = compiled(x, state), fn(x, state, stream)
                        close = torch.testing.assert_close
                        if fn is dropped:
                            assert torch.equal(got == 1, want == 1), stream
                            close(got, want)
                        else:
                            close(got, want, rtol=0, atol=0)


def test_training_saves_the_state_alone():
    x = torch.randn(64, 48, requires_grad=True)
    (stream,) = streams(x)[2:3]
    compiled = lampwork.compile(lambda x, s: dropped(x, s, stream).sum(), options={"strict": True})
    state = torch.tensor([7, 16])
    found = [
        torch.autograd.grad(fn(x, state), x)[0] for fn in (compiled, lambda x, s: dropped(x, s, stream).sum())
    ]
    torch.testing.assert_close(*found)
    assert "philox_words" in compiled.stages.saved.rpartition("computed again")[2]
