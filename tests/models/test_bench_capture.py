"""The comparison of capture with torch.compile: what it counts, and what it prints. Nothing here is timed."""

from __future__ import annotations

import json
import math

import pytest
import torch

from lampwork.bench import capture
from lampwork.bench.__main__ import main

X = torch.randn(3)


def helper(x):
    print("seen")
    return x + 1


def broken(x):
    return helper(x) * 2 + helper(x)


def whole(x):
    return torch.relu(x) + 1


def test_breaks_count_by_place_and_regions_one_by_one(capsys):
    found = capture.compare(capture.Case("broken", "function", broken, (X,)), rounds=1)
    assert not found.failure
    assert found.breaks == found.torch_breaks == 1
    assert found.regions > 1
    assert found.right
    assert found.capture_s > 0 and found.torch_first_s > 0 and not math.isnan(found.ratio)


def test_a_whole_function_is_one_region():
    found = capture.compare(capture.Case("whole", "function", whole, (X,)), rounds=1)
    assert (found.breaks, found.torch_breaks, found.regions, found.torch_regions) == (0, 0, 1, 1)


def test_a_failure_is_a_row_that_says_why():
    def raising(x):
        raise RuntimeError("no such luck")

    found = capture.compare(capture.Case("raising", "function", raising, (X,)), rounds=1)
    assert found.failure == "RuntimeError: no such luck"
    assert (
        capture.format_row(found)
        == "function        raising                        failed: RuntimeError: no such luck"
    )


def test_rows_name_what_is_worse():
    found = capture.Comparison("net", "network", 2, 1, 3, 2, 0.01, 0.02, 0.5, 50.0, False)
    assert capture.format_row(found) == (
        "network         net                            capture  0.010 s, first call  0.020 s, "
        "torch.compile  0.500 s:  50.0x  breaks 2 / 1  regions 3 / 2  WRONG  MORE BREAKS"
    )


def test_the_command_writes_json(tmp_path, capsys):
    path = tmp_path / "capture.json"
    assert main(["capture", "--only", "lerp", "--rounds", "1", "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert set(document) == {"machine", "captures", "dispatch"}
    assert [c["name"] for c in document["captures"]] == ["lerp"]
    assert document["captures"][0]["right"]
    assert "lerp" in capsys.readouterr().out


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["capture", "--only", "no_such_network"])
    assert "unknown name 'no_such_network'" in capsys.readouterr().err
