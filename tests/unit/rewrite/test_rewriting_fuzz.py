"""Random graphs through all rewrites of the tree: no wrong result.

Short here; `LAMPWORK_FUZZ=10000` tries so many graphs. A failure prints the seed: `LAMPWORK_FUZZ_SEED=n` repeats it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence

import pytest
import torch
from fuzzing import Plan, exact_plan, smooth_plan
from graphkit import record
from torch import Tensor, fx

from lampwork.graph.copying import copy_graph
from lampwork.graph.interpret import run_graph
from lampwork.graph.verify import verify
from lampwork.passes.canonicalize import Canonicalize
from lampwork.passes.common_subexpressions import CommonSubexpressions
from lampwork.passes.context import PassContext
from lampwork.passes.remove_noops import RemoveNoops
from lampwork.passes.split_constants import SplitConstants
from lampwork.rewrite.algebra import algebra_rules
from lampwork.rewrite.driver import Rewriter
from lampwork.rewrite.library.table import library_stages
from lampwork.rewrite.padding import padding_rules
from lampwork.rewrite.views import view_rules

COUNT = int(os.environ.get("LAMPWORK_FUZZ", "0"))
SEED = os.environ.get("LAMPWORK_FUZZ_SEED")

EXACT = Rewriter((*algebra_rules(), *view_rules(), *padding_rules()))


def seeds(few: int) -> Sequence[int]:
    if SEED is not None:
        return [int(SEED)]
    return range(max(COUNT // 4, few) if COUNT else few)


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


def check_form(
    before: fx.Graph, after: fx.Graph, tensors: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Valid, and with results of the same form and aliasing; the results of both."""
    verify(after)
    want, got = run_graph(before, tensors), run_graph(after, tensors)
    assert [t.dtype for t in got] == [t.dtype for t in want]
    assert [t.shape for t in got] == [t.shape for t in want]
    assert [t.stride() for t in got] == [t.stride() for t in want]
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


LIBRARY: list[Rewriter] = []


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


@pytest.mark.parametrize("trial, few", [(exactly, 60), (closely, 30)])
def test_random_graphs(trial: Callable[[int], int], few: int) -> None:
    fired = many(trial, few)
    print(f"{trial.__name__}: {fired} rewrites on {len(seeds(few))} graphs")
    assert fired or SEED is not None
