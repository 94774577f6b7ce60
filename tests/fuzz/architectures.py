"""The architectures of `transformers` as worlds, tiny; the library's Python counts as their own."""

from __future__ import annotations

import functools
from typing import Any

import torch
from harness import Program, program

from lampwork.bench.architectures import ARCHITECTURES, Architecture, build, inputs_of

DEEP = ("transformers",)
COMPILING = True  # the library asks, and keeps its context variables and marks of tensors otherwise then
STEPS = (
    10  # a network rounds more than an operator does: changed weights were seen 5e-5 off, of values up to 0.9
)


def _world(architecture: Architecture) -> Program:
    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        model = build(architecture).requires_grad_(False)
        model(**inputs_of(architecture))  # the library installs hooks of its own at the first call
        return model

    make.__name__ = architecture.name
    return program(kwargs=functools.partial(inputs_of, architecture), factory=True)(make)


_worlds: dict[str, Any] = {name: _world(architecture) for name, architecture in ARCHITECTURES.items()}
globals().update(_worlds)
