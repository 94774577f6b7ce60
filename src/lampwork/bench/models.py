"""The benchmark's models: name -> callable and inputs, with random weights; see `workloads/` for each family."""

from __future__ import annotations

import torch

from lampwork.bench.workloads.convolutional import CONVOLUTIONAL
from lampwork.bench.workloads.recurrent import RECURRENT
from lampwork.bench.workloads.small import LARGE, SMALL
from lampwork.bench.workloads.transformers import TRANSFORMERS
from lampwork.bench.workloads.workload import DTYPES, Maker, Precision, Workload

WORKLOADS: dict[str, Maker] = {**SMALL, **LARGE, **CONVOLUTIONAL, **TRANSFORMERS, **RECURRENT}


def load(name: str, seed: int = 0, dtype: Precision = "f32") -> Workload:
    """Build the workload `name` with random weights and inputs from `seed`, rounded to what `dtype` starts from.

    Raises:
        KeyError: no workload has this name.
    """
    torch.manual_seed(seed)
    fn, inputs = WORKLOADS[name]()
    workload = Workload(name, fn, inputs)
    return workload if DTYPES[dtype] is torch.float32 else workload.to(DTYPES[dtype])


def names(dtype: Precision) -> list[str]:
    """The workloads that are measured in a precision: in int8 those with linear layers all the way."""
    return list(TRANSFORMERS if dtype == "int8" else WORKLOADS)
