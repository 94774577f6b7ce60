"""The order in which constants are computed."""

from __future__ import annotations

import random

from lampwork.backends.native.demand import in_order_of_demand
from lampwork.backends.native.tasks import ExternTask, Task, task_reads, task_writes
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Buffer, Extern, View


def buffer(name: str, elements: int = 4) -> Buffer:
    return Buffer(name, "f32", (Index.const(elements),), (Index.const(1),))


def task(out: Buffer, *operands: Buffer, random: bool = False) -> Task:
    views = tuple(View(each, each.shape, each.strides, Index.const(0)) for each in operands)
    return ExternTask(Extern((out,), "aten::stack", views, random=random))


def outs(tasks: list[Task]) -> list[str]:
    return [name for each in tasks for name in task_writes(each)]


def test_what_is_needed_comes_right_before_it_and_the_largest_first() -> None:
    x, y = buffer("x"), buffer("y")
    a, b = buffer("a"), buffer("b")
    small, large = buffer("small", 4), buffer("large", 8)
    before = [task(a, x), task(b, y), task(small, a), task(large, b)]
    assert outs(in_order_of_demand(before, [small, large])) == ["b", "large", "a", "small"]


def test_what_nobody_wants_keeps_its_order_and_comes_last() -> None:
    a, b, c = buffer("a"), buffer("b"), buffer("c")
    before = [task(a), task(b), task(c)]
    assert outs(in_order_of_demand(before, [])) == ["a", "b", "c"]
    assert outs(in_order_of_demand(before, [b])) == ["b", "a", "c"]


def test_a_shared_operand_is_computed_once_before_both() -> None:
    shared, a, b = buffer("shared"), buffer("a"), buffer("b")
    before = [task(shared), task(a, shared), task(b, shared, a)]
    assert outs(in_order_of_demand(before, [b, a])) == ["shared", "a", "b"]


def test_random_numbers_are_drawn_in_the_order_of_the_program() -> None:
    a, b = buffer("a"), buffer("b", 8)
    assert outs(in_order_of_demand([task(a, random=True), task(b)], [b])) == ["a", "b"]


def test_any_order_of_demand_runs() -> None:
    rng = random.Random(7)
    for _ in range(200):
        made: list[Buffer] = []
        before: list[Task] = []
        for number in range(rng.randrange(1, 12)):
            operands = rng.sample(made, rng.randrange(0, min(3, len(made)) + 1))
            out = buffer(f"b{number}", rng.randrange(0, 9))
            before.append(task(out, *operands))
            made.append(out)
        after = in_order_of_demand(before, rng.sample(made, rng.randrange(0, len(made) + 1)))
        assert sorted(outs(after)) == sorted(outs(before))
        ready: set[str] = set()
        for each in after:
            assert task_reads(each) <= ready
            ready |= task_writes(each)
