"""The page of a study: made of the document alone, with all its numbers, and pictures that say what they show."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import canned
import pytest

from lampwork.cli import main
from lampwork.errors import StudyError
from lampwork.study import page
from lampwork.study.document import check, read, to_json

SVG = "{http://www.w3.org/2000/svg}"


def test_the_page_says_where_it_was_measured_and_what_surprised():
    text = page(canned.document())["study.md"]
    assert (
        "Measured on Some CPU (avx2), torch 2.13, Python 3.11. Code is made for avx2; 2 threads, a batch of 8"
        in text
    )
    assert "* Nothing else is worth as much to any architecture as fusion to dense" in text
    assert "quick run" not in text
    assert text.endswith("\n") and "\n\n\n" not in text


def test_tables_have_the_numbers_of_the_pictures():
    text = page(canned.document())["study.md"]
    assert "| dense | 1.50 ± 0.01 | 1.20 ± 0.01 | 1.01 ± 0.01 | 1.00 ± 0.01 |" in text
    assert "| sparse | 1.04 ± 0.01 | 0.80 ± 0.00 | 0.99 ± 0.00 | 1.00 ± 0.01 |" in text
    assert "| dense | 20 ms | 10 ms | 2.00 | 30 ms | 1.01 ± 0.01 | 500 ms | 1.0 MiB |" in text
    for name in ("worth", "speed", "fusion", "traffic", "time"):
        assert re.search(rf"!\[[^\]]+the table has the numbers\]\(study-{name}\.svg\)", text)


def test_every_table_is_one():
    for block in re.findall(r"(?:^\|.*\n)+", page(canned.document())["study.md"], re.M):
        lines = block.splitlines()
        assert {line.count("|") for line in lines} == {lines[0].count("|")}
        assert set(lines[1]) <= set("|-: ")


@pytest.mark.parametrize("name", ["worth", "speed", "fusion", "traffic", "time"])
def test_pictures_are_svg_with_a_title_a_description_and_two_sets_of_colours(name):
    text = page(canned.document())[f"study-{name}.svg"]
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img" and root.get("aria-labelledby") == "title says"
    assert [root[0].tag, root[1].tag] == [f"{SVG}title", f"{SVG}desc"] and root[0].text and root[1].text
    assert "prefers-color-scheme: dark" in text
    words = [each.text for each in root.iter(f"{SVG}text")]
    assert "dense" in words and "sparse" in words
    width, height = (float(each) for each in root.get("viewBox").split()[2:])
    for each in root.iter(f"{SVG}rect"):
        assert float(each.get("x")) + float(each.get("width")) <= width
        assert float(each.get("y")) + float(each.get("height")) <= height


def test_the_heat_map_colours_what_counts_beyond_the_noise():
    root = ElementTree.fromstring(page(canned.document())["study-worth.svg"])
    shades = [each.get("class") for each in root.iter(f"{SVG}rect")]
    assert shades == ["p3", "p2", "c0", "p1", "n2", "c0"]


def test_the_page_depends_on_the_document_alone():
    first = page(canned.document())
    assert first == page(json.loads(to_json(canned.document())))
    assert sorted(first) == [
        "study-fusion.svg",
        "study-speed.svg",
        "study-time.svg",
        "study-traffic.svg",
        "study-worth.svg",
        "study.md",
    ]


def test_names_are_text_whatever_is_in_them():
    row = canned.row("<b>&|*", {"fusion": 1.2, "packing": 1.0, "arena": 1.0})
    row["representation"]["breaks"] = [{"code": "LW100", "cause": "a | b <script> *c*\nd"}]
    made = page(canned.document(row))
    ElementTree.fromstring(made["study-worth.svg"])
    assert "a \\| b \\<script\\> \\*c\\* d" in made["study.md"] and "<script>" not in made["study-worth.svg"]
    assert "| <b>&\\|* |" in made["study.md"]


def test_what_failed_says_why():
    gone = {"name": "gone", "says": "nothing", "batch": 8, "failure": "RuntimeError: it [broke]"}
    part = canned.row("part", {"fusion": 1.2, "packing": 1.0, "arena": 1.0})
    part["switches"]["arena"] = {**canned.failed("OSError: no room"), "steps": 0, "changes_code": False}
    text = page(canned.document(gone, part))["study.md"]
    assert "### gone\n\nNothing.\n\nIt could not be measured: RuntimeError: it \\[broke\\]" in text
    assert (
        "| part | 1.20 ± 0.01 | 1.00 ± 0.01 | failed | 1.00 ± 0.01 |" in text
        and "* arena failed: OSError: no room." in text
    )
    assert "## How to measure it again" in page(canned.document(gone))["study.md"]


def test_a_quick_run_says_that_it_is_one():
    document = canned.document()
    document["settings"]["quick"] = True
    for row in document["architectures"]:
        for part in ("time", "one_sample", "bfloat16"):
            del row[part]
    made = page(document)
    assert "This is a quick run" in made["study.md"] and "study-time.svg" not in made
    assert "Where the time goes" not in made["study.md"]


def nested(depth):
    found = []
    for _ in range(depth):
        found = [found]
    return found


# --- documents --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda d: d.pop("schema"), "is no result of lampwork study"),
        (lambda d: d.update(schema=99), "has schema 99, this version reads 1"),
        (lambda d: d.pop("machine"), "machine is missing"),
        (lambda d: d["machine"].pop("cpu"), "machine.cpu is 'None', expected a text"),
        (lambda d: d["architectures"][0]["fusion"].update(steps=-1), "architectures[0].fusion.steps is '-1'"),
        (
            lambda d: d["architectures"][1]["columns"]["eager"].update(speedup="x"),
            "eager.speedup is 'x', expected a number",
        ),
        (lambda d: d["architectures"][0]["switches"].pop("fusion"), "switches are not those of the document"),
        (
            lambda d: d["architectures"][0]["time"].update(seconds=[1]),
            "time.seconds is '[1]', expected an object",
        ),
        (lambda d: d.update(architectures={}), "architectures is '{}', expected a list"),
        (
            lambda d: d["architectures"][0]["columns"]["everything"].update(call_seconds=None),
            "columns.everything.call_seconds is 'None', expected a number above 0",
        ),
        (
            lambda d: d["architectures"][0]["switches"]["fusion"].update(speedup=1e-320),
            "switches.fusion.speedup is '1e-320', expected a number",
        ),
        (lambda d: d["architectures"][0]["work"].update(flops=10**400), "work.flops is '1000"),
        (lambda d: d.update(took_seconds=10**5000), "took_seconds is 'a int', expected a number"),
        (lambda d: d.update(took_seconds=nested(100_000)), "took_seconds is 'a list', expected a number"),
        (
            lambda d: d["architectures"][0]["work"].update(eager_bytes_read=0, eager_bytes_written=0),
            "work.eager_bytes_read is '0', expected bytes that eager moves",
        ),
    ],
)
def test_a_damaged_document_says_where(damage, says):
    document = canned.document()
    damage(document)
    with pytest.raises(StudyError, match=re.escape(says)):
        page(document)


def test_what_is_new_in_a_document_is_no_damage():
    document = canned.document()
    document["new"] = document["architectures"][0]["fusion"]["new"] = 1
    check(document)


def test_a_file_of_lists_in_lists(tmp_path):
    (tmp_path / "deep.json").write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(StudyError, match="has lists in lists"):
        read(tmp_path / "deep.json")


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_makes_the_page_of_numbers_that_are_there(tmp_path: Path, capsys):
    numbers, target = tmp_path / "s.json", tmp_path / "effects.md"
    numbers.write_text(to_json(canned.document()))
    assert main(["study", "--page", str(numbers), "-o", str(target)]) == 0
    assert "fusion to dense" in capsys.readouterr().out
    text = target.read_text()
    pictures = re.findall(r"\]\((\S+\.svg)\)", text)
    assert len(pictures) == 5 and all((tmp_path / each).exists() for each in pictures)
    assert read(numbers) == canned.document()


@pytest.mark.parametrize(
    ("content", "says"),
    [("", "is no JSON"), ("[]", "is no result of lampwork study"), (None, "cannot be read: No such file")],
)
def test_a_file_that_is_no_document_is_an_error_of_one_line(tmp_path: Path, capsys, content, says):
    numbers = tmp_path / "s.json"
    if content is not None:
        numbers.write_text(content)
    assert main(["study", "--page", str(numbers), "-o", str(tmp_path / "x.md")]) == 1
    assert says in capsys.readouterr().err
    assert not (tmp_path / "x.md").exists()


def test_a_page_that_cannot_be_written_is_an_error(tmp_path: Path, capsys):
    numbers = tmp_path / "s.json"
    numbers.write_text(to_json(canned.document()))
    assert main(["study", "--page", str(numbers), "-o", str(tmp_path / "no" / "x.md")]) == 1
    assert "cannot be written to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--page", "s.json", "--quick"], "--page FILE measures nothing"),
        (["--page", "s.json", "--only", "encoder"], "--page FILE measures nothing"),
        (["--quick", "-o", "x.md"], "--output is where the page goes: add --page"),
        (["--only"], "expected at least one argument"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(capsys, arguments, says):
    with pytest.raises(SystemExit) as stopped:
        main(["study", *arguments])
    assert stopped.value.code == 2 and says in capsys.readouterr().err


def test_the_committed_page_is_that_of_the_committed_numbers():
    root = Path(__file__).parents[3]
    document = read(root / "benchmarks" / "study.json")
    for name, text in page(document).items():
        assert (root / "docs" / name).read_text() == text, (
            "lampwork study --page benchmarks/study.json -o docs/study.md"
        )
