"""What `lampwork.export` and `lampwork export` take, and what they say of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from export_models import TwoLayers, breaking
from torch import nn

import lampwork
from lampwork.cli import main
from lampwork.errors import ExportError, OptionError

X = torch.ones(4, 8)


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        ((TwoLayers(), "a.xyz", X), {}, r"none for \.xyz\n  fix: name the file \.pt2 \(pt2\)"),
        ((TwoLayers(), "a", X), {"format": "onxx"}, "no format 'onxx'\n  fix: did you mean 'onnx'"),
        ((3, "a.dot", X), {}, "takes a function or a module, got int"),
        ((nn.Linear, "a.dot", X), {}, "fix: export an instance of it"),
        ((TwoLayers(), "a.dot"), {}, r"fix: pass the arguments of a call: export\(model, path, inputs\)"),
    ],
)
def test_wrong_options(arguments: tuple[Any, ...], options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        lampwork.export(*arguments, **options)


@pytest.mark.parametrize(
    ("model", "inputs", "options", "said"),
    [
        (
            TwoLayers(),
            X,
            {"module": "nte.0"},
            r"no module 'nte\.0'.*\n  fix: did you mean 'net\.0'\? the modules are net,",
        ),
        (torch.relu, X, {"module": "net"}, "there are no modules in it"),
        (TwoLayers(), X, {"region": 1}, r"there is no region 1\n  fix: the regions are\n    0: TwoLayers#0"),
        (TwoLayers(), X, {"region": True}, "there is no region True"),
        (lambda x: x, X, {}, "no region with operators"),
        (lambda x: 3, X, {"region": 0}, "computes no tensors"),
        (lampwork.compile(lambda x: x + 1), None, {}, "is not compiled yet\n  fix: call it once"),
        (
            breaking,
            torch.ones(3, 3),
            {"format": "pt2"},
            r"2 regions.*\n.*\n    0: breaking#0.*\n    1: breaking_resume",
        ),
    ],
)
def test_nothing_to_export(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model: Any,
    inputs: Any,
    options: dict[str, Any],
    said: str,
) -> None:
    with pytest.raises(ExportError, match=said):
        lampwork.export(model, tmp_path / "a.dot", inputs, **options)
    assert not list(tmp_path.iterdir())


def test_paths_that_cannot_be_written(tmp_path: Path) -> None:
    called: list[int] = []

    def seen(x: torch.Tensor) -> torch.Tensor:
        called.append(1)
        return x + 1

    with pytest.raises(ExportError, match="there is no folder .*missing\n  fix: make the folder first"):
        lampwork.export(seen, tmp_path / "missing" / "a.dot", X)
    assert not called
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ExportError, match="the trace cannot be written to .*\n  fix: give the path of a folder"
    ):
        lampwork.export(seen, tmp_path / "file" / "trace", X)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ExportError, match="cannot be written to .*\n  fix: give the path of a file"):
        lampwork.export(seen, tmp_path / "folder", X, format="dot")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]


def test_paths_that_name_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dir.pt2").mkdir()
    for path, said in (
        ("", "path is ''"),
        (b"a.pt2", "path is b'a.pt2'"),
        (None, "path is None"),
        (".pt2", "'.pt2' is a suffix without a name\n  fix: name the file: model.pt2"),
        ("dir.pt2", "'dir.pt2' is a folder, and .pt2 says"),
    ):
        with pytest.raises(OptionError, match=said):
            lampwork.export(torch.relu, path, X)  # pyright: ignore[reportArgumentType]
    for path in ("a" * 300 + ".pt2", "a\0.onnx"):
        with pytest.raises(ExportError, match="cannot be written: (File name too long|.*null byte)"):
            lampwork.export(torch.relu, path, X)
    assert [each.name for each in tmp_path.iterdir()] == ["dir.pt2"]


@torch.no_grad()
def test_only_what_the_call_ran(tmp_path: Path) -> None:
    compiled = lampwork.compile(lambda x, up: x + 1 if up else x * 2)
    compiled(X, True)
    compiled(X, False)
    found = lampwork.export(compiled, tmp_path / "a.dot", (X, False))
    assert len(found.regions) == 1 and "aten.mul.Tensor" in (tmp_path / "a.dot").read_text()
    assert len(lampwork.export(compiled, tmp_path / "a.dot").regions) == 2
    assert str(found).startswith(f"{tmp_path / 'a.dot'}: dot of ") and "\n" not in repr(found)


SCRIPT = """
import sys
import torch, lampwork
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
with torch.no_grad():
    lampwork.compile(model)(torch.ones(5, 3))
print(sys.argv[1:])
@lampwork.compile
def loss(x):
    return (x * x).mean()
loss(torch.ones(3))
"""


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out.dot"
    script.write_text(SCRIPT)
    assert main(["export", str(script), str(out)]) == 0
    said = capsys.readouterr()
    assert "dot of Sequential#0, loss#0" in said.err and out.exists()
    arguments = ["--function", "Sequential", "--module", "1", str(script), str(out), "--", "--a", "1"]
    assert main(["export", *arguments]) == 0
    said = capsys.readouterr()
    assert said.out == "['--a', '1']\n" and "dot of Sequential#0 1" in said.err
    after = [str(script), str(out), "--function", "loss", "--", "a", "--b"]
    assert main(["export", *after]) == 0
    assert capsys.readouterr().out == "['a', '--b']\n"
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    assert "script OUT [-- arguments of the script]" in " ".join(capsys.readouterr().out.split())
    assert main(["export", str(script), str(out), "--function", "los"]) == 1
    assert "fix: did you mean 'loss'?" in capsys.readouterr().err
    assert main(["export", str(script), str(out), "--region", "2"]) == 1
    assert "there is no region 2" in capsys.readouterr().err
    assert main(["export", str(script), str(tmp_path / "missing" / "out.dot")]) == 1
    said = capsys.readouterr()
    assert "there is no folder" in said.err and not said.out
