"""Files that people asked for are written as a whole, where they said, or not at all."""

import os
import stat
import subprocess
import sys
import threading

import pytest

import lampwork
from lampwork.errors import ProfileError, ReportError
from lampwork.inspect.explanation import Explanation
from lampwork.written import write_whole

EMPTY = Explanation("f", (), (), (), ())


def save(path):
    return EMPTY.save(path)


def test_a_file_that_is_there_keeps_its_mode(tmp_path):
    path = tmp_path / "report.html"
    path.touch(0o600)
    save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and path.stat().st_size > 1000
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_link_is_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link.html").symlink_to(tmp_path / "real" / "report.html")
    assert save(tmp_path / "link.html") == tmp_path / "link.html"
    assert (tmp_path / "link.html").is_symlink() and (tmp_path / "real" / "report.html").is_file()


def test_a_pipe_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    save(pipe)
    reader.join()
    assert read[0].startswith(b"<!doctype html>".upper()) or read[0].lower().startswith(b"<!doctype html>")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_the_longest_name(tmp_path):
    save(tmp_path / ("r" * 250 + ".html"))


@pytest.mark.parametrize("path", ["", ".", "/", "a\0b", "\ud800\0", "no folder/report.html", "r" * 300])
def test_a_path_that_cannot_be(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ReportError, match="the report cannot be written to"):
        save(path)
    with lampwork.profile() as p:
        pass
    with pytest.raises(ProfileError, match="the profile cannot be written to"):
        p.save(path)
    assert os.listdir(tmp_path) == []


def test_nothing_is_left_of_what_was_not_written(tmp_path):
    path = tmp_path / "there"
    path.mkdir()
    with pytest.raises(ReportError, match="it names no file"):
        write_whole(path, "text", "the report", ReportError)
    assert os.listdir(tmp_path) == ["there"]


SCRIPT = """
import os, sys
os.chdir("away")
child = os.fork()
if child == 0:
    sys.exit(3)
print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_only_the_process_of_the_command_reports_and_where_it_began(tmp_path):
    (tmp_path / "away").mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "lampwork",
            "profile",
            "--json",
            "numbers.json",
            "--trace",
            "trace.json",
            "script.py",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "child ended with 3" in done.stdout and done.stdout.count("% of it in compiled regions") <= 1
    assert sorted(os.listdir(tmp_path)) == ["away", "numbers.json", "script.py", "trace.json"]


def test_a_profile_ends_once_and_only_itself():
    with lampwork.profile() as first:
        pass
    with lampwork.profile() as second:
        with pytest.raises(ProfileError, match="a second time"):
            first.__exit__(None, None, None)
    with pytest.raises(ProfileError, match="has not begun"):
        lampwork.profile().__exit__(None, None, None)
    assert second.wall > 0


def test_a_profile_that_nobody_can_end_makes_room():
    lampwork.profile().__enter__()
    with lampwork.profile() as p:
        pass
    assert p.wall > 0


def test_cells_of_tables_are_lines():
    from lampwork.display import Table

    assert str(Table(("a", "b"), (("x\ny", "z"),))).splitlines() == ["a    b", "x y  z"]
