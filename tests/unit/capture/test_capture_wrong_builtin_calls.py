"""Builtins that capture answers itself refuse the arguments that they refuse in Python."""

from __future__ import annotations

import operator

import pytest
import torch

import lampwork

PROGRAMS = {
    "isinstance keyword": lambda x: isinstance(x, torch.Tensor, invalid=1),  # type: ignore[call-arg]
    "len keyword": lambda x: len(x, foo=1),
    "hasattr keyword": lambda x: hasattr(x, "a", foo=1),
    "getattr keyword": lambda x: getattr(x, "dim", foo=1),
    "next keyword": lambda x: next(iter([1]), foo=1),
    "not_ of two": lambda x: operator.not_(1, 2),
    "add keyword": lambda x: operator.add(1, 2, c=3),
    "callable of two": lambda x: callable(1, 2),
    "is_tensor of two": lambda x: torch.is_tensor(1, 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_wrong_call_of_a_builtin_raises(name: str) -> None:
    with pytest.raises(TypeError):
        lampwork.compile(PROGRAMS[name])(torch.ones(3))
