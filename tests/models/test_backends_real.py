"""Real models in ONNX Runtime and OpenVINO, whole and in lists with the native backend."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from same import assert_same
from torch import Tensor, nn

import lampwork
from lampwork.backends.core_aten import is_core
from lampwork.bench.models import load
from lampwork.bench.workloads.transformers import bert
from lampwork.graph.interpret import run_graph

pytest.importorskip("onnx")


@pytest.fixture(params=["onnxruntime", "openvino"])
def backend(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return str(request.param)


def _only(compiled: Any, backend: str) -> bool:
    """One part, in this backend."""
    text = compiled.stages.partition
    return text.startswith(f"part 0: {backend},") and len(text.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "alexnet", "resnet50", "mobilenet_v2", "vit", "gpt2", "llama"])
def test_models_run_whole(backend: str, name: str) -> None:
    work = load(name)
    with torch.no_grad():
        compiled = lampwork.compile(work.fn, backend=backend)
        assert_same(work.fn, compiled(*work.inputs), *work.inputs)
    assert _only(compiled, backend), compiled.stages.partition


@pytest.mark.slow
def test_bert_with_a_mask_runs_whole(backend: str) -> None:
    model = bert(2).model  # type: ignore[union-attr]
    ids = torch.randint(0, 30522, (2, 17))
    mask = torch.ones(2, 17, dtype=torch.long)
    mask[1, 9:] = 0

    def fn(ids: Tensor, mask: Tensor) -> Tensor:
        return model(ids, attention_mask=mask).last_hidden_state

    with torch.no_grad():
        compiled = lampwork.compile(fn, backend=[backend, "native"])
        got, want = compiled(ids, mask), fn(ids, mask)
    torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)
    assert backend in compiled.stages.partition


class Core:
    """Takes core operators only, and is asked about nothing else."""

    name, decompose = "core", "core"

    def supports(self, node: Any) -> bool:
        assert is_core(node.target), node.target
        return True

    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        return lambda *tensors: run_graph(graph, tensors)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "resnet50"])
def test_models_in_core_operators(name: str) -> None:
    work = load(name)
    with torch.no_grad():
        compiled = lampwork.compile(work.fn, backend=[Core, "native"], options={"strict": True})
        assert_same(work.fn, compiled(*work.inputs), *work.inputs)
    assert _only(compiled, "core"), compiled.stages.partition


class Mixed(nn.Module):
    """Products that the runtimes take around a sort that they do not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        hidden = torch.sort(hidden, dim=-1).values
        return torch.softmax(self.last(hidden), dim=-1)


def test_a_list_with_native(backend: str) -> None:
    model, x = Mixed().eval(), torch.randn(3, 8)
    with torch.no_grad():
        compiled = lampwork.compile(model, backend=[backend, "native"])
        assert_same(model, compiled(x), x)
    names = [line.split(": ")[1].split(",")[0] for line in compiled.stages.partition.splitlines()]
    assert names == [backend, "native", backend]


def test_weights_that_change(backend: str) -> None:
    model, x = Mixed().eval(), torch.randn(3, 8)
    with torch.no_grad():
        compiled = lampwork.compile(model, backend=[backend, "native"])
        assert_same(model, compiled(x), x)
        model.first.weight.mul_(2)
        assert_same(model, compiled(x), x)
        model.load_state_dict(Mixed().state_dict())
        assert_same(model, compiled(x), x)
        model.last.bias = nn.Parameter(torch.randn(4))
        assert_same(model, compiled(x), x)
        model.last.weight.data = torch.randn(4, 16)
        assert_same(model, compiled(x), x)


def test_sizes_that_change(backend: str) -> None:
    model = Mixed().eval()
    with torch.no_grad():
        compiled = lampwork.compile(model, backend=[backend, "native"])
        for rows in (3, 5, 2, 5, 7, 3):
            x = torch.randn(rows, 8)
            assert_same(model, compiled(x), x)


def test_dynamic_from_the_first_call(backend: str) -> None:
    model = Mixed().eval()
    with torch.no_grad():
        compiled = lampwork.compile(model, backend=backend, dynamic=True)
        for rows in (3, 5, 1, 5):
            x = torch.randn(rows, 8)
            assert_same(model, compiled(x), x)


def test_training_goes_back_through_eager_gradients(backend: str) -> None:
    model = Mixed()
    twin = copy.deepcopy(model)
    compiled = lampwork.compile(model, backend=[backend, "native"])
    x = torch.randn(3, 8)
    rate = 0.1
    for _ in range(3):
        for run, owner in ((compiled, model), (twin, twin)):
            loss = F.cross_entropy(run(x), torch.tensor([0, 1, 2]))
            owner.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in owner.parameters():
                    parameter -= rate * parameter.grad
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_inputs_that_are_written(backend: str) -> None:
    def step(state: Tensor, x: Tensor) -> Tensor:
        state.mul_(0.9).add_(x)
        return state * 2

    compiled = lampwork.compile(step, backend=[backend, "native"])
    ours, theirs = torch.ones(4), torch.ones(4)
    for _ in range(3):
        x = torch.randn(4)
        torch.testing.assert_close(compiled(ours, x), step(theirs, x))
        torch.testing.assert_close(ours, theirs)


def test_half_and_double_go_elsewhere(backend: str) -> None:
    def fn(x: Tensor) -> Tensor:
        y = x.to(torch.bfloat16) * 2
        return torch.relu(y.float() + x)

    compiled = lampwork.compile(fn, backend=[backend, "native"])
    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(x), fn(x))
    assert "native" in compiled.stages.partition and backend in compiled.stages.partition


def test_empty_batches(backend: str) -> None:
    model = Mixed().eval()
    with torch.no_grad():
        compiled = lampwork.compile(model, backend=[backend, "native"])
        x = torch.randn(0, 8)
        assert compiled(x).shape == (0, 4)


def test_an_index_out_of_range_is_eagers_error(backend: str) -> None:
    model = nn.Embedding(10, 4)
    with torch.no_grad():
        compiled = lampwork.compile(model, backend=backend)
        ids = torch.tensor([1, 2])
        assert torch.equal(compiled(ids), model(ids))
        with pytest.raises(IndexError, match="out of range"):
            compiled(torch.tensor([1, 10]))
        assert torch.equal(compiled(ids), model(ids))


def test_memory_between_the_elements_of_a_view(backend: str) -> None:
    """`as_strided` reads what the view of another part leaves out."""

    def fn(x: Tensor) -> Tensor:
        return torch.relu(x)[:, :3].as_strided((2, 4), (4, 1)) * 2

    compiled = lampwork.compile(fn, backend=[backend, "native"])
    for _ in range(3):
        x = torch.randn(2, 4)
        torch.testing.assert_close(compiled(x), fn(x))
