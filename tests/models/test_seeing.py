"""Stages, logs, dumps and counters."""

from __future__ import annotations

import torch

import lampwork


def softmax_like(x, y):
    return torch.softmax(x * 0.5 + y, dim=-1)


def test_every_stage_is_printable_and_the_graph_runs():
    compiled = lampwork.compile(softmax_like)
    x, y = torch.randn(3, 8), torch.randn(8)
    want = compiled(x, y)
    stages = compiled.stages
    names = list(stages)
    assert names == [
        "bytecode",
        "guards",
        "graph",
        "passes",
        "optimized",
        "partition",
        "definitions",
        "fusion",
        "kernels",
        "llvm",
        "assembly",
        "program",
    ]
    for name in names:
        assert stages.text(name).strip(), name
    torch.testing.assert_close(stages.run([x, y])[0], want)
    scope: dict = {"torch": torch}
    exec(stages.python, scope)
    torch.testing.assert_close(scope["forward"](x, y)[0], want)
    assert "softmax" in stages.graph and "define" in stages.llvm and "test_seeing.py" in stages.graph
    assert "kernel" in stages.summary()


def test_dump_writes_every_stage(tmp_path, monkeypatch):
    monkeypatch.setenv("LAMPWORK_DUMP", str(tmp_path))
    lampwork.compile(softmax_like)(torch.randn(3, 8), torch.randn(8))
    (folder,) = tmp_path.iterdir()
    assert sorted(p.name for p in folder.iterdir())[0] == "01-bytecode.txt"
    assert len(list(folder.iterdir())) == 12


def test_logs_print_topics(monkeypatch, capsys):
    monkeypatch.setenv("LAMPWORK_LOGS", "graph,program")
    lampwork.compile(softmax_like)(torch.randn(3, 8), torch.randn(8))
    err = capsys.readouterr().err
    assert "[graph]" in err and "[program]" in err and "[llvm]" not in err


def test_counters():
    lampwork.reset_stats()
    compiled = lampwork.compile(softmax_like)
    compiled(torch.randn(3, 8), torch.randn(8))
    compiled(torch.randn(3, 8), torch.randn(8))
    compiled(torch.randn(4, 8), torch.randn(8))
    stats = lampwork.stats()
    assert set(stats) == {
        "compiled_calls",
        "partial_calls",
        "eager_calls",
        "regions",
        "breaks",
        "recompiles",
        "backend_compiles",
        "backend_cache_hits",
        "backend_restored",
        "constant_refreshes",
        "trained",
        "compiled_backwards",
        "eager_backwards",
        "passing_calls",
        "double_backwards",
        "compile_seconds",
    }
    assert stats["compiled_calls"] == 3 and stats["regions"] == 2 and stats["recompiles"] == 1
    assert 0 < stats["compile_seconds"] < 30
    lampwork.reset_stats()
    assert not any(lampwork.stats().values())
