"""`lampwork env`: what there is, and whether Lampwork works here; whatever is broken, it says so and goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lampwork.cli import main
from lampwork.inspect import environment as told
from lampwork.inspect import self_test
from lampwork.inspect.environment import environment
from lampwork.inspect.self_test import Trial

GOOD = (Trial("a function on cpu", 0.5),)


@pytest.fixture
def quick(monkeypatch):
    """Without a process of its own."""
    monkeypatch.setattr(told, "self_test", lambda device: GOOD)


def section(found, name):
    return {each.name: (each.value, each.problem) for each in found.entries if each.section == name}


def test_the_command(tmp_path, monkeypatch, capsys):
    """All of it, with a self-test in a process of its own and a cache folder in a home that is not shown."""
    home = tmp_path / "someone"
    home.mkdir()
    for name in ("XDG_CACHE_HOME", "LAMPWORK_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(home), "LAMPWORK_TOKEN": "secret", "SECRET": "secret"}.items():
        monkeypatch.setenv(name, value)
    status = main(["env", "--json"])
    out = capsys.readouterr().out
    data = json.loads(out)
    assert status == 0 and data["ok"], out
    assert [each["name"] for each in data["self-test"][:2]] == ["a function on cpu", "a training step on cpu"]
    assert all(each["seconds"] > 0 and each["failure"] == "" for each in data["self-test"])
    assert data["versions"]["lampwork"].startswith("0.1.0, in ") and "llvmlite" in data["versions"]
    assert data["cache"]["folder"].startswith("~/.cache/lampwork")
    assert data["variables"]["LAMPWORK_TOKEN"] == ""
    assert "LAMPWORK_TOKEN" in {each["name"] for each in data["problems"]}
    assert "secret" not in out and "someone" not in out


@pytest.mark.usefixtures("quick")
def test_all_sections_in_order():
    found = environment({})
    names = list(dict.fromkeys(each.section for each in found.entries))
    assert names == ["versions", "machine", "GPU", "cache", "variables", "packages", "options"]
    assert found.ok and repr(found).startswith("Environment(OK, ")
    assert section(found, "variables") == {"LAMPWORK_*": ("none is set", "")}
    assert torch.__version__ in section(found, "versions")["torch"][0]
    assert set(section(found, "packages")) == set(told.PACKAGES)
    assert {"system", "CPU", "instructions", "features", "cores", "threads", "memory"} == set(
        section(found, "machine")
    )
    assert str(found).splitlines()[-2:] == ["self-test", "  a function on cpu: OK, first call 500 ms"]
    assert "<table>" in found._repr_html_()


@pytest.mark.usefixtures("quick")
def test_variables_and_what_is_wrong_with_them():
    found = section(
        environment(
            {"LAMPWORK_STRICT": "maybe", "LAMPWORK_FUZZ": "1", "LAMPWORK_LOG": "token", "OTHER": "x"}
        ),
        "variables",
    )
    assert found["LAMPWORK_STRICT"] == (
        "'maybe'",
        "left out: option 'strict' takes True or False, got 'maybe'; pass True or False",
    )
    assert found["LAMPWORK_FUZZ"] == ("'1'", "")
    value, problem = found["LAMPWORK_LOG"]
    assert value == "" and problem.startswith("nothing reads it: did you mean 'LAMPWORK_LOGS'?")
    assert "OTHER" not in found


@pytest.mark.usefixtures("quick")
def test_options_in_force():
    with told.config.using(strict=False, verify="", cache="", fuel=3, numerics="fast"):
        assert section(environment({}), "options") == {"fuel": ("3", ""), "numerics": ("'fast'", "")}


@pytest.mark.usefixtures("quick")
def test_the_cache_folder(tmp_path, monkeypatch):
    with told.config.using(cache="off"):
        assert section(environment({}), "cache") == {"folder": ("off: nothing is kept", "")}
    with told.config.using(cache=str(tmp_path / "kept")):
        (tmp_path / "kept").rmdir()  # made where the option was given
        assert section(environment({}), "cache")["folder"][0].endswith("kept, not there yet")
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept" / "file").write_bytes(bytes(2048))
        assert section(environment({}), "cache")["size"] == ("2.0 KiB in 1 file", "")
        monkeypatch.setattr(told.os, "access", lambda path, mode: False)
        assert section(environment({}), "cache")["folder"][1] == "cannot be written to"


@pytest.mark.usefixtures("quick")
def test_what_cannot_be_found_says_why(monkeypatch):
    def broken(*args, **kwargs):
        raise OSError("the disk is on fire")

    monkeypatch.setattr(told.Path, "read_text", broken)
    monkeypatch.setattr(told, "cache_folder", broken)
    monkeypatch.setattr(told.torch.cuda, "is_available", broken)
    monkeypatch.setattr(told.importlib.metadata, "version", broken)
    monkeypatch.setattr(told.importlib.util, "find_spec", broken)
    monkeypatch.setattr(told, "host_flags", broken)
    monkeypatch.setattr(told, "processor", broken)
    found = environment({})
    why = "not known: OSError: the disk is on fire"
    machine = section(found, "machine")
    assert machine["memory"] == machine["CPU"] == machine["features"] == ("", why)
    assert machine["system"][1] == "" and section(found, "versions")["llvmlite"] == ("", why)
    assert (
        section(found, "GPU")
        == section(found, "cache")
        == {"not known": ("", "OSError: the disk is on fire")}
    )
    assert section(found, "packages")["onnx"] == ("", why)
    assert found.ok and "lampwork" in section(found, "versions")


@pytest.mark.usefixtures("quick")
def test_cards(monkeypatch):
    class Properties:
        name, major, minor, total_memory = "A card", 9, 0, 80 << 30

    monkeypatch.setattr(told.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(told.torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(told.torch.cuda, "get_device_properties", lambda index: Properties)
    found = environment({})
    cards = section(found, "GPU")
    assert cards["cuda:0"] == ("A card, capability 9.0, 80.0 GiB", "")
    assert "driver" in cards and len(found.trials) == 2 * len(GOOD)


@pytest.mark.parametrize(
    ("home", "text", "shown"),
    [
        ("/home/me", "/home/me/x:/home/me", "~/x:~"),
        ("/home/me", "/home/megan/x /home/me-2", "/home/megan/x /home/me-2"),
        ("/", "/usr/bin", "/usr/bin"),
    ],
)
def test_the_home_folder_is_not_shown(monkeypatch, home, text, shown):
    monkeypatch.setattr(told.Path, "home", lambda: Path(home))
    assert told._hider()(text) == shown


# --- the self-test ----------------------------------------------------------------------------------------------------


@pytest.fixture
def failing(monkeypatch):
    monkeypatch.setattr(told, "self_test", lambda device: (*GOOD, Trial("it", None, "Traceback\nboom")))


@pytest.mark.usefixtures("failing")
def test_a_failure_is_told_in_full(capsys):
    assert main(["env"]) == 1
    assert capsys.readouterr().out.endswith("  it: FAILED\n    Traceback\n    boom\n")
    assert main(["env", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_wrong_results_and_errors_are_failures(monkeypatch, capsys):
    def wrong(device):
        self_test._equal("the sum", torch.ones(2), torch.zeros(2))

    monkeypatch.setattr(
        self_test, "TRIALS", {"wrong": wrong, "raises": lambda device: 1 / 0, "good": lambda d: 0.5}
    )
    self_test.main("cpu")
    lines = capsys.readouterr().out.splitlines()
    found = [self_test._trial(line.removeprefix(self_test._START)) for line in lines]
    assert [each.name for each in found] == ["wrong on cpu", "raises on cpu", "good on cpu"]
    assert "the sum is not eager's: Tensor-likes are not close" in found[0].failure
    assert "ZeroDivisionError" in found[1].failure and found[2] == Trial("good on cpu", 0.5)


@pytest.mark.parametrize(
    ("program", "failure"),
    [
        ('import os; print(\'result: ["one", 1.0, ""]\', flush=True); os.abort()', "it ended by signal 6"),
        ("import sys; sys.exit('no torch')", "it ended with 1\nno torch"),
        ("pass", "it ended with 0"),
        ("import time; time.sleep(60)", "no end in 0.5 seconds"),
    ],
)
def test_a_process_that_does_not_end_well(monkeypatch, program, failure):
    monkeypatch.setattr(self_test, "_PROGRAM", program)
    found = self_test.self_test(timeout=0.5 if "sleep" in program else 60)
    assert found[-1].failure == failure and len(found) == 1 + ("result" in program)


def test_no_process_can_be_started(monkeypatch):
    monkeypatch.setattr(self_test.sys, "executable", "/none")
    (found,) = self_test.self_test()
    assert found.failure.startswith("no process could be started: FileNotFoundError")


@pytest.mark.parametrize("name", self_test.TRIALS)
def test_what_is_tried_works(name):
    assert self_test.TRIALS[name]("cpu") > 0
