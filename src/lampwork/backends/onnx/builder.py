"""ONNX nodes and constants, as the conversion rules make them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor, fx

from lampwork import pristine
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import hint_of
from lampwork.records import record

OPSET = 21
IR_VERSION = 10
ELEMENT_TYPES: dict[torch.dtype, int] = {
    torch.float32: TensorProto.FLOAT,
    torch.float64: TensorProto.DOUBLE,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
    torch.int16: TensorProto.INT16,
    torch.int8: TensorProto.INT8,
    torch.uint8: TensorProto.UINT8,
    torch.bool: TensorProto.BOOL,
}
_SMALL = (
    64  # elements up to which a constant is written into the model: shape rules may want to see its values
)


class NotConvertible(Exception):
    """This call has no ONNX form here; the text says why."""


@dataclass(slots=True)
class Builder:
    """Collects the nodes of one ONNX graph.

    `name_of` gives the ONNX name of a graph node's value (a rule's operand), `value_of` its tensor where it depends on
    constants alone and these are known. `checks` names bool scalars that must all be true for the results to hold:
    where one is false, eager runs the call and raises what is due. `checking`: False where nobody would look at them.
    """

    name_of: Callable[[fx.Node], str]
    value_of: Callable[[fx.Node], Tensor | None]
    checking: bool = True
    nodes: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    small: list[onnx.TensorProto] = field(default_factory=list[onnx.TensorProto])
    baked: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    checks: list[str] = field(default_factory=list[str])
    _scalars: dict[tuple[Any, ...], str] = field(default_factory=dict[tuple[Any, ...], str])
    _count: int = 0

    def fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}.{self._count}"

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output; give the output's name. An empty input name is an absent optional one."""
        return self.ops(kind, *inputs, outputs=1, domain=domain, **attributes)[0]

    def ops(
        self, kind: str, *inputs: str, outputs: int, domain: str = "", **attributes: Any
    ) -> tuple[str, ...]:
        """Add a node with several outputs."""
        names = tuple(self.fresh(kind.lower()) for _ in range(outputs))
        given = list(inputs)
        while given and not given[-1]:
            given.pop()
        kept = {name: value for name, value in attributes.items() if value is not None}
        self.nodes.append(helper.make_node(kind, given, list(names), domain=domain, **kept))
        return names

    def ints(self, values: Sequence[int]) -> str:
        """A constant int64[n]."""
        return self.scalar_or_list(tuple(int(hint_of(v)) for v in values), torch.int64)

    def scalar(self, value: Any, dtype: torch.dtype) -> str:
        """A constant of no dimensions."""
        return self.scalar_or_list(value, dtype)

    def scalar_or_list(self, value: Any, dtype: torch.dtype) -> str:
        key = (repr(value), dtype)
        found = self._scalars.get(key)
        if found is None:
            found = self._scalars[key] = self.tensor(pristine.tensor(value, dtype=dtype))
        return found

    def tensor(self, value: Tensor) -> str:
        """A constant with this value."""
        name = self.fresh("constant")
        dense = value.detach().contiguous()
        if dense.numel() <= _SMALL:
            raw = dense.numpy().tobytes()
            kind = ELEMENT_TYPES[dense.dtype]
            self.small.append(helper.make_tensor(name, kind, list(dense.shape), raw, raw=True))
        else:
            self.baked[name] = dense
        return name

    def cast(self, name: str, source: torch.dtype, dtype: torch.dtype) -> str:
        return name if source == dtype else self.op("Cast", name, to=ELEMENT_TYPES[dtype])

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        return self.op("Reshape", name, self.ints(shape))


@record
class Value:
    """A tensor operand of a rule."""

    node: fx.Node
    builder: Builder

    @property
    def name(self) -> str:
        return self.builder.name_of(self.node)

    @property
    def spec(self) -> TensorSpec:
        return cast(TensorSpec, self.node.meta["val"])

    @property
    def dtype(self) -> torch.dtype:
        return self.spec.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the call at hand, if they are symbols."""
        return tuple(int(hint_of(size)) for size in self.spec.shape)

    @property
    def rank(self) -> int:
        return len(self.spec.shape)

    @property
    def constant(self) -> Tensor | None:
        """Its value, where that is known when the model is made."""
        return self.builder.value_of(self.node)

    def as_type(self, dtype: torch.dtype) -> str:
        return self.builder.cast(self.name, self.dtype, dtype)


def element_type(dtype: torch.dtype) -> int:
    """ONNX's number of a dtype.

    Raises:
        NotConvertible: a dtype that is not handed over.
    """
    found = ELEMENT_TYPES.get(dtype)
    if found is None:
        raise NotConvertible(f"the dtype {str(dtype).removeprefix('torch.')}")
    return found
