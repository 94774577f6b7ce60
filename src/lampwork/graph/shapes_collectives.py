"""Shapes of the functional collectives of torch.distributed. Their results are contiguous, whatever the operands are.

No rule raises `ShapeError`: whether eager refuses a call could only be found out by communicating.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from lampwork.errors import UnsupportedOpError
from lampwork.graph.shapes_common import Result
from lampwork.graph.spec import TensorSpec, contiguous_strides
from lampwork.standard import functools


def _packed(x: TensorSpec, shape: Sequence[int]) -> TensorSpec:
    return TensorSpec(tuple(shape), contiguous_strides(tuple(shape)), x.dtype, x.device)


def _rows(x: TensorSpec) -> int:
    if not x.shape:
        raise UnsupportedOpError("a collective divides a tensor without dimensions")
    return x.shape[0]


def _alike(x: TensorSpec, *args: Any) -> TensorSpec:
    return _packed(x, x.shape)


def _gathered(x: TensorSpec, group_size: int, group: str) -> TensorSpec:
    return _packed(x, (_rows(x) * group_size, *x.shape[1:]))


def _scattered(x: TensorSpec, reduce_op: str, group_size: int, group: str) -> TensorSpec:
    if _rows(x) % group_size != 0:
        raise UnsupportedOpError(f"{x} is scattered to {group_size} processes")
    return _packed(x, (x.shape[0] // group_size, *x.shape[1:]))


def _exchanged(x: TensorSpec, received: Sequence[int], sent: Sequence[int], group: str) -> TensorSpec:
    if sum(sent) != _rows(x):
        raise UnsupportedOpError(f"{x} is sent in parts of {list(sent)}")
    return _packed(x, (sum(received), *x.shape[1:]))


def _each(rule: Callable[..., TensorSpec]) -> Callable[..., Result]:
    return lambda inputs, *args: tuple(rule(x, *args) for x in inputs)


@functools.cache
def collective_rules() -> Mapping[Any, Callable[..., Result]]:
    """Operator -> rule, of those that start a collective; empty if torch was built without them."""
    if not torch.distributed.is_available():
        return {}
    ops = torch.ops._c10d_functional
    return {
        ops.all_reduce.default: _alike,
        ops.broadcast.default: _alike,
        ops.all_gather_into_tensor.default: _gathered,
        ops.reduce_scatter_tensor.default: _scattered,
        ops.all_to_all_single.default: _exchanged,
        ops.all_reduce_coalesced.default: _each(_alike),
        ops.all_gather_into_tensor_coalesced.default: _each(_gathered),
        ops.reduce_scatter_tensor_coalesced.default: _each(_scattered),
        ops.wait_tensor.default: _alike,
    }
