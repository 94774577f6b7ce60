"""Calls of what was loaded: wrong ones are errors that say what was expected, what came, and what helps."""

from __future__ import annotations

import copy
import math
import pickle
import threading

import pytest
import torch
from artifact_models import Small
from safetensors.torch import save_file
from torch import nn
from torch.export import Dim

import lampwork
from lampwork.errors import ArtifactCallError, ArtifactWeightsError, LampworkWarning, OptionError


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = tmp_path_factory.mktemp("calls") / "m.lamp"
    torch.manual_seed(0)
    lampwork.export(
        Small().eval(),
        (torch.randn(4, 8),),
        {"add": torch.randn(4, 8), "factor": 2.0},
        dynamic_shapes={"x": {0: Dim("rows", max=9)}, "add": {0: Dim("rows", max=9)}},
        path=found,
        targets="host",
    )
    return found


@pytest.fixture
def model(path):
    return lampwork.load(path, trust=True)


def call(rows=4):
    return {"x": torch.randn(rows, 8), "add": torch.randn(rows, 8), "factor": 2.0}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": torch.ones(10, 8), "add": torch.ones(10, 8)}, "dimension 0 of x: expected 1 to 9, came 10"),
        ({"x": torch.ones(4, 7)}, r"x: expected shape \(4, 8\) \(s0, 8\), came \(4, 7\)"),
        ({"x": torch.ones(0, 8)}, "dimension 0 of x: expected 1 to 9, came 0"),
        ({"x": torch.ones(8)}, r"x: expected 2 dimensions \(s0, 8\), came \(8,\)"),
        (
            {"x": torch.ones(4, 8).double()},
            r"x: expected float32, came float64\n  fix: pass x.to\(torch.float32\)",
        ),
        ({"x": torch.ones(4, 8, device="meta")}, "expected a dense tensor on the CPU, came one on meta"),
        ({"x": torch.ones(4, 8).to_sparse()}, "expected a dense tensor on the CPU"),
        ({"x": [1]}, "x: expected a tensor, came a list of 1"),
        ({"x": None}, "x: expected a tensor, came None"),
        ({"add": torch.ones(5, 8)}, r"add: expected shape \(4, 8\) \(s0, 8\), came \(5, 8\)"),
        ({"factor": 3.0}, "factor: expected 2.0, as it was exported with, came 3.0"),
        ({"factor": 2}, "factor: expected 2.0, as it was exported with, came 2"),
        ({"bias": 1}, r"the call: expected arguments x, add, factor, came bias="),
    ],
)
def test_a_wrong_argument(model, change, said):
    with pytest.raises(ArtifactCallError, match=said) as raised:
        model(**{**call(), **change})
    assert raised.value.code == "LW363" and raised.value.fix


def test_a_wrong_number_of_arguments(model):
    with pytest.raises(ArtifactCallError, match="the call: expected x, came none"):
        model(add=torch.ones(4, 8), factor=2.0)
    with pytest.raises(ArtifactCallError, match="the call: expected add=, came none"):
        model(torch.ones(4, 8), factor=2.0)
    with pytest.raises(ArtifactCallError, match="expected 1 positional arguments, came 2"):
        model(torch.ones(4, 8), torch.ones(4, 8))
    with pytest.raises(ArtifactCallError, match="x: expected one value, came two, by position and by name"):
        model(torch.ones(4, 8), **call())


def test_a_subclass_of_tensor_is_none_that_is_served(model):
    class Mine(torch.Tensor):
        pass

    with pytest.raises(ArtifactCallError, match="x: expected a plain tensor, came a Mine"):
        model(**{**call(), "x": torch.ones(4, 8).as_subclass(Mine)})


def test_other_layouts_are_copied(model):
    given = call()
    expected = model(**given)["y"]
    turned = {
        **given,
        "x": given["x"].t().contiguous().t(),
        "add": torch.stack([given["add"]] * 2, -1)[..., 0],
    }
    torch.testing.assert_close(model(**turned)["y"], expected)
    one = call(1)
    torch.testing.assert_close(
        model(**{**one, "x": one["x"].as_strided((1, 8), (3, 1))})["y"], model(**one)["y"]
    )


def test_gradients_and_modes_of_the_caller(model):
    given = call()
    expected = model(**given)["y"]
    wanting = {**given, "x": given["x"].clone().requires_grad_()}
    assert not model(**wanting)["y"].requires_grad
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        torch.testing.assert_close(model(**given)["y"], expected)


def test_many_threads(model):
    given = [call(rows) for rows in (1, 2, 3, 9)]
    expected = [model(**each)["y"] for each in given]
    wrong: list[object] = []

    def work():
        for _ in range(20):
            for each, wanted in zip(given, expected, strict=True):
                if not torch.allclose(model(**each)["y"], wanted, atol=1e-5):
                    wrong.append(each)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_weights_may_change(model, path):
    given = call()
    other = Small().eval()
    before = model(**given)["y"]
    with torch.no_grad():
        model.first.weight.mul_(2)
    assert not torch.allclose(model(**given)["y"], before)
    model.load_state_dict(
        {name: t.clone() for name, t in lampwork.load(path, trust=True).state_dict().items()}
    )
    torch.testing.assert_close(model(**given)["y"], before)
    model.load_state_dict(other.state_dict())
    scale = {**dict(other.named_buffers()), **dict(other.named_parameters())}
    assert torch.equal(model.scale, scale["scale"])
    assert torch.equal(lampwork.load(path, trust=True)(**given)["y"], before)  # the file is as it was


def test_weights_may_not_be_other_tensors(model):
    with pytest.raises(ArtifactWeightsError, match="weight of a loaded artifact cannot be another one"):
        model.first.weight = nn.Parameter(torch.ones(8, 8))
    with pytest.raises(ArtifactWeightsError, match="cannot be other tensors"):
        model.load_state_dict(Small().state_dict(), assign=True)
    for change in (nn.Module.half, nn.Module.double, lambda m: m.to("meta"), lambda m: m.to(torch.bfloat16)):
        with pytest.raises(ArtifactWeightsError, match="fix: convert the model, then export it again"):
            change(model)
    assert model.to("cpu").float() is model


def test_weights_of_another_file(path, tmp_path):
    other = Small().eval()
    given = call()
    state = {name: tensor for name, tensor in other.state_dict().items() if name != "second.weight"}
    save_file(state, tmp_path / "w.safetensors")
    constants = {"shift": torch.zeros(8)}
    for weights in (tmp_path / "w.safetensors", other.state_dict(), {**state, **constants}):
        loaded = lampwork.load(path, trust=True, weights=weights)
        assert torch.equal(loaded.first.weight, other.first.weight)
        assert loaded(**given)["y"].shape == (4, 8)
    assert torch.equal(loaded.shift, constants["shift"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"first.bias": None}, "weights has other weights than the artifact: without first.bias"),
        ({"more": torch.ones(1)}, "with more, which the model does not have"),
        (
            {"first.bias": torch.ones(9)},
            r"first.bias in weights is float32 of shape \[9\] on cpu, expected float32 of",
        ),
        ({"first.bias": torch.ones(8).half()}, "first.bias in weights is float16"),
        ({"first.bias": torch.ones(8, device="meta")}, "on meta, expected"),
        ({"first.bias": [1.0] * 8}, "weights has a list for first.bias"),
        (
            {"second.weight": torch.ones(8, 8)},
            "second.weight in weights is not first.weight, and the artifact has",
        ),
    ],
)
def test_weights_that_are_others(path, change, said):
    state = {**Small().state_dict(), **change}
    with pytest.raises(ArtifactWeightsError, match=said):
        lampwork.load(path, trust=True, weights={name: t for name, t in state.items() if t is not None})


def test_files_that_are_no_weights(path, tmp_path):
    torch.save(Small().state_dict(), tmp_path / "w.pt")
    with pytest.raises(ArtifactWeightsError, match="is no safetensors file of weights"):
        lampwork.load(path, trust=True, weights=tmp_path / "w.pt")
    with pytest.raises(OptionError, match="weights is a int, expected the path"):
        lampwork.load(path, trust=True, weights=3)
    with pytest.raises(OptionError, match="threads is 0"):
        lampwork.load(path, trust=True, threads=0)


def test_modes_and_copies(model):
    assert not model.training and model.eval() is model
    with pytest.warns(LampworkWarning, match="was exported in eval mode and computes so"):
        model.train()
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="load the file there"):
            copied(model)
    assert "forward(x, add)" in repr(model)


def test_indices_out_of_range(tmp_path):
    lampwork.export(nn.Embedding(4, 8), (torch.tensor([1, 2]),), path=tmp_path / "m.lamp", targets="host")
    loaded = lampwork.load(tmp_path / "m.lamp", trust=True)
    with pytest.raises(ArtifactCallError) as raised:
        loaded(torch.tensor([1, 4]))
    assert "reported a failure: an index in the inputs is out of range, or there was no memory" in str(
        raised.value
    )
    assert loaded(torch.tensor([0, 3])).shape == (2, 8)


def test_numbers_that_are_returned_keep_their_bits(tmp_path):
    """A nan has a sign, too."""

    class Numbers(nn.Module):
        def forward(self, x):
            return x + 1, math.copysign(math.nan, -1), math.nan, -math.inf, -0.0

    lampwork.export(Numbers(), (torch.ones(2),), path=tmp_path / "m.lamp", targets="host")
    _, *found = lampwork.load(tmp_path / "m.lamp", trust=True)(torch.ones(2))
    assert [math.copysign(1, number) for number in found] == [-1, 1, -1, -1]
    assert math.isnan(found[0]) and math.isnan(found[1]) and found[2:] == [-math.inf, 0.0]
