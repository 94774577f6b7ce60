"""What a program can read of a tensor besides its values: guarded, an operator of the graph, or a break."""

from __future__ import annotations

import pytest
import torch

import lampwork

pytestmark = pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")


def compiled(fn):
    return lampwork.compile(fn, options={"strict": False})


def test_whether_a_tensor_retains_its_gradient_is_guarded():
    held = torch.ones(3, requires_grad=True) * 1
    run = compiled(lambda x: x * (2 if held.retains_grad else 3))
    assert run(torch.ones(1)).item() == 3
    held.retain_grad()
    assert run(torch.ones(1)).item() == 2


def test_which_output_a_tensor_is_is_guarded():
    pieces = torch.ones(2, requires_grad=True).unbind()
    run = compiled(lambda x: x.output_nr)
    assert [run(piece) for piece in pieces] == [0, 1]


@pytest.mark.parametrize("name", ["_cdata", "name", "grad_dtype", "output_nr"])
def test_other_properties_are_eagers(name):
    x = torch.ones(2, dtype=torch.float64)
    assert compiled(lambda x: getattr(x, name))(x) == getattr(x, name)
    assert compiled(lambda x: getattr((x * 2).unbind()[1], name) == 0)(x) == (name == "output_nr")


def test_the_hash_of_a_tensor_is_its_own():
    x = torch.ones(2)

    def both(x):
        y = x * 2
        return hash(x) == id(x), hash(y) == id(y), hash(x)

    assert compiled(both)(x) == (True, True, hash(x))
    assert compiled(lambda: hash(x))() == hash(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.empty(3),
        lambda x: torch.empty(2, dtype=torch.int64),
        torch.empty_like,
        lambda x: x.new_empty(2),
        lambda x: x.new_empty_strided((2,), (1,)),
        lambda x: torch.empty_strided((2,), (1,)),
    ],
)
def test_deterministic_mode_fills_memory(make):
    x, run = torch.ones(2), compiled(make)
    run(x)
    torch.use_deterministic_algorithms(True)
    try:
        torch.testing.assert_close(run(x), make(x), equal_nan=True)
    finally:
        torch.use_deterministic_algorithms(False)
