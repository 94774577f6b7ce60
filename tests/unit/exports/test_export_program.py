"""`.pt2`: programs of torch.export."""

from __future__ import annotations

import copy
import os
import threading
from pathlib import Path

import pytest
import torch
from export_models import ODD_NAMES, Attention, Counting, Held, Odd, TwoLayers, breaking, error

import lampwork
from lampwork.errors import ExportError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "program.pt2"


def test_program_gives_what_the_model_gives(path: Path) -> None:
    model, x = TwoLayers().eval(), torch.randn(4, 8)
    with torch.no_grad():
        found = lampwork.export(model, path, x)
        expected = model(x)
    assert (found.inputs, found.outputs, found.notes) == (("x",), ("sum", "flat"), ())
    program = torch.export.load(path)
    result = program.module()(x)
    assert list(result) == ["sum", "flat"]
    assert all(torch.equal(result[name], expected[name]) for name in expected)
    names = {spec.target for spec in program.graph_signature.input_specs if spec.target}
    assert names == {*model.state_dict()}
    linear = next(node for node in program.graph.nodes if "linear" in node.name)
    assert list(linear.meta["nn_module_stack"].values()) == [
        ("", "TwoLayers"),
        ("net", "Sequential"),
        ("net.0", "Linear"),
    ]
    assert "export_models.py" in linear.meta["stack_trace"]


def test_open_sizes_stay_open(path: Path) -> None:
    model, scale = Attention().eval(), torch.rand(8)
    compiled = lampwork.compile(model, dynamic=True)
    with torch.no_grad():
        compiled(torch.randn(2, 3, 8), scale)
        found = lampwork.export(compiled, path)
        assert found.inputs == ("x", "scales_0") and not found.notes
        x = torch.randn(5, 7, 8)
        result, expected = torch.export.load(path).module()(x, scale), model(x, scale)
    assert error(result[0], expected[0]) < 1e-6
    assert result[1] == expected[1] == 10


def test_buffers_are_written(path: Path) -> None:
    model = Counting()
    x, extra = torch.randn(4, 3), torch.rand(3)
    found = lampwork.export(model, path, {"x": x, "extra": {"a": [extra]}})
    assert found.inputs == ("x", "extra_a_0") and found.outputs == ("output",)
    assert any("training" in note for note in found.notes)
    program, other = torch.export.load(path), copy.deepcopy(model)
    module = program.module()
    result, expected = module(x=x, extra_a_0=extra), other(x, extra={"a": [extra]})
    assert error(result[0], expected[0]) < 1e-6 and result[1] == 3
    for name, tensor in other.named_buffers():
        assert error(dict(module.named_buffers())[name], tensor) < 1e-6, name
    result[0].sum().backward()
    assert module.linear.weight.grad is not None


def test_a_module_of_it(path: Path) -> None:
    model, x = TwoLayers().eval(), torch.randn(4, 8)
    with torch.no_grad():
        found = lampwork.export(model, path, x, module="net")
        assert found.regions == ("TwoLayers#0 net",)
        result = torch.export.load(path).module()(x)
        assert error(result, model.net(x)) == 0


def test_one_region_of_several(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(3, 3)
    found = lampwork.export(breaking, path, x, region=0)
    assert found.notes[0].startswith("it ends in a graph break: print()")
    (result,) = torch.export.load(path).module()(x)
    assert error(result, (x @ x).relu()) == 0


def test_names_that_torch_cannot_write(path: Path) -> None:
    model, x = Odd().eval(), torch.randn(2, 3)
    with torch.no_grad():
        found = lampwork.export(model, path, x)
        assert error(torch.export.load(path).module()(x), model(x)) == 0
    assert sum("torch cannot write the name" in note for note in found.notes) == 2 * (len(ODD_NAMES) - 1)


def test_inputs_of_objects_and_views_that_meet_themselves(path: Path) -> None:
    def scaled(x: torch.Tensor, *, held: Held) -> torch.Tensor:
        return x * held.keys

    x, held = torch.randn(3).expand(4, 3), Held(torch.rand(3))
    found = lampwork.export(scaled, path, {"held": held, "x": x})
    assert found.inputs == ("x", "held_keys") or found.inputs == ("held_keys", "x")
    assert error(torch.export.load(path).module()(x=x, held_keys=held.keys), x * held.keys) == 0


def test_a_module_that_a_function_reaches(path: Path) -> None:
    model, x = TwoLayers(), torch.randn(4, 8)

    def step(x: torch.Tensor) -> torch.Tensor:
        return model(x)["sum"] * 2

    lampwork.export(step, path, x, module="model.net.0")
    program = torch.export.load(path)
    assert {*program.state_dict} == {"model.net.0.weight", "model.net.0.bias"}
    assert error(program.module()(x), model.net[0](x)) < 1e-6


@torch.no_grad()
def test_modules_called_as_words_of_python(path: Path) -> None:
    model = torch.nn.ModuleDict({"in": torch.nn.Linear(3, 3), "class": torch.nn.Linear(3, 3)})

    def run(x: torch.Tensor) -> torch.Tensor:
        return model["class"](model["in"](x))

    x = torch.randn(2, 3)
    found = lampwork.export(run, path, x)
    assert "'model.in.weight' is 'model.in_.weight' in it, as torch cannot write the name" in found.notes
    assert error(torch.export.load(path).module()(x), run(x)) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full disk")
@torch.no_grad()
def test_a_full_disk(path: Path) -> None:
    with pytest.raises(ExportError, match="cannot be written to '/dev/full': No space left on device"):
        lampwork.export(torch.relu, "/dev/full", torch.ones(3), format="pt2")


@torch.no_grad()
def test_weights_that_were_replaced(path: Path) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(3, 3)).eval(), torch.randn(2, 3)
    compiled = lampwork.compile(model)
    compiled(x)
    model[0].weight = torch.nn.Parameter(torch.ones(3, 3))
    with pytest.raises(
        ExportError, match=r"compiled with another self.0.weight than there is now\n  fix: pass"
    ):
        lampwork.export(compiled, path)
    with pytest.raises(ExportError, match="compiled with another"):
        lampwork.export(compiled, path, region=0)
    compiled(x)
    lampwork.export(compiled, path)  # of two regions the one that has them
    assert error(torch.export.load(path).module()(x), model(x)) < 1e-6
    model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()}, assign=True)
    with pytest.raises(ExportError, match="compiled with another"):
        lampwork.export(compiled, path)


@torch.no_grad()
def test_a_model_that_changed(path: Path) -> None:
    model, x = torch.nn.Dropout(0.5).eval(), torch.randn(2, 3)
    compiled = lampwork.compile(lambda x: model(x) + 1)
    compiled(x)
    assert not lampwork.export(compiled, path).notes
    model.train()
    assert "the model changed since" in lampwork.export(compiled, path).notes[0]


@torch.no_grad()
def test_weights_that_torch_cannot_write(path: Path, recwarn: pytest.WarningsRecorder) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)), torch.randn(2, 3)
    both = torch.randn(2, 3, 3)
    for number in range(2):
        model[number].weight = torch.nn.Parameter(both[number])
    with torch.inference_mode():
        model[0].bias = torch.nn.Parameter(torch.randn(3), requires_grad=False)
    lampwork.export(model, path, x)
    assert error(torch.export.load(path).module()(x), model(x)) < 1e-6
    assert not any("complete tensor" in str(each.message) for each in recwarn)


@torch.no_grad()
def test_in_several_threads(path: Path) -> None:
    compiled, x, failed = lampwork.compile(torch.nn.Linear(3, 3)), torch.ones(2, 3), list[Exception]()
    compiled(x)

    def write(number: int) -> None:
        try:
            lampwork.export(compiled, path.with_name(f"{number}.pt2"))
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
