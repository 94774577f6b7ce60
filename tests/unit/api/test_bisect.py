"""`lampwork bisect` and `lampwork rewrites`: the command line, on scripts with a wrong rewrite."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from lampwork.cli import main
from lampwork.errors import BisectError, OptionError
from lampwork.inspect.bisect import bisect
from lampwork.plugins.registry import registry

SCRIPT = """
    import sys
    import torch
    import lampwork
    from torch import Tensor

    lampwork.rewrite("sin(neg(x))", "neg(sin(x))", name="right")

    @lampwork.rewrite
    class WrongHalf:
        def pattern(x: Tensor):
            return torch.tanh(x * 0.5)

        def replacement(x):
            return torch.tanh(x)

    def model(x):
        y = torch.sin(-x)
        z = torch.tanh(y * 0.5)
        return torch.relu(z)

    x = torch.linspace(-2, 2, 12).reshape(3, 4)
    got = lampwork.compile(model)(x)
    sys.exit(0 if torch.allclose(got, model(x), atol=1e-5) else 1)
"""
HALF_LINE = SCRIPT.splitlines().index("            return torch.tanh(x * 0.5)")
USER_LINE = SCRIPT.splitlines().index("        z = torch.tanh(y * 0.5)") + 1


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("LAMPWORK_FUEL", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return str(path)


def quiet(text: str) -> None: ...


@pytest.mark.slow
def test_it_names_the_rewrite_its_source_and_the_line(script: str) -> None:
    said: list[str] = []
    found = bisect(script, say=said.append)
    assert (found.rewrite, found.step, found.node, found.target) == (
        "wrong_half",
        "rewrites",
        "tanh",
        "aten.tanh.default",
    )
    assert found.source == f"{script}:{HALF_LINE}"
    assert found.line == f"{script}:{USER_LINE} in model"
    assert said[0] == "run 1, all rewrites: wrong, exit status 1"
    assert said[1] == "run 2, 0 rewrites: right, exit status 0"
    assert len(said) == found.runs <= 4
    assert "without it: LAMPWORK_PASSES=-wrong_half" in str(found)


STAND_IN = """
    # Does with fuel and passes what a script with 1000 rewrites would, of which number 700 is wrong.
    import json, os, sys
    off = os.environ.get("LAMPWORK_PASSES", "")
    steps = [s for s in ("one", "two", "three", "four") if f"-{s}" not in off.split(",")]
    happened = [(s, f"{s}.{n}") for s in steps for n in range(250)][: int(os.environ["LAMPWORK_FUEL"])]
    with open(os.environ["LAMPWORK_FUEL_LOG"], "a") as log:
        for number, (step, name) in enumerate(happened):
            log.write(json.dumps({"number": number + 1, "name": name, "pass": step}) + "\\n")
    wrong = "fine" not in sys.argv and ("three", "three.199") in happened
    sys.exit(1 if wrong or "always" in sys.argv else 0)
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> str:
    path = tmp_path / "stand_in.py"
    path.write_text(textwrap.dedent(STAND_IN))
    return str(path)


@pytest.mark.parametrize("passes", [False, True])
def test_a_thousand_rewrites_take_a_dozen_runs(stand_in: str, passes: bool) -> None:
    said: list[str] = []
    found = bisect(stand_in, passes=passes, say=said.append)
    assert (found.number, found.rewrite, found.step) == (700, "three.199", "three")
    assert found.total == (750 if passes else 1000) and found.runs <= 15
    assert ("pass three is at fault" in said) is passes


@pytest.mark.parametrize(
    "argument, message",
    [
        ("fine", "the script succeeds with all rewrites"),
        ("always", "the script fails without any rewrite too"),
    ],
)
def test_when_there_is_nothing_to_find_it_says_so(stand_in: str, argument: str, message: str) -> None:
    with pytest.raises(BisectError, match=message):
        bisect(stand_in, [argument], say=quiet)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(OptionError, match="there is no file 'nothing.py'"):
        bisect("nothing.py", say=quiet)


def test_a_script_that_does_not_end_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "slow.py"
    path.write_text("import os, time\nif os.environ['LAMPWORK_FUEL'] != '0': time.sleep(60)\n")
    said: list[str] = []
    with pytest.raises(BisectError, match="does not do the same"):
        bisect(str(path), timeout=0.5, say=said.append)
    assert said[0] == "run 1, all rewrites: wrong, no end in 0.5 seconds"


def test_the_command(stand_in: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", "--quiet", stand_in]) == 0
    assert capsys.readouterr().out.startswith("rewrite 700 of 1000 breaks it: three.199\n  pass: three\n")
    assert main(["bisect", "--quiet", stand_in, "fine"]) == 2
    assert "succeeds with all rewrites" in capsys.readouterr().err
    assert main(["bisect", "nothing.py"]) == 1
    assert "there is no file" in capsys.readouterr().err
    assert main(["rewrites", "nothing.py"]) == 1
    assert "there is no file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["bisect", "--timeout", "-1", stand_in])
    assert "-1 is no time, give seconds above 0" in capsys.readouterr().err


def test_rewrites_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "listed.py"
    path.write_text('import lampwork\nlampwork.rewrite("log(exp(x))", "x", name="listed")\n')
    try:
        assert main(["rewrites", "--json", str(path)]) == 0
    finally:
        registry().items["listed"].unregister()
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["listed"]["source"] == f"{path}:2" and "neg(neg(x)) -> x" in rows
    assert main(["rewrites", "--never-fired"]) == 0
    assert capsys.readouterr().out.startswith("name ")


def test_the_command_rewrites_runs_a_script_as_python_does(tmp_path: Path, capfd: Any) -> None:
    def listed(text: str) -> tuple[int, str, str]:
        script = tmp_path / "script.py"
        script.write_text(text)
        done = subprocess.run(
            [sys.executable, "-m", "lampwork", "rewrites", str(script)], capture_output=True, text=True
        )
        return done.returncode, done.stdout, done.stderr

    (tmp_path / "beside_the_script.py").write_text("NAME = 'from-beside'")
    code, out, err = listed(
        "import sys, lampwork, beside_the_script as b\nlampwork.rewrite('sin(x)', 'x', name=b.NAME)\nsys.exit(3)"
    )
    assert code == 3 and "from-beside" in out and not err
    code, out, err = listed("def f():\n    raise ValueError('mine')\nf()")
    assert (
        code == 1 and "algebra" in out and err.startswith("Traceback") and err.endswith("ValueError: mine\n")
    )
    assert err.count("File") == 2 and "runpy" not in err
    for missing in (str(tmp_path / "nofile.py"), str(tmp_path)):
        assert main(["rewrites", missing]) == 1
        assert f"there is no file {missing!r}" in capfd.readouterr().err
