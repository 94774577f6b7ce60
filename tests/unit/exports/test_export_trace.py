"""Records of torch's structured trace."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from export_models import breaking
from torch._logging._internal import LazyTraceHandler, TorchLogsFormatter, trace_log

import lampwork
from lampwork.compiled.listening import listeners

# As tlparse splits lines: level, date, time, process, file and line, then JSON.
LINE = re.compile(r"V\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ [^:]+:\d+\] (\{.*)")
BREAK = "dynamo_graph_break_reason"


def records(folder: Path) -> list[tuple[str, Any, str, dict[str, Any]]]:
    """Name, metadata, text and the rest of each record of the one file in a folder, checked."""
    (file,) = folder.glob("dedicated_log_torch_trace_*.log")
    found: list[tuple[str, Any, str, dict[str, Any]]] = []
    for entry in re.split(r"\n(?=V)", file.read_text().removesuffix("\n")):
        head, _, body = entry.partition("\n\t")
        matched = LINE.fullmatch(head)
        assert matched is not None, head
        rest = json.loads(matched[1])
        text = body.replace("\n\t", "\n")
        digest = rest.pop("has_payload", None)
        assert (digest is None) == (not body)
        assert digest in (None, hashlib.md5(text.encode()).hexdigest())
        name = next(iter(rest))
        found.append((name, rest.pop(name), text, rest))
    return found


def artifacts(found: Iterable[tuple[str, Any, str, Any]]) -> dict[str, str]:
    return {metadata["name"]: text for name, metadata, text, _ in found if name == "artifact"}


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported = lampwork.export(breaking, tmp_path / "trace", torch.randn(3, 3))
    assert exported.format == "tlparse"
    found = records(tmp_path / "trace")
    names = {metadata[1]: metadata[0] for name, metadata, _, _ in found if name == "str"}
    starts = [metadata["stack"][0] for name, metadata, _, _ in found if name == "dynamo_start"]
    assert [start["name"] for start in starts][0] == "breaking" and len(starts) == 2
    assert {names[start["filename"]] for start in starts} == {breaking.__code__.co_filename}
    frames = [rest["frame_id"] for name, _, _, rest in found if name == "dynamo_start"]
    assert frames == [0, 1]
    graph = next(text for name, _, text, _ in found if name == "dynamo_output_graph")
    assert "aten.relu.default" in graph
    assert "print" in artifacts(found)[BREAK] and "yes" in artifacts(found)["lampwork_fusion"]
    metrics = [metadata for name, metadata, _, _ in found if name == "compilation_metrics"]
    assert [m["graph_op_count"] for m in metrics] == [2, 2]
    assert metrics[0]["restart_reasons"] and not metrics[1]["restart_reasons"]
    assert any(
        name == "dynamo_cpp_guards_str" and "Tensor float32[3, 3]" in text for name, _, text, _ in found
    )


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a trace that is written while the test runs, as if Lampwork had been imported with it."""
    folder = tmp_path / "trace"
    handler = LazyTraceHandler(str(folder))
    handler.setFormatter(TorchLogsFormatter(trace=True))
    trace_log.addHandler(handler)
    monkeypatch.setenv("TORCH_TRACE", str(folder))
    before = list(listeners)
    importlib.reload(lampwork)
    assert len(listeners) == len(before) + 1
    yield folder
    listeners[:] = before
    sys.modules.pop("lampwork.exports.tracing")
    trace_log.removeHandler(handler)
    handler.close()


def test_as_it_compiles(traced: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAMPWORK_STRICT")

    def refused(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    compiled = lampwork.compile(torch.nn.Linear(3, 2))
    for size in (4, 4, 5):
        compiled(torch.randn(size, 3)).sum().backward()
    limited = lampwork.compile(refused, dynamic=False, options={"recompile_limit": 1, "strict": False})
    limited(torch.ones(3))
    with pytest.warns(lampwork.LampworkWarning):
        limited(torch.ones(4))
    found = records(traced)
    kinds = [(name, rest.get("frame_id"), rest.get("frame_compile_id")) for name, _, _, rest in found]
    linear = kinds[[name for name, *_ in kinds].index("dynamo_start")][1]
    assert linear == 100_000
    versions = {version for name, frame, version in kinds if name == "dynamo_start" and frame == linear}
    assert versions == {0, 1}
    assert ("aot_forward_graph", linear, 0) in kinds and ("aot_backward_graph", linear, 0) in kinds
    metrics = [metadata for name, metadata, _, _ in found if name == "compilation_metrics"]
    failed = {m["co_name"]: m["fail_type"] for m in metrics if m.get("fail_type")}
    ((name, code),) = failed.items()
    assert name.endswith("refused") and code.startswith("LW1")
    if shutil.which("tlparse"):
        (file,) = traced.iterdir()
        command = ["tlparse", file, "-o", traced / "page", "--no-browser", "--strict"]
        subprocess.run(command, check=True, capture_output=True)
        assert (traced / "page" / "index.html").exists()


def test_a_folder_that_cannot_be_made(traced: Path) -> None:
    traced.write_text("a file")
    count = len(listeners)
    compiled = lampwork.compile(torch.nn.Linear(3, 2))
    with pytest.warns(lampwork.LampworkWarning, match="nothing more is written to .*File exists") as warned:
        compiled(torch.randn(4, 3))
        compiled(torch.randn(5, 3).double().float().requires_grad_())
    assert len(warned) == 1 and len(listeners) == count - 1


@pytest.mark.skipif("TORCH_TRACE" in os.environ, reason="a trace is written")
def test_nothing_is_loaded_without_a_folder() -> None:
    assert "lampwork.exports.tracing" not in sys.modules and not listeners
