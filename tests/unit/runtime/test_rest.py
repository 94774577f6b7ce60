"""What is left of a program, where some of its values are known."""

from __future__ import annotations

import pytest
import torch

from lampwork.loops.ir.index import Index
from lampwork.runtime import Executable
from lampwork.runtime.layout import Layout, Slot
from lampwork.runtime.program import CallAten, Ref, Release, Value
from lampwork.runtime.rest import rest_of


def value(kind, shape=(4,), **further):
    return Value(kind, torch.float32, shape, torch.empty(shape).stride(), **further)


def layout(values, steps, outputs, n_inputs):
    return Layout(tuple(values), (), tuple(steps), outputs, n_inputs, 0, None, frozenset(), ())


@pytest.fixture
def chain():
    """%2 = %0 * 2, %3 = %2 + %1, %4 = neg(%3), %5 = %2[0:2]; results %3, %4, %5."""
    values = [
        value("input", position=0),
        value("input", position=1),
        value("aten"),
        value("aten"),
        value("aten"),
        value("view", (2,), base=2),
    ]
    steps = [
        CallAten("aten::mul.Tensor", (Ref(0), 2.0), outs=(2,)),
        CallAten("aten::add.Tensor", (Ref(2), Ref(1)), outs=(3,)),
        CallAten("aten::neg.default", (Ref(3),), outs=(4,)),
    ]
    return layout(values, steps, (3, 4, 5), 2)


def ops(made):
    return [step.op for step in made.steps if isinstance(step, CallAten)]


def run(whole, rest, inputs):
    """The results, by way of those that are known."""
    known_program = Layout(
        tuple(whole.values), (), whole.steps, rest.known, whole.n_inputs, 0, None, frozenset(), ()
    ).place({})
    known = Executable(known_program).run(inputs) if rest.known else []
    made = [] if rest.layout is None else Executable(rest.layout.place({})).run([*inputs, *known])
    others = iter(made)
    return [known[place] if place >= 0 else next(others) for place in rest.places]


@pytest.mark.parametrize(
    ("known", "expected"),
    (
        ((), ["aten::mul.Tensor", "aten::add.Tensor", "aten::neg.default"]),
        ((3,), ["aten::mul.Tensor", "aten::neg.default"]),
        ((4,), ["aten::mul.Tensor", "aten::add.Tensor"]),
        ((2,), ["aten::add.Tensor", "aten::neg.default"]),
        ((3, 4), ["aten::mul.Tensor"]),
        ((2, 3), ["aten::neg.default"]),
    ),
)
def test_what_is_known_is_not_computed(chain, known, expected):
    rest = rest_of(chain, known)
    assert ops(rest.layout) == expected
    inputs = [torch.randn(4), torch.randn(4)]
    for one, other in zip(run(chain, rest, inputs), run(chain, rest_of(chain, ()), inputs), strict=True):
        assert torch.equal(one, other)


def test_nothing_is_left_where_all_is_known(chain):
    rest = rest_of(chain, (3, 4, 2))
    assert rest.places[:2] == (0, 1)
    assert ops(rest.layout) == []  # the view of what is known
    whole = layout(chain.values, chain.steps, (3, 4), 2)
    assert rest_of(whole, (3, 4)).layout is None


def test_what_nobody_reads_is_no_input(chain):
    whole = layout(chain.values, chain.steps, (4,), 2)
    assert rest_of(whole, (2, 3)).known == (3,)


def test_releases_of_what_is_known_go(chain):
    whole = layout(chain.values, (*chain.steps, Release((2, 3))), (4,), 2)
    assert not [step for step in rest_of(whole, (3,)).layout.steps if isinstance(step, Release)]


def test_memory_of_steps_that_go_is_not_taken():
    values = [value("input", position=0), value("aten"), value("fresh")]
    steps = [CallAten("aten::neg.default", (Ref(0),), outs=(1,))]
    rest = rest_of(layout(values, steps, (1, 2), 1), (2,))
    assert [each.kind for each in rest.layout.values] == ["input", "aten", "input"]
    values[2] = Slot("arena", torch.float32, (Index.const(4),), (Index.const(1),))
    rest = rest_of(layout(values, steps, (1,), 1), ())
    assert rest.layout.values[2].kind == "aten"
