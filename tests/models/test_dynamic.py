"""Sizes and numbers that differ from call to call, through the whole compiler: how often it compiles, and answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from same import assert_same
from torch import Tensor, nn

import lampwork
from lampwork.bench.networks import AlexNet, MobileNetV2, ResNet
from lampwork.bench.workloads.small import gelu_chain, lerp, masked_softmax, mse


def _compiles(fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]], **options: Any) -> list[int]:
    """How many regions are compiled after each call; every call's result is compared."""
    lampwork.reset_stats()
    compiled = lampwork.compile(fn, **options)
    counts: list[int] = []
    for args in calls:
        assert_same(fn, compiled(*args), *args)
        counts.append(int(lampwork.stats()["regions"]))
    return counts


def test_the_number_of_the_introduction() -> None:
    def fn(x: Tensor, n: int) -> Tensor:
        y = x**2
        if n >= 0:
            return (n + 1) * y
        return y / n

    x = torch.randn(200)
    counts = _compiles(fn, [(x, 2), (x, 3), (x, 6), (x, -3), (x, 4), (x, -8)])
    assert counts == [1, 2, 2, 3, 3, 3]


class _Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


_FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "lerp": (lerp, lambda n: (torch.randn(n), torch.randn(n), torch.rand(n))),
    "mse": (mse, lambda n: (torch.randn(n), torch.randn(n))),
    "gelu_chain": (gelu_chain, lambda n: (torch.randn(n, 33), torch.randn(n, 33))),
    "masked_softmax": (
        masked_softmax,
        lambda n: (torch.randn(3, n, n), torch.zeros(n, n).masked_fill(torch.rand(n, n) < 0.2, -1e9)),
    ),
    "layer_norm": (
        lambda x, r: torch.nn.functional.layer_norm(x + r, (48,)),
        lambda n: (torch.randn(n, 48),) * 2,
    ),
    "sum_of_columns": (lambda x: x.sum(0), lambda n: (torch.randn(n, 37),)),
    "sum_of_rows": (lambda x: (x.sum(1), x.amax(1), x.var(1)), lambda n: (torch.randn(5, n),)),
    "sum_of_all": (lambda x: (x * x).mean(), lambda n: (torch.randn(n, n),)),
    "transpose": (lambda x: x.t().contiguous() + 1, lambda n: (torch.randn(n, 2 * n),)),
    "cumsum": (lambda x: x.cumsum(1), lambda n: (torch.randn(3, n),)),
    "cat": (lambda x, y: torch.cat([x, y], 1).relu(), lambda n: (torch.randn(3, n), torch.randn(3, 7))),
    "matmul": (lambda x, y: x @ y, lambda n: (torch.randn(n, 2 * n), torch.randn(2 * n, 19))),
    "batched": (lambda x, y: x @ y.transpose(1, 2), lambda n: (torch.randn(n, 9, 16), torch.randn(n, n, 16))),
    "arange": (lambda x: x + torch.arange(x.shape[1]), lambda n: (torch.randn(2, n),)),
    "halves": (lambda x: x[:, : x.shape[1] // 2] * 2, lambda n: (torch.randn(2, n),)),
    "masks": (lambda x: torch.tril(x.expand(x.shape[1], -1)), lambda n: (torch.randn(1, n),)),
    "pad": (lambda x: torch.nn.functional.pad(x, (1, 2)), lambda n: (torch.randn(2, n),)),
    "embedding": (
        lambda i, w: torch.nn.functional.embedding(i, w).sum(1),
        lambda n: (torch.randint(0, 9, (3, n)), torch.randn(9, 16)),
    ),
    "division": (lambda x: x.sum(1) / x.shape[1], lambda n: (torch.randn(2, n),)),
    "prelu": (lambda x, w: torch.nn.functional.prelu(x, w), lambda n: (torch.randn(n, 5, 3), torch.rand(5))),
    "scatter_reduce": (
        lambda i, x: x.new_zeros(9, 4).scatter_reduce(0, i, x, "amax", include_self=False),
        lambda n: (torch.randint(0, 9, (n, 4)), torch.randn(n, 4)),
    ),
    "histogram": (lambda x: torch.histc(x, 4, 0, 1), lambda n: (torch.rand(n),)),
    "mse_loss": (lambda x, y: torch.nn.functional.mse_loss(x, y), lambda n: (torch.randn(n, 3),) * 2),
    "order": (lambda x: (*x.kthvalue(5, 1), *x.cummax(0), *x.cummin(1)), lambda n: (torch.randn(n, 5),)),
    "along": (lambda x: torch.take_along_dim(x, x.argsort(1), 1), lambda n: (torch.randn(n, 5),)),
    "sampled": (
        lambda x, grid: torch.nn.functional.grid_sample(x, grid, align_corners=False),
        lambda n: (torch.randn(n, 3, 5, 6), torch.rand(n, 4, 7, 2)),
    ),
    "sampled_volumes": (
        lambda x, grid: torch.nn.functional.grid_sample(x, grid, align_corners=True),
        lambda n: (torch.randn(n, 2, 4, 5, 6), torch.rand(n, 3, 4, 7, 3)),
    ),
    "resized": (
        lambda x: torch.nn.functional.interpolate(x, scale_factor=2, mode="linear"),
        lambda n: (torch.randn(3, 2, n),),
    ),
    "resized_volumes": (
        lambda x: torch.nn.functional.interpolate(x, scale_factor=2, mode="trilinear"),
        lambda n: (torch.randn(n, 2, 3, 4, 3),),
    ),
    "reflected": (
        lambda x: torch.nn.functional.pad(x, (6, 2), mode="reflect"),
        lambda n: (torch.randn(n, 2, 7),),
    ),
    "windows": (lambda x: torch.nn.functional.unfold(x, 2), lambda n: (torch.randn(n, 3, 6, 5),)),
    "loop": (lambda x: x.reshape(-1).view(x.shape[1], -1), lambda n: (torch.randn(4, n),)),
}


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_two_compilations_serve_every_size(name: str) -> None:
    fn, inputs = _FUNCTIONS[name]
    assert _compiles(fn, [inputs(n) for n in (4, 6, 50, 7, 128, 5)]) == [1, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_one_compilation_serves_every_size_of_dynamic_functions(name: str) -> None:
    fn, inputs = _FUNCTIONS[name]
    assert _compiles(fn, [inputs(n) for n in (6, 50, 7)], dynamic=True) == [1, 1, 1]


def _images(*batches: int, side: int = 64) -> list[tuple[Tensor]]:
    return [(torch.randn(batch, 3, side, side),) for batch in batches]


def _tokens(*shapes: tuple[int, int]) -> list[tuple[Tensor]]:
    return [(torch.randint(0, 99, shape),) for shape in shapes]


def _transformer(kind: str) -> tuple[nn.Module, list[tuple[Tensor]]]:
    transformers = pytest.importorskip("transformers")
    small = dict(
        vocab_size=99, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    shapes = _tokens((2, 8), (3, 9), (4, 33), (5, 5), (2, 16))
    if kind == "bert":
        return transformers.BertModel(transformers.BertConfig(**small)), shapes
    if kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=99, n_embd=64, n_layer=2, n_head=4, use_cache=False)
        return transformers.GPT2LMHeadModel(config), shapes
    if kind == "llama":
        config = transformers.LlamaConfig(**small, num_key_value_heads=2, use_cache=False)
        return transformers.LlamaForCausalLM(config), shapes
    config = transformers.ViTConfig(**{**small, "image_size": 32, "patch_size": 8})
    return transformers.ViTModel(config, add_pooling_layer=False), _images(2, 3, 5, 4, side=32)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "vit"])
def test_two_compilations_serve_every_batch_and_length_of_transformers(kind: str) -> None:
    model, calls = _transformer(kind)
    counts = _compiles(model.eval(), calls)
    assert counts == [1, *[2] * (len(calls) - 1)]


@pytest.mark.parametrize(
    ("model", "side"),
    [(AlexNet, 96), (ResNet, 64), (MobileNetV2, 64)],
)
def test_two_compilations_serve_every_batch_of_images(model: Callable[[], nn.Module], side: int) -> None:
    assert _compiles(model().eval(), _images(2, 3, 5, 4, side=side)) == [1, 2, 2, 2]


def test_gradients_for_every_size() -> None:
    torch.manual_seed(0)
    mine, theirs = _Classifier(), _Classifier()
    theirs.load_state_dict(mine.state_dict())
    compiled = lampwork.compile(mine)
    for n in (4, 5, 9):
        x = torch.randn(n, 64)
        y = x.clone().requires_grad_()
        z = x.clone().requires_grad_()
        compiled(y).square().sum().backward()
        theirs(z).square().sum().backward()
        torch.testing.assert_close(y.grad, z.grad)
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_changed_weights_are_seen_by_programs_of_all_sizes() -> None:
    model = _Classifier().eval()
    compiled = lampwork.compile(model)
    inputs = [torch.randn(n, 64) for n in (4, 5, 9)]
    for _ in range(3):
        for x in inputs:
            with torch.no_grad():
                torch.testing.assert_close(compiled(x), model.layers(x))
        with torch.no_grad():
            model.layers[0].weight.mul_(1.5)


def test_a_size_that_a_backend_cannot_leave_open_is_compiled_for_each() -> None:
    assert _compiles(
        lambda x: x.softmax(0) * 2, [(torch.randn(n, 3),) for n in (2, 4, 8)], backend="eager"
    ) == [1, 2, 2]


def test_more_sizes_than_are_kept_ready() -> None:
    compiled = lampwork.compile(lambda x: (x * 2).sum(0))
    for n in (*range(2, 150), *range(2, 20)):
        x = torch.randn(n, 3)
        torch.testing.assert_close(compiled(x), (x * 2).sum(0))


def test_marks() -> None:
    def fn(x: Tensor) -> Tensor:
        return x.softmax(-1) * x.shape[0]

    lampwork.reset_stats()
    compiled = lampwork.compile(fn)
    for n in (8, 9, 10):
        x = torch.randn(n, 5)
        lampwork.mark_dynamic(x, 0, min=4, max=100)
        torch.testing.assert_close(compiled(x), fn(x))
    assert lampwork.stats()["regions"] == 1


def test_a_mark_that_the_program_contradicts_is_reported_and_softened() -> None:
    def fn(x: Tensor) -> Tensor:
        return x.view(8, -1) if x.shape[0] == 8 else x * 2

    compiled = lampwork.compile(fn)
    x = torch.randn(8, 4)
    lampwork.mark_dynamic(x, 0)
    with pytest.warns(lampwork.LampworkWarning) as caught:
        assert_same(fn, compiled(x), x)
    text = str(caught[0].message)
    assert "[LW150]" in text and "s0 = x.size(0) is marked dynamic, but the program needs s0 == 8" in text
    y = torch.randn(9, 4)
    assert_same(fn, compiled(y), y)


def test_a_failure_for_some_sizes_runs_their_graph_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    from lampwork.backends.native.symbolic import SymbolicProgram

    compiled = lampwork.compile(lambda x: (x * 2).sum(0), options={"strict": False})
    for n in (4, 5):
        compiled(torch.randn(n, 3))

    def fails(self: SymbolicProgram, values: Any) -> Any:
        raise RuntimeError("no plan for this")

    monkeypatch.setattr(SymbolicProgram, "instantiate", fails)
    x = torch.randn(6, 3)
    with pytest.warns(lampwork.LampworkWarning, match="no plan for this"):
        torch.testing.assert_close(compiled(x), (x * 2).sum(0))


def test_two_compilations_serve_every_float() -> None:
    def fn(x: Tensor, rate: float) -> Tensor:
        return (x * rate + x / (rate + 1)).relu() - rate**2

    x = torch.randn(40, 3)
    assert _compiles(fn, [(x, rate) for rate in (0.5, 0.25, -3.5, 1e9, 1e-30)]) == [1, 2, 2, 2, 2]


def test_two_compilations_serve_floats_made_of_sizes() -> None:
    def fn(x: Tensor) -> Tensor:
        return x.sum(1) * (1.0 / x.shape[1]) + x.shape[0] ** 0.5

    assert _compiles(fn, [(torch.randn(n, n + 1),) for n in (3, 5, 8, 40)]) == [1, 2, 2, 2]


def test_arithmetic_that_fails_for_some_numbers_raises_as_in_eager() -> None:
    def fn(x: Tensor, n: int) -> Tensor:
        return x * (1 / n)

    assert _compiles(fn, [(torch.ones(3), n) for n in (2, 3, 4)]) == [1, 2, 2]
    compiled = lampwork.compile(fn)
    for n in (2, 3, 4):
        compiled(torch.ones(3), n)
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        compiled(torch.ones(3), 0)


def test_two_compilations_serve_every_batch_and_length_of_recurrent_networks() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(16, 24, num_layers=2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(x)[0][:, -1]

    calls = [(torch.randn(b, t, 16),) for b, t in ((2, 3), (4, 5), (6, 7), (3, 9))]
    assert _compiles(Last().eval(), calls) == [1, 2, 2, 2]


def test_two_compilations_serve_every_batch_of_a_classifier() -> None:
    assert _compiles(_Classifier().eval(), [(torch.randn(n, 64),) for n in (8, 3, 100, 2)]) == [1, 2, 2, 2]


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
def test_two_compilations_serve_every_batch_of_recurrent_cells(kind: type[nn.Module]) -> None:
    cell = kind(8, 12).eval().requires_grad_(False)
    assert _compiles(cell, [(torch.randn(n, 8),) for n in (4, 3, 100, 2)]) == [1, 2, 2, 2]
    assert lampwork.stats()["breaks"] == 0


@pytest.mark.parametrize("dim, chunks", [(1, 2), (-1, 5)])
def test_two_compilations_serve_chunks_of_every_size(dim: int, chunks: int) -> None:
    calls = [(torch.randn(n, 8),) for n in (4, 6, 8, 100)]
    assert _compiles(lambda x: [c + 1 for c in x.unsafe_chunk(chunks, dim)], calls) == [1, 2, 2, 2]
    assert lampwork.stats()["breaks"] == 0
