"""Whether compiled code sees a change of what it read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import lampwork

Change = tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[], Any]]


def check_change_is_seen(make: Callable[[], Change], x: torch.Tensor) -> None:
    """`make` gives a function and what changes the function's result for `x`."""
    torch.manual_seed(0)
    fn, change = make()
    compiled = lampwork.compile(fn)
    before = fn(x)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), before)
    change()
    after = fn(x)
    assert not torch.equal(before, after)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), after)
