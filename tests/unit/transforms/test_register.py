"""Registering rewrites, passes and sequences, and switching them."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import lampwork
from lampwork import No, Yes
from lampwork.config import Config
from lampwork.errors import (
    LampworkError,
    LampworkWarning,
    OptionError,
    PassError,
    PassTimeoutError,
    PluginPassError,
    RewriteError,
)
from lampwork.plugins.context import PassContext
from lampwork.plugins.registry import registry
from lampwork.rewriting.apply.edit import replace
from lampwork.transforms.pipeline import run_passes, select_passes

aten = torch.ops.aten
_library = torch.library.Library("register_test", "DEF")
_library.define("add_div(Tensor x, Tensor y, float c) -> Tensor")
for _key in ("CPU", "Meta"):
    _library.impl("add_div", lambda x, y, c: (x + y) / c, _key)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Nothing stays registered."""
    assert not registry().all()
    yield
    for item in registry().all():
        item.unregister()


def targets(compiled: Any) -> list[str]:
    return [
        line.split(" = ")[1].split("(")[0]
        for line in compiled.stages.optimized.splitlines()
        if " = aten" in line or " = register_test" in line
    ]


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-6, atol=1e-7)


X, Y = torch.randn(3, 4), torch.randn(3, 4)


def add_then_divide(x: Tensor, y: Tensor) -> Tensor:
    return (x + y) / 8.0


def three_forms() -> list[Any]:
    def text():
        return lampwork.rewrite("div(add(x, y), c:number)", "register_test.add_div(x, y, c)", name="mine")

    def functions():
        return lampwork.rewrite(
            lambda x, y, c: (x + y) / c, lambda x, y, c: torch.ops.register_test.add_div(x, y, c), name="mine"
        )

    def with_self() -> Any:
        @lampwork.rewrite
        class Mine:
            def pattern(self, x: Tensor, y: Tensor, c: float):
                return (x + y) / c

            def replacement(self, x, y, c):
                return torch.ops.register_test.add_div(x, y, c)

            def check(self, match):
                return match.only_use()

        return Mine

    def without_self() -> Any:
        @lampwork.rewrite(priority=3)
        class Mine:
            def pattern(x: Tensor, y: Tensor, c: float):
                return (x + y) / c

            def replacement(x, y, c):
                return torch.ops.register_test.add_div(x, y, c)

            def check(match):
                return Yes()

        return Mine

    return [text, functions, with_self, without_self]


@pytest.mark.parametrize("form", three_forms(), ids=["text", "functions", "class", "static class"])
def test_a_rewrite_of_each_form_fires(form: Callable[[], Any]) -> None:
    mine = form()
    assert mine.name == "mine" and mine.kind == "rewrite" and mine.enabled
    assert mine.source is not None and mine.source.file == __file__
    compiled = lampwork.compile(add_then_divide)
    assert close(compiled(X, Y), add_then_divide(X, Y))
    assert targets(compiled) == ["register_test.add_div.default"]
    assert mine.hits == 1 and mine.refused == 0
    assert "1 x mine" in compiled.stages.passes


def test_arguments_of_the_decorator_are_stronger_than_the_class() -> None:
    @lampwork.rewrite(name="other", priority=5, check=lambda match: No("never"))
    class Mine:
        priority = 1

        def pattern(x: Tensor):
            return torch.relu(torch.relu(x))

        def replacement(x):
            return torch.relu(x)

    assert Mine.name == "other" and Mine.rule.priority == 5
    lampwork.compile(lambda x: torch.relu(torch.relu(x)), options={"passes": "-algebra"})(X)
    assert Mine.hits == 0 and Mine.refused >= 1


def test_refusals_are_counted() -> None:
    mine = lampwork.rewrite("relu(relu(x))", "relu(x)", check=lambda match: No("not today"), name="mine")
    lampwork.compile(lambda x: torch.relu(torch.relu(x)), options={"passes": "-algebra"})(X)
    assert mine.hits == 0 and mine.refused >= 1


def test_switching_takes_effect_at_the_next_call_and_back() -> None:
    mine = lampwork.rewrite("div(add(x, y), c:number)", "register_test.add_div(x, y, c)", name="mine")
    compiled = lampwork.compile(add_then_divide)
    compiled(X, Y)
    with_it = compiled.entries
    mine.disable()
    assert compiled.entries == ()
    compiled(X, Y)
    assert targets(compiled) == ["aten.add.Tensor", "aten.mul.Tensor"]
    without = compiled.entries
    regions = lampwork.stats()["regions"]
    for _ in range(2):
        mine.enable()
        compiled(X, Y)
        assert compiled.entries == with_it and targets(compiled) == ["register_test.add_div.default"]
        mine.disable()
        compiled(X, Y)
        assert compiled.entries == without
    assert lampwork.stats()["regions"] == regions, "switching back compiles nothing"


def test_switching_reaches_functions_behind_graph_breaks() -> None:
    mine = lampwork.rewrite("div(add(x, y), c:number)", "register_test.add_div(x, y, c)", name="mine")

    def program(x: Tensor, y: Tensor) -> Tensor:
        z = x.sin()
        print(end="")
        return (z + y) / 8.0

    compiled = lampwork.compile(program)

    def behind() -> list[str]:
        return [t for entry in compiled.entries[-1].regions for t in entry.stages.optimized.splitlines()]

    compiled(X, Y)
    assert any("register_test" in line for line in behind())
    mine.disable()
    compiled(X, Y)
    assert not any("register_test" in line for line in behind())
    mine.enable()
    assert close(compiled(X, Y), (X.sin() + Y) / 8.0)
    assert any("register_test" in line for line in behind()) and mine.hits == 1


def test_registering_reaches_what_is_compiled_already() -> None:
    compiled = lampwork.compile(add_then_divide)
    compiled(X, Y)
    mine = lampwork.rewrite("div(add(x, y), c:number)", "register_test.add_div(x, y, c)", name="mine")
    compiled(X, Y)
    assert mine.hits == 1
    mine.unregister()
    compiled(X, Y)
    assert targets(compiled) == ["aten.add.Tensor", "aten.mul.Tensor"]


def test_a_name_registered_again_replaces_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = lampwork.rewrite("div(add(x, y), c:number)", "add(x, y)", name="mine")
    with lampwork.config.using(logs="passes"):
        mine = lampwork.rewrite("div(add(x, y), c:number)", "register_test.add_div(x, y, c)", name="mine")
    assert "rewrite mine is registered again" in capsys.readouterr().err
    compiled = lampwork.compile(add_then_divide)
    assert close(compiled(X, Y), add_then_divide(X, Y))
    assert (wrong.hits, mine.hits) == (0, 1)
    wrong.unregister()  # it is no longer there, so nothing happens
    assert [i.name for i in registry().all()] == ["mine"]


def test_passes_switch_what_is_compiled_inside() -> None:
    off = lampwork.rewrite(
        "div(add(x, y), c:number)", "register_test.add_div(x, y, c)", name="mine", enabled=False
    )
    plain = lampwork.compile(add_then_divide)
    with lampwork.passes("+mine"):
        switched = lampwork.compile(add_then_divide)
        with lampwork.passes("-mine"):
            without = lampwork.compile(add_then_divide)
    for compiled, want in ((plain, 0), (switched, 1), (without, 1)):
        compiled(X, Y)
        assert off.hits == want
    off.enable()  # "-mine" is stronger
    without(X, Y)
    assert off.hits == 1
    plain(X, Y)
    assert off.hits == 2
    with pytest.raises(OptionError, match="no pass or rewrite is called 'mime'\n  fix: did you mean 'mine'"):
        with lampwork.passes("-mime"):
            pass


def test_single_rewrites_of_the_tree_are_switched_by_name() -> None:
    def ops(switches: str) -> list[str]:
        compiled = lampwork.compile(lambda x: -(-x.exp()), options={"passes": switches})
        compiled(X)
        return targets(compiled)

    assert ops("") == ["aten.exp.default"]
    assert ops("-neg(neg(x)) -> x") == ["aten.exp.default", "aten.neg.default", "aten.neg.default"]
    assert ops("-algebra,-neg(neg(x)) -> x,+algebra") == ops("-neg(neg(x)) -> x")


class DropRelu:
    """before: relu(sigmoid(x))   after: sigmoid(x)"""

    name = "drop-relu"

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        for node in list(graph.nodes):
            if node.target is aten.relu.default and node.args[0].target is aten.sigmoid.default:
                replace(graph, node, node.args[0])


def relu_of_sigmoid(x: Tensor) -> Tensor:
    return torch.relu(torch.sigmoid(x)) * 2


@pytest.mark.parametrize("how", ["class", "instance", "function", "decorator"])
def test_a_pass_of_each_form_runs(how: str) -> None:
    if how == "class":
        mine = lampwork.register_pass(DropRelu)
    elif how == "instance":
        mine = lampwork.register_pass(DropRelu(), after="algebra")
    elif how == "function":

        def drop_relu(graph: fx.Graph, ctx: PassContext) -> None:
            DropRelu().run(graph, ctx)

        mine = lampwork.register_pass(drop_relu, before="library")
    else:

        @lampwork.register_pass(after="common-subexpressions", name="drop-relu")
        def whatever(graph: fx.Graph, ctx: PassContext) -> None:
            DropRelu().run(graph, ctx)

        mine = whatever
    compiled = lampwork.compile(relu_of_sigmoid)
    assert close(compiled(X), relu_of_sigmoid(X))
    assert targets(compiled) == ["aten.sigmoid.default", "aten.mul.Tensor"]
    assert mine.name == "drop-relu" and mine.kind == "pass" and mine.hits == 1
    mine.disable()
    compiled(X)
    assert len(targets(compiled)) == 3
    lampwork.compile(lambda x: x.exp())(X)
    mine.enable()
    lampwork.compile(lambda x: x.exp())(X)
    assert mine.hits == 1, "a run that changes nothing is no hit"


def names(switches: str = "") -> list[str]:
    return [step.name for step in select_passes(switches)]


def test_places() -> None:
    def nothing(graph: fx.Graph, ctx: PassContext) -> None: ...

    plain = names()
    lampwork.register_pass(nothing, name="one", after="algebra")
    lampwork.register_pass(nothing, name="two", after="algebra")
    lampwork.register_pass(nothing, name="three", before="algebra")
    lampwork.register_pass(nothing, name="four", after="one")
    lampwork.register_pass(nothing, name="five")
    lampwork.rewrite("relu(relu(x))", "relu(x)", name="six", after="two")
    at = names().index("algebra")
    assert names()[at - 1 : at + 5] == ["three", "algebra", "one", "four", "two", "six"]
    assert names()[names().index("rewrites") + 1] == "five"
    assert [n for n in names() if n in plain] == plain
    assert "two" not in names("-two") and "six" in names("-two"), "what is placed by it stays"
    registry().items["one"].unregister()
    assert "four" in names()


def test_a_place_that_is_not_there_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="no pass is called 'algebar'\n  fix: did you mean 'algebra'"):
        lampwork.register_pass(DropRelu, after="algebar")
    with pytest.raises(OptionError, match="a place is one of both"):
        lampwork.register_pass(DropRelu, after="algebra", before="library")
    with pytest.raises(OptionError, match="'algebra' is the name of a pass of Lampwork"):
        lampwork.register_pass(DropRelu, name="algebra")
    with pytest.raises(OptionError, match="is no pass"):
        lampwork.register_pass(3)
    with pytest.raises(PassError, match="takes two texts"):
        lampwork.rewrite(3)


def test_sequences_run_in_a_row() -> None:
    order: list[str] = []

    def first(graph: fx.Graph, ctx: PassContext) -> None:
        order.append("first")

    def last(graph: fx.Graph, ctx: PassContext) -> None:
        order.append("last")

    cut = lampwork.rewrite("log(exp(x))", "x", name="cut")
    both = lampwork.sequence(
        "mine", [first, cut, ("sqrt(pow(x, 2))", "abs(x)"), "dead-code", last], after="library"
    )
    assert [i.name for i in registry().all()] == ["cut", "first", "sqrt(pow(x, 2)) -> abs(x)", "last", "mine"]
    assert names()[names().index("library") + 1] == "mine"

    def program(x: Tensor) -> Tensor:
        return torch.sqrt(torch.log(torch.exp(x)) ** 2)

    compiled = lampwork.compile(program, options={"passes": "-algebra,-canonicalize"})
    assert torch.allclose(compiled(X), program(X))
    assert targets(compiled) == ["aten.abs.default"] and order == ["first", "last"] and cut.hits == 1
    both.disable()
    compiled(X)
    assert order == ["first", "last"] and cut.hits == 1, "members run in their sequence only"
    both.enable()
    with lampwork.passes("-cut"):
        lampwork.compile(program)(X)
    assert order == ["first", "last"] * 2 and cut.hits == 1
    both.unregister()
    assert not registry().all()
    with pytest.raises(OptionError, match="sequence bad: no pass is called 'nothing'"):
        lampwork.sequence("bad", ["nothing"])


def test_a_sequence_that_fails_leaves_its_steps_where_they_were() -> None:
    mine = lampwork.rewrite("sinh(x)", "cosh(x)", name="mine")
    with pytest.raises(OptionError, match="no pass is called 'nothing'"):
        lampwork.sequence("bad", [mine, "nothing"])
    assert close(lampwork.compile(lambda x: torch.sinh(x))(X), X.cosh())


def test_a_sequence_takes_only_its_own_steps_along() -> None:
    mine = lampwork.rewrite("sinh(x)", "cosh(x)", name="mine")
    first, second = lampwork.sequence("first", [mine]), lampwork.sequence("second", [mine])
    compiled = lampwork.compile(lambda x: torch.sinh(x))
    assert close(compiled(X), X.cosh()) and mine.hits == 1
    first.unregister()
    assert close(compiled(X), X.cosh())
    second.unregister()
    assert close(compiled(X), X.sinh()) and not registry().all()


def test_a_sequence_replaces_one_of_its_name_with_its_steps() -> None:
    lampwork.sequence("tidy", [("sinh(x)", "cosh(x)"), ("tan(x)", "tanh(x)")])
    lampwork.sequence("tidy", [("sinh(x)", "tanh(x)")])
    assert [item.name for item in registry().all()] == ["sinh(x) -> tanh(x)", "tidy"]
    lampwork.register_pass(lambda graph, ctx: None, name="tidy")
    assert [item.name for item in registry().all()] == ["tidy"]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([lambda graph, ctx: None, lambda graph, ctx: None], "two steps are called 'test_register.py:"),
        ([type("bad", (), {"run": lambda self, graph, ctx: None})], "a step has its name"),
        ([("neg(x)", "x", "x")], "is no pair"),
        ("dead-code", "its steps are 'dead-code'"),
    ],
)
def test_steps_that_make_no_sequence(steps: Any, message: str) -> None:
    with pytest.raises(OptionError, match=f"sequence bad: .*{message}"):
        lampwork.sequence("bad", steps)
    assert not registry().all()


def test_a_replacement_takes_sizes_that_are_open() -> None:
    def times_rows(x: Any = lampwork.patterns.tensor(shape=("n", None))) -> Any:
        return torch.sinh(x)

    mine = lampwork.rewrite(times_rows, lambda x, n: torch.cosh(x) * n)
    compiled = lampwork.compile(lambda x: torch.sinh(x), dynamic=True)
    for rows in (3, 4, 7):
        x = torch.randn(rows, 4)
        assert close(compiled(x), x.cosh() * rows)
    assert mine.hits == 1


def test_the_key_of_a_compilation_holds_what_is_on() -> None:
    key = registry().key
    empty = key("")
    mine = lampwork.rewrite("log(exp(x))", "x", name="mine")
    on = key("")
    assert on != empty == key("-mine")
    mine.disable()
    assert key("") == empty and key("+mine") == on
    mine.enable()
    assert key("") == on
    other = lampwork.rewrite("log(exp(x))", "neg(neg(x))", name="mine")
    assert key("") != on and other.hash != mine.hash
    lampwork.rewrite("log(exp(x))", "x", name="mine")
    assert key("") == on, "the same again is the same"


def test_threads_may_switch_while_others_compile() -> None:
    mine = lampwork.rewrite("div(add(x, y), c:number)", "register_test.add_div(x, y, c)", name="mine")
    failures: list[Exception] = []
    done = threading.Event()

    def work() -> None:
        try:
            for number in range(6):
                compiled = lampwork.compile(lambda x, y: (x + y) / 8.0 + number)
                for _ in range(5):
                    assert torch.allclose(compiled(X, Y), (X + Y) / 8.0 + number)
        except Exception as error:  # noqa: BLE001  (raised in the main thread below)
            failures.append(error)

    def switch() -> None:
        while not done.is_set():
            mine.disable()
            time.sleep(0.001)
            mine.enable()
            time.sleep(0.001)

    threads = [threading.Thread(target=work) for _ in range(3)]
    switcher = threading.Thread(target=switch)
    for thread in (*threads, switcher):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    switcher.join()
    assert not failures, failures
    compiled = lampwork.compile(add_then_divide)
    compiled(X, Y)
    assert targets(compiled) == ["register_test.add_div.default"]


def test_open_sizes() -> None:
    mine = lampwork.rewrite("div(add(x, y), c:number)", "add(div(x, c), div(y, c))", name="mine")
    lampwork.register_pass(DropRelu, after="algebra")
    compiled = lampwork.compile(lambda x, y: torch.relu(torch.sigmoid((x + y) / 3.0)) * 2, dynamic=True)
    for size in (3, 5, 8):
        x, y = torch.randn(size, 4), torch.randn(size, 4)
        assert close(compiled(x, y), torch.sigmoid((x + y) / 3.0) * 2)
    assert len(compiled.entries) == 1 and mine.hits == 1 and len(targets(compiled)) == 5


def test_gradients_are_those_of_what_was_written() -> None:
    """Backward runs the graph as recorded, so an op without a derivative may stand in it."""
    mine = lampwork.rewrite("div(add(x, y), c:number)", "register_test.add_div(x, y, c)", name="mine")
    compiled = lampwork.compile(add_then_divide)
    x, other = X.clone().requires_grad_(), X.clone().requires_grad_()
    compiled(x, Y).sin().sum().backward()
    add_then_divide(other, Y).sin().sum().backward()
    assert mine.hits == 1 and x.grad is not None and other.grad is not None and close(x.grad, other.grad)


def test_switching_inside_of_a_pass_takes_effect_after_the_compilation() -> None:
    mine = lampwork.rewrite("div(add(x, y), c:number)", "register_test.add_div(x, y, c)", name="mine")

    @lampwork.register_pass(after="rewrites")
    def switching(graph: fx.Graph, ctx: PassContext) -> None:
        mine.disable()

    compiled = lampwork.compile(add_then_divide)
    assert close(compiled(X, Y), add_then_divide(X, Y)) and mine.hits == 1
    assert compiled.entries == (), "it belongs to neither setting"
    assert close(compiled(X, Y), add_then_divide(X, Y)) and mine.hits == 1
    assert targets(compiled) == ["aten.add.Tensor", "aten.mul.Tensor"]


# --- faults ----------------------------------------------------------------------------------------------------------


def raising(graph: fx.Graph, ctx: PassContext) -> None:
    graph.erase_node(next(n for n in reversed(graph.nodes) if n.op == "output"))
    raise KeyError("where is it")


def breaking(graph: fx.Graph, ctx: PassContext) -> None:
    node = next(n for n in graph.nodes if n.op == "call_function")
    node.args = (next(iter(reversed(graph.nodes))),)


def retyping(graph: fx.Graph, ctx: PassContext) -> None:
    output = next(iter(reversed(graph.nodes)))
    (result,) = output.args[0]
    with graph.inserting_before(output):
        made = graph.call_function(aten.sum.default, (result,))
    output.args = ((made,),)


def lying(graph: fx.Graph, ctx: PassContext) -> None:
    node = next(n for n in graph.nodes if n.op == "call_function")
    with graph.inserting_before(node):
        made = graph.call_function(aten.sum.default, (node.args[0],))
    made.meta["val"] = node.meta["val"]
    replace(graph, node, made)


def mistaken(graph: fx.Graph, ctx: PassContext) -> None:
    node = next(n for n in graph.nodes if n.op == "call_function")
    with graph.inserting_before(node):
        made = graph.call_function(aten.mm.default, (node.args[0], node.args[0]))
    replace(graph, node, made)


def endless(graph: fx.Graph, ctx: PassContext) -> None:
    while True:
        try:
            list(graph.nodes)
        except Exception:  # noqa: BLE001  (what must not keep it from ending)
            pass


FAULTS: dict[Any, tuple[type[LampworkError], str]] = {
    raising: (
        PluginPassError,
        "pass raising .*test_register.py:.* raised KeyError: 'where is it', at .*test_register.py",
    ),
    breaking: (PluginPassError, "pass breaking .* left an invalid graph: node .* uses output"),
    retyping: (PluginPassError, "left an invalid graph: result sum.* was mul.* before, of another type"),
    lying: (PluginPassError, "the spec of node sum.* is wrong: .*"),
    mistaken: (PluginPassError, "node mm.* calls aten.mm.default with arguments that torch refuses"),
    endless: (PassTimeoutError, "pass endless .* did not end in 1 seconds, at .*test_register.py"),
}


def program_of_faults(x: Tensor) -> Tensor:
    return torch.sigmoid(x) * 2


@pytest.mark.parametrize("step", FAULTS, ids=lambda step: step.__name__)
def test_a_pass_at_fault_is_undone_and_named(step: Any) -> None:
    kind, message = FAULTS[step]
    mine = lampwork.register_pass(step)
    options = {"pass_timeout": 1}
    with pytest.raises(kind, match=message) as raised:
        lampwork.compile(program_of_faults, options=options)(X)
    assert raised.value.location is not None and raised.value.location.file == __file__
    eager = lampwork.stats()["eager_calls"]
    compiled = lampwork.compile(program_of_faults, options={"strict": False, **options})
    with pytest.warns(LampworkWarning, match=f"goes on without it.*{step.__name__}") as caught:
        assert close(compiled(X), program_of_faults(X))
    assert len(caught) == 1 and mine.hits == 0
    assert targets(compiled) == ["aten.sigmoid.default", "aten.mul.Tensor"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(X)
    assert lampwork.stats()["eager_calls"] == eager


def test_a_rewrite_at_fault_is_left_out_and_named() -> None:
    @lampwork.rewrite
    class Bad:
        def pattern(x: Tensor):
            return torch.sigmoid(x)

        def replacement(x):
            return x.sum()

    good = lampwork.rewrite("mul(x, 2)", "add(x, x)", name="good")
    with pytest.raises(RewriteError, match="rewrite bad .* at sigmoid"):
        lampwork.compile(program_of_faults)(X)
    compiled = lampwork.compile(program_of_faults, options={"strict": False})
    with pytest.warns(LampworkWarning, match="goes on without it.*rewrite bad") as caught:
        assert close(compiled(X), program_of_faults(X))
    assert len(caught) == 1, "it is not tried again"
    assert targets(compiled) == ["aten.sigmoid.default", "aten.add.Tensor"] and good.hits == 1


def test_a_rewrite_that_grows_without_end_leaves_no_trace() -> None:
    growing = lampwork.rewrite("sigmoid(x)", "sigmoid(sin(x))", name="growing")
    good = lampwork.rewrite("mul(x, 2)", "add(x, x)", name="good")
    compiled = lampwork.compile(program_of_faults, options={"strict": False})
    with pytest.warns(LampworkWarning, match="growing does not come to an end.*as it was before") as caught:
        assert close(compiled(X), program_of_faults(X))
    assert len(caught) == 1
    assert targets(compiled) == ["aten.sigmoid.default", "aten.add.Tensor"]
    assert (growing.hits, good.hits) == (0, 1)


def test_specs_that_a_pass_leaves_out_are_inferred() -> None:
    def double(graph: fx.Graph, ctx: PassContext) -> None:
        node = next(n for n in graph.nodes if n.target is aten.sigmoid.default)
        with graph.inserting_after(node):
            twice = graph.call_function(aten.abs.default, (node,))
        node.replace_all_uses_with(twice, delete_user_cb=lambda user: user is not twice)

    lampwork.register_pass(double)
    compiled = lampwork.compile(program_of_faults)
    assert close(compiled(X), program_of_faults(X))
    assert targets(compiled) == ["aten.sigmoid.default", "aten.abs.default", "aten.mul.Tensor"]


def test_fuel_stops_registered_passes_and_rewrites() -> None:
    lampwork.register_pass(DropRelu)
    lampwork.rewrite("mul(x, 2)", "add(x, x)", name="twice")
    for fuel, want in (
        (0, ["sigmoid", "relu", "mul"]),
        (1, ["sigmoid", "relu", "add"]),
        (2, ["sigmoid", "add"]),
    ):
        compiled = lampwork.compile(relu_of_sigmoid, options={"fuel": fuel})
        assert close(compiled(X), relu_of_sigmoid(X))
        assert [t.split(".")[1] for t in targets(compiled)] == want


def test_the_fuel_of_the_environment_is_of_the_whole_process(monkeypatch: pytest.MonkeyPatch) -> None:
    lampwork.register_pass(DropRelu)
    monkeypatch.setenv("LAMPWORK_FUEL", "1")
    lengths = []
    for number in range(3):
        compiled = lampwork.compile(relu_of_sigmoid)
        compiled(X)
        lengths.append(len(targets(compiled)))
    assert lengths == [2, 3, 3]


def test_runs_without_registered_things_take_no_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = lampwork.compile(add_then_divide)
    compiled(X, Y)
    assert "rewrites: 0 rewrites" in compiled.stages.passes
    run_passes(compiled.stages.aten, Config())


@pytest.mark.parametrize(
    "name",
    [
        "2 sines",
        "<ipython-input-3>:1",
        "sub(x, -1) -> add(x, 1)",
        "mul(x, -inf) -> y",
        "a, b",
        "é",
        'mi"st',
        "a -b",
    ],
)
def test_what_can_be_registered_can_be_named(name: str) -> None:
    mine, other = (
        lampwork.rewrite("neg(neg(x))", "x", name=each, enabled=False) for each in (name, "another of these")
    )
    for text in (f"+{name}", f" +{name} ", f"-algebra, +{name},-rewrites", f"+{name},"):
        lampwork.compile(torch.sin, options={"passes": text})
        assert registry().select(text).items == (mine,)
    assert set(registry().select(f"+{name},+{other.name}").items) == {mine, other}


def test_the_name_of_a_text_is_one_line() -> None:
    assert lampwork.rewrite("neg(\n  neg(x))", "x\n").name == "neg( neg(x)) -> x"
