"""Random graphs through all rewrites of the tree: no wrong result.

Short here; `LAMPWORK_FUZZ=10000` tries so many graphs. A failure prints the seed: `LAMPWORK_FUZZ_SEED=n` repeats it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from fuzzing import Plan, Tree, exact_plan, exact_rule, grow_around, sized_plan, smooth_plan, special
from graphkit import Forgiving, record
from torch import Tensor, fx

from lampwork.graph.concrete import concrete_graph
from lampwork.graph.copying import copy_graph
from lampwork.graph.interpret import run_graph
from lampwork.graph.record import Recorder
from lampwork.graph.spec import TensorSpec
from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.rewriting.algebra import algebra_rules
from lampwork.rewriting.apply.driver import Rewriter, Rule
from lampwork.rewriting.apply.edit import Editor
from lampwork.rewriting.language.term import Var
from lampwork.rewriting.library.table import library_rules, library_stages
from lampwork.rewriting.matching.automaton import PatternAutomaton
from lampwork.rewriting.matching.match import Match, matches
from lampwork.rewriting.padding import padding_rules
from lampwork.rewriting.views import view_rules
from lampwork.transforms.canonicalize import Canonicalize
from lampwork.transforms.common_subexpressions import CommonSubexpressions
from lampwork.transforms.remove_noops import RemoveNoops
from lampwork.transforms.split_constants import SplitConstants

COUNT = int(os.environ.get("LAMPWORK_FUZZ", "0"))
SEED = os.environ.get("LAMPWORK_FUZZ_SEED")

EXACT = Rewriter((*algebra_rules(), *view_rules(), *padding_rules()))


def seeds(few: int) -> Sequence[int]:
    if SEED is not None:
        return [int(SEED)]
    return range(max(COUNT // 5, few) if COUNT else few)


def prepared(plan: Plan, *, canonical: bool) -> fx.Graph:
    graph = record(plan.run, *plan.inputs, bound=plan.weights)
    for step in (
        SplitConstants(),
        *((Canonicalize(), RemoveNoops(), CommonSubexpressions()) if canonical else ()),
    ):
        step.run(graph, PassContext())
    return graph


def storages(tensors: Sequence[Tensor]) -> list[list[int]]:
    """For each tensor, the ones it shares memory with."""
    pointers = [t.untyped_storage().data_ptr() if t.numel() else -1 for t in tensors]
    return [[j for j, q in enumerate(pointers) if q == p != -1] for p in pointers]


def results(graph: fx.Graph) -> Sequence[fx.Node]:
    return next(n for n in graph.nodes if n.op == "output").args[0]


def steps(tensor: Tensor) -> list[int]:
    """The strides of dimensions of more than one element. Those of others are what the specs say: code that is
    generated goes by them, ATen kernels go by those of their operands."""
    if tensor.numel() <= 1:
        return []
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def check_form(
    before: fx.Graph, after: fx.Graph, tensors: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Valid, and with results of the same form and aliasing; the results of both."""
    verify(after)
    want, got = run_graph(before, tensors), run_graph(after, tensors)
    assert [t.dtype for t in got] == [t.dtype for t in want]
    assert [t.shape for t in got] == [t.shape for t in want]
    assert [steps(t) for t in got] == [steps(t) for t in want]
    assert [node.meta["val"].strides for node in results(after)] == [
        node.meta["val"].strides for node in results(before)
    ]
    assert storages([*tensors, *got]) == storages([*tensors, *want])
    return want, got


def assert_same_bits(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        if a.is_floating_point():
            assert torch.equal(torch.signbit(a[~a.isnan()]), torch.signbit(b[~b.isnan()]))


def assert_close(got: Sequence[Tensor], want: Sequence[Tensor], moved: Sequence[Tensor]) -> None:
    """Equal up to the rounding of float64, or a little of what the results move by when the inputs do by 1e-10."""
    for a, b, c in zip(got, want, moved, strict=True):
        if not a.is_floating_point():
            assert torch.equal(a, b)
            continue
        scale = float(b.abs().max()) if b.numel() else 0.0
        reach = float((b - c).abs().max()) if b.numel() else 0.0
        assert float((a - b).abs().max() if b.numel() else 0.0) <= 1e-10 * max(scale, 1e-3) + reach


def exactly(seed: int) -> int:
    """Bit for bit, in all dtypes, with infinities and nan: what algebra, views and padding promise."""
    rng = random.Random(seed)
    plan = exact_plan(rng, rng.randrange(5, 25))
    before = prepared(plan, canonical=rng.random() < 0.5)
    after = copy_graph(before)
    fired = EXACT.run(after, PassContext())
    want, got = check_form(before, after, plan.inputs)
    assert_same_bits(got, want)
    return fired


def closely(seed: int) -> int:
    """Within the rounding of float64: the library, then the algebra."""
    rng = random.Random(seed)
    plan = smooth_plan(rng, rng.randrange(3, 15), seed)
    before = prepared(plan, canonical=True)
    after = copy_graph(before)
    ctx = PassContext()
    stages = [Rewriter(rules) for rules in library_stages()] if not LIBRARY else LIBRARY
    LIBRARY[:] = stages
    fired = sum(stage.run(after, ctx) for stage in (*stages, EXACT))
    tensors = [*plan.inputs, *plan.weights]
    want, got = check_form(before, after, tensors)
    moved = run_graph(before, [t * (1 + 1e-10) for t in tensors])
    assert_close(got, want, moved)
    return fired


def by_equal_sides(seed: int) -> int:
    """Random rewrites whose two sides are the same numbers, on graphs that hold their patterns: bit for bit. Some of
    them undo each other, or never end, and are found out."""
    rng = random.Random(seed)
    pairs = [exact_rule(rng) for _ in range(rng.randrange(1, 12))]
    plan = grow_around(rng, [pattern for pattern, _ in pairs])
    before = prepared(plan, canonical=rng.random() < 0.5)
    after, host = copy_graph(before), Forgiving()
    rules = [rule_of_trees(a, b, number) for number, (a, b) in enumerate(pairs)]
    fired = Rewriter(rules).run(after, host)
    want, got = check_form(before, after, plan.inputs)
    assert_same_bits(got, want)
    for error in host.faults:
        assert "come to an end" in str(error), error
    return fired


def rule_of_trees(pattern: Tree, replacement: Tree, number: int) -> Rule:
    """The rewrite of one expression, or several, by another."""
    names = {name: Var(name) for name in pattern.variables()}
    result = replacement.apply(names)

    def build(match: Match, editor: Editor) -> Any:
        return editor.build(result, match.values)

    return Rule(
        f"rule {number}: {pattern} -> {replacement}",
        pattern.apply(names),
        build,
        lambda _: True,
        strict=False,
    )


def with_open_sizes(seed: int) -> int:
    """Graphs with symbols for sizes, rewritten once and run for several sizes: bit for bit."""
    rng = random.Random(seed)
    sizes = rng.choice(((3, 4), (2, 5), (4, 4)))
    plan = sized_plan(rng, sizes, rng.randrange(3, 15))
    with torch.no_grad(), Recorder() as recorder:
        symbols = {size: recorder.scope.symbol(size) for size in sizes}
        inputs = [recorder.input(t, f"x{i}", spec=opened(t, symbols)) for i, t in enumerate(plan.inputs)]
        results = plan.run(*inputs)
    before = recorder.finish(results).graph
    if rng.random() < 0.5:
        for step in (Canonicalize(), RemoveNoops(), CommonSubexpressions()):
            step.run(before, PassContext())
    after = copy_graph(before)
    fired = EXACT.run(after, PassContext())
    for first in (2, 3, 4, 7):
        other = {
            name: size if first == 2 else first + i
            for i, (name, size) in enumerate(recorder.scope.hints.items())
        }
        if not all(condition.holds(other) for condition in recorder.scope.conditions):
            continue
        change = dict(zip(recorder.scope.hints.values(), other.values(), strict=True))
        tensors = [special(rng, [change.get(n, n) for n in t.shape[:-1]] + [8], t.dtype) for t in plan.inputs]
        want, got = check_form(concrete_graph(before, other), concrete_graph(after, other), tensors)
        assert_same_bits(got, want)
    return fired


def opened(tensor: Tensor, symbols: dict[int, Any]) -> TensorSpec:
    """The spec of a contiguous tensor with symbols for all sizes but the last."""
    shape = tuple(symbols[n] for n in tensor.shape[:-1]) + tuple(tensor.shape[-1:])
    strides: list[Any] = [1] * len(shape)
    for d in reversed(range(len(shape) - 1)):
        strides[d] = strides[d + 1] * shape[d + 1]
    return TensorSpec(shape, tuple(strides), tensor.dtype, tensor.device)


def index_misses_nothing(seed: int) -> int:
    """Where the index says that a pattern cannot match, it does not."""
    rng = random.Random(seed)
    plan = exact_plan(rng, 25) if rng.random() < 0.7 else smooth_plan(rng, 15, seed)
    graph = prepared(plan, canonical=rng.random() < 0.5)
    rules = [*ALL, *(rule_of_trees(*exact_rule(rng), i) for i in range(5))]
    automaton = PatternAutomaton.of(r.roots[0] for r in rules)
    states: dict[fx.Node, int] = {}
    found = 0
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        states[node] = automaton.state(node, states)
        candidates = automaton.candidates(states[node])
        for number, r in enumerate(rules):
            if next(matches(r.pattern, node), None) is not None:
                found += 1
                assert number in candidates, f"{r.name} at {node.format_node()}"
    return found


LIBRARY: list[Rewriter] = []
ALL = (*algebra_rules(), *view_rules(), *padding_rules(), *library_rules())


def many(trial: Callable[[int], int], few: int) -> int:
    """Run a trial for all seeds; the number of rewrites that fired."""
    fired = 0
    wrong: list[str] = []
    for seed in seeds(few):
        try:
            fired += trial(seed)
        except Exception as error:  # reported below, with the seed
            if SEED is not None:
                raise
            wrong.append(
                f"seed {seed}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            )
    assert not wrong, f"{len(wrong)} wrong of {len(seeds(few))}:\n" + "\n".join(wrong[:20])
    return fired


FEW = {exactly: 60, closely: 30, by_equal_sides: 60, with_open_sizes: 30, index_misses_nothing: 10}


@pytest.mark.parametrize("trial, few", FEW.items())
def test_random_graphs(trial: Callable[[int], int], few: int) -> None:
    fired = many(trial, few)
    print(f"{trial.__name__}: {fired} rewrites on {len(seeds(few))} graphs")
    assert fired or SEED is not None
