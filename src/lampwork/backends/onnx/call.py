"""A call of an ATen operator, as the conversion rules see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import fx

from lampwork.backends.onnx.builder import Builder, Value
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import hint_of, map_symbols
from lampwork.records import record
from lampwork.rewriting.schema import bound_args


@record
class Call:
    """The node, and what is known of its result (of the first one, where there are several)."""

    node: fx.Node

    @property
    def spec(self) -> TensorSpec:
        found = self.node.meta["val"]
        return cast(TensorSpec, found[0] if isinstance(found, tuple) else found)

    @property
    def dtype(self) -> torch.dtype:
        return self.spec.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(hint_of(size)) for size in self.spec.shape)


def arguments(node: fx.Node, builder: Builder) -> list[Any]:
    """One per parameter of the operator's schema: `Value`s for nodes, plain ints for symbols."""
    return [_argument(value, builder) for value in bound_args(node)]


def _argument(value: Any, builder: Builder) -> Any:
    if isinstance(value, fx.Node):
        return Value(value, builder)
    if isinstance(value, (list, tuple)):
        return [_argument(item, builder) for item in cast("Sequence[Any]", value)]
    return map_symbols(value, lambda symbol: symbol.hint)
