"""mode="max-autotune": each candidate is right, winners are kept for other processes, faults stop no compilation."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from instruction_sets import INSTRUCTION_SETS
from torch import nn

import lampwork
from lampwork.backends.native.tuning import measure, progress, tune
from lampwork.backends.native.tuning import winner as winners
from lampwork.backends.native.tuning.winner import DamagedWinner, Winner, winner_from_bytes, winner_to_bytes
from lampwork.cache import Key, Store, store
from lampwork.cache.command import main
from lampwork.cache.key import read_key
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.codegen.variants import candidates, refinements, varied
from lampwork.config import Config
from lampwork.errors import CodegenError
from lampwork.folders import cache_folder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of this test alone."""
    monkeypatch.setenv("LAMPWORK_CACHE", str(tmp_path / "cache"))
    tune.forget()
    yield tmp_path / "cache"
    tune.forget()


def kept() -> Store:
    """The cache of the test."""
    found = store()
    assert found is not None
    return found


def keys() -> list[Key]:
    """Of the winners that are kept."""
    assert (cache := kept().local) is not None
    found = [read_key(row.text) for row in cache.rows("tuning")]
    return [key for key in found if key is not None]


def linear(rows: int = 24, inner: int = 100, outer: int = 70, dtype: torch.dtype = torch.float32):
    return nn.Linear(inner, outer).eval().to(dtype), torch.randn(rows, inner).to(dtype)


def winning(monkeypatch: pytest.MonkeyPatch, name: str) -> list[dict[str, float]]:
    """Have `name` win wherever it takes part; the list receives what took part each time."""
    seen: list[dict[str, float]] = []

    def fake(runs, kept):
        for run in runs.values():
            run()
        taken = {each: 1.0 if each == kept else 0.5 if each == name else 2.0 for each in runs}
        seen.append(taken)
        return dict(taken)

    monkeypatch.setattr(tune, "measure", fake)
    return seen


def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(runs, kept):
        raise AssertionError(f"measured {list(runs)}")

    monkeypatch.setattr(tune, "measure", measured)


def compiled(model, **options):
    return lampwork.compile(model, mode="max-autotune", options=options)


# --- candidates -------------------------------------------------------------------------------------------------------


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


PROGRAMS = {
    "linear": lambda: linear(),
    "few rows": lambda: linear(3),
    "one row": lambda: linear(1, 130, 65),
    "long": lambda: linear(17, 700, 50),
    "f64": lambda: linear(dtype=torch.float64),
    "bf16": lambda: linear(33, 450, 66, torch.bfloat16),
    "f16": lambda: linear(33, 450, 66, torch.float16),
    "bmm": lambda: (lambda a: a @ a.transpose(1, 2), torch.randn(3, 21, 40)),
    "conv": lambda: (nn.Conv2d(16, 40, 3, padding=1).eval(), torch.randn(2, 16, 13, 11)),
    "attention": lambda: (lambda x: attention(x, x, x), torch.randn(1, 2, 300, 40)),
}


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_candidate_is_right(program: str, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    fn, x = PROGRAMS[program]()
    wide = fn.double()(x.double()) if isinstance(fn, nn.Module) else fn(x.double())
    if isinstance(fn, nn.Module):
        fn.to(x.dtype)
    with torch.no_grad():
        eager = (fn(x).double() - wide).abs().max()
        with lampwork.config.using(isa=isa):
            seen = winning(monkeypatch, "")
            lampwork.compile(fn, mode="max-autotune")(x)
            names = {name for taken in seen for name in taken}
            assert len(names) >= 2
            for name in sorted(names):
                tune.forget()
                winning(monkeypatch, name)
                tuned = lampwork.compile(fn, mode="max-autotune", options={"cache": "off"})
                ours = (tuned(x).double() - wide).abs().max()
                assert ours <= 2 * eager + 1e-6, name
                if name:
                    assert f"{name}, 2.00 times as fast" in tuned.stages.tuning
                    assert name == "ATen" or f"with {name}" in tuned.stages.definitions


def test_no_random_numbers_are_drawn() -> None:
    net, x = linear()
    torch.manual_seed(3)
    want = torch.rand(2)
    torch.manual_seed(3)
    with torch.no_grad():
        lampwork.compile(net, mode="max-autotune")(x)
    assert torch.equal(torch.rand(2), want)


def test_sizes_that_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = linear()
    winning(monkeypatch, "tile 2x12" if host_isa().vector_bytes == 64 else "tile 1x8")
    tuned = lampwork.compile(model, mode="max-autotune", dynamic=True)
    with torch.no_grad():
        for rows in (40, 1, 2, 77, 200):
            x = torch.randn(rows, 100)
            torch.testing.assert_close(tuned(x), model(x))
    assert "[40?,100]" in tuned.entries[0].stages.tuning


def test_what_follows_is_still_computed_with_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = linear()
    model = nn.Sequential(model, nn.ReLU())
    name = varied_tile()
    winning(monkeypatch, name)
    tuned = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), model(x))
    assert tuned.stages.counts["kernel calls"] == 1
    assert f"with {name}" in tuned.stages.definitions


def varied_tile() -> str:
    tile = host_isa().tiles[-1]
    return f"tile {tile.vectors}x{tile.rows}"


@pytest.mark.parametrize(
    "name",
    ["tile 9x9", "tile", "rows 4", "sum_block 0", "sum_block 100000", "sum_block -1", "few_rows 1, ", "ATen"],
)
def test_names_that_are_no_variants(name: str) -> None:
    with pytest.raises(CodegenError):
        varied(host_isa(), name)


def test_candidates_have_names_that_are_read_again() -> None:
    target = host_isa()
    for kind in ("gemm", "conv", "attention"):
        for m in (1, 4, 5, 1000):
            for constant in (False, True):
                shape = tune.Shape(kind, "f32", m, 300, 300, constant)
                for name in candidates(shape, target):
                    for finer in (name, *refinements(name, shape, target)):
                        assert (varied(target, finer) == target) == (not finer), finer


def test_a_candidate_that_fails_to_compile_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(target, name):
        if name:
            raise CodegenError("no code for it")
        return target

    monkeypatch.setattr("lampwork.codegen.llvm.templates.prepack.varied", failing)
    seen = winning(monkeypatch, "ATen")
    model, x = linear()
    tuned = compiled(model, logs="tuning")
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), model(x))
    assert set(seen[0]) == {"", "ATen"}
    assert f"the variant {varied_tile()} is left out: [LW403] no code for it" in capsys.readouterr().err


# --- the store --------------------------------------------------------------------------------------------------------


def test_a_winner_is_what_was_kept() -> None:
    winner = Winner("tile 2x12", 1.5e-3, 2e-3)
    assert winner_from_bytes(winner_to_bytes(winner)) == winner


DAMAGE = {
    "nothing": "",
    "half": '{"variant": "", "seconds": ',
    "bytes": "\x00\xff" * 9,
    "a list": "[1, 2]",
    "many lists": "[" * 60_000,
    "no variant": lambda entry: {name: value for name, value in entry.items() if name != "variant"},
    "a number": lambda entry: entry | {"variant": 3},
    "no time": lambda entry: entry | {"seconds": None},
    "negative time": lambda entry: entry | {"seconds": -1.0},
    "a variant of nobody": lambda entry: entry | {"variant": "tile 77x1"},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_winner_of_no_use_is_measured_again(
    damage: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, x = linear()
    name = varied_tile()
    winning(monkeypatch, name)
    with torch.no_grad():
        compiled(model)(x)
        (key,) = keys()
        change, content = DAMAGE[damage], kept().get(key)
        assert content is not None
        text = change if isinstance(change, str) else json.dumps(change(json.loads(content)))
        kept().put(key, text.encode())
        if damage != "a variant of nobody":
            with pytest.raises(DamagedWinner):
                winner_from_bytes(text.encode())
        tune.forget()
        capsys.readouterr()
        seen = winning(monkeypatch, name)
        tuned = compiled(model, logs="tuning")
        torch.testing.assert_close(tuned(x), model(x))
        assert seen
        complaints = [line for line in capsys.readouterr().err.splitlines() if "of no use" in line]
        assert len(complaints) == 1 and str(key) in complaints[0]
        assert kept().get(key) == content
        tune.forget()
        refuse(monkeypatch)
        torch.testing.assert_close(compiled(model)(x), model(x))


def test_a_damaged_file_is_measured_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = linear()
    winning(monkeypatch, "")
    with torch.no_grad():
        compiled(model)(x)
        (path,) = (path for path in folder.glob("objects/??/*") if b'["tuning"' in path.read_bytes())
        path.write_bytes(path.read_bytes()[:-1])
        tune.forget()
        seen = winning(monkeypatch, "")
        compiled(model)(x)
        assert seen and len(keys()) == 1


def test_winners_of_another_version_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = linear()
    winning(monkeypatch, "")
    with torch.no_grad():
        compiled(model)(x)
        tune.forget()
        monkeypatch.setattr(winners, "VERSION", winners.VERSION + 1)
        seen = winning(monkeypatch, "")
        compiled(model)(x)
    assert seen and len(keys()) == 2


def test_files_of_other_layouts_are_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "tuning").mkdir(parents=True)
    (folder / "tuning" / "0a.json").write_text("{}")
    model, x = linear()
    seen = winning(monkeypatch, "")
    with torch.no_grad():
        compiled(model)(x)
    assert seen and [path.name for path in (folder / "tuning").iterdir()] == ["0a.json"]


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    winning(monkeypatch, "")
    model, x = linear()
    tuned = compiled(model, cache=str(tmp_path / "file"), logs="tuning,cache")
    (tmp_path / "file").rmdir()
    (tmp_path / "file").write_text("")  # it could be written when it was named
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), model(x))
    assert "(measured)" in tuned.stages.tuning
    assert "no folder is used" in capsys.readouterr().err


def test_where_the_folder_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder(Config()) == tmp_path / "lampwork"
    assert cache_folder(Config(cache="/elsewhere")) == Path("/elsewhere")
    assert cache_folder(Config(cache="off")) is None
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder(Config()) == Path.home() / ".cache" / "lampwork"


def test_another_machine_finds_what_was_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMPWORK_CACHE_REMOTE_KEY", "a secret of some length")
    (tmp_path / "share").mkdir()
    monkeypatch.setenv("LAMPWORK_CACHE_REMOTE", (tmp_path / "share").as_uri())
    model, x = linear()
    winning(monkeypatch, "")
    with torch.no_grad():
        compiled(model)(x)
        monkeypatch.setenv("LAMPWORK_CACHE", str(tmp_path / "another"))
        assert keys() == []
        refuse(monkeypatch)
        tuned = compiled(model)
        torch.testing.assert_close(tuned(x), model(x))
    assert "(kept)" in tuned.stages.tuning and len(keys()) == 1


def test_the_command_knows_winners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, x = linear()
    winning(monkeypatch, "")
    before = torch.get_num_threads()
    try:
        with torch.no_grad():
            for threads in (1, 2):
                torch.set_num_threads(threads)
                compiled(model)(x)
    finally:
        torch.set_num_threads(before)
    assert main(["why-miss", "--kind", "tuning"]) == 0
    said = capsys.readouterr().out
    assert "  threads: '2' was missed, '1' is there\n" in said
    assert "the same in both: cpu, product, target, torch, version\n" in said
    assert main(["export", str(tmp_path / "all.tar")]) == 0
    monkeypatch.setenv("LAMPWORK_CACHE", str(tmp_path / "another"))
    assert main(["import", str(tmp_path / "all.tar")]) == main(["verify"]) == 0
    capsys.readouterr()
    assert main(["info"]) == 0
    assert "  tuning" in capsys.readouterr().out and len(keys()) == 2


CHILD = """
import torch, lampwork
from torch import nn
from lampwork.backends.native.tuning import tune
torch.manual_seed(0)
calls = []
tune.measure = lambda runs, kept: calls.append(1) or {name: 1.0 + (run() is None) for name, run in runs.items()}
model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64)).eval()
x = torch.randn(16, 64)
tuned = lampwork.compile(model, mode="max-autotune")
with torch.no_grad():
    torch.testing.assert_close(tuned(x), model(x))
print(len(calls), "kept" in tuned.stages.tuning)
"""


def test_the_next_process_measures_nothing() -> None:
    for expected in ("True False", "False True"):
        done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
        calls, kept = done.stdout.split()
        assert f"{int(calls) > 0} {kept}" == expected
    assert len(keys()) == 2


def test_nothing_is_kept_where_the_cache_is_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = linear()
    winning(monkeypatch, "")
    with torch.no_grad():
        compiled(model, cache="off")(x)
        assert not (folder / "objects").exists()
        refuse(monkeypatch)
        compiled(model, cache="off")(x)  # what this process knows it need not measure again


def test_threads_and_machines_have_their_own_winners(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = linear()
    winning(monkeypatch, "")
    before = torch.get_num_threads()
    try:
        with torch.no_grad():
            for threads, isa in ((1, ""), (2, ""), (2, "sse4")):
                torch.set_num_threads(threads)
                compiled(model, isa=isa)(x)
    finally:
        torch.set_num_threads(before)
    assert len(keys()) == 3


# --- the budget, and what is shown ------------------------------------------------------------------------------------


def test_no_budget_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = linear()
    refuse(monkeypatch)
    tuned = compiled(model, tuning_seconds=0)
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), model(x))
    assert "the model's choice, as the 0 seconds of tuning are spent" in tuned.stages.tuning
    assert keys() == []


def test_winners_are_used_without_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = linear()
    name = varied_tile()
    winning(monkeypatch, name)
    with torch.no_grad():
        compiled(model)(x)
        tune.forget()
        refuse(monkeypatch)
        tuned = compiled(model, tuning_seconds=0)
        torch.testing.assert_close(tuned(x), model(x))
    assert f"with {name}" in tuned.stages.definitions


@pytest.mark.parametrize("mode", [None, "default", "reduce-overhead"])
def test_other_modes_measure_nothing(mode: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = linear()
    refuse(monkeypatch)
    plain = lampwork.compile(model, mode=mode)
    with torch.no_grad():
        torch.testing.assert_close(plain(x), model(x))
    assert "tuning" not in plain.stages
    assert keys() == []


@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_both_names_tune(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = linear()
    winning(monkeypatch, "")
    tuned = lampwork.compile(model, mode=mode)
    with torch.no_grad():
        tuned(x)
    assert "the model's choice is the best" in tuned.stages.tuning
    assert "tuned products" in tuned.stages.counts


def test_equal_products_are_one_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(nn.Linear(48, 48) for _ in range(5))).eval()
    seen = winning(monkeypatch, varied_tile())
    tuned = compiled(model)
    x = torch.randn(30, 48)
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), model(x))
    assert len(keys()) == 1
    assert len(seen) <= 2
    assert "(5 times)" in tuned.stages.tuning


def test_a_bar_on_a_terminal_and_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    bar = progress.Progress(2)
    bar.step("linear")
    bar.finish()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    bar.step("conv2d")
    bar.finish()
    text = capsys.readouterr().err
    assert "tuning [############............] 2/2 conv2d" in text
    assert text.endswith("\r\x1b[K")


def test_what_is_far_behind_leaves_the_race() -> None:
    counts = dict.fromkeys("abc", 0)

    def run(name: str, steps: int):
        def call() -> None:
            counts[name] += 1
            for _ in range(steps):
                pass

        return call

    taken = measure.measure({"a": run("a", 20_000), "b": run("b", 2_000), "c": run("c", 20_000)}, kept="a")
    assert set(taken) == {"a", "b"}
    assert taken["b"] < taken["a"]
    assert counts["c"] < counts["a"]
