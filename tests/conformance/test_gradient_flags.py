"""Whether the results of each operator of torch's database require grad is eager's, while it is recorded."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from opinfo_samples import Sample, database, samples
from torch.utils._pytree import tree_leaves, tree_map_only

from lampwork.errors import LampworkError
from lampwork.graph.record import Recorder

pytest.importorskip("expecttest")


def flags(result: Any) -> list[bool]:
    return [value.requires_grad for value in tree_leaves(result) if isinstance(value, torch.Tensor)]


def differs(sample: Sample) -> bool | None:
    """None if the sample is not recorded, or has a flag among its arguments."""
    given = (sample.args, sample.kwargs)
    if "requires_grad" in sample.kwargs or any(isinstance(v, torch.device) for v in tree_leaves(given)):
        return None
    try:
        wanted = flags(sample.fn(*sample.args, **sample.kwargs))
        with Recorder() as rec:
            traced = tree_map_only(torch.Tensor, lambda tensor: rec.input(tensor, "x"), given)
            made = flags(sample.fn(*traced[0], **traced[1]))
    except (LampworkError, RuntimeError, ValueError, TypeError, AssertionError):
        return None
    return made != wanted


def test_results_require_grad_where_eagers_do() -> None:
    found: dict[str, bool] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in database():
            for sample in samples(op, torch.float32, 2, requires_grad=True):
                verdict = differs(sample)
                if verdict is not None:
                    found[sample.name] = verdict
    assert len(found) > 700
    assert [name for name, wrong in found.items() if wrong] == []
