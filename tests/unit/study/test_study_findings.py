"""What surprised: each rule says what its numbers say, and nothing where they say nothing."""

from __future__ import annotations

import canned
import pytest

from lampwork.study import findings
from lampwork.study.document import check


def said(rule, *rows):
    document = canned.document(*rows)
    check(document)
    return " ".join(rule(document))


def with_fusion(name, **changes):
    row = canned.row(name, {"fusion": 1.5, "packing": 1.0, "arena": 1.0})
    row["fusion"].update(changes)
    return row


def plain(name="dense", **ratios):
    return canned.row(name, {"fusion": 1.0, "packing": 1.0, "arena": 1.0, **ratios})


def test_the_largest_worth_and_the_largest_over_all():
    assert said(findings.largest) == (
        "Nothing else is worth as much to any architecture as fusion to dense: a call takes 1.50 times as long "
        "without."
    )
    assert (
        said(findings.most_over_all)
        == "Over all architectures fusion is worth most: 1.25 by the geometric mean; it helps 2 of 2."
    )


def test_what_is_within_the_noise_is_worth_nothing():
    noisy = plain()
    noisy["switches"]["fusion"] = canned.switched(1.3, noise=0.2)
    assert said(findings.largest, noisy) == "" == said(findings.most_over_all, plain())
    same = plain()
    same["switches"]["fusion"] = canned.switched(1.3, changes=False)
    assert said(findings.largest, same) == ""


def test_what_two_measurements_of_one_program_differ_by_is_worth_nothing():
    row = plain(fusion=1.2, packing=0.85)
    assert said(findings.largest, row) and "with packing" in said(findings.costing, row)
    row["columns"]["everything, again"] = canned.column(1 / 1.11)
    assert said(findings.largest, row) == ""
    assert said(findings.costing, row).startswith("Nothing that was switched off")


def test_what_costs_instead_of_helping():
    assert (
        said(findings.costing)
        == "Not all of it helps everywhere: sparse with packing takes 1.25 times as long as without."
    )
    assert said(findings.costing, plain()).startswith("Nothing that was switched off made any")
    many = [plain(f"a{n}", fusion=0.5 + n / 10) for n in range(4)]
    assert "a0 with fusion takes 2.00" in said(findings.costing, *many)
    assert said(findings.costing, *many).endswith("there is 1 more such case.")


def test_what_makes_no_difference():
    assert (
        said(findings.without_effect)
        == "Switching off arena changes code, but no architecture's time beyond the noise."
    )
    row = plain(packing=1.5, arena=1.5)
    row["switches"]["fusion"] = canned.switched(1.0, changes=False)
    assert said(findings.without_effect, row) == (
        "Without fusion the program of every architecture is the same."
    )
    assert said(findings.without_effect, plain(fusion=2.0, packing=2.0, arena=2.0)) == ""


def test_which_depends_least():
    assert said(findings.indifferent) == (
        "sparse depends least on any one optimization: without the best one a call takes 1.04 times as long."
    )
    assert said(findings.indifferent, plain("a"), plain("b", fusion=2.0)) == (
        "No single optimization helps a beyond the noise."
    )


def test_what_fuses():
    some, none = with_fusion("dense"), with_fusion("loose", fused_nodes=0, largest_nodes=1)
    found = said(findings.fused, some, none)
    assert found.startswith("Nothing fuses in loose: each kernel computes one operator at most.")
    assert "The largest kernel is one of dense: it computes 3 operators." in found
    less = with_fusion("less", fused_nodes=2)
    assert (
        "dense fuses best, with 75 % of its operators in kernels with others; less least, with 25 %"
        in said(findings.fused, some, less)
    )
    assert "Nothing fuses" not in said(findings.fused, some)


def test_what_stays_a_call_of_aten():
    assert (
        said(findings.left_to_aten) == "No architecture leaves anything to ATen: all of it is generated code."
    )
    row = with_fusion("picky", aten={"topk": 2, "index_add": 1})
    assert said(findings.left_to_aten, plain(), row) == (
        "1 of 2 architectures leave nothing to ATen; picky leaves it most calls, 3: topk and index_add."
    )


def test_graph_breaks_and_what_runs_eager():
    assert said(findings.breaking) == "Every architecture is one graph, without a graph break."
    broken, refused = plain("routed"), plain("odd")
    broken["representation"].update(regions=3, breaks=[{"code": "LW102", "cause": "it needs data"}] * 2)
    refused["representation"]["refusals"] = [{"code": "LW120", "cause": "no"}]
    assert said(findings.breaking, broken, refused) == (
        "routed is no single graph: it has 3 regions, with graph breaks LW102 between (it needs data). "
        "Parts of odd run eager as a whole."
    )


def test_bytes_that_move():
    more = plain("more")
    more["work"]["bytes_read"] = 7500
    found = said(findings.traffic, plain("less"), more)
    assert found == (
        "Kernels of less move 0.50 of the bytes that its operators do, one by one. "
        "Those of more move more than its operators do, one by one: 2.00 times as much."
    )
    assert "more than" not in said(findings.traffic, plain())


def test_speed_against_eager():
    assert said(findings.against_eager) == (
        "Compiling gains most for sparse, 5.00 times eager's speed, and least for dense, 2.00 times."
    )
    slow = plain("slow")
    slow["columns"]["eager"] = canned.column(1.25)
    assert said(findings.against_eager, slow) == "Slower than eager: slow (0.80 of its speed)."


def test_one_sample_bfloat16_and_open_sizes():
    assert said(findings.samples) == (
        "1 of 2 gain more with one sample than with 8; the difference is largest for dense, 4.00 against 2.00 times "
        "eager."
    )
    half = said(findings.half, plain("a"), plain("b", fusion=1.0))
    assert half == "In bfloat16 2 of 2 are faster than in float32, most a, 1.25 times as fast."
    noisy = plain("noisy")
    noisy["bfloat16"]["float32"] = canned.column(0.8, noise=0.2)
    assert said(findings.half, noisy) == "In bfloat16 0 of 1 are faster than in float32."
    slower = plain("late")
    slower["bfloat16"]["float32"] = canned.column(2.0)
    assert said(findings.half, slower) == "In bfloat16 0 of 1 are faster than in float32; slower: late."
    assert said(findings.open_sizes) == "Sizes left open cost 2 of 2 nothing beyond the noise."
    dear = plain("dear")
    dear["columns"]["open sizes"] = canned.column(0.5)
    assert said(findings.open_sizes, dear) == (
        "Sizes left open cost 0 of 1 nothing beyond the noise; most for dear, whose call takes 2.00 times as long."
    )


def test_when_compiling_pays():
    quick = plain("quick")
    quick["columns"]["everything"]["first_call_seconds"] = 0.1
    assert said(findings.first_calls, quick, plain("late")) == (
        "Compiling pays for itself after 10 calls of quick, and after 50 of late."
    )


def test_errors_and_failures():
    assert said(findings.errors).startswith("All 16 variants that were compared are as near to float64")
    wrong = plain("wrong")
    wrong["switches"]["fusion"]["agrees"] = False
    assert said(findings.errors, wrong) == (
        "Farther from float64 than twice eager's error and a rounding: wrong, without fusion."
    )
    gone = {"name": "gone", "says": "nothing", "batch": 8, "failure": "RuntimeError: no"}
    assert said(findings.failures, plain(), gone) == (
        "Could not be measured: gone; the reason is in their sections."
    )
    part = plain("part")
    part["switches"]["arena"] = {**canned.failed(), "steps": 0, "changes_code": False}
    assert said(findings.failures, part) == "Failed: part without arena."
    assert said(findings.failures) == ""


@pytest.mark.parametrize("rule", findings.RULES, ids=lambda rule: rule.__name__)
def test_a_rule_says_nothing_of_a_study_in_which_all_failed(rule):
    gone = {"name": "gone", "says": "nothing", "batch": 8, "failure": "RuntimeError: no"}
    assert (said(rule, gone) != "") == (rule is findings.failures)


def test_a_column_that_failed_is_in_no_sentence_about_time():
    row = plain()
    row["columns"] = {name: canned.failed() for name in row["columns"]}
    row["switches"] = {
        name: {**canned.failed(), "steps": 0, "changes_code": True} for name in row["switches"]
    }
    row["one_sample"] = {name: canned.failed() for name in row["one_sample"]}
    row["bfloat16"] = {name: canned.failed() for name in row["bfloat16"]}
    found = findings.findings(canned.document(row))
    assert not any("times" in sentence for sentence in found), found
