"""The traversal of the loop language: what is inside of a node, and nodes rebuilt."""

from lampwork.loops.ir.expr import indices, loads, move
from lampwork.loops.ir.index import ONE, Index, as_index
from lampwork.loops.ir.nodes import Axis, Buffer, Const, IndexValue, Let, Load, Local, Op, ReduceLoop, Reducer
from lampwork.loops.ir.traverse import rewrite, walk, walk_once

I0, J = Index.var("i"), Index.var("j")
X = Buffer("x", "f32", (as_index(64),), (ONE,))
V = Buffer("v", "i64", (as_index(8),), (ONE,))
READ = Load(X, (I0,))
SUM = Op("add", (READ, Op("neg", (READ,), "f32")), "f32")


def test_walk_goes_from_outside_in_and_repeats_what_is_shared():
    assert walk(SUM) == [SUM, READ, SUM.args[1], READ]
    assert list(walk_once(SUM)) == [SUM, READ, SUM.args[1]]


def test_walk_looks_into_masks_and_into_what_indices_are_taken_from():
    position, mask = Load(V, (J,)), Load(Buffer("m", "bool", (ONE,), (ONE,)), (Index.const(0),))
    gathered = Load(X, ((Index.indirect(position, 64) + I0) // 2,), mask)
    assert loads(gathered) == [gathered, mask, position]
    assert list(walk_once(gathered, data=False)) == [gathered, mask]
    assert indices(gathered) == [*gathered.index, *mask.index, J]


def test_walk_looks_inside_only_where_it_is_told_to():
    assert list(walk_once(SUM, into=lambda node: node is SUM)) == [SUM, READ, SUM.args[1]]


def test_statements_are_walked_as_expressions_are():
    loop = ReduceLoop(Axis("i", as_index(4)), "serial", (Let("t", READ),), (Reducer("a", "sum", SUM, "f32"),))
    assert [node for node in walk(loop) if isinstance(node, Load)] == [READ] * 3
    assert loop.places() == [as_index(4)]


def test_rewrite_replaces_bottom_up():
    changed = rewrite(SUM, {Load: lambda load: Local("t", load.dtype)})
    assert str(changed) == "add(t, neg(t))"
    assert changed.args[0] is changed.args[1].args[0]


def test_rewrite_keeps_what_does_not_change():
    value = Op("mul", (SUM, IndexValue(J, "f32")), "f32")
    assert rewrite(value, {Local: lambda local: Const(0, "f32")}) is value
    assert rewrite(value, {Index: lambda index: index.substitute({"j": I0})}).args[0] is SUM


def test_moving_replaces_all_variables_at_once_also_beside_data():
    place = (Index.indirect(Load(V, (I0,)), 16) + J) // 2
    extents = {"i": as_index(8), "j": as_index(8)}
    expected = (Index.indirect(Load(V, (J,)), 16) + I0) // 2
    assert move(place, {"i": J, "j": I0}, extents) == expected
    assert place.substitute({"i": J, "j": I0}) == expected
