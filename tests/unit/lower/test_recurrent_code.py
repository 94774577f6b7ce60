"""The code of recurrent layers: on every instruction set, between pages without access, in shares, for open sizes."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest
import torch
from children import failure
from guarded_memory import run as run_guarded
from instruction_sets import HERE
from lower_harness import record, same_strides
from recurrent_layers import Layer
from scalar_target import target_named
from symbolic_harness import check_sizes, compile_symbolic

from lampwork.backends.native.compile import Artifacts, compile_program
from lampwork.loops.ir.nodes import Recurrence
from lampwork.runtime import Executable
from lampwork.runtime.program import Program

TARGETS = ["scalar", *HERE]

LAYERS = [
    Layer("lstm", 2, True, True, True, True, units=37, batch=9),
    Layer("lstm", 1, True, False, True, True, projected=19, units=40, batch=4),
    Layer("lstm", 1, False, False, False, False, units=16, batch=1),
    Layer("gru", 2, True, False, True, True, units=33, batch=7),
    Layer("gru", 1, False, True, False, True, units=5, batch=13),
    Layer("tanh", 1, True, True, True, True, units=70, batch=10),
    Layer("relu", 1, False, False, True, True, units=130, batch=3, steps=3),
    Layer("lstm", 1, False, False, True, True, units=400, inputs=3, batch=2, steps=3),
    Layer("lstm", 2, True, units=37, lengths=(7, 5, 5, 2, 1, 1, 1, 1, 1)),
    Layer("gru", 1, True, units=21, lengths=(6, 6, 3)),
]


def compiled(layer: Layer, dtype: torch.dtype, target: str) -> tuple[Program, list[torch.Tensor]]:
    fn, inputs, bound = layer.problem(dtype)
    recorded = record(fn, inputs, bound)
    artifacts = Artifacts()
    program = compile_program(recorded.graph, recorded.mutations, target_named(target), artifacts)
    assert isinstance(program, Program)
    assert sum(isinstance(each, Recurrence) for each in artifacts.definitions) == layer.layers
    return program, [given.tensor for given in recorded.bound]


def assert_as_good_as_eager(
    layer: Layer, results: list[torch.Tensor], inputs: list[torch.Tensor], bound: list[torch.Tensor]
) -> None:
    """The error against eager in float64 is at most twice eager's, plus a little; the strides are eager's."""
    fn = layer.problem(inputs[0].dtype)[0]
    exact_fn = layer.problem(torch.float64)[0]
    eager = fn(*inputs, *bound)
    exact = exact_fn(*(each.double() if each.is_floating_point() else each for each in (*inputs, *bound)))
    for got, wanted, truth in zip(results, eager, exact, strict=True):
        assert same_strides(wanted.shape, got.stride(), wanted.stride())
        scale = max(float(truth.abs().max()), 1e-3)
        # Of a half type, half a unit in the last place: what any result is rounded by.
        little = {torch.float64: 1e-12, torch.float32: 1e-6}.get(
            got.dtype, torch.finfo(got.dtype).eps / 2
        ) * scale
        error = float((got.double() - truth).abs().max())
        assert error <= 2 * float((wanted.double() - truth).abs().max()) + little, (str(layer), error)


def check(layer: Layer, dtype: torch.dtype, target: str, *, front: bool) -> None:
    _, inputs, params = layer.problem(dtype)
    program, bound = compiled(layer, dtype, target)
    assert_as_good_as_eager(layer, run_guarded(program, inputs, bound, front=front), inputs, params)


@pytest.mark.parametrize("front", [False, True], ids=["back", "front"])
@pytest.mark.parametrize("target", TARGETS)
def test_code(target: str, front: bool) -> None:
    jobs = [(str(layer), partial(check, layer, torch.float32, target, front=front)) for layer in LAYERS]
    assert not failure(jobs)


@pytest.mark.parametrize("target", TARGETS)
def test_double_precision(target: str) -> None:
    jobs = [(str(layer), partial(check, layer, torch.float64, target, front=False)) for layer in LAYERS]
    assert not failure(jobs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("target", TARGETS)
def test_half_types(target: str, dtype: torch.dtype) -> None:
    layers = [LAYERS[number] for number in (1, 2, 4, 6)]
    jobs = [(str(layer), partial(check, layer, dtype, target, front=False)) for layer in layers]
    assert not failure(jobs)


@pytest.mark.parametrize("layer", [LAYERS[0], LAYERS[3], LAYERS[5]], ids=str)
def test_any_share_of_the_rows_gives_the_same(layer: Layer) -> None:
    """A kernel called for parts of its range, in any order, gives what it gives at once."""
    layer = replace(layer, layers=1)
    _, inputs, _ = layer.problem(torch.float32)
    program, bound = compiled(layer, torch.float32, HERE[-1])
    whole = run_guarded(program, inputs, bound, front=False)
    for seed in range(3):
        cuts = random.Random(seed)
        parts = run_guarded(program, inputs, bound, front=False, shares=lambda n, r=cuts: _shares(n, r))
        for a, b in zip(whole, parts, strict=True):
            assert torch.equal(a, b)


def _shares(extent: int, rng: random.Random) -> list[tuple[int, int]]:
    inner = sorted({rng.randint(0, extent) for _ in range(3)})
    edges = [0, *inner, extent]
    found = list(zip(edges, edges[1:], strict=False))
    rng.shuffle(found)
    return found


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads(threads: int) -> None:
    layer = Layer("lstm", 2, True, True, True, True, steps=30, batch=8, inputs=64, units=96)
    _, inputs, params = layer.problem(torch.float32)
    program, bound = compiled(layer, torch.float32, HERE[-1])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        results = Executable(program, bound).run(inputs)
    finally:
        torch.set_num_threads(before)
    assert_as_good_as_eager(layer, list(results), inputs, params)


@pytest.mark.parametrize("layer", [LAYERS[0], LAYERS[1], LAYERS[3], LAYERS[5]], ids=str)
def test_open_sizes(layer: Layer) -> None:
    fn, inputs, params = layer.problem(torch.float64)
    outer = ["b", "t"] if layer.first else ["t", "b"]
    names = [[*outer, None], *[[None, "b", None]] * (len(inputs) - 1)]
    open_ = compile_symbolic(lambda *args: fn(*args, *params), inputs, names)
    assert sum(isinstance(each, Recurrence) for each in open_.artifacts.definitions) == layer.layers
    hint = {"b": layer.batch, "t": layer.steps}
    sizes = [hint, *({"b": b, "t": t} for b, t in ((1, 1), (1, 4), (2, 1), (3, 7), (16, 2), (8, 9)))]
    assert check_sizes(open_, lambda *args: fn(*args, *params), inputs, names, sizes) >= 4, [
        str(condition) for condition in open_.conditions
    ]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh", "relu"])
def test_numbers_that_are_none(kind, target: str) -> None:
    """nan and infinity come out where eager has them."""
    layer = Layer(kind, 1, False, False, True, True, units=19, batch=6, steps=4)
    fn, inputs, params = layer.problem(torch.float32)
    x = inputs[0]
    x[1, 0, 2], x[0, 1, 0], x[2, 2, 1] = float("nan"), float("inf"), float("-inf")
    inputs[1][0, 3, 4] = float("inf")
    inputs[-1][0, 4, 2] = float("-inf")
    x[:, 5] *= 1e30
    program, bound = compiled(layer, torch.float32, target)
    results = run_guarded(program, inputs, bound, front=False)
    for got, wanted in zip(results, fn(*inputs, *params), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("target", TARGETS)
def test_small_numbers_keep_their_digits(target: str) -> None:
    """Where the states are tiny, so are the errors: tanh is not computed by a difference that cancels."""
    layer = Layer("lstm", 1, False, False, False, True, units=24)
    _, inputs, params = layer.problem(torch.float32)
    small = [each * 1e-6 for each in inputs]
    program, bound = compiled(layer, torch.float32, target)
    results = run_guarded(program, small, bound, front=False)
    for got, truth in zip(
        results, layer.problem(torch.float64)[0](*(each.double() for each in (*small, *params))), strict=True
    ):
        torch.testing.assert_close(got.double(), truth, rtol=2e-5, atol=1e-5 * float(truth.abs().max()))
