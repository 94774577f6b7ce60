"""explain(): regions, breaks, guards and counts, as data, text and JSON."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path

import explain_programs
import pytest
import torch
from explain_programs import Chatty, branches, refused, scaled, twice

import lampwork
from lampwork.errors import CaptureError, GraphBreakError, OptionError
from lampwork.inspect import Explanation
from lampwork.inspect.explain import _range_text

X = torch.arange(6.0).reshape(2, 3)
Y = X + 1


def tail(text: str) -> str:
    """Text without the folders of this file and of torch."""
    for folder in (Path(__file__).parent, Path(torch.__file__).parents[1]):
        text = text.replace(f"{folder}/", "")
    return text


def test_branch_on_data(golden):
    found = lampwork.explain(branches, options={"isa": "avx2"})(X, Y)
    assert isinstance(found, Explanation)
    assert [region.name for region in found.regions] == [
        "branches#0",
        f"branches_resume_{line(branches, 4)}#0",
    ]
    assert [record.code for record in found.breaks] == ["LW101"]
    assert found.refusals == found.recompiles == ()
    assert found.operators == {
        "aten.add.Tensor": 1,
        "aten.lt.Scalar": 1,
        "aten.mul.Tensor": 1,
        "aten.sin.default": 1,
        "aten.sum.default": 1,
    }
    golden("inspect/branches", tail(str(found)))


def line(fn, offset):
    return fn.__code__.co_firstlineno + offset


def test_a_module_with_a_break_runs_once(golden, capsys):
    model = Chatty().eval()
    with torch.no_grad():
        found = lampwork.explain(model, options={"isa": "avx2"})(X)
    assert capsys.readouterr().out == "chatty\n" and model.calls == 1
    assert len(found.regions) == 2 and found.breaks[0].line == line(Chatty.forward, 2)
    golden("inspect/chatty", tail(str(found)))


def test_recompiles_of_what_is_compiled(golden):
    compiled = lampwork.compile(scaled, dynamic=False, options={"isa": "avx2"})
    for n in (2, 3):
        compiled(X, n)
    found = lampwork.explain(compiled)(X.double(), 3)
    assert [region.hits for region in found.regions] == [1, 1, 1]
    assert [record.code for record in found.recompiles] == ["LW141", "LW143"]
    assert len(compiled.entries) == 3
    golden("inspect/scaled", tail(str(found)))


def test_symbols_are_listed():
    compiled = lampwork.compile(scaled)
    compiled(X, 2)
    found = lampwork.explain(compiled)(X, 3)
    assert found.regions[1].symbols == ("s0 = args[1]",)
    assert "left open: s0 = args[1]" in str(found)


def test_json():
    found = lampwork.explain(branches)(X, Y)
    data = json.loads(found.to_json())
    assert set(data) == {"name", "regions", "breaks", "refusals", "recompiles", "operators", "seconds"}
    first = data["regions"][0]
    fields = {field.name for field in dataclasses.fields(found.regions[0])}
    assert set(first) == fields
    assert first["lines"] == {explain_programs.__file__: f"{line(branches, 1)}-{line(branches, 2)}"}
    assert first["operators"]["aten.sin.default"] == 1 and "llvm" in first["stages"]
    assert first["guards"][0]["condition"].startswith("args[0]: Tensor float32[2, 3]")
    assert first["breaks"][0]["code"] == data["breaks"][0]["code"] == "LW101"
    assert data["seconds"] == pytest.approx(found.seconds) and found.seconds > 0
    assert json.loads(found.to_json(indent=None)) == data


def test_every_region_has_its_stages():
    for region in lampwork.explain(branches)(X, Y).regions:
        assert {"bytecode", "guards", "graph", "llvm", "program"} <= set(region.stages)
        assert region.stages.graph.count("aten.") == sum(region.operators.values())


def test_refusals_are_reported_and_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = lampwork.explain(refused)(X)
    assert [record.code for record in found.refusals] == ["LW133"]
    assert found.regions == () and "runs eager:\n  [LW133]" in str(found)
    with pytest.raises(CaptureError):
        lampwork.explain(refused, options={"strict": True})(X)


def test_keywords_are_those_of_compile():
    with pytest.raises(GraphBreakError):
        lampwork.explain(branches, fullgraph=True)(X, Y)
    with pytest.raises(OptionError, match="option 'mode' takes"):
        lampwork.explain(branches, mode="fast")
    with pytest.raises(OptionError, match="takes a function or a module"):
        lampwork.explain(3)
    with pytest.raises(OptionError, match="no options for what is compiled already"):
        lampwork.explain(lampwork.compile(branches), fullgraph=True)
    with pytest.raises(OptionError, match="options takes a mapping"):
        lampwork.explain(branches, options=["strict"])


def test_exceptions_of_the_program_come_out():
    def f(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        lampwork.explain(f)(X)


def test_ranges_of_lines():
    assert _range_text([]) == "" and _range_text([3]) == "3"
    assert _range_text([1, 2, 3, 5, 7, 8]) == "1-3, 5, 7-8"


def test_two_breaks_of_one_line_have_names_of_their_own(capsys):
    found = lampwork.explain(twice)(X)
    names = [region.name for region in found.regions]
    place = f"twice_resume_{line(twice, 1)}"
    assert names == ["twice#0", f"{place}#0", f"{place}.2#0"]
    assert capsys.readouterr().out == "12"
