"""mode="max-autotune" on cards, without one: graphs of this CPU for a target that has what a card has, products by a
source of this test that the CPU's templates stand in for, and a clock that says what it is told to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from devices import record_on
from graphkit import record

import lampwork
from lampwork.backends.native import compile as native
from lampwork.backends.native.tuning import race, stopwatch, tune_card
from lampwork.backends.native.tuning.product import Product
from lampwork.backends.native.tuning.race import Tuning
from lampwork.backends.native.tuning.tune_card import Made, tune_on_card
from lampwork.backends.protocol import CompileOptions
from lampwork.codegen.gpu import sources
from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.generator import EmulatingGenerator
from lampwork.codegen.gpu.nvidia import emulated
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.codegen.llvm.jit import Jit
from lampwork.codegen.llvm.templates.compile import TemplateCompiler
from lampwork.codegen.target import Target
from lampwork.config import Config
from lampwork.errors import CodegenError
from lampwork.loops.ir.nodes import Gemm, Op
from lampwork.runtime import Executable
from lampwork.runtime.program import CallAten, CallKernel, Program
from lampwork.standard import functools


class Generator(EmulatingGenerator):
    """Products with a variant by the CPU's templates; those of "wrong" are off."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.templates = TemplateCompiler(Jit(host_isa()))

    def compile(self, kernels, templates, hints=None, waits=True):  # type: ignore[no-untyped-def, override]
        functions, _ = super().compile(kernels, (), hints or {}, waits)
        made = []
        for each in templates:
            sources.source_of(each.variant)
            if each.variant == "ours fails":
                raise CodegenError("no code for it")
            value = Op("neg", (each.value,), each.value.dtype) if each.variant == "ours wrong" else each.value
            code = self.templates.compile(replace(each, variant="", value=value), hints or {})
            made.append(replace(code, text=f"{each.variant} {code.text}"))
        return functions, made


@functools.cache
def generator(target: Target) -> Generator:
    return Generator(target)


TARGET = replace(emulated(), generate=generator)
assert isinstance(TARGET, GpuTarget)


class Source:
    """Three variants of which one is wrong, and one has no code."""

    name = "ours"

    def variants(self, gemm: Gemm, target: GpuTarget, hints: Mapping[str, int] = {}) -> Sequence[str]:
        return ("ours right", "ours wrong", "ours fails")

    def compile(self, *args: Any) -> Any:
        raise AssertionError("for a card")


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sources, "SOURCES", (Source(),))
    monkeypatch.setattr(tune_card, "LEAST_BYTES", 1)
    race.forget()
    yield
    race.forget()


def winning(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[set[str]]:
    """Have these win wherever they take part; the list receives what took part each time."""
    seen: list[set[str]] = []

    def fake(watch, runs, kept):
        for run in runs.values():
            run()
        seen.append(set(runs))
        return {name: 0.5 if name in names else 1.0 if name == kept else 2.0 for name in runs}

    monkeypatch.setattr(tune_card, "measure_on", fake)
    return seen


def tuned(
    fn: Callable[..., Any], tmp_path: Path, *inputs: torch.Tensor, **options: Any
) -> tuple[Tuning, native.Artifacts, Callable[[], list[torch.Tensor]]]:
    """What tuning finds for a function, what its graph is compiled to with that, and a call of it."""
    graph = record(fn, *inputs)
    config = Config(mode="max-autotune", cache=str(tmp_path), **options)

    def whole(tuning: Tuning) -> Made:
        artifacts = native.Artifacts(tuning=tuning)
        native.compile_program(graph, (), TARGET, artifacts)
        assert artifacts.generated is not None
        return Made(artifacts.generated.kernels, {})

    tuning = tune_on_card(graph, TARGET, config, native._Alone(TARGET), whole, watch=Watch())
    artifacts = native.Artifacts(tuning=tuning)
    program = native.compile_program(graph, (), TARGET, artifacts)
    return tuning, artifacts, lambda: Executable(program, ()).run(list(inputs))


class Watch:
    """A device whose time is what was spent on it."""

    def __init__(self) -> None:
        self.now, self.log = 0.0, list[str]()

    def hold(self, calls: int) -> None:
        self.log.append(f"hold {calls}")

    def flush(self) -> None:
        self.log.append("flush")
        self.now += 7

    def mark(self) -> float:
        return self.now

    def wait(self) -> None:
        self.log.append("wait")

    def seconds(self, start: float, end: float) -> float:
        return end - start


def layer(x, w, b, r):
    return F.gelu(F.linear(x, w, b)) + r


def operands() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(24, 40), torch.randn(32, 40), torch.randn(32), torch.randn(24, 32)]


def steps(artifacts: native.Artifacts, kind: type) -> int:
    assert artifacts.program is not None
    return sum(isinstance(step, kind) for step in artifacts.program.instructions)


# --- products -------------------------------------------------------------------------------------------------------


def test_a_product_is_measured_with_what_follows_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = winning(monkeypatch, "ours right")
    tuning, artifacts, run = tuned(layer, tmp_path, *operands())
    assert "linear float32[24,40] x float32[32,40] + gelu + add: ours right, 2.00 times as fast" in str(
        tuning.verdicts[0]
    )
    # The wrong one and the one without code took no part.
    assert seen[0] == {"", "ours right"}
    assert (steps(artifacts, CallAten), steps(artifacts, CallKernel)) == (0, 1)
    torch.testing.assert_close(run()[0], layer(*operands()))


def test_without_a_winner_products_are_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    winning(monkeypatch)
    tuning, artifacts, run = tuned(layer, tmp_path, *operands())
    assert "the model's choice is the best" in str(tuning.verdicts[0])
    assert not tuning.variants
    assert (steps(artifacts, CallAten), steps(artifacts, CallKernel)) == (1, 1)
    torch.testing.assert_close(run()[0], layer(*operands()))


def test_what_is_wrong_never_wins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = winning(monkeypatch, "ours wrong", "ours fails")
    with lampwork.config.using(logs="tuning"):
        tuning, _, run = tuned(layer, tmp_path, *operands())
    assert not tuning.variants and seen[0] == {"", "ours right"}
    said = capsys.readouterr().err
    assert "the variant ours wrong is left out: results that are" in said
    assert "the variant ours fails is left out: [LW403] no code for it" in said
    torch.testing.assert_close(run()[0], layer(*operands()))


PROGRAMS: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "mm": (torch.mm, [torch.randn(9, 20), torch.randn(20, 17)]),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=2), [torch.randn(17), torch.randn(9, 20), torch.randn(20, 17)]),
    "bmm": (lambda a, b: torch.bmm(a, b).relu(), [torch.randn(3, 9, 20), torch.randn(3, 20, 17)]),
    "baddbmm": (torch.baddbmm, [torch.randn(3, 9, 17), torch.randn(3, 9, 20), torch.randn(3, 20, 17)]),
    "transposed": (lambda a, b: (a.t() @ b.t()).tanh(), [torch.randn(20, 9), torch.randn(17, 20)]),
    "heads": (lambda q, k: (q @ k.transpose(-2, -1)) * 0.5, [torch.randn(2, 3, 9, 8), torch.randn(2, 3, 7, 8)]),
    "rows that do not merge": (lambda a, b: F.linear(a.transpose(0, 1), b), [torch.randn(4, 5, 8), torch.randn(6, 8)]),
    "two readers": (lambda a, b: (a @ b).relu() + (a @ b).exp(), [torch.randn(9, 20), torch.randn(20, 17)]),
    "two products": (lambda a, b: torch.relu(a @ b) @ b.t(), [torch.randn(9, 20), torch.randn(20, 17)]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_right_with_their_winners(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fn, inputs = PROGRAMS[name]
    winning(monkeypatch, "ours right")
    tuning, artifacts, run = tuned(fn, tmp_path, *inputs)
    assert tuning.variants and steps(artifacts, CallAten) == 0
    torch.testing.assert_close(run()[0], fn(*inputs), atol=1e-5, rtol=1e-5)


def test_products_of_other_dtypes_are_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    winning(monkeypatch, "ours right")
    inputs = [torch.randn(9, 20).double(), torch.randn(20, 17).double()]
    tuning, artifacts, run = tuned(torch.mm, tmp_path, *inputs)
    assert not tuning.verdicts and steps(artifacts, CallAten) == 1
    torch.testing.assert_close(run()[0], torch.mm(*inputs))


def test_a_graph_in_which_a_winner_has_no_code_is_compiled_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = record_on(layer, operands()).graph
    monkeypatch.setattr(native, "device_target", lambda device, config: TARGET)
    (name,) = (node.name for node in graph.nodes if "linear" in node.name)
    for variant, calls in (("ours right", 0), ("ours fails", 1)):
        monkeypatch.setattr(native, "_tuned", lambda *given, v=variant: Tuning({name: v}, {}))
        options = CompileOptions(Config(mode="max-autotune"))
        with lampwork.config.using(logs="tuning"):
            program = native.NativeBackend().compile(graph, (), options)
        assert isinstance(program, Program)
        assert sum(isinstance(step, CallAten) for step in program.instructions) == calls
    assert "a graph is compiled without what was measured: [LW403] no code for it" in capsys.readouterr().err


# --- kernels --------------------------------------------------------------------------------------------------------

KERNELS: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "pointwise": (lambda x: torch.sin(x) * 2, [torch.randn(64, 96)]),
    "softmax": (lambda x: torch.softmax(x, -1), [torch.randn(40, 200)]),
    "softmax of bf16": (lambda x: torch.softmax(x, -1), [torch.randn(40, 256).bfloat16()]),
    "layer norm": (lambda x: F.layer_norm(x, (96,)), [torch.randn(30, 96)]),
    "sum of columns": (lambda x: x.sum(0), [torch.randn(300, 40)]),
    "transpose": (lambda x: x.t().contiguous() + 1, [torch.randn(70, 90)]),
    "cumsum": (lambda x: x.cumsum(1), [torch.randn(9, 100)]),
    "gather": (lambda x: x[:, ::3] + x.flip(1)[:, ::3], [torch.randn(20, 90)]),
}


@pytest.mark.parametrize("name", KERNELS)
def test_every_grid_of_a_kernel_is_right(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fn, inputs = KERNELS[name]
    seen = winning(monkeypatch)
    tuned(fn, tmp_path, *inputs)
    names = {each for taken in seen for each in taken}
    assert len(names) >= 2 or name == "cumsum"
    want = fn(*inputs)
    for each in sorted(names - {""}):
        race.forget()
        winning(monkeypatch, each)
        tuning, artifacts, run = tuned(fn, tmp_path / each.replace(" ", ""), *inputs)
        assert set(tuning.grids.values()) == {each}
        assert artifacts.generated is not None
        assert each in {kernel.variant for kernel in artifacts.generated.kernels}
        torch.testing.assert_close(
            run()[0], want, atol=2e-2 if want.dtype == torch.bfloat16 else 1e-4, rtol=1e-4
        )


def test_kernels_that_might_read_elsewhere_are_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = winning(monkeypatch)
    places = torch.randint(0, 50, (400,))
    tuned(lambda x, i: x[i] * 2, tmp_path, torch.randn(50, 64), places)
    assert seen
    seen.clear()
    _, _, run = tuned(lambda x, i: x[i - 1] * 2, tmp_path, torch.randn(50, 64), places)
    assert not seen
    assert run()[0].shape == (400, 64)


def test_small_kernels_are_not_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tune_card, "LEAST_BYTES", 1 << 20)
    seen = winning(monkeypatch)
    tuning, _, _ = tuned(lambda x: torch.sin(x), tmp_path, torch.randn(64))
    assert not seen and not tuning.verdicts


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_winners_are_kept_for_the_next_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    grid = "threads 1, groups 128, lanes 1"
    winning(monkeypatch, "ours right", grid)
    first, _, _ = tuned(
        lambda a, b: torch.sin((a @ b).softmax(-1)), tmp_path, torch.randn(9, 20), torch.randn(20, 17)
    )
    race.forget()
    seen = winning(monkeypatch, "")
    again, artifacts, _ = tuned(
        lambda a, b: torch.sin((a @ b).softmax(-1)), tmp_path, torch.randn(9, 20), torch.randn(20, 17)
    )
    assert not seen
    assert (again.variants, again.grids) == (first.variants, first.grids)
    assert [v.source for v in again.verdicts] == ["kept"] * len(first.verdicts)


KEYS = """
from grids import kernels_of
import grid_cases
from lampwork.backends.native.tuning.card import card_parts
from lampwork.codegen.gpu.grids import grid_key
from lampwork.codegen.gpu.nvidia import describe
print(card_parts(describe(90)), [grid_key(kernel, {}) for kernel in kernels_of(grid_cases.softmax())])
"""


def test_keys_are_those_of_the_next_process() -> None:
    """Where the hashes of strings, which order sets, are others."""
    found = {
        subprocess.run(
            [sys.executable, "-c", KEYS],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1, found


def test_winners_of_a_source_that_is_gone_are_measured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    winning(monkeypatch, "ours right")
    tuned(layer, tmp_path, *operands())
    race.forget()
    monkeypatch.setattr(sources, "SOURCES", ())
    winning(monkeypatch)
    tuning, artifacts, run = tuned(layer, tmp_path, *operands())
    assert not tuning.variants and "as no source has a kernel for it" in str(tuning.verdicts[0])
    torch.testing.assert_close(run()[0], layer(*operands()))


def test_what_does_not_fit_into_memory_twice_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(self: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    seen = winning(monkeypatch, "ours right")
    monkeypatch.setattr(Product, "tensors", full)
    monkeypatch.setattr(tune_card, "LEAST_BYTES", 1 << 30)
    tuning, _, run = tuned(layer, tmp_path, *operands())
    assert not seen and not tuning.variants
    assert "the model's choice, as there is no memory for it twice" in str(tuning.verdicts[0])
    torch.testing.assert_close(run()[0], layer(*operands()))


def test_no_budget_measures_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = winning(monkeypatch, "ours right")
    tuning, _, run = tuned(layer, tmp_path, *operands(), tuning_seconds=0)
    assert not seen and "as the 0 seconds of tuning are spent" in str(tuning.verdicts[0])
    torch.testing.assert_close(run()[0], layer(*operands()))


def test_cards_have_winners_of_their_own() -> None:
    from lampwork.backends.native.tuning.card import card_parts

    keys = {
        repr(card_parts(each)) for each in (TARGET, replace(TARGET, processors=7), replace(TARGET, tf32=True))
    }
    assert len(keys) == 3
    assert card_parts(TARGET) == card_parts(replace(TARGET))


# --- the clock ------------------------------------------------------------------------------------------------------


def test_candidates_take_turns_behind_a_busy_device() -> None:
    watch = Watch()

    def spending(name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            watch.log.append(name)
            watch.now += seconds

        return run

    runs = {"": spending("", 3.0), "b": spending("b", 2.0), "far": spending("far", 50.0)}
    taken = stopwatch.measure_on(watch, runs, kept="")
    assert taken == {"": 3.0, "b": 2.0}
    start = watch.log.index("hold 3")
    assert watch.log[start : start + 8] == ["hold 3", "flush", "", "flush", "b", "flush", "far", "wait"]
    assert watch.log.count("far") == 2 + 3


def test_what_torch_rounds_products_to_is_guarded() -> None:
    """A product that was compiled to TF32 does not serve calls that ask for exact ones."""
    compiled = lampwork.compile(lambda a: a @ a)
    matmul, x, made = torch.backends.cuda.matmul, torch.randn(4, 4), list[int]()
    before = matmul.allow_tf32
    try:
        for allowed in (False, True, False, True):
            matmul.allow_tf32 = allowed
            compiled(x)
            made.append(len(compiled.entries))
    finally:
        matmul.allow_tf32 = before
    assert made == [1, 2, 2, 2]
