"""Dims that are computed of others (`2*half + 1`), as torch.export has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim

import lampwork
from lampwork.errors import ArtifactCallError, ExportError, OptionError
from lampwork.exports.dims import without_implied
from lampwork.graph.symbols import Condition
from lampwork.loops.ir.index import Index

HALF, FREE = Dim("half", min=2, max=32), Dim("free")


def pairs(x: Tensor, y: Tensor) -> Tensor:
    return x.reshape(-1, 2).sum(1) + y


def longer(x: Tensor, y: Tensor) -> Tensor:
    return x[1:] + y


def threes(x: Tensor, y: Tensor) -> Tensor:
    return x[1:].reshape(-1, 3).sum(1) + y


def both(x: Tensor, y: Tensor) -> Tensor:
    return x.reshape(-1, 2).sum(1) + y.reshape(-1, 3).sum(1)


def apart(x: Tensor, y: Tensor) -> Tensor:
    return x.sum() + y.sum()


def cut(x: Tensor, y: Tensor) -> Tensor:
    return torch.arange(32.0)[: y.shape[0]] + y + x.sum()


CASES: dict[str, tuple[Callable[..., Tensor], tuple[int, int], tuple[Any, Any], Any, Any]] = {
    "2*half": (
        pairs,
        (8, 4),
        (2 * HALF, HALF),
        [(4, 2), (10, 5), (64, 32)],
        [(2, 1), (66, 33), (9, 4), (8, 5)],
    ),
    "2*free": (pairs, (8, 4), (2 * FREE, FREE), [(2, 1), (200, 100)], [(9, 4), (8, 5), (1, 1)]),
    "half + 1": (longer, (5, 4), (HALF + 1, HALF), [(3, 2), (33, 32)], [(2, 1), (34, 33), (6, 4)]),
    "free + 1": (longer, (5, 4), (FREE + 1, FREE), [(2, 1), (33, 32)], [(6, 4), (5, 5)]),
    "half - 1": (longer, (5, 4), (HALF, HALF - 1), [(2, 1), (32, 31)], [(33, 32), (5, 5)]),
    "3*half + 1": (threes, (13, 4), (3 * HALF + 1, HALF), [(7, 2), (97, 32)], [(4, 1), (13, 5), (14, 4)]),
    "3*(free + 1) - 2": (threes, (13, 4), (3 * (FREE + 1) - 2, FREE), [(4, 1), (16, 5)], [(13, 5), (14, 4)]),
    "2*half, 3*half": (both, (8, 12), (2 * HALF, 3 * HALF), [(4, 6), (64, 96)], [(2, 3), (8, 15), (9, 12)]),
    "what the model does not need": (
        apart,
        (8, 12),
        (2 * HALF, 3 * HALF),
        [(4, 6)],
        [(8, 15), (9, 12), (8, 11)],
    ),
    "a multiple alone": (apart, (8, 3), (2 * HALF, None), [(4, 3), (64, 3)], [(9, 3), (2, 3)]),
    "a sum alone": (apart, (8, 3), (HALF + 1, None), [(3, 3), (33, 3)], [(2, 3), (34, 3)]),
    "one Dim twice": (apart, (8, 8), (2 * HALF, 2 * HALF), [(4, 4)], [(8, 10), (9, 9)]),
    "the largest apart": (cut, (8, 4), (2 * HALF, HALF), [(4, 2), (62, 31), (64, 32)], [(66, 33), (64, 31)]),
}


def inputs(sizes: tuple[int, int]) -> tuple[Tensor, Tensor]:
    return torch.randn(sizes[0]), torch.randn(sizes[1])


@pytest.mark.parametrize("case", CASES)
def test_computed_dims(tmp_path: Path, case: str) -> None:
    function, example, (first, second), right, wrong = CASES[case]
    path = tmp_path / "m.lamp"
    shapes = ({0: first}, {0: second})
    lampwork.export(function, inputs(example), dynamic_shapes=shapes, path=path, targets="host")
    for how in ({"trust": True}, {}):
        loaded = lampwork.load(path, **how)
        for sizes in (example, *right):
            given = inputs(sizes)
            torch.testing.assert_close(loaded(*given), function(*given))
        for sizes in wrong:
            with pytest.raises(ArtifactCallError, match=r"\[LW363\]"):
                loaded(*inputs(sizes))


def test_they_are_torch_s(tmp_path: Path) -> None:
    """What torch.export takes and refuses is taken and refused."""

    class Pairs(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return pairs(x, y)

    path = tmp_path / "m.lamp"
    program = torch.export.export(Pairs(), inputs((8, 4)), dynamic_shapes=({0: 2 * HALF}, {0: HALF}))
    lampwork.export(program, path=path, targets="host")
    loaded, theirs = lampwork.load(path, trust=True), program.module()
    for sizes in ((8, 4), (10, 5), (4, 2), (64, 32)):
        given = inputs(sizes)
        torch.testing.assert_close(loaded(*given), theirs(*given))
    for sizes in ((66, 33), (9, 4), (8, 5)):
        with pytest.raises(ArtifactCallError, match=r"\[LW363\]"):
            loaded(*inputs(sizes))
        with pytest.raises(Exception, match=r"[Gg]uard|torch"):
            theirs(*inputs(sizes))


@pytest.mark.parametrize(
    ("sizes", "dims", "said"),
    [
        ((9, 4), (2 * HALF, None), "dimension 0 of x is 9, which is 2*half for no number half"),
        (
            (10, 4),
            (2 * HALF, HALF),
            "dimension 0 of y is 4, and half is 5, as half is 5 by dimension 0 of x",
        ),
        ((8, 5), (HALF, HALF), "dimension 0 of y is 5, and half is 8, as half is 8 by dimension 0 of x"),
        ((2, 4), (2 * HALF, None), "dimension 0 of x is 2, outside of 4 to 64, which 2*half is to be"),
        ((4, 5), (FREE - 1, FREE), "Expected derived min value of free - 1 to be >= 0"),
    ],
)
def test_examples_that_are_not_what_dims_say(
    tmp_path: Path, sizes: tuple[int, int], dims: tuple[Any, Any], said: str
) -> None:
    with pytest.raises(OptionError) as raised:
        lampwork.export(
            apart, inputs(sizes), dynamic_shapes=({0: dims[0]}, {0: dims[1]}), path=tmp_path / "m.lamp"
        )
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("dim", "fix"),
    [
        (Dim("n"), "give it as 2*Dim('n')"),
        (Dim("n", min=3, max=15), "give it as 2*Dim('n', min=2, max=7)"),
        (Dim.DYNAMIC, "give it as 2*Dim('n')"),
        (3 * Dim("n") + 2, "give it as 2*Dim('n')"),
    ],
)
def test_the_error_names_the_dim_that_would_do(tmp_path: Path, dim: Any, fix: str) -> None:
    def alone(x: Tensor) -> Tensor:
        return x.reshape(-1, 2).sum(1)

    def export(dim: Any) -> None:
        lampwork.export(
            alone, (torch.randn(8),), dynamic_shapes=({0: dim},), path=tmp_path / "m.lamp", targets="host"
        )

    with pytest.raises(ExportError) as raised:
        export(dim)
    assert raised.value.fix == f"{fix}, which says what the model needs, or pass Dim.AUTO"
    assert "the model takes some sizes alone here" in str(raised.value)
    export(eval(fix.removeprefix("give it as "), {"Dim": Dim}))


def test_slices_to_the_end_of_what_has_no_largest_size(tmp_path: Path) -> None:
    """`x[1:]` asks whether a size is below 2**63 - 1, which no program of its own is made for."""
    path = tmp_path / "m.lamp"
    found = lampwork.export(
        lambda x: x[1:] * 2, (torch.randn(5),), dynamic_shapes=({0: FREE},), path=path, targets="host"
    )
    assert found.notes == ()
    loaded = lampwork.load(path, trust=True)
    for size in (1, 2, 900):
        x = torch.randn(size)
        assert torch.equal(loaded(x), x[1:] * 2)


def test_conditions_are_said_once() -> None:
    a, b, c, d = map(Index.sym, "abcd")
    equal = [a * 8 - b * 8, b - a, b - c, a - c, c * 4 - d * 2, d - c * 2, d * 2 - a * 2]
    found = without_implied([*(Condition("==", each) for each in equal), Condition("!=", 2 * a - 2)])
    assert [str(each) for each in found] == ["b == a", "c == b", "d == 2*c", "d == a", "a != 1"]


def test_a_size_of_one_beside_others(tmp_path: Path) -> None:
    """It is served, though not with the sizes of this call."""
    path, rows = tmp_path / "m.lamp", Dim("rows", max=8)
    shapes = ({0: rows}, {0: rows})
    lampwork.export(added, inputs((4, 4)), dynamic_shapes=shapes, path=path, targets="host")
    loaded = lampwork.load(path, trust=True)
    loaded(*inputs((1, 1)))
    for sizes, said in (
        ((4, 1), "dimension 0 of y: expected 2 to 8, with the other sizes of this call, came 1"),
        ((4, 9), "dimension 0 of y: expected 1 to 8, came 9"),
    ):
        with pytest.raises(ArtifactCallError) as raised:
            loaded(*inputs(sizes))
        assert said in str(raised.value)


def added(x: Tensor, y: Tensor) -> Tensor:
    return x + y
