"""`super()` over descriptors of all kinds, in random hierarchies: what compiled code reads is what Python does.

LAMPWORK_FUZZ=n tries n programs; a failure prints the program and its seed.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
import torch
from super_programs import generate

import lampwork

COUNT = int(os.environ.get("LAMPWORK_FUZZ", "12"))
FIRST = int(os.environ.get("LAMPWORK_FUZZ_SEED", "0"))


def observed(names: dict[str, Any], way: Any) -> list[Any]:
    """What calls give whose object comes as an argument, is known, and is made there; tensors as lists."""
    x = torch.tensor([1.0, 2.0])
    run, make = names["run"], names["make"]
    one, other, known = make(), make(), make()
    given, bound, made = way(run), way(lambda x: run(known, x)), way(lambda x: run(make(), x))
    results = [given(one, x), given(one, x), given(other, x), bound(x), bound(x), made(x), made(x)]
    return [
        ([v.tolist() if isinstance(v, torch.Tensor) else v for v in values], kept) for values, kept in results
    ]


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_super_finds_what_python_finds(seed):
    program = generate(seed)
    expected = observed(program.build(lambda function: function), lambda function: function)
    with warnings.catch_warnings():
        warnings.simplefilter("error", lampwork.LampworkWarning)
        got = observed(program.build(lampwork.compile), lampwork.compile)
    assert got == expected, f"seed {seed}\n{program.text}"
