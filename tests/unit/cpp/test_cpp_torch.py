"""`lampwork::TorchModel`, the form with libtorch's tensors: entries that call operators of torch, and what is prepacked
for them."""

from __future__ import annotations

import fcntl
import math
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from cpp_runtime import BUILD, MISSING, ROOT, built
from safetensors.torch import save_file
from test_cpp_prepacked import with_zeros
from torch import nn

import lampwork

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"building the C++ runtime needs {MISSING}"),
    pytest.mark.timeout(1200),  # the first test builds
    pytest.mark.slow,
]

FOLDER = BUILD.with_name("cpp-torch")
SOURCES = (ROOT / "cpp" / "src" / "torch.cpp", ROOT / "cpp" / "tests" / "torch_run.cpp")
TORCH = Path(torch.__file__).parent


@pytest.fixture(scope="module")
def program() -> Path:
    """lampwork_torch_run over what the other tests build: two files are compiled, not optimized. The operators of csrc/
    are left out, which are most of what liblampwork_torch takes to build."""
    folder = built(targets=["lampwork_unit"])
    query = ["ninja", "-C", str(folder), "-t", "query", "tests/lampwork_unit"]
    said = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    core = [folder / each for each in said if "lampwork_core.dir" in each and each.endswith(".o")]
    headers = [*(ROOT / "cpp").rglob("*.h"), *(ROOT / "cpp").rglob("*.hpp")]
    FOLDER.mkdir(parents=True, exist_ok=True)
    made = FOLDER / f"torch_run_{torch.__version__}"
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        newest = max(each.stat().st_mtime for each in (*SOURCES, *headers, *core))
        if not made.exists() or made.stat().st_mtime < newest:
            _compile(core, made)
    return made


def _compile(core: list[Path], made: Path) -> None:
    compiler = shutil.which("g++") or "g++"
    include = TORCH / "include"
    folders = [ROOT / "cpp" / "include", ROOT / "cpp" / "src", include, include / "torch/csrc/api/include"]
    flags = ["-std=c++20", "-O0", *(f"-I{each}" for each in folders)]
    libraries = [f"-L{TORCH / 'lib'}", f"-Wl,-rpath,{TORCH / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"]
    status = ROOT / "cpp" / "src" / "status.cpp"
    cache = (BUILD / "CMakeCache.txt").read_text()
    crypto = ["-lcrypto"] if "LAMPWORK_SIGNATURES:BOOL=ON" in cache else []
    parts = [compiler, *flags, *SOURCES, status, *core, *libraries, *crypto, "-pthread", "-o", made]
    done = subprocess.run(list(map(str, parts)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


def run(
    program: Path, path: Path, x: torch.Tensor, expected: torch.Tensor, weights: Path | None = None
) -> str:
    """Calls the model twice; what the program says of it, once the results are those that are expected."""
    case = path.with_suffix(".case")
    save_file({"in.0": x.contiguous(), "out.0": expected.detach().contiguous()}, case)
    command = [program, path, "forward", case, "1e-4", "0", *([] if weights is None else [weights])]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.partition("; calls ")[2].partition(";")[0]


class Packed(nn.Module):
    """A product of our own, whose weight is packed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Searching(nn.Module):
    """A call of an operator of torch with a nan that has a sign."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.searchsorted(x[0].sort().values, -math.nan)


class Solving(nn.Module):
    """An operator of torch that takes what is computed of weights alone."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(16, 16) + 16 * torch.eye(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(self.w.t() * 2 + self.w, x.t()).t() + 1


def folded() -> nn.Module:
    found = nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU())
    nn.init.uniform_(found[1].running_mean)
    return found


MODELS = {
    "packed": (Packed, (128, 16)),
    "an operator of torch": (Solving, (4, 16)),
    "folded by torch": (folded, (2, 8, 12, 12)),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_prepacked_is_used_for_the_weights_of_the_file(
    program: Path, tmp_path: Path, name: str
) -> None:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model, other, x = make().eval(), make().eval(), torch.randn(*shape)
    paths = [tmp_path / "m.lamp", tmp_path / "without.lamp"]
    for path in paths:
        lampwork.export(model, (x,), path=path, targets="host", prepack=path is paths[0])
    with torch.no_grad():
        expected, others, zeros = model(x), other(x), torch.zeros_like(model(x))
    calls = [run(program, path, x, expected) for path in paths]
    save_file(other.state_dict(), tmp_path / "other.safetensors")
    for path in paths:
        run(program, path, x, others, tmp_path / "other.safetensors")
    if name == "packed":
        assert calls == ["", ""]
        # What is in the file is what is computed with: twice, and not for other weights.
        changed = with_zeros(paths[0], tmp_path / "zeros.lamp")
        run(program, changed, x, zeros)
        run(program, changed, x, others, tmp_path / "other.safetensors")
    elif name == "folded by torch":
        assert calls[0] == "" and calls[1] != ""  # torch's alone computed the weights
    else:
        assert all("linalg_solve" in each for each in calls)
        assert lampwork.artifacts.inspect(paths[0]).sizes["prepacked"] > 0


def test_a_number_may_be_any_nan(program: Path, tmp_path: Path) -> None:
    model, x = Searching(), torch.randn(4, 16)
    path = tmp_path / "m.lamp"
    lampwork.export(model, (x,), path=path, targets="host")
    assert "searchsorted" in run(program, path, x, model(x))
