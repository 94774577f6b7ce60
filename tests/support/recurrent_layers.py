"""Recurrent layers of every kind, as functions of tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

Problem = tuple[Callable[..., Any], list[torch.Tensor], list[torch.Tensor]]


@dataclass(frozen=True)
class Layer:
    """`layers` layers, in both directions or one. first: the batch is the first dimension. given: the first states are
    inputs instead of zeros. projected: the size of a projection, 0 for none. lengths: of a packed sequence, the longest
    first; `steps`, `batch` and `first` count for nothing then."""

    kind: Literal["lstm", "gru", "tanh", "relu"]
    layers: int = 1
    both: bool = False
    first: bool = False
    bias: bool = True
    given: bool = True
    projected: int = 0
    steps: int = 5
    batch: int = 3
    inputs: int = 7
    units: int = 6
    lengths: tuple[int, ...] = ()

    def __str__(self) -> str:
        marks = [f"{self.kind}-{self.layers}x{self.units}"]
        marks += [name for name in ("both", "first", "bias", "given") if getattr(self, name)]
        marks += [f"projected{self.projected}"] if self.projected else []
        outer = "+".join(map(str, self.lengths)) or f"{self.steps}x{self.batch}"
        return "-".join([*marks, f"{outer}x{self.inputs}"])

    def parameters(self, dtype: torch.dtype, generator: torch.Generator) -> list[torch.Tensor]:
        """In the order of torch's layers."""
        gates = {"lstm": 4, "gru": 3}.get(self.kind, 1)
        size = self.projected or self.units
        found: list[torch.Tensor] = []

        def weight(*shape: int) -> None:
            found.append(torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype) * 0.4)

        for layer in range(self.layers):
            for _ in range(1 + self.both):
                weight(gates * self.units, size * (1 + self.both) if layer else self.inputs)
                weight(gates * self.units, size)
                if self.bias:
                    weight(gates * self.units)
                    weight(gates * self.units)
                if self.projected:
                    weight(self.projected, self.units)
        return found

    def problem(self, dtype: torch.dtype, *, dropout: float = 0.0, seed: int = 0) -> Problem:
        """(a function of inputs and parameters that gives all results, inputs, parameters); trains with `dropout`."""
        generator = torch.Generator().manual_seed(seed)
        batch = len(self.lengths) or self.batch
        outer = (self.batch, self.steps) if self.first else (self.steps, self.batch)
        outer = (sum(self.lengths),) if self.lengths else outer
        count = self.layers * (1 + self.both)
        sizes = [self.projected or self.units, self.units][: 2 if self.kind == "lstm" else 1]
        shapes = [(*outer, self.inputs), *((count, batch, size) for size in sizes)]
        inputs = [
            torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)
            for shape in (shapes if self.given else shapes[:1])
        ]
        params = self.parameters(dtype, generator)
        batch_sizes = [
            torch.tensor([sum(each > t for each in self.lengths) for t in range(self.lengths[0])])
            for _ in self.lengths[:1]
        ]
        first = len(inputs)
        inputs += batch_sizes
        options = (self.bias, self.layers, dropout, bool(dropout), self.both, self.first)
        operator: Any = {
            "lstm": torch.lstm,
            "gru": torch.gru,
            "tanh": torch.rnn_tanh,
            "relu": torch.rnn_relu,
        }[self.kind]

        def fn(*tensors: torch.Tensor) -> Any:
            states, weights = tensors[1:first], tensors[len(inputs) :]
            if not self.given:
                states = tuple(torch.zeros(shape, dtype=dtype) for shape in shapes[1:])
            given = states if self.kind == "lstm" else states[0]
            if self.lengths:
                return operator(tensors[0], tensors[first], given, list(weights), *options[:-1])
            return operator(tensors[0], given, list(weights), *options)

        return fn, inputs, params
