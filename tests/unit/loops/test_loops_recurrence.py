"""`Recurrence`: how it prints, what is refused, which ones share their code, and that fusion leaves it alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from loops_build import I, at, buffer, op, pointwise

from lampwork.codegen.llvm.isa.x86 import describe
from lampwork.codegen.llvm.structure import template_structure
from lampwork.errors import InvalidLoopsError
from lampwork.loops.fusion.fuse import fuse
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Axis, Const, Load, Recurrence, RecurrenceGradient
from lampwork.loops.ir.printing import format_definition
from lampwork.loops.ir.traverse import rewrite
from lampwork.loops.ir.verify import verify_definitions

D, T, B, N, U, K, P = (Index.var(name) for name in "dtbnukp")
STEPS, BATCH, UNITS = 5, 3, 6


def axis(name: str, extent: int) -> Axis:
    return Axis(name, Index.const(extent))


def gru(prefix: str = "") -> Recurrence:
    return Recurrence(
        "gru",
        buffer(f"{prefix}y", STEPS, BATCH, UNITS),
        buffer(f"{prefix}memory", 1, BATCH, 2, 16),
        axis("d", 1),
        axis("t", STEPS),
        axis("b", BATCH),
        axis("n", 3 * UNITS),
        axis("u", UNITS),
        axis("k", UNITS),
        Load(buffer(f"{prefix}x", STEPS, BATCH, 3 * UNITS), (T, B, N)),
        Load(buffer(f"{prefix}w", 3 * UNITS, UNITS), (N, K)),
        Load(buffer(f"{prefix}h", BATCH, UNITS), (B, K)),
        None,
        Load(buffer(f"{prefix}bias", UNITS), (U,)),
        None,
        (T, B, K),
    )


def test_it_prints_in_one_line():
    assert format_definition(gru()) == (
        "y: f32[5, 3, 6] at [t, b, k], memory: f32[1, 3, 2, 16] = "
        "gru(x=x[t, b, n], w=w[n, k], h=h[b, k], bias=bias[u]) for d < 1, t < 5, b < 3, u < 6, k < 6"
    )


WRONG = {
    "5 columns": (replace(gru(), n=axis("n", 17)), "17 columns are not 3 gates"),
    "a state of another size": (replace(gru(), k=axis("k", 4)), "needs a projection"),
    "no cell": (replace(gru(), kind="lstm", n=axis("n", 24)), "a lstm has other operands"),
    "a bias": (replace(gru(), kind="tanh", n=axis("n", 6)), "a tanh has other operands"),
    "a variable": (replace(gru(), h=Load(gru().h.buffer, (T, K))), "the loop variable t is not bound"),
    "the place": (replace(gru(), index=(T, B)), "expected 3 indices, got 2"),
}


@pytest.mark.parametrize(("node", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(node: Recurrence, message: str):
    verify_definitions([gru()])
    with pytest.raises(InvalidLoopsError, match=message):
        verify_definitions([node])


def test_a_weight_that_is_made_later_is_refused():
    weight = pointwise(gru().w.buffer, Const(1.0, "f32"))
    with pytest.raises(InvalidLoopsError, match="w is read before it is made"):
        verify_definitions([gru(), weight])


def test_equal_layers_share_their_structure():
    first, names, _ = template_structure(gru())
    second, others, _ = template_structure(gru("other_"))
    assert first == second
    assert [f"other_{name}" for name in names] == list(others)
    assert template_structure(replace(gru(), bias=None))[0] != first
    assert template_structure(replace(gru(), index=(T, B, Index.const(5) - K)))[0] != first


def test_rewriting_reaches_its_operands():
    moved = rewrite(gru(), {Index: lambda index: index.substitute({"t": T + 1})})
    assert moved.x.index == (T + 1, B, N)
    assert moved.index == (T + 1, B, K)
    assert moved.w == gru().w


def test_nothing_is_computed_inside_of_it():
    """What it reads many times is made once, in a group before it; what nobody reads is dropped."""
    node = gru()
    made = pointwise(node.x.buffer, op("exp", at(buffer("z", STEPS, BATCH, 3 * UNITS), *I[:3])))
    groups, _ = fuse([made, node], frozenset({"y"}), describe("avx2"))
    assert [group.kind for group in groups] == ["pointwise", "recurrence"]
    assert [out.name for out in groups[1].outs] == ["y", "memory"]
    assert fuse([made, node], frozenset({"z"}), describe("avx2"))[0] == []


def gradient(prefix: str = "") -> RecurrenceGradient:
    outs = [buffer(f"{prefix}{name}", STEPS, BATCH, 3 * UNITS) for name in ("of_x", "of_sums")]
    return RecurrenceGradient(
        "gru",
        outs[0],
        outs[1],
        buffer(f"{prefix}of_h", BATCH, UNITS),
        buffer(f"{prefix}memory", BATCH, UNITS),
        axis("t", STEPS),
        axis("b", BATCH),
        axis("n", 3 * UNITS),
        axis("u", UNITS),
        axis("p", 5 * UNITS),
        Load(buffer(f"{prefix}grad", STEPS, BATCH, UNITS), (T, B, U)),
        Load(buffer(f"{prefix}kept", STEPS, BATCH, 5 * UNITS), (T, B, P)),
        Load(buffer(f"{prefix}w", 3 * UNITS, UNITS), (N, U)),
        None,
        (T, B, N),
    )


def test_what_a_gradient_reads_is_printed():
    kept = replace(gru(), kept=buffer("kept", STEPS, BATCH, 5 * UNITS), kept_index=(T, B, N))
    verify_definitions([kept])
    assert format_definition(kept).startswith(
        "y: f32[5, 3, 6] at [t, b, k], memory: f32[1, 3, 2, 16], kept: f32[5, 3, 30] at [t, b, n] = gru("
    )


def test_a_gradient_prints_in_one_line():
    assert format_definition(gradient()) == (
        "of_x: f32[5, 3, 18] at [t, b, n], of_h: f32[3, 6], memory: f32[3, 6], of_sums: f32[5, 3, 18] = "
        "gradient of gru(grad=grad[t, b, u], kept=kept[t, b, p], w=w[n, u]) for t < 5, b < 3, u < 6"
    )


WRONG_GRADIENTS = {
    "columns": (replace(gradient(), n=axis("n", 17)), "17 gates from 30 numbers of 6 units"),
    "kept": (replace(gradient(), p=axis("p", 24)), "18 gates from 24 numbers of 6 units"),
    "no sums": (replace(gradient(), sums=None), "the gradient of a gru has other operands"),
    "a cell": (replace(gradient(), cell=Load(buffer("c", BATCH, UNITS), (B, U))), "has other operands"),
    "a variable": (
        replace(gradient(), w=Load(gradient().w.buffer, (P, U))),
        "the loop variable p is not bound",
    ),
    "the place": (replace(gradient(), index=(T, B)), "expected 3 indices, got 2"),
}


@pytest.mark.parametrize(("node", "message"), WRONG_GRADIENTS.values(), ids=WRONG_GRADIENTS)
def test_what_is_wrong_with_a_gradient_is_named(node: RecurrenceGradient, message: str):
    verify_definitions([gradient()])
    with pytest.raises(InvalidLoopsError, match=message):
        verify_definitions([node])


def test_equal_gradients_share_their_structure():
    first, names, _ = template_structure(gradient())
    second, others, _ = template_structure(gradient("other_"))
    assert first == second
    assert [f"other_{name}" for name in names] == list(others)
    assert template_structure(replace(gradient(), index=(Index.const(4) - T, B, N)))[0] != first
    kept = replace(gru(), kept=buffer("kept", STEPS, BATCH, 5 * UNITS), kept_index=(T, B, N))
    assert template_structure(kept)[0] != template_structure(gru())[0]
    turned = replace(kept, kept_index=(Index.const(4) - T, B, N))
    assert template_structure(turned)[0] != template_structure(kept)[0]


def test_nothing_is_computed_inside_of_a_gradient():
    node = gradient()
    made = pointwise(node.grad.buffer, op("exp", at(buffer("z", STEPS, BATCH, UNITS), *I[:3])))
    groups, _ = fuse([made, node], frozenset({"of_x"}), describe("avx2"))
    assert [group.kind for group in groups] == ["pointwise", "recurrence"]
    assert [out.name for out in groups[1].outs] == ["of_x", "of_h", "memory", "of_sums"]
