"""A report as a file: whatever names and sources hold, and by the command `lampwork explain`."""

from __future__ import annotations

import base64
import gzip
import html.parser
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lampwork
from lampwork.cli import main
from lampwork.errors import ReportError
from lampwork.inspect import report_data
from lampwork.inspect.report import page

HOSTILE = "</script><script>alert(1)</script><!-- ' \" & \\ \u2028 \u2029 \x00 \ud800 é 字"


class Scripts(html.parser.HTMLParser):
    """The script elements of a page, as a browser finds them: (attributes, content)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[dict[str, str | None], str]] = []
        self.open = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "script":
            self.found.append((dict(attrs), ""))
            self.open = True

    def handle_endtag(self, tag):
        self.open = self.open and tag != "script"

    def handle_data(self, data):
        if self.open:
            attributes, content = self.found[-1]
            self.found[-1] = attributes, content + data


def data_of(text: str) -> dict:
    (found,) = [each for each in Scripts(text).found if each[0].get("id") == "lampwork-data"]
    attributes, content = found
    assert attributes["type"] == "application/json"
    if attributes.get("data-encoding") == "gzip-base64":
        content = gzip.decompress(base64.b64decode(content)).decode()
    return json.loads(content)


def scripts_in(text: str) -> int:
    return len(Scripts(text).found)


def explained() -> lampwork.Explanation:
    return lampwork.explain(lambda x: torch.relu(x) + 1)(torch.ones(3))


def test_save_writes_one_file_with_the_data(tmp_path):
    found = explained()
    path = found.save(tmp_path / "report.html")
    text = path.read_text(encoding="utf-8")
    made = data_of(text)
    wanted = report_data(found)
    assert {**made, "made": ""} == {**wanted, "made": ""}
    assert scripts_in(text) == scripts_in(page.template())
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_hostile_text_stays_data():
    data = {"format": 1, "title": HOSTILE, "regions": [], "texts": [HOSTILE, "<!--<script>", "]]>"]}
    text = page.to_html(data)
    assert data_of(text) == data
    assert scripts_in(text) == scripts_in(page.template())
    added = text.replace(page.template().split("null</script>", maxsplit=1)[0], "").split("</script>", 1)[0]
    assert not set("<>&\u2028\u2029") & set(added)
    text.encode("utf-8")


def test_names_of_modules_and_sources_may_be_hostile(tmp_path):
    model = torch.nn.Sequential()
    model.add_module("</script><b>", torch.nn.Linear(2, 2))
    file = tmp_path / "'\"<script>é.py"
    file.write_text("def fn(x):\n    return x + 1  # </script><!-- \u2028\n", encoding="utf-8")
    scope: dict = {}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), scope)
    for found in (
        lampwork.explain(model.eval())(torch.ones(1, 2)),
        lampwork.explain(scope["fn"])(torch.ones(2)),
    ):
        text = found.save(tmp_path / "out.html").read_text(encoding="utf-8")
        assert scripts_in(text) == scripts_in(page.template())
        made, wanted = data_of(text), report_data(found)
        assert made["regions"] == wanted["regions"] and made["sources"] == wanted["sources"]
    assert "</script><!--" in json.dumps(wanted["sources"][str(file)])


def test_much_data_is_compressed():
    data = {"format": 1, "regions": [], "texts": [f"{n} {HOSTILE}" for n in range(40_000)]}
    text = page.to_html(data)
    assert 'data-encoding="gzip-base64"' in text
    assert data_of(text) == data
    assert len(text) - len(page.template()) < len(json.dumps(data)) / 4


def test_equal_data_is_an_equal_page():
    data = {"format": 1, "regions": [], "texts": ["a" * 2_000_000]}
    assert page.to_html(data) == page.to_html(data)


@pytest.mark.parametrize("name", ["none/report.html", ".", "file/report.html"])
def test_a_place_that_cannot_be_written_to(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError) as raised:
        explained().save(tmp_path / name)
    assert raised.value.code == "LW341" and "the report cannot be written to" in raised.value.cause
    assert raised.value.fix == "give the path of a file in a folder that exists and can be written to"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_is_read_only(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ReportError, match="Permission denied"):
        explained().save(tmp_path / "report.html")


def test_a_file_that_is_there_stays_when_writing_fails(tmp_path, monkeypatch):
    target = tmp_path / "report.html"
    target.write_text("before")

    def full(self, to):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ReportError, match="No space left on device"):
        explained().save(target)
    assert target.read_text() == "before" and list(tmp_path.iterdir()) == [target]


def test_an_installation_without_the_page(monkeypatch):
    monkeypatch.setattr(page.resources, "files", lambda package: Path("/none"))
    with pytest.raises(ReportError) as raised:
        page.to_html({"format": 1})
    assert "the page of the report cannot be read" in raised.value.cause
    assert raised.value.fix == "install Lampwork again"


# --- the command ------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
import torch
import lampwork

@lampwork.compile
def compiled(x, n):
    return torch.relu(x) * n

compiled(torch.ones(3), 2)
compiled(torch.ones(3).double(), 2)
lampwork.compile(torch.sin)(torch.ones(2))
if sys.argv[1:] == ["raise"]:
    raise ValueError("as told")
sys.exit(int(sys.argv[1]) if sys.argv[1:] else 0)
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    return "script.py"


def test_the_command_reports_all_that_a_script_compiles(script, tmp_path, capsys):
    assert main(["explain", script]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "script.py: 3 regions, 0 graph breaks, 0 refusals, 1 recompilation",
        f"report: {tmp_path / 'report.html'}",
    ]
    data = data_of((tmp_path / "report.html").read_text())
    assert data["title"] == "script.py"
    assert [each["name"] for each in data["functions"]] == ["compiled", "sin"]
    assert [each["name"] for each in data["regions"]] == ["compiled#0", "compiled#1", "sin#0"]
    assert "return torch.relu(x) * n" in "".join(data["sources"]["script.py"][0]["lines"])


@pytest.mark.parametrize(("argument", "status"), [("3", 3), ("0", 0), ("raise", 1)])
def test_its_status_is_that_of_the_script(script, tmp_path, capsys, argument, status):
    assert main(["explain", "-o", "other.html", script, argument]) == status
    assert len(data_of((tmp_path / "other.html").read_text())["regions"]) == 3
    err = capsys.readouterr().err
    assert ("ValueError: as told" in err) == (argument == "raise")


def test_a_script_that_compiles_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nothing.py").write_text("print('nothing')")
    assert main(["explain", "nothing.py"]) == 0
    assert capsys.readouterr().err.startswith("nothing.py: 0 regions")
    assert data_of((tmp_path / "report.html").read_text())["regions"] == []


def test_no_such_script(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["explain", "missing.py"]) == 1
    assert "there is no file 'missing.py'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_fails_the_command(script, capsys):
    assert main(["explain", "-o", "none/report.html", script]) == 1
    assert "[LW341]" in capsys.readouterr().err
    assert main(["explain", "-o", "none/report.html", script, "5"]) == 5


def test_it_runs_as_a_program(script, tmp_path):
    command = [sys.executable, "-m", "lampwork", "explain", "-o", "out.html", script, "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 4, done.stderr
    assert (tmp_path / "out.html").exists()
