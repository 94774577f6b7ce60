"""Code that stands alone: what ATen does otherwise, as loops and templates, held to eager's results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import graphkit
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lampwork.backends.native.compile import compile_open
from lampwork.backends.native.compile_for import compile_for
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.graph.record import Recorder
from lampwork.graph.spec import TensorSpec
from lampwork.loops.ir.symbols import evaluate
from lampwork.runtime import Executable
from lampwork.runtime.program import CallAten
from lampwork.transforms.pipeline import run_passes

HERE = host_isa("").alone()


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        return torch.randint(-9, 9, shape, dtype=dtype, generator=generator)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def check(
    fn: Callable[..., Any], inputs: Sequence[Tensor], bound: Sequence[Tensor] = (), within: float = 2e-6
) -> None:
    """fn(*inputs, *bound) calls nothing of ATen's, and gives eager's results."""
    graph = graphkit.record(fn, *inputs, bound=bound)
    run_passes(graph)
    made = compile_open(graph, (), HERE)[0].program
    assert made is not None
    layout = made.layout
    assert layout is not None
    program = layout.place({})
    parts = [program] if program.constants is None else [program, program.constants]
    calls = [step.op for part in parts for step in part.instructions if isinstance(step, CallAten)]
    assert not calls, calls
    results = Executable(program, list(bound)).run(list(inputs))
    compare(results, fn(*inputs, *bound), within)


def compare(results: Sequence[Tensor], wanted: Any, within: float) -> None:
    for got, want in zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
        error = (got.double() - want.double()).abs().max().item()
        assert error <= within * want.double().abs().max().item(), error


CONVOLUTIONS: dict[str, tuple[Callable[..., Tensor], tuple[int, ...], tuple[int, ...], int]] = {
    "one channel": (F.conv2d, (2, 1, 8, 7), (17, 1, 2, 2), 17),
    "groups of three": (
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1, dilation=2, groups=2),
        (2, 6, 9, 11),
        (10, 3, 3, 3),
        10,
    ),
    "without a batch": (F.conv2d, (4, 9, 8), (3, 4, 4, 2), 3),
    "sides of their own": (lambda x, w, b: F.conv1d(x, w, b, padding="same"), (2, 4, 9), (3, 4, 4), 3),
    "a volume": (lambda x, w, b: F.conv3d(x, w, b, padding=1), (1, 3, 5, 6, 7), (3, 3, 3, 3, 3), 3),
    "transposed": (F.conv_transpose2d, (2, 8, 11, 12), (8, 4, 3, 3), 4),
    "transposed in groups": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, 3, 1, 1, 2, 2),
        (2, 8, 5, 6),
        (8, 3, 3, 3),
        6,
    ),
    "phases of their own": (
        lambda x, w, b: F.conv_transpose1d(x, w, b, stride=4, padding=2),
        (2, 4, 9),
        (4, 3, 5),
        3,
    ),
    "a transposed volume": (
        lambda x, w, b: F.conv_transpose3d(x, w, b, stride=2),
        (1, 4, 3, 4, 2),
        (4, 3, 2, 3, 3),
        3,
    ),
    "one tap of one channel": (F.conv_transpose2d, (1, 1, 14, 7), (1, 17, 1, 1), 17),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_without_a_template(name: str, dtype: torch.dtype, within: float) -> None:
    fn, x, w, b = CONVOLUTIONS[name]
    bound = [random(*w, dtype=dtype, seed=1), random(b, dtype=dtype, seed=2)]
    check(fn, [random(*x, dtype=dtype)], bound, within)
    if dtype is torch.float32:
        check(fn, [random(*x, dtype=dtype), *bound], (), within)  # weights that each call brings


def test_convolutions_of_integers() -> None:
    check(F.conv2d, [random(1, 3, 6, 6, dtype=torch.int64)], [random(2, 3, 3, 3, dtype=torch.int64)], 0)


def test_a_convolution_of_open_size() -> None:
    x, w = random(1, 3, 9, 9), random(5, 3, 2, 2)
    with Recorder() as recorder, torch.no_grad():
        rows = recorder.scope.symbol(9)
        spec = replace(TensorSpec.of(x), shape=(1, 3, rows, 9), strides=(rows * 27, rows * 9, 9, 1))
        given = [recorder.input(x, "x", spec=spec), recorder.input(w, "w", bound=True)]
        graph = recorder.finish([F.conv_transpose2d(given[0], given[1].transpose(0, 1), stride=3)]).graph
    run_passes(graph)
    made = compile_open(graph, (), HERE)[0].program
    assert made is not None
    layout = made.layout
    assert layout is not None
    for size in (2, 9, 14):
        program = layout.place({str(rows): size})
        x = random(1, 3, size, 9, seed=size)
        scalars = tuple(evaluate(index, {str(rows): size}) for index in layout.scalars)
        results = Executable(program, [w]).run([x], scalars)
        compare(results, F.conv_transpose2d(x, w.transpose(0, 1), stride=3), 2e-6)


# --- constants --------------------------------------------------------------------------------------------------------


def _network() -> nn.Module:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, groups=16),
        nn.ConvTranspose2d(16, 8, 2, 2),
    ]
    network = nn.Sequential(*layers).eval()
    with torch.no_grad():
        for each in (network[1].running_mean, network[1].running_var):
            each.copy_(torch.rand(16) + 0.5)
    return network


def test_folded_batch_norms_and_weights_in_another_order() -> None:
    network = _network()
    state = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    names = [name for name in state if not name.endswith("num_batches_tracked")]

    def fn(x: Tensor, *given: Tensor) -> Tensor:
        return torch.func.functional_call(network, dict(zip(names, given, strict=True)), (x,))

    check(fn, [random(2, 3, 8, 9)], [state[name].detach() for name in names])


def _positions(x: Tensor, table: Tensor) -> Tensor:
    frequencies = 1.0 / 10000 ** (torch.arange(0, 8, 2).float() / 8)
    angles = torch.arange(6)[:, None] * frequencies
    rotated = torch.cat([angles.cos(), angles.sin()], -1)
    return x * rotated + F.embedding(torch.arange(6), table) + torch.full((6, 8), 0.5).log()


def test_tables_of_positions() -> None:
    check(_positions, [random(6, 8)], [random(10, 8)])


def test_a_scale_of_a_scale() -> None:
    def fn(x: Tensor, w: Tensor, scale: Tensor, other: Tensor) -> Tensor:
        return F.linear(x, (w.float() * scale) * other)

    weight = random(16, 32, dtype=torch.int8)
    check(fn, [random(5, 32)], [weight, random(16, 1).abs(), random(16, 1, seed=1).abs()])


# --- where ATen is as fast --------------------------------------------------------------------------------------------


def test_rows_that_run_along_a_scan() -> None:
    check(lambda x: (*torch.cummax(x, 1), *torch.cummin(x, 0)), [random(5, 7)], (), 0)


def test_many_pieces() -> None:
    check(lambda x: torch.cat([x * number for number in range(1, 13)], 1), [random(3, 5)], (), 0)


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
def test_attention_of_torch(dtype: torch.dtype, within: float) -> None:
    """In numbers and shapes that torch's fused kernel takes otherwise."""
    q, k, v = (random(1, 2, 150, 32, dtype=dtype, seed=seed) for seed in range(3))
    mask = random(150, 150, dtype=dtype, seed=3)
    check(F.scaled_dot_product_attention, [q, k, v], (), within)
    check(F.scaled_dot_product_attention, [q, k, v, mask], (), within)


def test_a_network_of_nothing_but_constants() -> None:
    """Nothing depends on the input: all of it is made once."""
    graph = graphkit.record(lambda x, w: (w @ w).softmax(-1) + 1, random(2), bound=[random(8, 8)])
    assert not compile_for(graph, HERE, standalone=True).calls
