"""Recurrent layers: definitions evaluated with numpy equal eager, for every option; what is left to ATen."""

from __future__ import annotations

import pytest
import torch
from lower_harness import check, externs, record, run
from recurrent_layers import Layer
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import lampwork
from lampwork.loops.ir.nodes import Gemm, Map, Recurrence
from lampwork.lower.dtypes import LOOP_DTYPES
from lampwork.lower.lowering import lower_graph

LAYERS = [
    Layer(kind, layers, both, first, bias, given)
    for kind in ("lstm", "gru", "tanh", "relu")
    for layers, both, first, bias, given in (
        (1, False, False, True, True),
        (1, False, True, False, False),
        (1, True, False, True, True),
        (2, True, True, True, True),
        (3, False, False, False, True),
    )
] + [
    Layer("lstm", 1, False, False, True, True, projected=3),
    Layer("lstm", 2, True, True, True, True, projected=4),
    Layer("lstm", 2, True, False, False, False, projected=1),
    Layer("lstm", 2, True, lengths=(5, 3, 3, 1)),
    Layer("lstm", 1, projected=3, lengths=(4, 4)),
    Layer("gru", 2, True, bias=False, given=False, lengths=(6, 2, 1)),
    Layer("tanh", 1, lengths=(1,)),
    Layer("relu", 2, True, lengths=(1, 1, 1)),
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_layer(layer: Layer):
    fn, inputs, bound = layer.problem(torch.float64)
    lowered = check(fn, *inputs, bound=bound)
    found = [each for each in lowered.definitions if isinstance(each, Recurrence)]
    assert len(found) == layer.layers
    assert sum(isinstance(each, Gemm) for each in lowered.definitions) == layer.layers


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (1, 3, 2, 5), (4, 1, 7, 1), (2, 2, 1, 3)], ids=str)
@pytest.mark.parametrize("kind", ["lstm", "gru", "relu"])
def test_sizes_of_one(kind, sizes):
    steps, batch, inputs, units = sizes
    layer = Layer(kind, 2, True, False, True, True, steps=steps, batch=batch, inputs=inputs, units=units)
    fn, given, bound = layer.problem(torch.float64)
    check(fn, *given, bound=bound)


def test_single_precision():
    fn, inputs, bound = Layer("lstm", 2, True, True, True, True).problem(torch.float32)
    check(fn, *inputs, bound=bound)


def test_inputs_and_states_as_views():
    layer = Layer("lstm", 1, True, False, True, True)
    fn, (x, h, c), bound = layer.problem(torch.float64)

    def strided(x, h, c, *params):
        return fn(x[::2], h.transpose(1, 2).contiguous().transpose(1, 2), c.flip(1), *params)

    check(strided, x.repeat(2, 1, 1), h, c, bound=bound)


def test_states_that_are_shared_by_the_batch():
    layer = Layer("gru", 1, False, True, True, True)
    fn, (x, h), bound = layer.problem(torch.float64)

    def shared(x, h, *params):
        return fn(x, h[:, :1].expand(h.shape), *params)

    check(shared, x, h, bound=bound)


@pytest.mark.parametrize(
    "sizes", [[4, 3, 1, 0], [3, 2, 2, 1], [4, 2, 3, 1], [4, 3, 2, 2], [5, 3, 1, 1], [4, 2, 1, -1]]
)
def test_wrong_batch_sizes_are_left_to_eager(sizes):
    fn, inputs, bound = Layer("lstm", 1, True, lengths=(4, 3, 2, 1)).problem(torch.float32)
    compiled = lampwork.compile(fn)
    with torch.no_grad():
        compiled(*inputs, *bound)
        wrong = [*inputs[:-1], torch.tensor(sizes)]

        def outcome(function):
            try:
                return function(*wrong, *bound)
            except RuntimeError as error:
                return str(error)

        expected, got = outcome(fn), outcome(compiled)
        if isinstance(expected, str):
            assert got == expected
        else:
            torch.testing.assert_close(got, expected)


def test_layers_of_modules_over_packed_sequences():
    layer = torch.nn.LSTM(6, 9, 2, bidirectional=True, batch_first=True).eval()

    def model(x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, last = layer(packed)
        return *pad_packed_sequence(states, batch_first=True), *last

    compiled = lampwork.compile(model)
    with torch.no_grad():
        for lengths in ([3, 7, 7, 1], [2, 5, 4, 1], [1, 1], [8, 2, 9]):
            x = torch.randn(len(lengths), 9, 6)
            torch.testing.assert_close(compiled(x, torch.tensor(lengths)), model(x, torch.tensor(lengths)))


def test_weights_that_are_inputs():
    fn, inputs, bound = Layer("gru", 1, True, False, True, True).problem(torch.float64)
    check(fn, *inputs, *bound)


def test_results_that_nobody_reads_are_not_made():
    fn, inputs, bound = Layer("lstm", 2, False, False, True, True).problem(torch.float64)
    recorded = record(lambda *args: fn(*args)[0], inputs, bound)
    recorded.graph.eliminate_dead_code()
    lowered = lower_graph(recorded.graph)
    assert not any(isinstance(each, Map) for each in lowered.definitions if each.out.name.startswith("lstm"))
    (result,) = run(lowered, [given.tensor for given in (*recorded.inputs, *recorded.bound)])
    torch.testing.assert_close(result, fn(*inputs, *bound)[0])


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_dropout_in_training_is_left_to_aten(kind, layers):
    fn, inputs, bound = Layer(kind, layers, False, False, True, True).problem(torch.float64, dropout=0.5)
    recorded = record(fn, inputs, bound)
    assert externs(lower_graph(recorded.graph)) == [f"aten::{kind}.input"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_keep_their_weights_and_carry_float32(dtype):
    fn, inputs, bound = Layer("lstm", 2, True, False, True, True).problem(dtype)
    recorded = record(fn, inputs, bound)
    assert externs(lower_graph(recorded.graph)) == ["aten::lstm.input"]  # without products of the type
    lowered = lower_graph(recorded.graph, frozenset(("bf16", "f16")))
    assert externs(lowered) == []
    layers = [each for each in lowered.definitions if isinstance(each, Recurrence)]
    assert {each.w.dtype for each in layers} == {LOOP_DTYPES[dtype]} == {each.out.dtype for each in layers}
    assert {each.dtype for layer in layers for each in (layer.x, layer.h, layer.c, layer.memory)} == {"f32"}
