"""What an artifact has prepacked is used in C++ too, for the weights of the file."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cpp_runtime import MISSING, CppError, Runtime, built
from torch import nn

import lampwork
from lampwork.artifacts.container import PREPACKED, open_container

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"building the C++ runtime needs {MISSING}"),
    pytest.mark.timeout(1200),  # the first test builds
]


class Net(nn.Module):
    """A product whose weight is packed, and positions that are computed of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 64, bias=False)
        self.register_buffer("order", torch.arange(64).flip(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).index_select(1, self.order)


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return Runtime(built(targets=["lampwork_runtime"]) / "liblampwork_runtime.so")


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


def _first(key: str, value: Any) -> Callable[[Any], None]:
    return lambda manifest: manifest["prepacked"][0].update({key: value})


@pytest.mark.parametrize(
    ("change", "message"),
    (
        (_first("shape", [1 << 40]), "differ in length|has fewer bytes than its shape says"),
        (_first("shape", [1, 8, 64]), "what is prepacked is not what the program computes"),
        (_first("dtype", "int32"), "what is prepacked is not what the program computes"),
        (_first("tensor", "nothing"), "it does not have the tensor 'nothing'"),
        (lambda manifest: manifest["prepacked"].clear(), "what is prepacked for 'forward'"),
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
