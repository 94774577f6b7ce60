"""Results compared with eager's bit by bit, and which operators a function is lowered to calls of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lower_harness import externs, record
from same import flatten
from torch import Tensor

import lampwork
from lampwork.lower.lowering import lower_graph


def assert_equal_bits(found: Any, expected: Any) -> None:
    """The same tensors, signs of zeros and strides among it; a nan is any other."""
    for ours, theirs in zip(flatten(found), flatten(expected), strict=True):
        assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
        if ours.is_floating_point():
            assert torch.equal(ours.signbit() & (ours == 0), theirs.signbit() & (theirs == 0))


def assert_as_eager(fn: Callable[..., Any], *inputs: Tensor, dynamic: bool | None = None) -> None:
    """Compiled, `fn` gives eager's bits and leaves what eager leaves in its inputs, or raises eager's error."""
    ours, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
    compiled = lampwork.compile(fn, dynamic=dynamic)
    try:
        expected = fn(*theirs)
    except (RuntimeError, IndexError) as error:
        with pytest.raises(type(error)) as raised:
            compiled(*ours)
        assert str(raised.value) == str(error)
        return
    assert_equal_bits(compiled(*ours), expected)
    assert_equal_bits(ours, theirs)


def calls(fn: Callable[..., Any], *inputs: Tensor) -> list[str]:
    """The operators that are called: "aten::index_add", "lampwork::index_add"."""
    graph = record(fn, inputs).graph
    graph.eliminate_dead_code()
    return [target.removesuffix(".default") for target in externs(lower_graph(graph))]
