"""Models as `.lamp` files: what is loaded computes as the model does, and the file has what the export was given."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from artifact_models import Cached, Counting, Nested, Small
from safetensors import safe_open
from torch import nn
from torch.export import Dim

import lampwork
from lampwork.artifacts.container import open_container
from lampwork.artifacts.trees import Result
from lampwork.errors import ExportError, OptionError

BATCH = Dim("batch", max=100)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A model, and the file of it for any number of rows."""
    torch.manual_seed(0)
    model = Small().eval()
    path = tmp_path_factory.mktemp("small") / "m.lamp"
    lampwork.export(
        model, (torch.randn(4, 8),), dynamic_shapes={"x": {0: BATCH}}, path=path, metadata={"by": ["me", 1]}
    )
    return model, path


@pytest.mark.parametrize("trust", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 4, 33, 100])
def test_a_loaded_model_computes_as_the_model(small, trust, rows):
    model, path = small
    x = torch.randn(rows, 8)
    loaded = lampwork.load(path, trust=trust)
    found, expected = loaded(x), model(x)
    assert list(found) == list(expected) and found["rows"] == rows and found["x"] is x
    for name in ("y", "first"):
        torch.testing.assert_close(found[name], expected[name])
        assert not found[name].requires_grad


def test_a_loaded_model_has_the_weights_under_their_names(small):
    model, path = small
    loaded = lampwork.load(path, trust=True)
    expected = model.state_dict()
    assert list(loaded.state_dict()) == list(expected)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.state_dict().items())
    assert loaded.first.weight is loaded.second.weight
    assert {name for name, _ in loaded.named_parameters()} == {name for name, _ in model.named_parameters()}
    assert {name for name, _ in loaded.named_buffers()} == {"shift", "scale"}
    assert loaded.metadata == {"by": ["me", 1]}
    with safe_open(path, "pt") as file:
        assert torch.equal(file.get_tensor("first.bias"), model.first.bias)
        assert "second.weight" not in file.keys()


def test_targets_are_this_machine_s_and_those_below(small):
    targets = [each.name for each in lampwork.load(small[1], trust=True).manifest.targets]
    assert targets[-1] == "x86-64-v2" and len(targets) == len(set(targets))
    assert lampwork.load(small[1], trust=True).target.startswith(targets[0])


def test_a_process_without_a_compiler(small):
    model, path = small
    code = (
        "import sys, torch\n"
        "sys.modules['llvmlite'] = None\n"
        "import lampwork\n"
        f"print(lampwork.load({str(path)!r}, trust=True)(torch.ones(3, 8))['y'].sum().item())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(found.stdout) == pytest.approx(model(torch.ones(3, 8))["y"].sum().item(), rel=1e-4)


def test_containers_of_arguments_and_results(tmp_path):
    x = torch.randn(3)
    items, named = [x, torch.randn(3)], {"weight": torch.randn(3), "inner": (torch.randn(3),)}
    lampwork.export(Nested(), tmp_path / "m.lamp", {"items": items, "named": named}, targets="host")
    found = lampwork.load(tmp_path / "m.lamp", trust=True)(items=items, named=named)
    (left, right), [pair], nothing, three = expected = Nested()(items, named)
    assert type(found[0]).__name__ == "Point" and found[0]._fields == ("left", "right")
    torch.testing.assert_close(found[0].left, left)
    torch.testing.assert_close(found[0].right, right)
    assert isinstance(found[1][0], Result) and found[1][0].two is None and found[1][0].name == "pair"
    torch.testing.assert_close(found[1][0].one, pair.one)
    assert found[2:] == (nothing, three) == expected[2:]
    torch.testing.assert_close(found[1][0]["one"], found[1][0][0])
    assert list(found[1][0]) == ["one", "name"] and "two" not in found[1][0]


def test_what_is_written(tmp_path):
    model = Counting()
    lampwork.export(model, (torch.ones(3),), path=tmp_path / "m.lamp", targets="host")
    assert model.count == 0  # nothing ran
    loaded = lampwork.load(tmp_path / "m.lamp", trust=True)
    x = torch.ones(3)
    assert loaded(x).tolist() == [3, 3, 3] and x.tolist() == [2, 2, 2]
    assert loaded(x).tolist() == [6, 6, 6] and loaded.count == 2
    strided = torch.ones(3, 2)[:, 0]
    assert loaded(strided).tolist() == [5, 5, 5] and strided.tolist() == [2, 2, 2]
    assert lampwork.load(tmp_path / "m.lamp", trust=True).count == 0


def test_a_buffer_of_several_elements_is_added_to(tmp_path):
    """The object that is stored is the one that is there, whatever its elements compare to."""
    model = Counting()
    model.count = torch.zeros(2)
    lampwork.export(model, (torch.ones(2),), path=tmp_path / "m.lamp", targets="host")
    loaded = lampwork.load(tmp_path / "m.lamp", trust=True)
    assert loaded(torch.ones(2)).tolist() == [3, 3] and loaded(torch.ones(2)).tolist() == [4, 4]


def test_several_entries_share_weights(tmp_path):
    model = Cached().eval()
    ids = torch.randint(0, 20, (2, 5))
    cache = model(ids).detach()
    length = Dim("length", max=64)
    path = tmp_path / "m.lamp"
    made = lampwork.export(
        model,
        path=path,
        targets="host",
        entries={
            "prefill": ((ids,), {}, ({1: length},)),
            "decode": (model.decode, (ids[:, 0], cache), None, {"cache": {1: length}}),
        },
    )
    assert made.regions == ("prefill", "decode")
    assert open_container(path).weights == ("embed.weight", "mix.weight", "mix.bias")
    loaded = lampwork.load(path, trust=True)
    with torch.no_grad():
        for count in (1, 3, 64):
            ids = torch.randint(0, 20, (2, count))
            cache = loaded.entries["prefill"](ids)
            torch.testing.assert_close(cache, model(ids))
            torch.testing.assert_close(loaded(ids), cache)
            torch.testing.assert_close(
                loaded.entries["decode"](ids[:, -1], cache), model.decode(ids[:, -1], cache)
            )
    assert torch.equal(lampwork.load(path, trust=True, entry="decode")(ids[:, -1], cache)[:, :-1], cache)
    with pytest.raises(OptionError, match="there is no entry 'decodes'\n  fix: did you mean 'decode'"):
        lampwork.load(path, trust=True, entry="decodes")


def test_a_function_and_a_compiled_model(tmp_path):
    weight = torch.randn(4)

    def scaled(x, y):
        return x * weight + y

    x = torch.randn(2, 4)
    for number, model in enumerate((scaled, lampwork.compile(scaled))):
        lampwork.export(model, (x, x), path=tmp_path / f"{number}.lamp", targets="host")
        loaded = lampwork.load(tmp_path / f"{number}.lamp", trust=True)
        torch.testing.assert_close(loaded(x, x), scaled(x, x))
        assert not loaded.state_dict()


def test_a_program_of_torch_export(tmp_path):
    model = nn.Sequential(nn.Linear(8, 4), nn.Tanh()).eval()
    program = torch.export.export(model, (torch.randn(3, 8),), dynamic_shapes=({0: Dim("b", max=50)},))
    lampwork.export(program, path=tmp_path / "m.lamp", targets="host")
    loaded = lampwork.load(tmp_path / "m.lamp", trust=True)
    for rows in (2, 50):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(loaded(x), model(x))
    assert list(loaded.state_dict()) == list(model.state_dict())


def test_equal_dims_are_one_size(tmp_path):
    rows = Dim("rows")
    x, y = torch.randn(3, 2), torch.randn(3, 4)

    def both(x, y):
        return x.sum() + y.sum()

    lampwork.export(
        both, (x, y), path=tmp_path / "m.lamp", dynamic_shapes=({0: rows}, {0: rows}), targets="host"
    )
    loaded = lampwork.load(tmp_path / "m.lamp", trust=True)
    torch.testing.assert_close(loaded(torch.ones(9, 2), torch.ones(9, 4)), torch.tensor(54.0))
    with pytest.raises(lampwork.LampworkError, match="s1 == s0"):
        loaded(torch.ones(9, 2), torch.ones(8, 4))


def test_a_size_that_the_model_fixes(tmp_path):
    def looped(x):
        return sum(x[i] for i in range(x.shape[0]))

    with pytest.raises(ExportError) as raised:
        lampwork.export(
            looped, (torch.randn(3, 2),), path=tmp_path / "m.lamp", dynamic_shapes=({0: Dim("n")},)
        )
    assert "dimension 0 of x cannot be left open as n: the model needs one number here" in str(raised.value)
    assert raised.value.location is not None and raised.value.location.file == __file__
    lampwork.export(
        looped,
        (torch.randn(3, 2),),
        path=tmp_path / "m.lamp",
        dynamic_shapes=({0: Dim.AUTO},),
        targets="host",
    )
    assert lampwork.load(tmp_path / "m.lamp", trust=True)(torch.ones(3, 2)).tolist() == [3, 3]


def test_a_float_that_python_computes_of_a_size(tmp_path):
    sizes = ({0: Dim("n")},)
    with pytest.raises(
        ExportError, match=r"reads a float that Python computes of open sizes.*truediv\(1.0, s0\)"
    ):
        lampwork.export(
            _averaged, (torch.ones(3, 4),), path=tmp_path / "m.lamp", dynamic_shapes=sizes, targets="host"
        )
    assert not list(tmp_path.iterdir())
    lampwork.export(_averaged, (torch.ones(3, 4),), path=tmp_path / "m.lamp", targets="host")


def _averaged(x):
    return x * (1.0 / x.shape[0])


def test_a_graph_break_is_an_error_with_its_line(tmp_path):
    def broken(x):
        torch._dynamo.graph_break()
        return x + 1

    with pytest.raises(ExportError, match=r"forward cannot be exported whole: \[LW1\d\d\]") as raised:
        lampwork.export(broken, (torch.ones(2),), path=tmp_path / "m.lamp")
    assert raised.value.location is not None and raised.value.location.file == __file__
    assert not list(tmp_path.iterdir())


def test_standalone(tmp_path):
    path = tmp_path / "m.lamp"
    lampwork.export(nn.Linear(4, 4), (torch.ones(2, 4),), path=path, require="standalone", targets="host")
    assert lampwork.load(path, trust=True).manifest.targets[0].calls == {"forward": ()}
    with pytest.raises(ExportError, match=r"forward is not standalone on .*\n    aten::linalg_eig"):
        lampwork.export(
            torch.linalg.eigvals, (torch.eye(3),), path=path, require="standalone", targets="host"
        )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"args": torch.ones(2)}, r"args is a Tensor, expected a tuple of arguments\n  fix: write \(x,\)"),
        ({"kwargs": [1]}, "kwargs is a list, expected a dict"),
        ({"args": None}, "an artifact is made of a call"),
        ({"path": None}, "path is None, expected the path of a file"),
        ({"inputs": torch.ones(2)}, "takes inputs, or args and kwargs"),
        ({"targets": ["x86-64-v5"]}, "there is no target 'x86-64-v5'"),
        ({"targets": []}, "targets names none"),
        ({"metadata": {1: 2}}, "expected a dict by texts"),
        ({"metadata": {"a": torch.ones(1)}}, "metadata has what JSON cannot have"),
        ({"metadata": {"a": float("nan")}}, "metadata has what JSON cannot have"),
        ({"require": "fast"}, "require is 'fast', expected None or 'standalone'"),
        ({"region": 0}, "region and module are of other formats"),
        ({"path": "a.onnx", "targets": "host"}, "targets is of .lamp files, and this is onnx"),
        ({"entries": {"a": ()}}, "entries says all calls"),
        ({"args": None, "entries": {"_a": ((torch.ones(2, 8),),)}}, "'_a' is no name for an entry"),
        ({"args": None, "entries": {"a": (torch.ones(2),)}}, "entry 'a' is no tuple of args"),
        ({"args": None, "entries": []}, "expected a dict of calls by name"),
        ({"dynamic_shapes": 3}, "dynamic_shapes is 3, expected a dict or a tuple"),
        ({"dynamic_shapes": {"y": {}}}, "dynamic_shapes names 'y', which the call does not pass"),
        ({"dynamic_shapes": (None, None)}, "dynamic_shapes has 2 items, and the call passes 1"),
        ({"dynamic_shapes": ({5: BATCH},)}, "names dimension 5 of x, which has 2"),
        ({"dynamic_shapes": ({0: 9},)}, "says that dimension 0 of x is 9, and it is 4"),
        ({"dynamic_shapes": ({0: "b"},)}, "dynamic_shapes has 'b' for dimension 0 of x"),
        ({"dynamic_shapes": ((BATCH,),)}, "has 1 items for x, which has 2 dimensions"),
        ({"dynamic_shapes": ({0: Dim("b", min=6)},)}, "is 4, outside of 6 to None"),
        ({"args": (torch.ones(1, 8),), "dynamic_shapes": ({0: BATCH},)}, "is 1 in the example"),
    ],
)
def test_what_export_is_given_wrongly(tmp_path, options, said):
    given = {"args": (torch.ones(4, 8),), "path": "a.lamp", **options}
    if given["path"] is not None:
        given["path"] = tmp_path / given["path"]
    with pytest.raises(OptionError, match=said):
        lampwork.export(Small(), given.pop("args"), given.pop("kwargs", None), **given)
    assert not list(tmp_path.iterdir())
