"""`lampwork profile script.py`: the table, whatever becomes of the script, and the script's exit status."""

import json
import sys

import pytest

from lampwork.cli import main
from lampwork.inspect.machine.limits import Limits

LIMITS = Limits(1, 100.0, 10.0, 8.0, 30.0, 25.0, 90.0, 70.0, 1 << 25, 1 << 20)
BODY = """
import sys
import torch, lampwork, beside
fn = lampwork.compile(lambda x: (x * 2).sort().values)
fn(torch.randn(8))
fn(torch.randn(8))
assert __name__ == "__main__" and sys.argv[1:] == ["--by", "chance"] and beside.THERE
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setattr("lampwork.inspect.profile.session.limits_of_machine", lambda: LIMITS)
    (tmp_path / "beside.py").write_text("THERE = True\n")

    def write(end=""):
        (tmp_path / "script.py").write_text(BODY + end)
        return str(tmp_path / "script.py")

    yield write
    sys.modules.pop("beside", None)


def test_a_script_is_run_as_python_runs_it(script, tmp_path, capsys):
    before = sys.argv, sys.path[:]
    numbers, trace = tmp_path / "numbers.json", tmp_path / "trace.json"
    path = script()
    assert main(["profile", "--json", str(numbers), "--trace", str(trace), path, "--by", "chance"]) == 0
    table = capsys.readouterr().out
    assert "sort" in table and "in compiled regions" in table
    assert json.loads(numbers.read_text())["format"] == 1
    assert json.loads(trace.read_text())["traceEvents"]
    assert (sys.argv, sys.path) == before


@pytest.mark.parametrize(
    "end, status, says",
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('bad data')", 1, "bad data"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
    ],
)
def test_the_table_comes_however_the_script_ends(script, capsys, end, status, says):
    assert main(["profile", script(end), "--by", "chance"]) == status
    out, err = capsys.readouterr()
    assert "sort" in out and says in err
    if says == "ZeroDivisionError":
        assert "1 / 0" in err and "runpy" not in err and "scripts.py" not in err


def test_what_cannot_be_profiled(tmp_path, capsys):
    assert main(["profile", str(tmp_path / "none.py")]) == 1
    assert "there is no file" in capsys.readouterr().err
    (tmp_path / "bad.py").write_text("def f(:\n")
    assert main(["profile", str(tmp_path / "bad.py")]) == 1
    assert "SyntaxError" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["profile", "--most", "0", "x.py"])
    assert ended.value.code == 2
    assert "give 1 or more" in capsys.readouterr().err
