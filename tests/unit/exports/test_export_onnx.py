"""`.onnx`: models that ONNX Runtime runs, against eager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from export_models import Attention, Counting, Decoder, Odd, Residual, TwoLayers, error
from torch import Tensor

import lampwork
from lampwork.errors import ExportError

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def run(path: Path, *inputs: Tensor) -> dict[str, Any]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    results = session.run(None, {n: x.detach().numpy() for n, x in zip(names, inputs, strict=True)})
    return dict(zip([each.name for each in session.get_outputs()], results, strict=True))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


@torch.no_grad()
def test_names_and_results(path: Path) -> None:
    model, x = TwoLayers().eval(), torch.randn(4, 8)
    found = lampwork.export(model, path, x)
    result, expected = run(path, x), model(x)
    assert found.outputs == tuple(result) == ("sum", "flat")
    assert all(error(result[name], expected[name]) < 1e-5 for name in expected)
    written = onnx.load(path)
    onnx.checker.check_model(written, full_check=True)
    gemm = next(node for node in written.graph.node if node.name == "/net/0/Gemm")
    said = {entry.key: entry.value for entry in gemm.metadata_props}
    assert said["lampwork.module"] == "net.0" and said["lampwork.operator"] == "linear"
    assert "export_models.py" in said["lampwork.line"]
    assert {tensor.name for tensor in written.graph.initializer} >= {*model.state_dict()}


@torch.no_grad()
def test_residual_block_and_its_parts(path: Path) -> None:
    model, x = Residual().eval(), torch.randn(2, 3, 8, 8)
    lampwork.export(model, path, x)
    assert error(run(path, x)["output"], model(x)) < 1e-5
    found = lampwork.export(model, path, x, module="norm")
    inside = model.first(x)
    assert error(run(path, inside)["output"], model.norm(inside)) < 1e-5
    assert len(found.inputs) == 1


@pytest.mark.parametrize("cache", [torch.empty(0), torch.randn(2, 4, 8)], ids=["empty", "full"])
@torch.no_grad()
def test_decoder_with_a_cache(path: Path, cache: Tensor) -> None:
    model, tokens = Decoder().eval(), torch.randint(0, 20, (2, 3))
    found = lampwork.export(model, path, (tokens, cache))
    assert not found.notes
    used = [
        x
        for name, x in (("tokens", tokens), ("cache", cache))
        if name in {i.name for i in onnx.load(path).graph.input}
    ]
    result, expected = run(path, *used), model(tokens, cache)
    assert all(error(result[name], expected[name]) < 1e-5 for name in expected)


@torch.no_grad()
def test_transformer(path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=50
    )
    model = transformers.BertModel(config).eval()
    call = {"input_ids": torch.randint(0, 50, (2, 5)), "attention_mask": torch.ones(2, 5, dtype=torch.long)}
    call["attention_mask"][1, 3:] = 0
    found = lampwork.export(model, path, call)
    assert found.outputs == ("last_hidden_state", "pooler_output")
    result, expected = run(path, *call.values()), model(**call)
    assert all(error(result[name], expected[name]) < 1e-5 for name in found.outputs)

    layers: list[Tensor] = []
    layer = model.encoder.layer[1].attention
    handle = layer.register_forward_hook(
        lambda module, args, kwargs, out: layers.append(args[0]), with_kwargs=True
    )
    expected = model(call["input_ids"])
    handle.remove()
    lampwork.export(model, path, {"input_ids": call["input_ids"]}, module="encoder.layer.1.attention")
    assert error(run(path, layers[0])["output"], layer(layers[0])[0]) < 1e-5
    assert expected.last_hidden_state.shape == (2, 5, 16)


@torch.no_grad()
def test_names_that_are_odd_or_ours(path: Path) -> None:
    model, x = Odd().eval(), torch.randn(2, 3)
    lampwork.export(model, path, x)
    assert error(run(path, x)["output"], model(x)) < 1e-6
    assert {tensor.name for tensor in onnx.load(path).graph.initializer} >= {"relu.1", "ünï/x.weight"}


@torch.no_grad()
def test_open_sizes_by_torch(path: Path) -> None:
    pytest.importorskip("onnxscript")
    model, scale = Attention().eval(), torch.rand(8)
    compiled = lampwork.compile(model, dynamic=True)
    compiled(torch.randn(2, 3, 8), scale)
    found = lampwork.export(compiled, path)
    assert found.notes == (
        "what is no tensor is left out of the result: 4",
        "written by torch.onnx.export, as sizes are left open",
    )
    x = torch.randn(5, 7, 8)
    assert error(run(path, x, scale)["output"], model(x, scale)[0]) < 1e-5
    written = onnx.load(path)
    assert [d.dim_param for d in written.graph.input[0].type.tensor_type.shape.dim] == [
        "x_dim0",
        "x_dim1",
        "",
    ]
    assert any(node.name.startswith("/project/") for node in written.graph.node)


def test_what_has_no_form(path: Path) -> None:
    x = torch.randn(3)
    with pytest.raises(ExportError, match=r"special_bessel_j0 \(it has no rule\).*\n  fix: export a module"):
        lampwork.export(lambda x: torch.special.bessel_j0(x) + 1, path, x)
    assert not list(path.parent.iterdir())


def test_what_is_written_is_an_output(path: Path) -> None:
    model, x, extra = Counting().eval(), torch.randn(4, 3), torch.rand(3)
    found = lampwork.export(model, path, {"x": x, "extra": {"a": [extra]}})
    assert found.outputs == ("output", "calls.new")
    result = run(path, x, extra)
    # The call that was captured was a call too.
    assert result["calls.new"] == 2 and model.calls == 1
    assert error(result["output"], model(x, extra={"a": [extra]})[0]) < 1e-6


@torch.no_grad()
def test_weights_beside_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lampwork.exports import onnx_model

    monkeypatch.setattr(onnx_model, "MOST_INSIDE", 100)
    model, x = torch.nn.Linear(8, 64), torch.randn(4, 8)
    for _ in range(2):  # the second time over the first
        found = lampwork.export(model, path, x)
        assert [file.name for file in found.files] == ["model.onnx", "model.onnx.data"]
        assert found.files[1].stat().st_size == 8 * 64 * 4
        assert error(run(path, x)["output"], model(x)) < 1e-5


def test_package_that_is_missing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ExportError, match=r"needs the package onnx.*\n  fix: pip install onnx"):
        lampwork.export(torch.relu, path, torch.randn(3))


def test_batch_statistics_by_torch(path: Path) -> None:
    pytest.importorskip("onnxscript")
    model, other = (torch.nn.BatchNorm1d(2).train() for _ in range(2))
    x = torch.randn(5, 2) * 3 + 1
    with torch.no_grad():
        found = lampwork.export(model, path, x)
        model(x)
        expected = other(x), other(x)
    assert found.notes[0].startswith("written by torch.onnx.export")
    result = run(path, x)
    assert error(result["output"], expected[1]) < 1e-5
    # The call that was captured was a call too.
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert error(result[f"{name}.new"], other.get_buffer(name)) < 1e-5, name


def test_what_torch_writes_wrongly_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript")
    from lampwork.exports import onnx_model

    by_torch = onnx_model._by_torch

    def wrong(piece: Any) -> Any:
        model, notes = by_torch(piece)
        (node,) = (node for node in model.graph.node if node.op_type == "Add")
        node.op_type = "Sub"
        return model, notes

    monkeypatch.setattr(onnx_model, "_by_torch", wrong)
    with pytest.raises(ExportError, match=r"what torch.onnx.export writes of .* is wrong: output is off by"):
        lampwork.export(lambda x: x.sort()[0] + x, path, torch.randn(3))
    assert not list(path.parent.iterdir())


def test_without_a_runtime_the_reference_runs_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript")
    from lampwork.exports import compared

    find = compared.importlib.util.find_spec
    monkeypatch.setattr(
        compared.importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find(name)
    )
    found = lampwork.export(lambda x: x.sort()[0], path, torch.randn(3))
    assert len(found.notes) == 1 and found.notes[0].startswith("written by torch.onnx.export")


def test_what_is_not_run_is_said(path: Path) -> None:
    pytest.importorskip("onnxscript")
    found = lampwork.export(lambda x: x.sort()[0] + torch.rand(3), path, torch.randn(3))
    assert "it was not run for a test: rand is random" in found.notes


@torch.no_grad()
def test_what_divides_and_what_may_draw_is_run(path: Path) -> None:
    pytest.importorskip("onnxscript")
    x = torch.tensor([5, 7, 9], dtype=torch.uint8)
    found = lampwork.export(lambda x, y: x // y, path, (x, x - 2))
    assert len(found.notes) == 1
    found = lampwork.export(torch.nn.GRU(3, 4).eval(), path, torch.randn(2, 3))
    assert len(found.notes) == 1


@torch.no_grad()
def test_names_are_apart(path: Path) -> None:
    pytest.importorskip("onnxscript")

    class Alike(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3) * 2)
            self.y = torch.nn.Parameter(torch.ones(3) * 3)

        def forward(self, weight: Tensor) -> Any:
            return {"weight": (weight * self.weight).sort()[0], "y": weight * self.y}

    x = torch.randn(3)
    found = lampwork.export(Alike(), path, x)
    assert (found.inputs, found.outputs) == (("weight",), ("weight_1", "y"))
    result = run(path, x)
    assert tuple(result) == found.outputs
    assert error(result["weight_1"], (x * 2).sort()[0]) == 0 and error(result["y"], x * 3) == 0


def test_errors_of_onnx_are_ours(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise onnx.checker.ValidationError("no such thing\nat all")

    monkeypatch.setattr(onnx.checker, "check_model", refuse)
    with pytest.raises(
        ExportError, match="onnx does not take the model of .*: ValidationError: no such thing"
    ):
        lampwork.export(torch.relu, path, torch.randn(3))
    assert not list(path.parent.iterdir())
