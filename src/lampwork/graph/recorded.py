"""What the recorder is made of besides itself: its records, and functions over tensors, specs and nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import fx

from lampwork.errors import UnsupportedOpError
from lampwork.graph.nested import replaced
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symnode import symints
from lampwork.graph.tracetensor import Storage, TraceTensor, ViewStep, shares_version
from lampwork.records import record

aten = torch.ops.aten


@record
class Input:
    """A placeholder: the tensor it stood for while recording, and whether it is bound (a parameter, a constant)."""

    node: fx.Node
    tensor: torch.Tensor
    name: str
    bound: bool
    base: Storage


@record
class Recorded:
    """A finished recording.

    `graph`: functional ATen; placeholders are the inputs in the order of `rec.input`, then the bound tensors.
    Its output node returns a flat tuple: the values asked for, then the new contents of written inputs.
    `outputs`: for each value given to `finish`, its output number.
    `mutations`: (number among all placeholders, output number): to be copied into that tensor after the graph ran.
    `versions`: for each of these, how many times eager would have moved on the tensor's version.
    `apart`: numbers of the outputs that eager does not call views, whatever memory they lie in.
    `pieces`: numbers of the outputs that are views of which one operator gave several.
    `fresh_versions`: (output number, the version that eager gives it) of those in fresh memory that was written in
    place.
    An output that aliases an input is a chain of views of its placeholder, so it shows what is copied there.
    """

    graph: fx.Graph
    outputs: tuple[int, ...]
    mutations: tuple[tuple[int, int], ...]
    inputs: tuple[Input, ...]
    bound: tuple[Input, ...]
    versions: tuple[int, ...] = ()
    apart: tuple[int, ...] = ()
    pieces: tuple[int, ...] = ()
    fresh_versions: tuple[tuple[int, int], ...] = ()


def replace_view(
    tensor: TraceTensor, node: fx.Node, stamp: int, spec: TensorSpec, chain: tuple[ViewStep, ...]
) -> None:
    """Make the tensor object another view of its memory; what C++ knows of its shape included."""
    with torch._C._DisableTorchDispatch():  # pyright: ignore
        aten.as_strided_.default(tensor, symints(spec.shape), symints(spec.strides), 0)
    tensor.node, tensor.stamp, tensor.spec, tensor.chain = node, stamp, spec, chain


def check_input(tensor: torch.Tensor) -> None:
    if isinstance(tensor, TraceTensor):
        raise UnsupportedOpError("a tensor of another recording is used as an input")
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if not plain and not isinstance(tensor, torch.nn.Parameter):
        raise UnsupportedOpError(f"tensors of type {type(tensor).__name__} are not recorded")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise UnsupportedOpError(f"a {tensor.layout} tensor on {tensor.device} is not recorded")
    if tensor.is_conj() or tensor.is_neg():
        raise UnsupportedOpError("a lazily conjugated or negated tensor is not recorded")


def specs_of(value: Any) -> Any:
    """Nodes replaced by their specs, in nested tuples, lists and dicts."""
    return replaced(value, fx.Node, lambda node: node.meta["val"])


def fresh_versions(outputs: Sequence[TraceTensor]) -> tuple[tuple[int, int], ...]:
    """(output number, version) of the outputs in fresh memory that was written in place."""
    return tuple(
        (number, tensor.base.versions)
        for number, tensor in enumerate(outputs)
        if tensor.base.source == "fresh" and tensor.base.versions and shares_version(tensor)
    )


def call_specs(value: Any) -> Any:
    """The arguments of a call with specs in place of tensors, traced or real."""
    kind = type(value)
    if kind is TraceTensor:
        return value.spec
    if kind is list or kind is tuple:
        return [call_specs(item) for item in value]
    if kind is dict:
        return {key: call_specs(item) for key, item in value.items()}
    return TensorSpec.of(value) if isinstance(value, torch.Tensor) else value


def check_looks(func: Any, looks: Sequence[tuple[torch.dtype, int]], made: Any) -> None:
    """Hold what was recorded of a call to the dtypes and numbers of dimensions that eager gives.

    Raises:
        UnsupportedOpError: they differ.
    """
    results: Sequence[Any] = made if isinstance(made, (tuple, list)) else (made,)
    given = [value for value in results if value is not None]
    tensors = [value for value in given if type(value) is TraceTensor]
    have = [(value.spec.dtype, len(value.spec.shape)) for value in tensors]
    if len(tensors) == len(given) and have != list(looks):
        raise UnsupportedOpError(f"{func} gives {list(looks)}, not {have}")


def with_grad(val: Any, detached: Sequence[int] = ()) -> Any:
    """Specs whose floating results require grad, but for those at the places `detached`."""
    if val is None:
        return None
    if isinstance(val, TensorSpec):
        differentiable = val.dtype.is_floating_point or val.dtype.is_complex
        return replace(val, requires_grad=True) if differentiable else val
    return tuple(spec if spec is None or i in detached else with_grad(spec) for i, spec in enumerate(val))


def without_grad(val: Any) -> Any:
    """Specs none of which requires grad."""
    if val is None:
        return None
    if isinstance(val, TensorSpec):
        return replace(val, requires_grad=False) if val.requires_grad else val
    return tuple(spec and without_grad(spec) for spec in val)


def is_chain(node: fx.Node, chain: Sequence[ViewStep], content: fx.Node) -> bool:
    """Whether the node is `content` seen through the chain."""
    for step in reversed(chain):
        if node.target is not step.op:
            return False
        node = cast(fx.Node, node.args[0])
    return node is content
