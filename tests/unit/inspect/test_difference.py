"""`lampwork diff` and `lampwork.inspect.diff`: what differs between two reports."""

from __future__ import annotations

import copy
import json
import re

import pytest
import report_samples
import torch
from torch import nn

import lampwork
from lampwork.cli import main
from lampwork.errors import OptionError
from lampwork.inspect import diff
from lampwork.inspect.difference import KINDS, align

LAYER = "encoder.layer.0"


@pytest.fixture
def before():
    return copy.deepcopy(report_samples.encoder(2))


@pytest.fixture
def after(before):
    return copy.deepcopy(before)


def groups(data):
    return data["regions"][0]["groups"]


def listed(found):
    """{kind: [what, ...]}."""
    kinds: dict[str, list[str]] = {}
    for each in found.findings:
        kinds.setdefault(each.kind, []).append(each.what)
    return kinds


def graph(*operators, region="f#0", kernels=None, module=None, time=None):
    """A region that calls these operators outside of any module, a kernel for each, or for each list of `kernels`."""
    names = [f"{op}_{number}" for number, op in enumerate(operators)]
    nodes = [
        {"id": name, "op": f"aten::{op}", "inputs": [], "kind": "op"} | ({"module": module} if module else {})
        for name, op in zip(names, operators, strict=True)
    ]
    each = [[number] for number in range(len(names))] if kernels is None else kernels
    made = [
        {"id": f"k{n}", "name": f"any_{n}", "kind": "kernel", "nodes": [names[i] for i in kernel]}
        | ({} if time is None else {"time": time})
        for n, kernel in enumerate(each)
    ]
    return {"name": region, "graphs": {"recorded": {"nodes": nodes}, "steps": []}, "groups": made}


def report(*regions, **more):
    return {"format": 1, "regions": list(regions), **more}


# --- kernels ----------------------------------------------------------------------------------------------------------


def test_equal_reports_do_not_differ(before):
    found = diff(before, before)
    assert found.findings == () and str(found).endswith("\n\nnothing differs")
    assert repr(found) == "Difference(nothing differs)"


def test_names_do_not_matter(before, after):
    text = json.dumps(after)
    renamed = re.sub(r"\b(linear|add|gelu|slice|layer_norm|embedding)_(\d+)", r"\1_9\2", text)
    made = json.loads(renamed)
    for number, each in enumerate(groups(made)):
        each["id"], each["name"] = f"x{number}", f"other_{number}"
    assert renamed != text and diff(before, made).findings == ()


def test_times_beyond_the_threshold(before, after):
    attention, product, norm = groups(after)[3], groups(after)[4], groups(after)[5]
    attention["time"] *= 1.2
    product["time"] *= 1.04
    norm["time"] /= 1.5
    found = diff(before, after)
    assert listed(found) == {"slower": ["scaled_dot_product_attention"], "faster": ["add + layer_norm"]}
    slower = found.of("slower")[0]
    assert (slower.before, slower.after, slower.unit) == (6e-4, 6e-4 * 1.2, "s")
    assert slower.where == f"{LAYER}.attention, forward#0"
    assert listed(diff(before, after, threshold=0.03))["slower"] == ["scaled_dot_product_attention", "linear"]
    assert "slower" not in listed(diff(before, after, threshold=0.25))


def test_calls_count_and_the_clock_has_its_noise(before, after):
    groups(after)[3]["calls"] = 2
    groups(before)[5]["time"], groups(after)[5]["time"] = 1e-7, 9e-7
    assert listed(diff(before, after)) == {"slower": ["scaled_dot_product_attention"]}


def test_a_time_that_one_side_lacks_is_not_compared(before, after):
    del groups(before)[3]["time"]
    groups(after)[3]["time"] = 10
    found = diff(before, after)
    assert found.findings == () and found.before.seconds is None


def test_a_fused_kernel_and_back(before, after):
    product, norm = groups(after)[4:6]
    product["nodes"] = product["nodes"] + norm["nodes"]
    groups(after).remove(norm)
    what = "linear; add + layer_norm -> linear + add + layer_norm"
    assert listed(diff(before, after)) == {"faster": [what], "fused": [what]}
    what = "linear + add + layer_norm -> linear; add + layer_norm"
    found = diff(after, before)
    assert listed(found) == {"slower": [what], "unfused": [what]}
    assert found.of("unfused")[0].where == f"{LAYER}.attention, forward#0"


def test_another_cut():
    ours = report(graph("sin", "add", "mul", kernels=[[0, 1], [2]]))
    theirs = report(graph("sin", "add", "mul", kernels=[[0], [1, 2]]))
    assert listed(diff(ours, theirs)) == {"regrouped": ["sin + add; mul -> sin; add + mul"]}


def test_a_node_that_is_computed_twice():
    ours = report(graph("sin", "add", "mul", kernels=[[0, 1], [0, 2]]))
    assert diff(ours, ours).findings == ()
    theirs = report(graph("sin", "add", "mul", kernels=[[0], [1], [2]]))
    assert listed(diff(theirs, ours)) == {"regrouped": ["sin; add; mul -> sin + add; sin + mul"]}


def test_an_operator_more_in_a_kernel():
    ours = report(graph("sin", "add", kernels=[[0, 1]]))
    theirs = report(graph("sin", "add", "neg", kernels=[[0, 1, 2]]))
    found = listed(diff(ours, theirs))
    assert found == {"changed": ["sin + add -> sin + add + neg"], "operators": ["neg"]}


def test_a_kernel_of_another_kind(before, after):
    groups(after)[3]["kind"] = "aten"
    found = diff(before, after)
    assert listed(found) == {"changed": ["scaled_dot_product_attention, attention -> aten"]}
    assert "attention 2 -> 1" in str(found) and "aten 1 -> 2" in str(found)


def test_new_kernels_amid_many_of_a_kind():
    chain = ["add", "mul"] * 40
    ours = report(graph(*chain))
    theirs = report(graph(*chain[:31], "add", "exp", *chain[31:]))
    assert listed(diff(ours, theirs))["kernels"] == ["add", "exp"]
    assert listed(diff(theirs, ours))["kernels-gone"] == ["add", "exp"]


def test_another_operator_in_the_same_module():
    ours, theirs = report(graph("linear", module="up")), report(graph("addmm", module="up"))
    assert listed(diff(ours, theirs))["changed"] == ["linear -> addmm"]


def test_a_model_inside_of_another(before):
    made = json.loads(
        json.dumps(before).replace('"encoder.', '"bert.encoder.').replace('"embed', '"bert.embed')
    )
    assert {each.kind for each in diff(before, made).findings} <= {"breaks", "breaks-gone"}


def test_steps_of_which_only_the_name_is_known():
    ours = report({"name": "f#0", "groups": [{"name": "k0"}, {"name": "k1"}]})
    theirs = report({"name": "f#0", "groups": [{"name": "k0"}, {"name": "fill"}]})
    assert listed(diff(ours, theirs)) == {"kernels": ["fill"], "kernels-gone": ["k1"]}


def test_backward_is_compared_with_backward():
    def made(*kernels):
        forward = graph("mul")
        return report(forward | {"backward": graph("mul", "add", kernels=kernels)})

    found = diff(made([0], [1]), made([0, 1]))
    assert [(each.kind, each.where) for each in found.findings] == [("fused", "f#0, backward")]


@pytest.mark.timeout(60)
def test_thousands_of_equal_operators_take_no_time():
    chain = ["add", "mul", "add", "exp"] * 1500
    found = diff(report(graph(*chain)), report(graph("exp", *chain[7:], "mul")))
    assert found.findings
    assert align._ordinals("aab", "baa") == [(0, 1), (1, 2), (2, 0)]


# --- regions ----------------------------------------------------------------------------------------------------------


def test_a_version_more_is_a_region_and_not_kernels(before, after):
    after["regions"].append({**graph("sin", "cos", region="forward#2")})
    assert listed(diff(before, after)) == {"regions": ["forward#2: 2 kernels"], "operators": ["cos", "sin"]}
    assert listed(diff(after, before))["regions-gone"] == ["forward#2: 2 kernels"]


def test_a_break_moves_kernels_to_another_region():
    ours = report(graph("sin", "add", "mul", "exp", kernels=[[0], [1], [2, 3]]))
    theirs = report(graph("sin", "add"), graph("mul", "exp", region="f_resume_12#0"))
    found = listed(diff(ours, theirs))
    assert found == {"unfused": ["mul + exp -> mul; exp"], "regions": ["f_resume_12#0: 2 kernels"]}


def test_lines_in_names_and_other_names_do_not_matter():
    ours = report(graph("sin"), graph("mul", "exp", region="f_resume_12#0"))
    theirs = report(graph("mul", "exp", region="g_resume_14#0"), graph("sin", region="g#0"))
    assert diff(ours, theirs).findings == ()


def test_versions_are_matched_by_their_operators():
    ours = report(graph("sin"), graph("mul", "exp", region="f#1"))
    theirs = report(graph("mul", "exp"), graph("sin", region="f#1"))
    assert diff(ours, theirs).findings == ()


def test_the_time_of_a_region(before, after):
    before["regions"][0]["time"], after["regions"][0]["time"] = 1e-3, 2e-3
    assert listed(diff(before, after)) == {"slower": ["all of forward#0"]}


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_breaks_with_their_fixes_and_lines_that_have_moved(before, after):
    after["records"][0]["line"] += 10
    assert diff(before, after).findings == ()
    after["records"].append({**after["records"][0], "function": "other", "fix": "do this"})
    found = diff(before, after)
    assert [(each.kind, each.what, each.fix) for each in found.findings] == [
        ("breaks", "[LW101] The value of a tensor decides a branch.", "do this")
    ]
    assert "in other, encoder.layer.0" in found.findings[0].where
    assert [(each.kind, each.fix) for each in diff(after, before).findings] == [("breaks-gone", "")]


def test_a_cause_with_other_values_on_the_same_line(before, after):
    after["records"][1]["cause"] = "x.shape[1] is 7"
    assert diff(before, after).findings == ()
    after["records"][1]["line"] += 1
    assert set(listed(diff(before, after))) == {"recompiles", "recompiles-gone"}


def test_memory_operators_and_compile_time(before, after):
    region = after["regions"][0]
    region["memory"]["arena"] += 1 << 20
    region["constants"] = []
    region["seconds"]["lower"] *= 2
    region["seconds"]["plan"] += 0.009
    region["graphs"]["recorded"]["nodes"].append({"id": "new", "op": "aten::add.Tensor", "inputs": []})
    found = diff(before, after)
    assert listed(found) == {
        "memory": ["arena"],
        "memory-less": ["constants"],
        "compile": ["all stages", "lower"],
        "operators": ["add"],
    }
    (added,) = found.of("operators")
    assert added.after == added.before + 1


def test_what_they_were_made_with_is_told_and_is_no_finding(before, after):
    after["machine"]["threads"] = 8
    after["options"] = {"mode": "max-autotune"}
    found = diff(before, after)
    assert found.conditions == {"threads": ("2", "8"), "option mode": ("default", "max-autotune")}
    assert not found.findings and "times may differ" in str(found)


def test_findings_come_in_the_order_of_kinds_and_of_size(before, after):
    for number, factor in ((3, 1.2), (1, 1.2), (9, 2)):
        groups(after)[number]["time"] *= factor
    after["records"] = []
    found = diff(before, after)
    order = [list(KINDS).index(each.kind) for each in found.findings]
    assert order == sorted(order)
    deltas = [each.after - each.before for each in found.of("slower")]
    assert len(deltas) == 3 and deltas == sorted(deltas, reverse=True)
    assert str(found) == str(diff(before, after))


def test_what_repeats_in_many_layers_is_one_row():
    ours = copy.deepcopy(report_samples.encoder(12))
    theirs = copy.deepcopy(ours)
    for each in groups(theirs):
        if each["kind"] == "attention":
            each["time"] *= 1.2
    groups(theirs)[1]["time"] *= 1.1
    found = diff(ours, theirs)
    assert len(found.of("slower")) == 13 and "slower, 13:" in str(found)
    rows = str(found).partition("slower, 13:")[2].splitlines()[2:]
    assert [" ".join(row.split()) for row in rows] == [
        "+20 % 7.2 ms 8.64 ms 12 x scaled_dot_product_attention encoder.layer.*.attention, forward#0",
        "+10 % 1.9 ms 2.09 ms linear encoder.layer.0.attention.qkv, forward#0",
    ]


def test_wrong_arguments(before):
    with pytest.raises(OptionError, match="a threshold is a number, 0 or more, got -1"):
        diff(before, before, threshold=-1)
    with pytest.raises(OptionError, match="diff.. compares reports, got an object of type int"):
        diff(before, 3)


# --- compiled ---------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x, split=False):
        h = self.norm(torch.nn.functional.gelu(self.up(x)))
        if split:
            print(end="")
        return torch.relu(h) + 1


def test_explanations_of_a_model_and_what_a_print_does_to_it():
    model = Block().eval()
    with torch.no_grad():
        ours, again = (lampwork.explain(model)(torch.ones(2, 8)) for _ in range(2))
        theirs = lampwork.explain(model)(torch.ones(2, 8), True)
    kept = {"compile", "compile-less", "faster", "slower"}  # how long things took differs
    assert set(listed(diff(ours, again))) <= kept
    found = diff(ours, theirs)
    (new,) = found.of("breaks")
    assert new.fix and "test_difference.py" in new.where
    (unfused,) = found.of("unfused")
    assert unfused.what.startswith("layer_norm + relu + add -> ")
    assert unfused.where.startswith("norm (test_difference.py:")
    assert found._repr_html_().count("<table>") >= 3


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path, monkeypatch, before, after):
    monkeypatch.chdir(tmp_path)
    groups(after)[3]["time"] *= 1.2
    (tmp_path / "a.html").write_text(report_samples.page(before))
    (tmp_path / "b.html").write_text(report_samples.page(after, compressed=True))
    return ["a.html", "b.html"]


def test_the_command_prints_plain_text(files, capsys):
    assert main(["diff", *files]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "\x1b" not in out
    assert out.splitlines()[0].startswith("before: a.html, BertModel")
    assert "slower, 1:" in out and "+20 %   600 us  720 us  scaled_dot_product_attention" in out


def test_its_status(files, capsys):
    assert main(["diff", *files, "--fail-on", "breaks,memory"]) == 0
    assert main(["diff", *files, "--fail-on", "slower, breaks"]) == 1
    assert capsys.readouterr().err == "failed: slower\n"
    assert main(["diff", *files, "--fail-on", "slower", "--threshold", "30"]) == 0
    assert main(["diff", *reversed(files), "--fail-on", "slower"]) == 0
    assert main(["diff", files[0], "none.html"]) == 2
    assert "[LW342] none.html cannot be read: No such file" in capsys.readouterr().err


def test_json(files, capsys):
    assert main(["diff", "--json", *files]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["format"] == 1 and data["before"]["source"] == "a.html"
    assert [each["kind"] for each in data["findings"]] == ["slower"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--fail-on", "slow"], "'slow' is no kind of difference: did you mean 'slower'?"),
        (["--threshold", "-1"], "-1 is no part, give percent, 0 or more"),
        (["--threshold", "x"], "invalid _percent value: 'x'"),
        ([], "the following arguments are required"),
    ],
)
def test_wrong_words(files, capsys, wrong, message):
    with pytest.raises(SystemExit) as raised:
        main(["diff", files[0], *(files[1:] if wrong else []), *wrong])
    assert raised.value.code == 2 and message in capsys.readouterr().err
