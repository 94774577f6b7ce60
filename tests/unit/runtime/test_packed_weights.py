"""options={"weights": "packed"}: weights leave memory, and stay the tensors that they were."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import pytest
import torch
from torch import nn

import lampwork
from lampwork.runtime import packed_weights
from lampwork.runtime.packed_weights import is_released


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAMPWORK_CACHE", str(tmp_path / "cache"))
    # Wherever the tests run: the folder may be in memory there.
    monkeypatch.setattr(packed_weights, "_IN_MEMORY", frozenset())
    return tmp_path / "cache" / "weights"


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(200, 300), nn.GELU(), nn.Linear(300, 200)).eval()


def packed(model: nn.Module, **options):
    return lampwork.compile(model, options={"weights": "packed", **options})


def test_weights_stay_what_they_were(folder: Path) -> None:
    model = network()
    twin = copy.deepcopy(model)
    before = {name: (p, p.stride(), p._version, p.requires_grad) for name, p in model.named_parameters()}
    x = torch.randn(20, 200)
    with torch.no_grad():
        fast = packed(model)
        torch.testing.assert_close(fast(x), twin(x))
        assert is_released(model[0].weight) and is_released(model[2].weight)
        assert not is_released(model[0].bias)  # the program itself reads it
        for name, p in model.named_parameters():
            assert (p, p.stride(), p._version, p.requires_grad) == before[name]
            assert torch.equal(p, twin.get_parameter(name))
        assert torch.equal(model(x), twin(x))  # eager reads them
        torch.testing.assert_close(fast(x), twin(x))
    assert list(folder.iterdir()) == []  # no file has a name
    assert fast.entries[0].hits == 2


def test_saved_copied_and_loaded() -> None:
    model = network()
    with torch.no_grad():
        packed(model)(torch.randn(20, 200))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = network()
    other.load_state_dict(torch.load(file))
    for p, q, r in zip(
        model.parameters(), other.parameters(), copy.deepcopy(model).parameters(), strict=True
    ):
        assert torch.equal(p, q) and torch.equal(p, r)


WRITES = {
    "in place": lambda model: model[0].weight.mul_(2),
    "one number": lambda model: model[0].weight.view(-1)[5].fill_(7.0),
    "load_state_dict": lambda model: model.load_state_dict(network().state_dict()),
    "data": lambda model: setattr(model[0].weight, "data", torch.randn(300, 200)),
    "another parameter": lambda model: setattr(model[0], "weight", nn.Parameter(torch.randn(300, 200))),
    "through NumPy": lambda model: model[0].weight.detach().numpy().__setitem__((3, 4), 5.0),
    "step": lambda model: step(model),
}


def step(model: nn.Module) -> None:
    with torch.enable_grad():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(8, 200)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("write", WRITES)
def test_a_write_is_noticed(write: str) -> None:
    model = network()
    fast = packed(model)
    x = torch.randn(20, 200)
    with torch.no_grad():
        fast(x)
        before = model(x)
        WRITES[write](model)
        assert not torch.equal(model(x), before)
        for _ in range(3):
            torch.testing.assert_close(fast(x), model(x))


def test_training_with_released_weights() -> None:
    model = network()
    twin = copy.deepcopy(model)
    fast = packed(model)
    x = torch.randn(20, 200)
    for _ in range(3):
        for each, call in ((model, fast), (twin, twin)):
            each.zero_grad()
            call(x).square().sum().backward()
            with torch.no_grad():
                for p in each.parameters():
                    p.sub_(1e-4 * p.grad)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_weights_can_be_trained_whatever_mode_released_them(mode: type) -> None:
    model = network()
    twin = copy.deepcopy(model)
    x = torch.randn(20, 200)
    with mode():
        packed(model)(x)
    assert is_released(model[0].weight)
    for parameter in model.parameters():
        assert not parameter.is_inference() and not parameter.data.is_inference()
        assert nn.Parameter(parameter.data).requires_grad
    for each in (model, twin):
        each(x).square().sum().backward()
        nn.utils.parametrizations.weight_norm(each[0])
    torch.testing.assert_close(model[2].weight.grad, twin[2].weight.grad)


def test_versions_for_other_sizes_pack_from_the_file() -> None:
    model = network()
    twin = copy.deepcopy(model)
    fast = packed(model)
    with torch.no_grad():
        for rows in (16, 40, 1, 7):
            x = torch.randn(rows, 200)
            torch.testing.assert_close(fast(x), twin(x))


def test_two_functions_over_one_module() -> None:
    model = network()
    twin = copy.deepcopy(model)
    x = torch.randn(20, 200)
    with torch.no_grad():
        plain = lampwork.compile(model)
        torch.testing.assert_close(plain(x), twin(x))
        fast = packed(model)
        for _ in range(2):
            torch.testing.assert_close(fast(x), twin(x))
            torch.testing.assert_close(plain(x), twin(x))


KEPT = {
    "a view": lambda p: p.detach()[1:],
    "an array": lambda p: p.detach().numpy(),
    "a storage": lambda p: p.untyped_storage(),
}


@pytest.mark.parametrize("kept", KEPT)
def test_memory_that_others_hold_stays(kept: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = network()
    twin = copy.deepcopy(model)
    held = KEPT[kept](model[0].weight)
    x = torch.randn(20, 200)
    with torch.no_grad():
        fast = packed(model, logs="program")
        torch.testing.assert_close(fast(x), twin(x))
        assert not is_released(model[0].weight) or kept == "a storage"
        assert is_released(model[2].weight)
        if kept == "a view":
            held.zero_()
            torch.testing.assert_close(fast(x), model(x))
            assert not torch.equal(model(x), twin(x))
    if kept != "a storage":
        assert "stay in memory beside their copies (1: other" in capsys.readouterr().err


def test_tied_weights_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 200)).eval()
    model[1].weight = model[0].weight
    fast = packed(model)
    x = torch.randn(20, 200)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
        model[0].weight.mul_(0.5)
        assert model[1].weight is model[0].weight
        torch.testing.assert_close(fast(x), model(x))


def test_a_folder_that_is_memory_is_of_no_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(packed_weights, "_file_system", lambda folder: "tmpfs")
    monkeypatch.setattr(packed_weights, "_IN_MEMORY", frozenset({"tmpfs"}))
    model = network()
    x = torch.randn(20, 200)
    with torch.no_grad():
        torch.testing.assert_close(packed(model, logs="program")(x), model(x))
    assert not is_released(model[0].weight)
    assert "which is memory itself" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    model = network()
    x = torch.randn(20, 200)
    compiled = packed(model, cache=str(tmp_path / "file"))
    (tmp_path / "file").rmdir()
    (tmp_path / "file").write_text("")  # it could be written when it was named
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    assert not is_released(model[0].weight)


def test_a_folder_whose_name_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = network()
    x = torch.randn(20, 200)
    with torch.no_grad():
        found = packed(model, cache=str(tmp_path / "\udcff"), logs="program")(x)
        torch.testing.assert_close(found, model(x))
    assert not is_released(model[0].weight)
    assert "torch cannot map a file there" in capsys.readouterr().err


def test_without_the_option_nothing_moves() -> None:
    model = network()
    with torch.no_grad():
        lampwork.compile(model)(torch.randn(20, 200))
    assert not any(map(is_released, model.parameters()))


def test_memory_is_given_back() -> None:
    """Between calls there is one copy, of what the weights take."""
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))).eval()  # 32 MB
    x = torch.randn(20, 1024)
    with torch.no_grad():
        packed(model)(x)
    places = {f"{each.weight.data_ptr():x}-" for each in model}
    pages = [block.split("\n", 1)[-1] for block in Path("/proc/self/smaps").read_text().split("VmFlags")]
    ours = [block for block in pages if block[: block.find("-") + 1] in places]
    assert len(ours) == 8 and all(packed_weights.SUFFIX in block for block in ours)
    resident = sum(int(block.split("Rss:")[1].split()[0]) for block in ours)
    assert resident < 4096  # kB; 0 where the kernel drops all that it is asked to
