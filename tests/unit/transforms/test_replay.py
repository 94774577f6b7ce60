"""What each rewrite changed, seen by running the passes once more."""

from __future__ import annotations

import torch
from torch import nn

import lampwork
from lampwork.compiled.stages import Compilation
from lampwork.graph.printing import format_graph
from lampwork.transforms.replay import Replay, replay


def compiled(fn, *args, **options) -> Compilation:
    made = lampwork.compile(fn, options=options)
    with torch.no_grad():
        made(*args)
    return made.stages.compilation


def replayed(made: Compilation) -> Replay | None:
    return replay(made.given(), made.graph, made.records, made.context())


def applied(found: Replay) -> set[str]:
    """The names that are left when all changes have been made, each of which must be possible."""
    names = {seen.node.name for seen in found.start}
    for step in found.steps:
        for change in step.changes:
            assert {node.name for node in change.removed} <= names
            names -= {node.name for node in change.removed}
        for change in step.changes:
            assert not {seen.node.name for seen in change.added} & names
            names |= {seen.node.name for seen in change.added}
        for change in step.changes:
            assert {seen.node.name for seen in change.changed} <= names
    return names


def test_a_rewrite_is_told_with_its_source_and_what_it_removed():
    made = compiled(lambda x: torch.relu(x) * 1 + x, torch.randn(3))
    found = replayed(made)
    (algebra,) = [step for step in found.steps if step.name == "algebra"]
    (change,) = algebra.changes
    assert change.rewrite == "mul(x, 1) -> x"
    assert change.source.file.endswith("algebra.py") and change.node == "mul"
    assert [node.name for node in change.removed] == ["mul"] and change.added == ()
    ((seen),) = change.changed
    assert seen.node.name == "add" and [arg.name for arg in seen.args] == ["relu", "args_0_"]
    assert applied(found) == {node.name for node in made.graph.nodes}


def test_what_no_rewrite_did_is_the_pass_s_own():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)).eval()
    made = compiled(model, torch.randn(1, 2, 5, 5))
    found = replayed(made)
    (fold,) = [step for step in found.steps if step.name == "fold-batch-norm"]
    (change,) = fold.changes
    assert change.rewrite == "" and [node.name for node in change.removed][-1].startswith("batch_norm")
    assert change.added
    assert applied(found) == {node.name for node in made.graph.nodes}


def test_the_compilation_itself_is_left_alone():
    made = compiled(lambda x: torch.relu(x) * 1 + x, torch.randn(3))
    recorded, final = format_graph(made.recorded), format_graph(made.graph)
    assert replayed(made) is not None
    assert (format_graph(made.recorded), format_graph(made.graph)) == (recorded, final)


def test_another_graph_than_then_tells_nothing():
    made = compiled(lambda x: torch.relu(x) * 1 + x, torch.randn(3))
    for node in made.graph.nodes:
        if node.name == "relu":
            node.target = torch.ops.aten.neg.default
    assert replayed(made) is None


def test_other_passes_than_then_tell_nothing():
    made = compiled(lambda x: x + 0, torch.randn(3))
    assert replay(made.given(), made.graph, made.records[1:], made.context()) is None


def test_matches_that_were_refused_are_told_with_the_reason():
    mine = lampwork.rewrite(
        "relu(relu(x))", "relu(x)", check=lambda match: lampwork.No("not today"), name="mine"
    )
    made = compiled(lambda x: torch.relu(torch.relu(x)), torch.randn(3), passes="-algebra")
    before = mine.refused
    found = replayed(made)
    refusals = {key: n for step in found.steps for key, n in step.refusals.items()}
    assert ("mine", "not today") in refusals
    assert mine.refused == before  # a second run counts nothing
    mine.unregister()


def test_a_plug_in_that_is_gone_is_no_longer_seen():
    mine = lampwork.rewrite("relu(relu(x))", "relu(x)", name="mine")
    made = compiled(lambda x: torch.relu(torch.relu(x)), torch.randn(3), passes="-algebra")
    found = replayed(made)
    assert [c.rewrite for step in found.steps for c in step.changes] == ["mine"] and mine.hits == 1
    mine.unregister()
    assert replayed(made) is None


def test_open_sizes_are_asked_nothing():
    made = lampwork.compile(lambda x: torch.relu(x) * 1 + x.sum(), dynamic=True)
    made(torch.randn(5))
    made(torch.randn(7))
    before = [str(each) for each in made.entries[-1].region.conditions]
    found = replayed(made.stages.compilation)
    assert found is not None
    assert applied(found) == {node.name for node in made.stages.compilation.graph.nodes}
    assert [str(each) for each in made.entries[-1].region.conditions] == before
    made(torch.randn(9))
    assert len(made.entries) == 1


def test_both_halves_of_a_training_step():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    made = lampwork.compile(model)
    for _ in range(3):
        made(torch.randn(5, 8)).sum().backward()
    stages = made.stages
    assert set(stages.halves) <= {"forward", "backward"} and len(stages.halves["backward"]) == 1
    forward = stages.halves.get("forward", [stages.compilation])[0]
    for half in (forward, stages.halves["backward"][0]):
        found = replayed(half)
        assert found is not None
        assert applied(found) == {node.name for node in half.graph.nodes}
