"""Reports read back, and files that are none: each is an error that says why, and nothing in them runs."""

from __future__ import annotations

import base64
import copy
import gzip
import json

import pytest
import report_samples

import lampwork
from lampwork.cli import main
from lampwork.errors import ReportReadError
from lampwork.inspect import diff
from lampwork.inspect.difference.side import side_of
from lampwork.inspect.report import page, read
from lampwork.inspect.report.read import read_report

DATA = {"format": 1, "title": "</script> \u2028 é", "regions": []}
NOT_ONE = "give a file that `lampwork explain` or `Explanation.save` wrote, or its data as JSON"


def packed(content: bytes) -> str:
    text = base64.b64encode(content).decode()
    return f'<script type="application/json" id="lampwork-data" data-encoding="gzip-base64">{text}</script>'


@pytest.mark.parametrize("compressed", [1, 1 << 30])
def test_pages_and_data_are_read(tmp_path, monkeypatch, compressed):
    monkeypatch.setattr(page, "COMPRESSED", compressed)
    (tmp_path / "a.html").write_text(page.to_html(DATA), encoding="utf-8")
    (tmp_path / "a.json").write_text("\ufeff\n" + json.dumps(DATA), encoding="utf-8")
    assert read_report(tmp_path / "a.html").value == DATA
    assert read_report(str(tmp_path / "a.json")).value == DATA
    assert read_report(DATA).value == DATA


def test_what_is_saved_is_read(tmp_path):
    found = lampwork.explain(lambda x: x + 1)(lampwork.pristine.ones(2))
    path = found.save(tmp_path / "report.html")
    assert read_report(path)["regions"].value == lampwork.inspect.report_data(found)["regions"]


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "FILE is no report of Lampwork: it is empty"),
        (b"\xff\xfe\x00", "FILE is no report of Lampwork: it is no text"),
        (b"<html></html>", "FILE is no report of Lampwork: it holds no data of a report"),
        (b"[1, 2]", "FILE is no report of Lampwork: it holds no data of a report"),
        (b"{}", "FILE is no report of Lampwork: its data has no `format` or no `regions`"),
        (b'{"format": 1}', "FILE is no report of Lampwork: its data has no `format` or no `regions`"),
        (b'{"a": ' * 100_000, "FILE is no report of Lampwork: its data is nested too deep"),
        (b'{"format": NaN}', "the data in FILE is damaged: NaN is no number of JSON"),
        (b'{"format": 1, ', "the data in FILE is damaged: Expecting property name enclosed in double quotes"),
        (page.PLACE.encode(), "FILE is no report of Lampwork: the data is no object"),
        (page.PLACE[:-8].encode(), "FILE ends in the middle of its data"),
        (
            page.PLACE.replace(">null", " data-encoding='br'>null").encode(),
            "FILE is no report of Lampwork: its data is written in a way that is not known",
        ),
        (packed(b"what").encode(), "the data in FILE is damaged: Error -3 while decompressing data"),
        (packed(b"").replace("></", ">?!</").encode(), "the data in FILE is damaged: "),
        (packed(gzip.compress(b"{}")[:-9]).encode(), "FILE ends in the middle of its data"),
        (packed(gzip.compress(b"\xff")).encode(), "the data in FILE is damaged: 'utf-8' codec"),
    ],
)
def test_a_file_that_is_no_report(tmp_path, content, cause):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ReportReadError) as raised:
        read_report(path)
    assert raised.value.cause.replace(str(path), "FILE").startswith(cause)
    assert raised.value.code == "LW342" and raised.value.fix in (NOT_ONE, read.AGAIN)


def test_the_message_of_another_format():
    with pytest.raises(ReportReadError) as raised:
        read_report({"format": 2, "regions": []}, "b.html")
    assert str(raised.value) == (
        "[LW342] b.html is of format 2, and format 1 is read\n"
        "  fix: write both reports with one version of Lampwork"
    )


@pytest.mark.parametrize("version", [True, "1", [1], 1.0])
def test_a_format_of_another_type(version):
    with pytest.raises(ReportReadError, match="is read"):
        read_report({"format": version, "regions": []})


def test_no_file(tmp_path):
    with pytest.raises(ReportReadError, match="cannot be read: No such file or directory"):
        read_report(tmp_path / "none.html")
    with pytest.raises(ReportReadError, match="cannot be read: Is a directory"):
        read_report(tmp_path)
    with pytest.raises(ReportReadError, match="cannot be read: ValueError: embedded null"):
        read_report("a\0b")


def test_sizes_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(read, "LARGEST", 1 << 20)
    (tmp_path / "bomb.html").write_text(packed(gzip.compress(bytes(1 << 24))))
    (tmp_path / "large.json").write_text("{" + " " * (1 << 20))
    for name in ("bomb.html", "large.json"):
        with pytest.raises(ReportReadError, match=f"{name} is larger than 1 MiB"):
            read_report(tmp_path / name)


@pytest.mark.parametrize(
    ("path", "value", "cause"),
    [
        (("regions",), {}, "regions is no list"),
        (("regions", 0), "x", "regions[0] is no object"),
        (("regions", 0, "name"), 1, "regions[0].name is no string"),
        (("regions", 0, "seconds"), [], "regions[0].seconds is no object"),
        (("regions", 0, "groups", 3, "time"), "1", "regions[0].groups[3].time is no number"),
        (("regions", 0, "groups", 3, "time"), True, "regions[0].groups[3].time is no number"),
        (("regions", 0, "groups", 3, "time"), float("inf"), "regions[0].groups[3].time is out of range"),
        (("regions", 0, "groups", 3, "time"), float("nan"), "regions[0].groups[3].time is out of range"),
        (("regions", 0, "groups", 3, "time"), 10**400, "regions[0].groups[3].time is out of range"),
        (("regions", 0, "groups", 3, "calls"), -1, "regions[0].groups[3].calls is out of range"),
        (("regions", 0, "groups", 3, "nodes"), 7, "regions[0].groups[3].nodes is no list"),
        (("regions", 0, "backward"), 7, "regions[0].backward is no object"),
        (("regions", 0, "graphs", "steps", 1, "rewrites", 0, "changed", 0), 7, "changed[0] is no list"),
        (("records", 0, "line"), "7", "records[0].line is no number"),
        (("options", "mode"), 10**400, "options.mode is out of range"),
    ],
)
def test_a_value_of_another_type_says_where_it_stands(path, value, cause):
    data = copy.deepcopy(report_samples.encoder(1))
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(ReportReadError) as raised:
        diff(data, data)
    assert raised.value.cause.startswith("before is no report of Lampwork: ") and cause in raised.value.cause


def test_all_that_may_be_absent_may_be_absent():
    assert str(diff({"format": 1, "regions": [{}]}, {"format": 1, "regions": [{}]})).endswith(
        "nothing differs"
    )


def test_texts_do_nothing_to_a_terminal(capsys, tmp_path):
    data = copy.deepcopy(report_samples.encoder(1))
    data["records"][0]["cause"] = "\x1b[31mred\x1b[0m \ud800 \u202e \x00"
    data["records"][0]["line"] = 70
    data["title"] = "\x1b]0;title\x07"
    (tmp_path / "a.json").write_text(json.dumps(report_samples.encoder(1)))
    (tmp_path / "b.json").write_text(json.dumps(data))
    assert main(["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    out = capsys.readouterr().out
    assert "\\x1b[31mred\\x1b[0m \\ud800 \\u202e \\x00" in out
    assert out.replace("\n", "").isprintable()


def test_hostile_names_stay_text():
    found = diff(report_samples.encoder(1), report_samples.hostile())
    assert "<img" in str(found) and "<img" not in found._repr_html_()


def test_sides_of_real_data_know_their_nodes():
    side = side_of(read_report(report_samples.encoder(1)))
    assert {node.module for node in side.nodes if node.op == "aten::gelu"} == {"encoder.layer.0"}
