"""The data of a report: what is known of a compilation, and nothing else."""

from __future__ import annotations

import json

import pytest
import torch
from explain_programs import branches, refused
from torch import nn

import lampwork
from lampwork.inspect import report_data
from lampwork.inspect.report.tables import LONGEST_LINE, Tables, excerpts


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x):
        return torch.relu(self.norm(self.project(x))) * 1


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), nn.Sequential(nn.Linear(16, 4), nn.Softmax(-1))])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.cumsum(0)


def explained(fn, *args, **keywords):
    with torch.no_grad():
        return lampwork.explain(fn, **keywords)(*args)


@pytest.fixture(scope="module")
def stack():
    return report_data(explained(Stack().eval(), torch.randn(3, 8)))


def graphs_at_the_end(region) -> dict[str, dict]:
    """The nodes by name once all changes are applied."""
    nodes = {node["id"]: node for node in region["graphs"]["recorded"]["nodes"]}
    for step in region["graphs"]["steps"]:
        changes = [step, *step["rewrites"]]
        for change in changes:
            for name in change.get("removed", ()):
                del nodes[name]
        for change in changes:
            nodes |= {node["id"]: node for node in change.get("added", ())}
            nodes |= dict(change.get("changed", ()))
    return nodes


def test_it_is_json_of_a_stable_form(stack):
    assert json.loads(json.dumps(stack, allow_nan=False)) == stack
    assert stack["format"] == 1
    assert stack["lampwork"] == lampwork.__version__ and stack["torch"] == torch.__version__
    assert stack["title"] == "Stack"
    assert stack["machine"]["threads"] == torch.get_num_threads() and stack["machine"]["cpu"]
    assert stack["options"]["numerics"] == "eager"
    assert list(stack) == [
        "format",
        "lampwork",
        "torch",
        "made",
        "title",
        "machine",
        "options",
        "records",
        "regions",
        "functions",
        "texts",
        "frames",
        "stacks",
        "sources",
    ]
    assert stack["functions"] == [{"name": "Stack", "regions": [0], "refusals": []}]


def test_the_changes_lead_from_the_recorded_graph_to_the_optimized(stack):
    (region,) = stack["regions"]
    nodes = graphs_at_the_end(region)
    assert sorted(nodes) == sorted(region["graphs"]["optimized"])
    seen: set[str] = set()
    for name in region["graphs"]["optimized"]:
        assert set(nodes[name]["inputs"]) <= seen
        seen.add(name)
    rewrites = [each for step in region["graphs"]["steps"] for each in step["rewrites"]]
    fired = next(each for each in rewrites if each["name"] == "mul(x, 1) -> x")
    assert "algebra.py" in fired["source"]
    assert fired["note"].startswith("at mul")


def test_nodes_have_their_line_module_and_frames(stack):
    (region,) = stack["regions"]
    (linear,) = [n for n in region["graphs"]["recorded"]["nodes"] if n["id"] == "linear"]
    assert (linear["op"], linear["kind"]) == ("aten::linear", "op")
    assert (linear["dtype"], linear["shape"], linear["bytes"]) == ("float32", [3, 16], 192)
    assert (linear["module"], linear["type"]) == ("blocks.0.project", "Linear")
    assert linear["file"] == __file__
    frames = [stack["frames"][number] for number in stack["stacks"][linear["stack"]]]
    assert [frame[0] for frame in frames][:2] == [__file__, __file__]
    assert frames[-1][0].endswith("linear.py")
    (excerpt,) = [
        each
        for each in stack["sources"][__file__]
        if each["first"] <= linear["line"] < each["first"] + len(each["lines"])
    ]
    assert "self.project(x)" in excerpt["lines"][linear["line"] - excerpt["first"]]


def test_steps_have_their_nodes_numbers_and_code(stack):
    (region,) = stack["regions"]
    groups, nodes = region["groups"], graphs_at_the_end(region)
    assert [group["id"] for group in groups] == [f"k{n}" for n in range(len(groups))]
    assert all(set(group["nodes"]) <= set(nodes) for group in groups)
    gemm = groups[0]
    assert gemm["kind"] == "gemm" and gemm["flops"] >= 2 * 3 * 8 * 16
    assert stack["texts"][gemm["texts"]["llvm"]].count("define") >= 1
    kernel = next(group for group in groups if group["kind"] == "kernel")
    assert stack["texts"][kernel["texts"]["loops"]].startswith("kernel k")
    assert stack["texts"][kernel["texts"]["assembly"]]
    assert stack["texts"][region["program"]].startswith("arena")


def test_equal_code_is_there_once():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(4))).eval()
    data = report_data(explained(model, torch.randn(2, 8)))
    (region,) = data["regions"]
    assemblies = [group["texts"]["assembly"] for group in region["groups"]]
    assert len(assemblies) == 8 and len(set(assemblies)) == 2
    assert len(set(data["texts"])) == len(data["texts"])


def test_memory_lies_apart_while_it_lives():
    def fn(x):
        for _ in range(3):
            x = torch.cumsum(torch.sort(x.cumsum(0), 0).values, 0)
        return x

    (region,) = report_data(explained(fn, torch.randn(33, 5)))["regions"]
    memory, steps = region["memory"], len(region["groups"])
    assert memory["steps"] == [group["id"] for group in region["groups"]]
    arena = [value for value in memory["values"] if value["kind"] == "arena"]
    assert arena and any(value["kind"] == "fresh" for value in memory["values"])
    for value in memory["values"]:
        assert 0 <= value["first"] <= value["last"] < steps
        assert not value["name"].startswith("%")
    for one in arena:
        assert one["offset"] + one["size"] <= memory["arena"]
        for other in arena:
            apart = one["last"] < other["first"] or other["last"] < one["first"]
            below = one["offset"] + one["size"] <= other["offset"]
            above = other["offset"] + other["size"] <= one["offset"]
            assert one is other or apart or below or above


def test_constants_tell_how_often_they_were_made_again():
    region = report_data(explained(Stack().eval(), torch.randn(3, 8)))["regions"][0]
    assert {each["refreshed"] for each in region["constants"]} == {0}
    model, x = Stack().eval(), torch.randn(3, 8)
    compiled = lampwork.compile(model)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
            model.blocks[0].norm.weight.mul_(2)
    assert compiled.entries[0].refreshes == 2


def test_calls_of_aten_tell_why_they_are_no_kernels():
    (region,) = report_data(explained(lambda x: torch.linalg.inv(x).exp() @ x, torch.eye(3)))["regions"]
    (called,) = (group for group in region["groups"] if group["kind"] == "aten")
    assert called["why"] == ["there is no rule that makes it a loop"]
    (region,) = report_data(explained(lambda x: torch.fft.fft(x).real, torch.ones(3)))["regions"]
    assert ["loops cannot hold its result"] in [group.get("why") for group in region["groups"]]


def test_constants_name_the_weights_that_they_are_made_of():
    (region,) = report_data(explained(nn.BatchNorm1d(4).eval(), torch.randn(2, 4)))["regions"]
    constants = {each["name"]: each["from"] for each in region["constants"]}
    assert len(constants) == 2
    scale, shift = sorted(constants.values(), key=len)
    assert scale == ["self_running_var", "self_weight"]
    assert shift == ["self_running_mean", "self_running_var", "self_weight", "self_bias"]


def test_fusion_names_what_it_is_about(stack):
    (region,) = stack["regions"]
    assert all(each["why"] and isinstance(each["fused"], bool) for each in region["fusion"])
    folded = next(each for each in region["fusion"] if "into the matrix product" in each["what"])
    assert folded["what"] == f"fold {folded['a']} into the matrix product {folded['b']}" and folded["fused"]


def test_why_not_is_told_too():
    def fn(x):
        y = x @ x
        return y.sin(), y.cos()

    (region,) = report_data(explained(fn, torch.randn(4, 4)))["regions"]
    refusals = [each for each in region["fusion"] if not each["fused"]]
    assert {"a": "matmul", "why": "2 definitions read it"}.items() <= refusals[0].items()


def test_the_flame_is_the_seconds_end_to_end(stack):
    (region,) = stack["regions"]
    top = [each for each in region["flame"] if each["depth"] == 0]
    assert {each["name"]: each["seconds"] for each in top} == region["seconds"]
    assert sum(region["seconds"].values()) == pytest.approx(top[-1]["start"] + top[-1]["seconds"])
    below = [each for each in region["flame"] if each["depth"] == 1]
    (passes,) = [each for each in top if each["name"] == "passes"]
    assert sum(each["seconds"] for each in below) == pytest.approx(passes["seconds"])


def test_a_break_names_its_region_and_line():
    data = report_data(explained(branches, torch.ones(2, 3), torch.ones(2, 3)))
    (broken,) = [each for each in data["records"] if each["kind"] == "break"]
    assert (broken["code"], broken["region"]) == ("LW101", 0)
    lines = [
        line
        for each in data["sources"][broken["file"]]
        for number, line in enumerate(each["lines"], each["first"])
        if number == broken["line"]
    ]
    assert lines == ["    if x.sum() < 0:"]


def test_recompilations_tell_both_values():
    def scaled(x, n):
        return x * n if n else x

    compiled = lampwork.compile(scaled, dynamic=False)
    compiled(torch.ones(2, 3), 2)
    compiled(torch.ones(2, 3), 3)
    data = report_data(lampwork.explain(compiled)(torch.ones(2, 5), 3))
    values = [each["values"] for each in data["records"] if each["kind"] == "recompile"]
    assert values == [["n == 2", "3"], ["x.size(1) == 3", "5"]]
    assert [region["hits"] for region in data["regions"]] == [1, 1, 1]


def test_a_function_that_only_breaks_has_records_and_no_graph():
    found = explained(refused, torch.ones(2))
    data = report_data(found)
    (record,) = data["records"]
    assert record["kind"] == "refusal" and record["function"] == "refused"
    assert data["functions"][0]["refusals"] == [str(found.refusals[0])]
    assert all("groups" not in region for region in data["regions"])


def test_a_region_without_tensors_has_no_graph():
    (region,) = report_data(explained(lambda x, n: (x, n + 1), torch.ones(2), 1))["regions"]
    assert "graphs" not in region and "groups" not in region and "memory" not in region


def test_a_model_without_a_kernel():
    (region,) = report_data(explained(lambda x: x.t()[0], torch.ones(2, 3)))["regions"]
    assert region["groups"] == [] and region["memory"] == {"arena": 0, "values": [], "steps": []}
    assert region["graphs"]["recorded"]["nodes"]


def test_other_backends_have_graphs_and_no_kernels():
    (region,) = report_data(explained(torch.sin, torch.ones(3), backend="eager"))["regions"]
    assert region["partition"] == [{"backend": "eager", "nodes": ["sin"]}]
    assert "groups" not in region and region["graphs"]["optimized"] == ["args_0_", "sin", "output"]


def test_parts_tell_why_others_did_not_take_them():
    lampwork.register_backend("of-function", lambda gm, inputs: gm.forward, supports=["cos"])
    data = report_data(
        explained(lambda x: x.sin().exp().sin().cos(), torch.ones(3), backend=["of-function", "native"])
    )
    native, mine = data["regions"][0]["partition"]
    assert (
        native["why"]
        == "of-function did not take sin, exp: it is not among the operators it was registered for"
    )
    assert (mine["backend"], mine["nodes"], "why" in mine) == ("of-function", ["cos"], False)


def test_open_sizes_are_named():
    data = report_data(explained(lambda x: torch.relu(x) + 1, torch.ones(5, 2), dynamic=True))
    (region,) = data["regions"]
    (relu,) = [n for n in region["graphs"]["recorded"]["nodes"] if n["id"] == "relu"]
    assert relu["shape"] == ["s0", "s1"] and relu["bytes"] == 40
    assert region["symbols"]
    json.dumps(data)


def test_what_an_equal_graph_was_compiled_to_is_told_of_this_one():
    def model():
        return lampwork.compile(nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6)))

    datas = []
    for compiled in (model(), model()):
        compiled(torch.randn(4, 6)).sum().backward()
        datas.append(report_data(lampwork.explain(compiled)(torch.randn(4, 6)))["regions"][0])
    first, second = datas
    assert first["backward"]["groups"]
    for key in ("kind", "nodes", "flops"):
        steps = [[group[key] for group in each["backward"]["groups"]] for each in datas]
        assert steps[0] == steps[1]
    assert second["groups"] and second["kind"] == "training"


def test_both_halves_of_a_training_step():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    compiled = lampwork.compile(model)
    for _ in range(2):
        compiled(torch.randn(5, 8)).sum().backward()
    data = report_data(lampwork.explain(compiled)(torch.randn(5, 8)))
    (region,) = data["regions"]
    assert region["kind"] == "training" and region["memory"]["saved"] > 0
    for half in (region, region["backward"]):
        assert half["groups"] and sorted(graphs_at_the_end(half)) == sorted(half["graphs"]["optimized"])
        assert len(half["memory"]["steps"]) == len(half["groups"])


def test_passes_that_changed_since_are_only_counted():
    mine = lampwork.rewrite("relu(relu(x))", "relu(x)", name="mine")
    found = explained(lambda x: torch.relu(torch.relu(x)), torch.ones(3), options={"passes": "-algebra"})
    mine.unregister()
    (region,) = report_data(found)["regions"]
    assert all("rewrites" not in step for step in region["graphs"]["steps"])
    assert {"mine": 1} in [step["hits"] for step in region["graphs"]["steps"]]
    assert [n["id"] for n in region["graphs"]["optimized"]["nodes"]] == ["args_0_", "relu_2", "output"]


def test_sources_that_are_gone_are_left_out(tmp_path):
    file = tmp_path / "some <file> 'é'.py"
    file.write_text("def fn(x):\n    return x.sin()\n")
    scope: dict = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    found = explained(scope["fn"], torch.ones(3))
    assert str(file) in report_data(found)["sources"]
    file.unlink()
    import linecache

    linecache.checkcache(str(file))
    assert str(file) not in report_data(found)["sources"]


def test_excerpts_are_merged_cut_and_in_the_file(tmp_path):
    file = tmp_path / "long.py"
    file.write_text("\n".join([*(f"line{n}" for n in range(1, 40)), "x" * 5000]))
    found = excerpts({str(file): [3, 9, 40, 41, 0, 700]})[str(file)]
    assert [(each["first"], len(each["lines"])) for each in found] == [(1, 13), (36, 5)]
    assert found[0]["lines"][2] == "line3" and len(found[1]["lines"][-1]) == LONGEST_LINE


def test_tables_keep_equal_things_once():
    tables = Tables()
    assert [tables.text("a"), tables.text("b"), tables.text("a")] == [0, 1, 0]
    made: list[str] = []
    assert tables.made_of("a", made.append) is None is tables.made_of("a", made.append)
