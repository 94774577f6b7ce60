"""lampwork.partition: coverage, reasons and what would change them, as data and as text."""

from __future__ import annotations

import pytest
import torch
from graphkit import record
from torch import nn

import lampwork
from lampwork.errors import OptionError
from lampwork.rewriting.flops import flops

aten = torch.ops.aten


class Linear:
    name = "linear"

    def supports(self, node):
        if node.target is not aten.linear.default:
            return lampwork.No("only linear layers")
        return lampwork.Yes()

    def compile(self, graph, example_inputs, options):
        raise AssertionError("nothing is compiled for a plan")


def model():
    return nn.Sequential(
        nn.Linear(8, 8), nn.Softsign(), nn.Linear(8, 8), nn.Softsign(), nn.Linear(8, 2)
    ).eval()


def test_coverage_reasons_and_changes() -> None:
    with torch.no_grad():
        plan = lampwork.partition(model(), torch.randn(4, 8), [Linear, "native"])
    linear, native = plan.coverage
    assert (linear.backend, linear.nodes, linear.parts) == ("linear", 3, 3)
    assert (native.backend, native.parts) == ("native", 2)
    assert linear.flops == 2 * 4 * 8 * (8 + 8 + 2)
    assert linear.nodes + native.nodes == plan.nodes
    assert len(plan.parts) == 5
    reasons = {(group.backend, group.op): group for group in plan.refusals}
    assert {group.reason for group in plan.refusals} == {"only linear layers"}
    assert reasons["linear", "abs"].nodes == 2
    assert reasons["linear", "abs"].location.file.endswith("activation.py")
    sizes = {change.text: (change.nodes, change.parts, change.all_parts) for change in plan.block_sizes}
    assert sizes == {
        "min_block_size = 1": (3, 3, 5),
        "min_block_size = 2": (0, 0, 1),
        "min_block_size = 5": (0, 0, 1),
        "min_block_size = 10": (0, 0, 1),
    }
    more = {change.text: (change.nodes, change.parts) for change in plan.one_more}
    assert more["abs supported as well"][0] == 5


def test_the_text() -> None:
    with torch.no_grad():
        plan = lampwork.partition(lambda x: x.exp().cumsum(0).exp(), (torch.ones(3),), "eager")
    assert (
        str(plan.dry_run())
        == repr(plan.dry_run())
        == str(plan)
        == (
            "1 regions, 3 operators, 1 parts\n"
            "eager: 3 operators (100.0 %) in 1 parts, 100.0 % of the arithmetic\n"
            "\nparts of test_the_text.<locals>.<lambda>#0:\n"
            "  eager: exp x2, cumsum: part 0"
        )
    )


def test_time_and_bytes_of_parts() -> None:
    class Costly(Linear):
        def cost(self, nodes):
            return 2e-6 * len(nodes)

    with torch.no_grad():
        run = lampwork.partition(model(), torch.randn(4, 8), [Costly, "native"]).dry_run()
    assert [part.read for part in run.parts] == [0, 128, 128, 128, 128] and run.moved == 512
    assert [part.given for part in run.parts] == [128, 128, 128, 128, 32]
    assert [part.seconds for part in run.parts] == [2e-6, None, 2e-6, None, 2e-6]
    assert "between parts: 512 bytes in a call\n" in str(run)
    assert "  part 2, linear: reads 128 bytes of other parts, gives 128 bytes, 2 us predicted, of 2\n" in str(
        run
    )
    assert [part.modules for part in run.parts] == [("0",), ("1",), ("2",), ("3",), ("4",)]


def test_the_page_is_escaped() -> None:
    class Marked(Linear):
        def supports(self, node):
            return lampwork.No("<b>no</b>")

    page = lampwork.partition(lambda x: x.exp(), torch.ones(2), [Marked])
    assert (
        "&lt;b&gt;no&lt;/b&gt;" in page.dry_run()._repr_html_()
        and "<b>no" not in page.dry_run()._repr_html_()
    )


def test_the_operators_that_are_missing() -> None:
    def fn(x):
        return torch.nn.functional.linear(x.exp(), x).sin().cos() + 1

    with torch.no_grad():
        plan = lampwork.partition(fn, torch.ones(2, 2), [Linear, "native"])
        (missing,) = plan.missing
        assert missing.backend == "linear" and set(missing.operators) == {"exp", "sin", "cos", "add"}
        assert "linear, to be all of one part (found greedily): " in str(plan)
        assert not lampwork.partition(lambda x: x @ x, torch.ones(2, 2), "native").missing


def test_all_regions_and_arguments_by_name() -> None:
    def fn(x, *, scale):
        y = x.exp() * scale
        print("a graph break")
        return y.cos()

    plan = lampwork.partition(fn, {"x": torch.randn(3), "scale": 2.0}, [Linear])
    assert len(plan.regions) == 2
    assert plan.nodes == 3
    (found,) = plan.records
    assert "print()" in found.cause
    assert "not captured in one piece" in str(plan)


def test_nonsense_is_in_the_plan() -> None:
    class Wrong(Linear):
        def supports(self, node):
            return "yes"

    plan = lampwork.partition(lambda x: x.exp(), [torch.randn(3)], [Wrong])
    (fault,) = plan.faults
    assert "supports returned str" in fault.cause and fault.cause in str(plan)
    assert plan.coverage[0].nodes == 0


def test_bad_arguments() -> None:
    with pytest.raises(OptionError, match="partition.. takes a function or a module, got int"):
        lampwork.partition(3, (), "native")
    with pytest.raises(OptionError, match="unknown backend 'nativ'"):
        lampwork.partition(torch.exp, (torch.ones(1),), "nativ")


def test_flops() -> None:
    x, w = torch.randn(2, 3, 8, 8), torch.randn(5, 3, 3, 3)
    graph = record(lambda x, w: torch.conv2d(x, w, padding=1).relu().sum(), x, w)
    counts = {n.name: flops(n) for n in graph.nodes if n.op == "call_function"}
    assert list(counts.values()) == [2 * (2 * 5 * 64) * 27, 640, 640]
    a, b = torch.randn(2, 4, 6), torch.randn(2, 6, 3)
    graph = record(lambda a, b: torch.bmm(a, b).transpose(1, 2), a, b)
    assert [flops(n) for n in graph.nodes if n.op == "call_function"] == [2 * 2 * 4 * 6 * 3, 0]
