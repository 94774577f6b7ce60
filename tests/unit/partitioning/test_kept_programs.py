"""Compiled parts are kept in the cache folder: equal graphs are compiled once for all processes, and others apart."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Callable
from dataclasses import fields, replace
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lampwork
from lampwork import config, counters
from lampwork.backends.native.compile import NativeBackend
from lampwork.backends.native.keep import machine_parts
from lampwork.backends.observer import Inside
from lampwork.backends.protocol import CompileOptions, Traits
from lampwork.cache import store
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.config import Config
from lampwork.errors import OptionError, SerialError
from lampwork.graph.record import Recorder
from lampwork.graph.spec import TensorSpec
from lampwork.partitioning import compiling, kept
from lampwork.serial import own_code


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAMPWORK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LAMPWORK_VERIFY", "")  # with checks the passes always run
    return tmp_path / "cache"


def settle() -> None:
    """Wait until what was compiled is kept."""
    for thread in threading.enumerate():
        if thread.name == "lampwork-keep":
            thread.join()


def counted(run: Callable[[], Any]) -> tuple[int, int]:
    """How many parts were compiled, and how many came from the cache, while something ran as in a new process."""
    settle()
    compiling._cache = compiling._Cache()  # what is kept in memory
    before = counters.snapshot({})
    run()
    settle()
    after = counters.snapshot({})
    return (
        int(after["backend_compiles"] - before["backend_compiles"]),
        int(after["backend_restored"] - before["backend_restored"]),
    )


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4), nn.LayerNorm(4)).eval()


def program(x: Tensor) -> Tensor:
    return torch.softmax(x * 2, -1).cumsum(0)


def run(**options: Any) -> Tensor:
    return lampwork.compile(program, options=options)(torch.ones(4, 6))


# --- hits -------------------------------------------------------------------------------------------------------------


def test_a_second_compilation_is_none() -> None:
    assert counted(run) == (1, 0)
    assert counted(run) == (0, 1)
    assert torch.equal(run(), program(torch.ones(4, 6)))


def test_nothing_is_kept_without_a_cache() -> None:
    with config.using(cache="off"):
        assert counted(run) == (1, 0)
        assert counted(run) == (1, 0)


def test_weights_are_no_part_of_it() -> None:
    x = torch.randn(3, 8)
    with torch.no_grad():
        assert counted(lambda: lampwork.compile(net())(x)) == (1, 0)
        other = net()
        for weight in other.parameters():
            weight.mul_(2)
        compiled = lampwork.compile(other)
        assert counted(lambda: compiled(x)) == (0, 1)
        torch.testing.assert_close(compiled(x), other(x))


def step(dynamic: bool | None = None) -> list[Tensor]:
    model = net().train()
    compiled = lampwork.compile(model, dynamic=dynamic)
    for rows in (3, 5) if dynamic else (3, 3):
        compiled(torch.ones(rows, 8)).square().sum().backward()
    return [weight.grad for weight in model.parameters() if weight.grad is not None]


@pytest.mark.parametrize("dynamic", [None, True])
def test_training_steps(dynamic: bool | None) -> None:
    compiled, restored = counted(lambda: step(dynamic))
    assert compiled >= 2 and restored == 0
    assert counted(lambda: step(dynamic)) == (0, compiled)
    with config.using(cache="off"):
        expected = step(dynamic)
    for ours, theirs in zip(step(dynamic), expected, strict=True):
        assert torch.equal(ours, theirs)


def scaled(x: Tensor, factor: float) -> Tensor:
    return (x * (factor / 3)).sum(0) + x.shape[0]


def test_open_sizes_and_numbers() -> None:
    def run() -> None:
        compiled = lampwork.compile(scaled, dynamic=True)
        for rows, factor in ((5, 2.5), (6, 2.5), (7, 1.25)):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(compiled(x, factor), scaled(x, factor))
        assert len(compiled.entries) == 1

    assert counted(run) == (1, 0)
    assert counted(run) == (0, 1)


def branching(x: Tensor) -> Tensor:
    return x.reshape(-1, 2).sum(-1)


def test_conditions_come_with_a_program() -> None:
    """Rows must be even: what was asked when the program was made is asked of those who get it, too."""

    def run() -> Any:
        compiled = lampwork.compile(branching, dynamic=True)
        for rows in (4, 8):
            assert compiled(torch.ones(rows, 3)).shape == (rows * 3 // 2,)
        return compiled

    assert counted(run) == (1, 0)
    first = [str(c) for c in run().entries[0].region.conditions]
    with config.using(cache="off"):
        assert first == [str(c) for c in run().entries[0].region.conditions]


class Asking(NativeBackend):
    """Asks whether rows are many."""

    def compile(self, graph: Any, example_inputs: Any, options: CompileOptions) -> Any:
        from lampwork.graph.concrete import scope_of
        from lampwork.loops.ir.index import Index

        scope: Any = scope_of(graph)
        scope.decide(">=", Index.sym("s0") - 6)
        return super().compile(graph, example_inputs, options)


def recorded(rows: int) -> Any:
    recorder = Recorder()
    size: Any = recorder.scope.symbol(rows)
    x = recorder.input(
        torch.zeros(rows, 3), "x", False, TensorSpec((size, 3), (3, 1), torch.float32, torch.device("cpu"))
    )
    with recorder:
        y: Any = x.cosh().sinh()
    return recorder.finish([y]).graph, recorder.scope


def test_a_program_for_other_sizes_is_not_taken() -> None:
    backend = Asking()

    def compile_for(rows: int) -> Any:
        graph, scope = recorded(rows)
        compiling.compile_graph(backend, graph, CompileOptions(config.current()))
        return [str(condition) for condition in scope.conditions]

    assert counted(lambda: compile_for(7)) == (1, 0)
    conditions: list[Any] = []
    assert counted(lambda: conditions.append(compile_for(6))) == (0, 1)
    assert conditions == [["s0 >= 6"]]
    assert counted(lambda: conditions.append(compile_for(5))) == (1, 0)
    assert conditions[-1] == ["s0 <= 5"]


# --- keys -------------------------------------------------------------------------------------------------------------


def other_numbers(x: Tensor) -> Tensor:
    return torch.softmax(x * 3, -1).cumsum(0)


@pytest.mark.parametrize(
    "other",
    [
        lambda: lampwork.compile(other_numbers)(torch.ones(4, 6)),
        lambda: lampwork.compile(program)(torch.ones(4, 7)),
        lambda: lampwork.compile(program)(torch.ones(4, 6, dtype=torch.float64)),
        lambda: lampwork.compile(program)(torch.ones(6, 4).t()),
        lambda: lampwork.compile(program, dynamic=True)(torch.ones(4, 6)),
        lambda: run(fusion=False),
        lambda: run(numerics="fast"),
        lambda: run(isa="sse4"),
        lambda: run(verify="graph"),
        lambda: run(arena=False),
    ],
)
def test_what_differs_is_compiled(other: Callable[[], Any]) -> None:
    run()
    assert counted(other) == (1, 0)
    assert counted(other) == (0, 1)
    assert counted(run) == (0, 1)


@pytest.mark.parametrize("options", [{"recompile_limit": 3}, {"strict": False}, {"logs": ""}, {"fuel": 999}])
def test_options_that_do_not_matter(options: dict[str, Any]) -> None:
    run()
    assert counted(lambda: run(**options)) == (0, 1)


def test_other_machines_code_and_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    run()
    from lampwork.backends.native import keep

    for change in (
        lambda m: m.setattr(keep, "_cpu", lambda: "another CPU"),
        lambda m: m.setattr(keep, "_llvm", lambda: "99"),
        lambda m: m.setattr(kept, "own_code", lambda: "another version"),
        lambda m: m.setattr(torch.version, "git_version", "another"),
        lambda m: m.setattr(keep, "float32_in_bf16", lambda target: "another precision"),
    ):
        with monkeypatch.context() as patch:
            change(patch)
            assert counted(run) == (1, 0)
        assert counted(run) == (0, 1)


def test_what_torch_says_of_the_process() -> None:
    """Deterministic mode, say, where code adds to elements in any order."""
    run()
    torch.use_deterministic_algorithms(True)
    try:
        assert counted(run) == (1, 0)
        assert counted(run) == (0, 1)
    finally:
        torch.use_deterministic_algorithms(False)
    assert counted(run) == (0, 1)


def test_modules_that_a_backend_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[int, int]] = []
    for number in (2, 3, 2):
        settings = types.ModuleType("settings_of_a_backend")
        settings.number = number  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "settings_of_a_backend", settings)

        class Mine(Texts):
            module = settings

        found.append(counted(lambda: lampwork.compile(lambda x: x.relu(), backend=Mine())(torch.ones(3))))
    assert found == [(1, 0), (1, 0), (0, 1)]


def test_options_out_of_the_key_are_options() -> None:
    """So that a new option is in the key until somebody has thought about it."""
    names = {each.name for each in fields(Config)}
    assert not kept.NOT_IN_CODE.keys() - names
    shown = kept.options_text(config.current())
    assert "isa=''" in shown and "verify=''" in shown and "cache" not in shown


def test_a_target_is_told_apart_by_all_of_its_fields() -> None:
    target = host_isa()
    parts = machine_parts(target)
    assert parts is not None and "0x" not in str(parts)
    assert machine_parts(replace(target, conv_rows=77)) != parts
    assert machine_parts(replace(target, tiles=target.tiles[:1])) != parts
    assert machine_parts(replace(target, generate=lambda target: None)) is None, "a function without a name"


def test_keys_have_no_paths_and_no_addresses(tmp_path: Path) -> None:
    run()
    settle()
    found: Any = store()
    (row,) = found.local.rows("program")
    text = str(row)
    assert str(Path(__file__).parent) not in text and str(Path.home()) + "/" not in text and "0x" not in text


def test_own_code(tmp_path: Path) -> None:
    package = tmp_path / "one" / "lampwork"
    package.mkdir(parents=True)
    (package / "a.py").write_text("a = 1\n")
    other = tmp_path / "two" / "lampwork"
    other.mkdir(parents=True)
    (other / "a.py").write_text("a = 1\n")
    digest = own_code.digest_of(package)
    assert own_code.digest_of(other) == digest and len(digest) == 64
    (other / "__pycache__").mkdir()
    (other / "__pycache__" / "a.pyc").write_bytes(b"x")
    (other / "_C.cpython-39-x86_64-linux-gnu.so").write_bytes(b"of another Python")
    assert own_code.digest_of(other) == digest
    (other / f"_C{EXTENSION_SUFFIXES[0]}").write_bytes(b"of this one")
    with_extension = own_code.digest_of(other)
    assert with_extension != digest
    (other / "a.py").write_text("a = 2\n")
    assert own_code.digest_of(other) not in (digest, with_extension)
    info = package.parent / "lampwork-0.1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("lampwork/a.py,sha256=abc,6\nlampwork-0.1.0.dist-info/METADATA,sha256=d,1\n")
    installed = own_code.digest_of(package)
    assert installed != digest
    (info / "RECORD").write_text("lampwork-0.1.0.dist-info/METADATA,sha256=e,1\nlampwork/a.py,sha256=abc,6\n")
    assert own_code.digest_of(package) == installed
    (info / "RECORD").write_text("lampwork/a.py,sha256=abd,6\n")
    assert own_code.digest_of(package) != installed


# --- what is not kept -------------------------------------------------------------------------------------------------


def labelled(x: Tensor) -> Tensor:
    with torch.profiler.record_function("mine"):
        return x.exp() + 1


def test_labels_of_the_user_are_not_kept() -> None:
    for _ in range(2):
        assert counted(lambda: lampwork.compile(labelled)(torch.ones(4))) == (1, 0)


def test_who_logs_code_has_it_compiled() -> None:
    """Else there would be nothing to see."""
    run()
    with config.using(logs="llvm"):
        assert counted(run) == (1, 0)


@pytest.mark.parametrize("damage", [b"", b"x" * 40, None])
def test_damage_is_a_miss(damage: bytes | None) -> None:
    run()
    settle()
    found: Any = store()
    (row,) = found.local.rows("program")
    from lampwork.cache.key import read_key

    key = read_key(row.text)
    content = found.get(key)
    found.put(key, content[:-10] if damage is None else damage)
    assert counted(run) == (1, 0)
    assert counted(run) == (0, 1), "the next one finds it whole"


# --- looking ----------------------------------------------------------------------------------------------------------


def test_stages_facts_and_reports_are_made_by_compiling_again() -> None:
    first = lampwork.compile(net())
    x = torch.randn(3, 8)
    with torch.no_grad():
        first(x)
        settle()
        second = lampwork.compile(net())
        assert counted(lambda: second(x)) == (0, 1)
    assert second.stages.counts == first.stages.counts
    assert list(second.stages) == list(first.stages)
    for stage in ("definitions", "fusion", "kernels", "llvm", "program", "optimized"):
        assert second.stages.text(stage) == first.stages.text(stage)
    assert second.stages.steps() == first.stages.steps() != ()
    mine, theirs = (each.stages.compilation.inside for each in (second, first))
    assert isinstance(mine, Inside) and mine.names == theirs.names and mine.decisions == theirs.decisions
    calls = [[step for step in each.program.instructions if hasattr(step, "code")] for each in (mine, theirs)]
    for call, same in zip(*calls, strict=True):
        assert mine.llvm(call) == theirs.llvm(same) != ""
        assert mine.loops(call) == theirs.loops(same)


# --- processes --------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
if sys.argv[1] == "blocked":
    sys.modules["llvmlite"] = None
import torch, lampwork
from lampwork import counters
lampwork.compile(lambda x: x.exp().sum(-1))(torch.arange(12.).reshape(3, 4))
net = torch.nn.Linear(4, 4)
lampwork.compile(net)(torch.ones(2, 4)).sum().backward()
found = counters.snapshot({})
print(found["backend_compiles"], found["backend_restored"], sys.modules.get("llvmlite") is not None)
"""


def test_another_process_needs_no_llvm(tmp_path: Path) -> None:
    """A short process leaves its entries; another one, in another folder, with another home and seed, has them."""
    printed: list[str] = []
    for number, mode in enumerate(("", "blocked")):
        home = tmp_path / f"home{number}"
        home.mkdir()
        environment = {**os.environ, "HOME": str(home), "PYTHONHASHSEED": str(number), "LAMPWORK_VERIFY": ""}
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT, mode],
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert ran.returncode == 0, ran.stderr
        printed.append(ran.stdout.strip())
    compiled, restored, loaded = printed[0].split()
    assert int(compiled) >= 2 and restored == "0" and loaded == "True"
    assert printed[1] == f"0 {compiled} False"


def test_eight_processes_compile_once(tmp_path: Path) -> None:
    """On a cold cache the others wait for the one that compiles."""
    begin, results = os.pipe(), os.pipe()
    children: list[int] = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            try:
                os.close(begin[1])
                os.read(begin[0], 1)
                compiled, restored = counted(run)
                os.write(results[1], f"{compiled} {restored}\n".encode())
                os._exit(0)
            except BaseException:  # noqa: BLE001  (a child of fork, which must not go on as pytest)
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    os.close(begin[0])
    os.close(begin[1])  # all begin now
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    os.close(results[1])
    with os.fdopen(results[0]) as pipe:
        lines = [tuple(map(int, line.split())) for line in pipe]
    assert sum(compiled for compiled, _ in lines) <= 2
    assert sum(restored for _, restored in lines) >= 6


# --- backends of others -----------------------------------------------------------------------------------------------


def test_the_three_methods_come_together() -> None:
    class Half:
        name = "half"

        def supports(self, node: Any) -> bool:
            return True

        def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
            return None

        def save(self, compiled: Any) -> bytes:
            return b""

    with pytest.raises(OptionError, match="half: key_parts is None"):
        Traits.of(Half())


class Texts:
    """Keeps the operators of a graph as a text."""

    name = "texts"
    trusted = True

    def supports(self, node: Any) -> bool:
        return True

    def key_parts(self, graph: Any, options: CompileOptions) -> dict[str, str]:
        return {"version": "1"}

    def compile(self, graph: Any, example_inputs: Any, options: CompileOptions) -> Any:
        return Compiled(" ".join(str(n.target) for n in graph.nodes if n.op == "call_function"))

    def save(self, compiled: Any) -> bytes:
        return compiled.text.encode()

    def restore(self, content: bytes, graph: Any, options: CompileOptions) -> Any:
        if not content:
            raise SerialError("operators were expected")
        return Compiled(content.decode())


class Compiled:
    def __init__(self, text: str) -> None:
        self.text = text

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        return [tensors[0].relu()]


def test_a_backend_of_another_author() -> None:
    def run() -> Any:
        compiled = lampwork.compile(lambda x: x.relu(), backend=Texts())
        return compiled(torch.ones(3))

    assert counted(run) == (1, 0)
    assert counted(run) == (0, 1)
