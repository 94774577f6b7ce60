"""`export(..., prepack=True)`: what programs compute of weights is in the file, and is used for its weights alone."""

from __future__ import annotations

import json
import random
import struct
import threading

import pytest
import torch
from damaged_files import mutated
from torch import nn
from torch.export import Dim

import lampwork
from lampwork.artifacts import generate_key, inspect, sign, verify
from lampwork.artifacts.container import PREPACKED, open_container
from lampwork.artifacts.manifest import read_manifest
from lampwork.errors import ArtifactError, ArtifactTrustError, LampworkError, OptionError


class Folded(nn.Module):
    """A convolution whose batch norm is folded into it, a product, and positions that are computed of a buffer."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.linear = nn.Linear(16, 64, bias=False)
        self.register_buffer("order", torch.arange(64).flip(0))

    def forward(self, x):
        pooled = self.norm(self.conv(x)).relu().mean((2, 3))
        return self.linear(pooled).index_select(1, self.order % 64)


def folded():
    torch.manual_seed(0)
    model = Folded().eval()
    with torch.no_grad():
        model.norm.running_mean.uniform_(-1, 1)
        model.norm.running_var.uniform_(0.5, 2)
    return model, torch.randn(64, 8, 12, 12)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    model, x = folded()
    made = tmp_path_factory.mktemp("prepacked") / "m.lamp"
    lampwork.export(model, (x,), path=made, targets="host", prepack=True)
    return made


def refreshes(loaded):
    return loaded.entries["forward"]._run.shared.stats["constant_refreshes"]


def spans(path):
    container = open_container(path)
    return {
        name: (container.start + span.begin, container.start + span.end)
        for name, span in container.spans.items()
        if name.startswith(PREPACKED)
    }


def with_zeros(path, target):
    """The file with zeros in place of all that is prepacked."""
    content = bytearray(path.read_bytes())
    for begin, end in spans(path).values():
        content[begin:end] = bytes(end - begin)
    target.write_bytes(content)
    return target


def test_results_are_those_of_a_file_without(path, tmp_path):
    model, x = folded()
    lampwork.export(model, (x,), path=tmp_path / "m.lamp", targets="host")
    expected = lampwork.load(tmp_path / "m.lamp", trust=True)(x)
    assert torch.equal(lampwork.load(path, trust=True)(x), expected)
    assert torch.allclose(expected, model(x), atol=1e-4)
    assert path.stat().st_size > (tmp_path / "m.lamp").stat().st_size


def test_what_is_in_the_file_is_what_runs(path, tmp_path):
    _, x = folded()
    assert not lampwork.load(with_zeros(path, tmp_path / "m.lamp"), trust=True)(x).any()


def test_a_file_that_is_not_trusted_is_not_believed(path, tmp_path):
    model, x = folded()
    loaded = lampwork.load(with_zeros(path, tmp_path / "m.lamp"))
    assert torch.allclose(loaded(x), model(x), atol=1e-4)


def by_copy(loaded, value):
    with torch.no_grad():
        loaded.get_parameter("linear.weight").copy_(value)


def by_state_dict(loaded, value):
    loaded.load_state_dict({**loaded.state_dict(), "linear.weight": value})


def by_data(loaded, value):
    loaded.get_parameter("linear.weight").data[:] = value


def by_numpy(loaded, value):
    loaded.get_parameter("linear.weight").detach().numpy()[:] = value.numpy()


@pytest.mark.parametrize("called", (False, True), ids=("before", "between"))
@pytest.mark.parametrize("write", (by_copy, by_state_dict, by_data, by_numpy))
def test_weights_that_are_written_to_are_packed_again(path, write, called):
    model, x = folded()
    loaded = lampwork.load(path, trust=True)
    if called:
        loaded(x)
    value = torch.randn(64, 16)
    write(loaded, value)
    with torch.no_grad():
        model.linear.weight.copy_(value)
    assert torch.allclose(loaded(x), model(x), atol=1e-4)
    assert torch.allclose(loaded(x), model(x), atol=1e-4)


def test_other_weights_are_packed_here(path, tmp_path):
    model, x = folded()
    torch.manual_seed(5)
    other = Folded().eval()
    loaded = lampwork.load(with_zeros(path, tmp_path / "m.lamp"), trust=True, weights=other.state_dict())
    assert torch.allclose(loaded(x), other(x), atol=1e-4)


def test_weights_are_neither_read_nor_packed_again(path):
    _, x = folded()
    loaded = lampwork.load(path, trust=True)
    executable = loaded.entries["forward"]._run.shared
    loaded(x)
    generation = executable.generation()
    loaded(x)
    loaded.state_dict()
    loaded(x)
    assert (executable.generation(), refreshes(loaded)) == (generation, 0)


def test_threads_that_call_first_at_once(path):
    model, x = folded()
    loaded = lampwork.load(path, trust=True)
    found = []
    threads = [threading.Thread(target=lambda: found.append(loaded(x))) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert all(torch.allclose(each, model(x), atol=1e-4) for each in found)
    assert len(found) == 4


def test_integers_are_computed(path):
    manifest = read_manifest(open_container(path))
    assert manifest.prepacked
    assert {each.dtype for each in manifest.prepacked} == {torch.float32}
    text = open_container(path).section(manifest.targets[0].programs)
    found = json.loads(text)["prepacked"]["forward"]
    assert -1 in found["places"]
    assert [step["aten"] for step in found["rest"]["steps"] if "aten" in step] == ["aten::remainder.Scalar"]


def test_files_of_one_model_are_alike(path, tmp_path):
    model, x = folded()
    lampwork.export(model, (x,), path=tmp_path / "m.lamp", targets="host", prepack=True)
    first, second = path.read_bytes(), (tmp_path / "m.lamp").read_bytes()
    for one, other in zip(spans(path).values(), spans(tmp_path / "m.lamp").values(), strict=True):
        assert one[0] % 64 == 0
        assert first[slice(*one)] == second[slice(*other)]


def test_entries_share_what_is_the_same(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(16, 64, bias=False).eval()
    norm = nn.Sequential(model, nn.Softmax(1)).eval()

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = norm

        def first(self, x):
            return self.norm(x)

        def second(self, x):
            return self.norm(x) + 1

    two = Two().eval()
    sizes = ({0: Dim("n", min=64, max=512)},)
    x = torch.randn(128, 16)
    lampwork.export(
        two,
        path=tmp_path / "m.lamp",
        entries={"first": (two.first, (x,), None, sizes), "second": (two.second, (x,), None, sizes)},
        targets="host",
        prepack=True,
    )
    loaded = lampwork.load(tmp_path / "m.lamp", trust=True)
    for n in (64, 100, 512):
        x = torch.randn(n, 16)
        assert torch.allclose(loaded.entries["first"](x), two.first(x), atol=1e-5)
        assert torch.allclose(loaded.entries["second"](x), two.second(x), atol=1e-5)
    assert len(spans(tmp_path / "m.lamp")) == 1


@pytest.mark.parametrize(
    ("model", "example"),
    (
        (nn.Sequential(nn.Conv2d(8, 16, 3, groups=4), nn.BatchNorm2d(16)), torch.randn(2, 8, 12, 12)),
        (nn.Sequential(nn.Conv1d(8, 16, 3), nn.BatchNorm1d(16)).bfloat16(), torch.randn(2, 8, 12).bfloat16()),
        # What oneDNN would pack in a program that is compiled for this process.
        (nn.Conv2d(9, 6, 3, groups=3).bfloat16(), torch.randn(2, 9, 12, 12).bfloat16()),
    ),
    ids=("groups", "bfloat16", "odd"),
)
def test_convolutions(tmp_path, model, example):
    lampwork.export(model.eval(), (example,), path=tmp_path / "m.lamp", targets="host", prepack=True)
    assert spans(tmp_path / "m.lamp")
    loaded = lampwork.load(tmp_path / "m.lamp", trust=True)
    plain = lampwork.load(tmp_path / "m.lamp", trust=True, weights=loaded.state_dict())
    assert torch.equal(loaded(example), plain(example))
    calls = read_manifest(open_container(tmp_path / "m.lamp")).targets[0].calls["forward"]
    assert not any(call.startswith("mkldnn::") for call in calls)


def test_targets_that_do_not_run_here_have_nothing(tmp_path):
    model = nn.Linear(16, 64).eval()
    made = lampwork.export(
        model, (torch.randn(64, 16),), path=tmp_path / "m.lamp", targets=["host", "aarch64"], prepack=True
    )
    assert made.notes == (
        "nothing is prepacked for aarch64, whose code this machine does not run: first calls pack there",
    )
    assert inspect(tmp_path / "m.lamp").prepacked["aarch64"] == 0


def test_inspect_says_how_much_there_is(path):
    found = inspect(path)
    size = sum(end - begin for begin, end in spans(path).values())
    assert found.sizes["prepacked"] == size > 0
    assert found.to_dict()["targets"][0]["prepacked"] == size
    assert "prepacked" in str(found)
    assert not any(name.startswith(PREPACKED) for name in open_container(path).weights)


def test_signatures_are_of_it_too(path, tmp_path):
    pytest.importorskip("cryptography")
    model, x = folded()
    private, public, _ = generate_key(tmp_path / "k.pem")
    sign(path, private, tmp_path / "m.lamp")
    verify(tmp_path / "m.lamp", public)
    assert torch.allclose(lampwork.load(tmp_path / "m.lamp", key=public)(x), model(x), atol=1e-4)
    with pytest.raises(ArtifactTrustError, match="others: the file was changed"):
        lampwork.load(with_zeros(tmp_path / "m.lamp", tmp_path / "z.lamp"), key=public)


@pytest.mark.parametrize(
    ("keywords", "message"),
    (
        ({"path": "m.lamp", "prepack": 1}, "prepack is 1, expected True or False"),
        ({"path": "m.pt2", "prepack": True}, "prepack is of .lamp files, and this is pt2"),
    ),
)
def test_wrong_options(tmp_path, keywords, message):
    keywords["path"] = tmp_path / keywords["path"]
    with pytest.raises(OptionError, match=message):
        lampwork.export(nn.Linear(2, 2), (torch.randn(2, 2),), **keywords)


# --- damage -----------------------------------------------------------------------------------------------------------


def changed(path, change):
    content = path.read_bytes()
    (count,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + count])
    manifest = json.loads(header["__metadata__"]["manifest"])
    change(manifest, header)
    header["__metadata__"]["manifest"] = json.dumps(manifest)
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return struct.pack("<Q", len(text)) + text + content[8 + count :]


def set_item(key, value):
    def change(manifest, header):
        manifest["prepacked"][0][key] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    (
        (set_item("tensor", "linear.weight"), "expected the name of a prepacked tensor in the file"),
        (set_item("dtype", "float64"), "which it lies in|tensors that are what the program computes"),
        (set_item("shape", [1 << 40, 1]), "expected (bytes|strides)"),
        (set_item("strides", []), "expected strides that give its elements different places"),
        (
            lambda manifest, header: manifest["prepacked"].clear(),
            "it does not know the tensor|expected a number",
        ),
        (lambda manifest, header: manifest["prepacked"].append(manifest["prepacked"][0]), "different names"),
        (lambda manifest, header: manifest["targets"][0]["prepacked"].clear(), "numbers that the target has"),
        (lambda manifest, header: manifest["targets"][0]["prepacked"].append(99), "expected a number from 0"),
    ),
)
def test_damage(path, tmp_path, change, message):
    (tmp_path / "m.lamp").write_bytes(changed(path, change))
    with pytest.raises(ArtifactError, match=message):
        lampwork.load(tmp_path / "m.lamp", trust=True)


def test_damage_at_random(path, tmp_path):
    content, rng = path.read_bytes(), random.Random(1)
    for _ in range(100):
        (tmp_path / "m.lamp").write_bytes(mutated(content, rng))
        try:
            lampwork.load(tmp_path / "m.lamp", trust=True)
        except LampworkError:
            continue
