"""Choices that a vector loop does not change, made before it.

    before: vector j < 256:  y[i, j] = where(i < 65, (a[i, j] if i < 65), (b[i - 65, j] if i >= 65))
    after:  if i < 65: vector j < 256: y[i, j] = a[i, j]        else: vector j < 256: y[i, j] = b[i - 65, j]

That is what reading rows of a concatenation comes to. The outcome is a fact inside, by which accesses are proven.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Const, Expr, IndexValue, Let, Load, Loop, Op, Store
from lampwork.loops.ir.traverse import rewrite, walk_once
from lampwork.loops.schedule.split_choices import fold_load, fold_op
from lampwork.records import record

if TYPE_CHECKING:
    from lampwork.codegen.llvm.emit_kernel import KernelWriter
    from lampwork.codegen.llvm.env import Env

MOST_CHOICES = 7  # each is code of its own


@record
class Test:
    """place < number."""

    place: Index
    number: int

    def fact(self, outcome: bool) -> Index:
        """What is at least 0 where the test comes out so."""
        return self.number - 1 - self.place if outcome else self.place - self.number

    def implied(self, other: Test, outcome: bool) -> bool | None:
        """How another test of the same place comes out, if this one decides it."""
        if outcome:
            return True if other.number >= self.number else None
        return False if other.number <= self.number else None


def write_choices(writer: KernelWriter, loop: Loop, env: Env, most: int = MOST_CHOICES) -> bool:
    """Write a vector loop as one for each outcome of its fixed choices. False: it has none, and is not written."""
    test = _fixed_test(loop) if most else None
    if test is None:
        return False
    b = writer.b
    yes, no, done = (b.new_label(hint) for hint in ("chosen", "other", "done"))
    place = writer.emitter.emit_index(test.place, env)
    b.branch_if(b.cmp("lt", place, test.number), yes, no)
    for label, outcome in ((yes, True), (no, False)):
        b.start(label)
        with b.scope():
            chosen = _settled(loop, test, outcome)
            inside = replace(env, facts=(*env.facts, test.fact(outcome)))
            if not write_choices(writer, chosen, inside, most - 1):
                writer.plain_loop(chosen, inside)
        b.branch(done)
    b.start(done)
    return True


def _fixed_test(loop: Loop) -> Test | None:
    """The first test by which the loop chooses and which all of its turns share."""
    if loop.kind != "vector" or not all(isinstance(stmt, Let | Store) for stmt in loop.body):
        return None
    for part in walk_once(*loop.body, data=False):
        if isinstance(part, Op) and part.name == "where":
            found = _test_of(part.args[0])
            if found is not None and loop.axis.name not in found[0].place.variables():
                return found[0]
    return None


def _test_of(expr: Expr) -> tuple[Test, bool] | None:
    """A comparison as a test and whether it asks for that or for its negation; None for others."""
    if not isinstance(expr, Op) or expr.name not in ("lt", "ge"):
        return None
    left, right = expr.args
    if not isinstance(left, IndexValue) or not isinstance(right, Const) or left.index.indirects():
        return None
    return Test(left.index, int(right.value)), expr.name == "lt"


def _settled(loop: Loop, test: Test, outcome: bool) -> Loop:
    """The loop where the test comes out so."""

    def on_op(op: Op) -> Expr:
        other = _test_of(op)
        if other is None:
            return fold_op(op)
        known = test.implied(other[0], outcome) if other[0].place == test.place else None
        return op if known is None else Const(known == other[1], "bool")

    change = {Op: on_op, Load: fold_load}
    return replace(loop, body=tuple(rewrite(stmt, change) for stmt in loop.body))
