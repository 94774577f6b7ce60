"""Options are judged where they are given: arguments and contexts raise, variables of the environment are warned of."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import torch

import lampwork
from lampwork import config
from lampwork.checks import Check
from lampwork.codegen.llvm.isa.x86 import _WIDTHS
from lampwork.config import Config
from lampwork.errors import LampworkWarning, OptionError

X = torch.arange(4.0)


def fn(x):
    return x.relu() + 1


WRONG = {
    "strict": ["yes", 1, None],
    "verify": ["grph", [1], 1.0],
    "passes": ["-foo", "algebra", 3],
    "fuel": [-2, True, "1"],
    "pass_timeout": [-1, 1.5],
    "logs": ["graph_breaks", "graph,gards", None],
    "dump": ["/proc/nope", __file__, 3, "a\0b", "~nosuchuser/x"],
    "isa": ["neon", "AVX2", 2],
    "numerics": ["exact", None],
    "fusion": [0, "off"],
    "arena": [None, "shared"],
    "recompile_limit": [-3, 0, "8", True],
    "error_on_recompile": [1],
    "backend_timeout": [-1, "60"],
    "mode": ["max-autotun", 3],
    "tuning_seconds": [-1, float("nan"), float("inf"), "5"],
    "weights": ["pakced"],
    "memory_budget": [1.5, -0.1, float("nan"), "half"],
    "cache": [__file__, 3, "~nosuchuser/x"],
    "cache_remote": [3, "bucket/folder", "redis://:password@host"],
    "cache_bytes": [-1, 1.5, "2 GiB", True],
}


def test_every_option_has_a_check_and_wrong_values_of_this_test():
    assert set(config.checks()) == {field.name for field in fields(Config)} == set(WRONG)
    assert all(check.is_told for check in config.checks().values())


def test_an_option_without_a_check_is_found_at_once(monkeypatch):
    @dataclass
    class Lax:
        strict: bool = False

    monkeypatch.setattr(config, "Config", Lax)
    with pytest.raises(TypeError, match="the option strict declares 0 checks"):
        config.checks.__wrapped__()


@pytest.mark.parametrize("name, value", [(n, v) for n, values in WRONG.items() for v in values])
def test_a_wrong_value_is_refused_where_it_is_given(name, value):
    before = config.current()
    with pytest.raises(OptionError) as by_argument:
        lampwork.compile(fn, options={name: value})
    with pytest.raises(OptionError) as by_context, config.using(**{name: value}):
        pass
    with config.using(strict=True), pytest.raises(OptionError), config.using(**{name: value}):
        pass
    assert by_argument.value.cause == by_context.value.cause and by_argument.value.fix
    assert name in by_argument.value.cause and config.current() == before


@pytest.mark.parametrize(
    "name, value, fix",
    [
        ("logs", "graph_breaks", "did you mean 'breaks'?"),
        ("isa", "avx51", "did you mean 'avx512'?"),
        ("passes", "-algebre", "did you mean 'algebra'?"),
        ("verify", "grap", "did you mean 'graph'?"),
        ("recompile_limt", 3, "did you mean 'recompile_limit'?"),
        ("max_autotune", True, 'pass mode="max-autotune"'),
    ],
)
def test_the_fix_names_the_nearest(name, value, fix):
    with pytest.raises(OptionError) as caught:
        lampwork.compile(fn, options={name: value})
    assert fix in caught.value.fix


def test_right_values_are_kept_in_one_form(tmp_path):
    with config.using(
        verify=True, tuning_seconds=3, logs="graph, breaks", dump=str(tmp_path / "a" / "b")
    ) as now:
        assert (now.verify, now.tuning_seconds, type(now.tuning_seconds)) == ("graph", 3.0, float)
        assert (tmp_path / "a" / "b").is_dir() and not list((tmp_path / "a" / "b").iterdir())


def test_passes_that_are_registered_may_be_named():
    with pytest.raises(OptionError, match="called 'mine_of_options'"):
        lampwork.compile(fn, options={"passes": "-mine_of_options"})
    rewrite = lampwork.rewrite("neg(neg(x))", "x", name="mine_of_options")
    try:
        compiled = lampwork.compile(fn, options={"passes": "-mine_of_options"})
    finally:
        rewrite.unregister()
    assert torch.equal(compiled(X), fn(X))


def test_instruction_sets_are_those_of_the_backend():
    assert set(config.INSTRUCTION_SETS) == {*_WIDTHS, "grid"}


# --- the environment --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, text",
    [
        ("LOGS", "graph_breaks"),
        ("FUEL", "many"),
        ("ISA", "neon"),
        ("DUMP", "/proc/nope"),
        ("STRICT", "si"),
        ("CACHE", "~nosuchuser/x"),
    ],
)
def test_a_wrong_variable_is_warned_of_once_and_left_out(monkeypatch, name, text):
    config._read.cache_clear()
    monkeypatch.setenv(f"LAMPWORK_{name}", text)
    with pytest.warns(LampworkWarning) as caught:
        for _ in range(3):
            assert torch.equal(lampwork.compile(fn)(X), fn(X))
    (warning,) = caught
    assert str(warning.message).startswith(f"LAMPWORK_{name}={text!r} is left out: ")
    assert "\n  fix: " in str(warning.message) and warning.filename == __file__
    assert getattr(config.current(), name.lower()) == getattr(Config(), name.lower())


def test_a_wrong_variable_beside_a_right_one(monkeypatch):
    config._read.cache_clear()
    monkeypatch.setenv("LAMPWORK_PASSES", "algebra")
    monkeypatch.setenv("LAMPWORK_FUEL", "7")
    with pytest.warns(LampworkWarning, match="'algebra' has no sign"):
        assert (config.current().passes, config.current().fuel) == ("", 7)


def test_a_pass_that_a_variable_names_may_be_registered_later(monkeypatch):
    name = f"later_{uuid.uuid4().hex}"
    monkeypatch.setenv("LAMPWORK_PASSES", f"-{name}")
    compiled = lampwork.compile(lambda x: -(-x))
    with pytest.warns(LampworkWarning, match=f"no pass or rewrite is called '{name}', which is left out"):
        assert torch.equal(compiled(X), X)
    rewrite = lampwork.rewrite("neg(neg(x))", "x", name=name)
    try:
        assert torch.equal(lampwork.compile(lambda x: -(-x))(X), X) and rewrite.hits == 0
    finally:
        rewrite.unregister()


def test_a_program_starts_with_a_wrong_environment():
    program = "import lampwork, torch; print(lampwork.compile(torch.relu)(torch.ones(2)).sum().item())"
    wrong = {"LAMPWORK_LOGS": "graph_breaks", "LAMPWORK_STRICKT": "1", "LAMPWORK_CACHE": "~nosuchuser/x"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **wrong},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and done.stdout == "2.0\n", done.stderr
    assert done.stderr.count("LAMPWORK_LOGS='graph_breaks' is left out") == 1
    assert done.stderr.count("LAMPWORK_CACHE='~nosuchuser/x' is left out") == 1
    assert (
        done.stderr.count(
            "nothing reads the environment variable LAMPWORK_STRICKT\n  fix: did you mean 'LAMPWORK_STRICT'"
        )
        == 1
    )


def test_variables_of_others_are_no_business_of_ours(recwarn):
    config.check_environment({"LAMPWORK": "x", "LAMPWORK_FUZZ": "3", "MY_LAMPWORK_X": "1", "lampwork_y": "1"})
    assert not recwarn.list


def test_every_variable_that_is_read_is_known():
    root = Path(__file__).parents[3]
    known = {*config.OTHER_VARIABLES, *(f"LAMPWORK_{name.upper()}" for name in config.option_names())}
    for path in [*(root / "src").rglob("*.py"), root / "setup.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                if text.startswith("LAMPWORK_") and text.replace("_", "").isalnum() and text != "LAMPWORK_":
                    assert text in known, f"{path}: {text}"


def test_checks_take_what_they_say():
    assert isinstance(config.checks()["passes"], Check)
    assert config.checks()["strict"].read("strict", " On ") is True
    assert config.checks()["verify"].read("verify", "0") == ""
    assert config.checks()["memory_budget"].read("memory_budget", "0.5") == 0.5
