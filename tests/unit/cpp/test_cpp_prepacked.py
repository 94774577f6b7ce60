"""What an artifact has prepacked is used in C++ too, for the weights of the file."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cpp_runtime import BUILDS, CppError, Runtime
from torch import nn

import lampwork
from lampwork.artifacts.container import PREPACKED, open_container

pytestmark = BUILDS


class Net(nn.Module):
    """A product whose weight is packed, and positions that are computed of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 64, bias=False)
        self.register_buffer("order", torch.arange(64).flip(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).index_select(1, self.order)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    made = tmp_path_factory.mktemp("prepacked") / "m.lamp"
    lampwork.export(
        Net().eval(), (torch.randn(128, 16),), path=made, targets="host", require="standalone", prepack=True
    )
    return made


def with_zeros(path: Path, target: Path) -> Path:
    content, container = bytearray(path.read_bytes()), open_container(path)
    found = [span for name, span in container.spans.items() if name.startswith(PREPACKED)]
    assert found
    for span in found:
        begin, end = container.start + span.begin, container.start + span.end
        content[begin:end] = bytes(end - begin)
    target.write_bytes(content)
    return target


def test_results_are_those_of_python(runtime: Runtime, path: Path) -> None:
    x = torch.randn(128, 16)
    model = runtime.load(path)
    model.prepare()
    assert torch.equal(model.run(x)[0], lampwork.load(path, trust=True)(x))


def test_what_is_in_the_file_is_used_for_its_own_weights(
    runtime: Runtime, path: Path, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    x, model = torch.randn(128, 16), runtime.load(with_zeros(path, tmp_path / "m.lamp"))
    assert not model.run(x)[0].any()
    other = Net().eval()
    save_file(other.state_dict(), tmp_path / "other.safetensors")
    model.set_weights(tmp_path / "other.safetensors")
    assert torch.allclose(model.run(x)[0], other(x), atol=1e-5)


def test_what_torch_computes_of_weights_is_needed_for_others_alone(runtime: Runtime, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16)).eval()
    x = torch.randn(2, 8, 12, 12)
    lampwork.export(model, (x,), path=tmp_path / "without.lamp", targets="host")
    with pytest.raises(CppError, match="LW_NEEDS_ATEN: the entry 'forward' calls operators of torch"):
        runtime.load(tmp_path / "without.lamp").run(x)
    lampwork.export(model, (x,), path=tmp_path / "m.lamp", targets="host", prepack=True)
    there = runtime.load(tmp_path / "m.lamp")
    assert torch.equal(there.run(x)[0], lampwork.load(tmp_path / "m.lamp", trust=True)(x))
    save_file(model.state_dict(), tmp_path / "other.safetensors")
    there.set_weights(tmp_path / "other.safetensors")
    with pytest.raises(CppError, match="LW_NEEDS_ATEN: what is computed of weights that are not those"):
        there.run(x)


class Counting(nn.Module):
    """Layers that are folded, with a buffer that they do not read; `move` writes one that they do."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16)
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.count.add_(1)
        return self.norm(self.convolution(x)), self.count * 2

    def move(self, by: torch.Tensor) -> torch.Tensor:
        self.norm.get_buffer("running_mean").add_(by)
        return by + 1


def test_a_buffer_that_is_written_and_feeds_no_constant_leaves_them_as_they_are(
    runtime: Runtime, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    x, path = torch.randn(2, 8, 12, 12), tmp_path / "m.lamp"
    lampwork.export(Counting().eval(), (x,), path=path, targets="host", prepack=True)
    here, there = lampwork.load(path, trust=True), runtime.load(path)
    assert there.needs_aten() == []
    for call in range(3):
        result, count = there.run(x)
        assert torch.equal(result, here(x)[0]) and count.eq(2 * (call + 1)).all()


def test_constants_of_what_is_written_need_what_computes_them(runtime: Runtime, tmp_path: Path) -> None:
    model, x, path = Counting().eval(), torch.randn(2, 8, 12, 12), tmp_path / "m.lamp"
    entries = {"forward": ((x,),), "move": (model.move, (torch.ones(16),))}
    lampwork.export(model, entries=entries, path=path, targets="host", prepack=True)
    there = runtime.load(path)
    assert there.needs_aten("forward") and there.needs_aten("move") == []
    with pytest.raises(CppError, match="LW_NEEDS_ATEN: the entry 'forward' calls operators of torch"):
        there.run(x)


class Moving(nn.Module):
    """A product whose weight is packed, which another entry writes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)

    @torch.no_grad()
    def move(self, by: torch.Tensor) -> torch.Tensor:
        self.linear.weight.add_(by)
        return by + 1


def test_constants_of_what_is_written_are_computed_again(runtime: Runtime, tmp_path: Path) -> None:
    model, x, path = Moving().eval(), torch.randn(128, 16), tmp_path / "m.lamp"
    one = torch.ones(1)
    entries = {"forward": ((x,),), "move": (model.move, (one,))}
    lampwork.export(model, entries=entries, path=path, targets="host", prepack=True)
    there = runtime.load(path)
    for moved in range(3):
        expected = x @ (model.linear.weight.detach() + moved).T
        assert torch.allclose(there.run(x)[0], expected, atol=1e-4)
        assert torch.equal(there.run(one, entry="move")[0], one + 1)


def _first(key: str, value: Any) -> Callable[[Any], None]:
    return lambda manifest: manifest["prepacked"][0].update({key: value})


@pytest.mark.parametrize(
    ("change", "message"),
    (
        (_first("shape", [1 << 40]), "differ in length|has fewer bytes than its shape says"),
        (_first("shape", [1, 8, 64]), "what is prepacked is not what the program computes"),
        (_first("dtype", "int32"), "what is prepacked is not what the program computes"),
        (_first("tensor", "nothing"), "it does not have the tensor 'nothing'"),
        (lambda manifest: manifest["prepacked"].clear(), "does not know the tensor 'lampwork-prepacked.0'"),
    ),
)
def test_damage(runtime: Runtime, path: Path, tmp_path: Path, change: Any, message: str) -> None:
    content = path.read_bytes()
    (count,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + count])
    manifest = json.loads(header["__metadata__"]["manifest"])
    change(manifest)
    header["__metadata__"]["manifest"] = json.dumps(manifest)
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    (tmp_path / "m.lamp").write_bytes(struct.pack("<Q", len(text)) + text + content[8 + count :])
    with pytest.raises(CppError, match=message):
        runtime.load(tmp_path / "m.lamp").prepare()
