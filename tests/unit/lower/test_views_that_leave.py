"""What of a result shows besides its values: which results and arguments share memory, and how they lie in it.

Complex numbers are computed as pairs of real ones, and rows along another dimension than the last are sorted in a copy:
views of those must be views of what the program returns all the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import lampwork

MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "argument": lambda x: x,
    "sum": lambda x: x + x,
    "product of a sum": lambda x: (x + x) * x,
    "complex": lambda x: torch.complex(x.real.clone(), x.imag.clone()),
    "polar": lambda x: torch.polar(x.real.clone(), x.imag.clone()),
    "pairs": lambda x: torch.view_as_complex(torch.view_as_real(x) * 2),
    "difference": lambda x: torch.diff(x, dim=0),
    "conjugate": lambda x: x.conj().resolve_conj(),
    "transform": lambda x: torch.fft.fft(x, dim=0),
    "best of columns": lambda x: torch.topk(x.real, 3, dim=0)[0],
    "places of columns": lambda x: torch.argsort(x.real, dim=0, stable=True),
    "sorted columns": lambda x: torch.sort(x.real, dim=0)[0],
    "squares": lambda x: x.real.square(),
}
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "row": lambda v: v[0],
    "rows": lambda v: v[1:],
    "every other": lambda v: v[..., ::2],
    "transposed": lambda v: v.t(),
    "column": lambda v: v.t()[1],
    "expanded": lambda v: v.unsqueeze(0).expand(2, -1, -1),
    "flat": lambda v: v.reshape(-1),
    "unfolded": lambda v: v.unfold(-1, 2, 3),
    "pieces": lambda v: v.chunk(2, -1)[-1],
}
READERS: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda v: torch.zeros(()),
    "sizes": torch.abs,
    "angles": torch.angle,
    "negative": torch.neg,
    "square": lambda v: v * v,
}


def _program(made: str, view: str, reader: str, written: str) -> Callable[[Tensor], tuple[Tensor, ...]]:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        base = MADE[made](x)
        part = VIEWS[view](base)
        read = READERS[reader](part)
        if written == "view":
            part.mul_(2)
        elif written == "argument":
            x.mul_(2)
        return base, part, read, part + 1

    return program


def _shown(given: Sequence[Tensor], results: Sequence[Tensor]) -> list[tuple[Any, ...]]:
    """How results lie in memory, and whose; those with a memory of their own are numbered."""
    memories: dict[int, int] = {}
    for tensor in (*given, *results):
        memories.setdefault(tensor.untyped_storage().data_ptr(), len(memories))
    return [
        (each.shape, each.stride(), each.storage_offset(), memories[each.untyped_storage().data_ptr()])
        for each in results
    ]


@pytest.mark.parametrize("made", MADE)
def test_views_share_memory_with_what_they_are_of(made: str) -> None:
    draw = random.Random(made)
    for view in VIEWS:
        reader = draw.choice(list(READERS))
        written = draw.choice(
            ("nothing", "argument", *(() if view in ("expanded", "unfolded") else ("view",)))
        )
        program = _program(made, view, reader, written)
        compiled = lampwork.compile(program, fullgraph=True)
        for _ in range(2):
            x = torch.randn(4, 6, dtype=torch.complex64)
            given = x.clone()
            wanted, found = program(x), compiled(given)
            said = f"{view} of {made}, {reader} read, {written} written"
            torch.testing.assert_close(found, wanted, msg=lambda text, said=said: f"{said}: {text}")
            torch.testing.assert_close(given, x, msg=lambda text, said=said: f"{said}: {text}")
            assert _shown([given], found) == _shown([x], wanted), said


def test_complex_numbers_lie_as_what_they_are_made_of() -> None:
    rows = torch.arange(17)

    def program(x: Tensor) -> Tensor:
        x[rows] = 0.0
        return torch.complex(x, x).clone()

    x = torch.randn(5, 17).t()
    assert lampwork.compile(program)(x.clone()).stride() == program(x).stride()
